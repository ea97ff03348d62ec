"""A chain that is killed and continued draws what it would have drawn."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from lightning_sgmcmc import (
    HASGLD,
    HMC,
    PSGLD,
    SGHMC,
    SGLD,
    SVRG,
    ControlVariate,
    DiagonalFisher,
    GaussianPrior,
    NaturalLangevin,
    RMSProp,
)
from lightning_sgmcmc.callbacks import ChainCheckpoint, GradualPruning
from lightning_sgmcmc.chain.burn_in import OptimizerBurnIn
from tests.toy import NUM_FEATURES, Toy, ToyData, trainer

ROOT = Path(__file__).resolve().parents[2]
PRIOR = GaussianPrior(variance=4.0)
SAMPLERS: dict[str, Any] = {
    "sgld": partial(SGLD, lr=1e-3, prior=PRIOR),
    "psgld": partial(PSGLD, lr=1e-3, prior=PRIOR),
    "sghmc": partial(SGHMC, lr="auto", prior=PRIOR),
    "hasgld": partial(HASGLD, lr=0.05, prior=PRIOR),
    "hasgld_paper": partial(HASGLD, lr=1e-3, prior=PRIOR, paper_mode=True),
    "chosen_gradients": partial(SGLD, lr="auto", prior=PRIOR),
    "control_variate": partial(SGHMC, lr=1e-2, prior=PRIOR),
    "svrg": partial(PSGLD, lr=1e-3, prior=PRIOR),
    "natural": partial(NaturalLangevin, lr=1e-3, prior=PRIOR),
    "hmc_fisher": partial(HMC, lr=1e-3, prior=PRIOR, preconditioner=DiagonalFisher()),
}
GRADIENTS: dict[str, Any] = {
    "chosen_gradients": "auto",
    "control_variate": ControlVariate(),
    "svrg": SVRG(4),
}


def module(name: str) -> Toy:
    torch.manual_seed(3)
    bias = name != "natural"  # whose metric has nothing of a unit without one
    net = nn.Sequential(nn.Linear(NUM_FEATURES, 8, bias), nn.Tanh(), nn.Linear(8, 1, bias))
    sampler = SAMPLERS[name]
    if name == "sghmc":
        sampler = partial(SGHMC, lr="auto", prior=PRIOR, preconditioner=RMSProp(floor=0.5))
    optimized = name in ("sghmc", "chosen_gradients", "control_variate")
    burn_in = OptimizerBurnIn(partial(torch.optim.Adam, lr=1e-2), 9) if optimized else None
    return Toy(
        sampler,
        net,
        burn_in=13,
        thinning=3,
        burn_in_optimizer=burn_in,
        gradients=GRADIENTS.get(name),
    )


def draws(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    files = sorted((folder / "samples" / "chain0").glob("step_*.safetensors"))
    return {file.name: load_file(file) for file in files}


def callbacks(every: int) -> list[Any]:
    return [GradualPruning(0.3, start=2, stop=11, every=3), ChainCheckpoint(every)]


class KilledError(RuntimeError):
    pass


class KillAt(ChainCheckpoint):
    """Die right after a step, in the middle of the run."""

    def __init__(self, step: int) -> None:
        super().__init__(10**9)
        self.step = step

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        if trainer.global_step == self.step:
            raise KilledError


@pytest.mark.parametrize("name", SAMPLERS)
# Before the optimizer's end, in burn-in, where C freezes, and between two draws.
@pytest.mark.parametrize(("every", "kill"), [(5, 7), (11, 12), (13, 15), (17, 21)])
def test_resumed_chain_is_bit_equal(tmp_path: Path, name: str, every: int, kill: int) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        (folder / "checkpoints").mkdir(parents=True)
    trainer(whole, 30, callbacks(10**6)).fit(module(name), datamodule=ToyData())
    with pytest.raises(KilledError):
        trainer(broken, 30, [*callbacks(every), KillAt(kill)]).fit(
            module(name), datamodule=ToyData()
        )
    torch.manual_seed(99)  # global state differs after the resume, and must not matter
    fresh = module(name)
    trainer(broken, 30, callbacks(10**6)).fit(
        fresh,
        datamodule=ToyData(),
        ckpt_path=str(broken / "checkpoints" / "last.ckpt"),
        weights_only=True,
    )
    expected, found = draws(whole), draws(broken)
    assert list(expected) == list(found)
    assert len(expected) == 5
    for file, tensors in expected.items():
        for key, tensor in tensors.items():
            assert torch.equal(tensor, found[file][key]), (file, key)
    indices = [json.loads((f / "samples/chain0/index.json").read_text()) for f in (whole, broken)]
    assert indices[0] == indices[1]


def test_resumed_run_reports_the_same_ensemble(tmp_path: Path) -> None:

    predictions = []
    for name, kill in (("whole", None), ("broken", 26)):
        folder = tmp_path / name
        (folder / "checkpoints").mkdir(parents=True)
        extra = [KillAt(kill)] if kill else []
        run = trainer(folder, 40, [*callbacks(10), *extra])
        task = module("psgld")
        if kill:
            with pytest.raises(KilledError):
                run.fit(task, datamodule=ToyData())
            run = trainer(folder, 40, callbacks(10))
            task = module("psgld")
            run.fit(
                task,
                datamodule=ToyData(),
                ckpt_path=str(folder / "checkpoints/last.ckpt"),
                weights_only=True,
            )
        else:
            run.fit(task, datamodule=ToyData())
        keep = run.lightning_module.kept
        predictions.append((keep.ensemble("test"), keep.num_draws, keep.history))
    assert predictions[0][1] == predictions[1][1] == 9
    assert torch.equal(predictions[0][0].mean, predictions[1][0].mean)
    assert torch.equal(predictions[0][0].epistemic_std, predictions[1][0].epistemic_std)
    assert predictions[0][2] == predictions[1][2]
    texts = [(tmp_path / n / "metrics.csv").read_text() for n in ("whole", "broken")]
    assert texts[0] == texts[1]


SCRIPT = """
import sys, torch
from pathlib import Path
from tests.lightning_sgmcmc.test_resume import callbacks, module
from tests.toy import ToyData, trainer
folder = Path(sys.argv[1])
last = folder / "checkpoints" / "last.ckpt"
last.parent.mkdir(parents=True, exist_ok=True)
print("ready", flush=True)
trainer(folder, 800, callbacks(20)).fit(
    module("sghmc"), datamodule=ToyData(), weights_only=True,
    ckpt_path=str(last) if last.exists() else None)
"""


def test_chain_survives_kill_9(tmp_path: Path) -> None:
    """Killed twice at arbitrary moments, a process ends with the draws of a whole one."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    folder, whole = tmp_path / "killed", tmp_path / "whole"
    for _ in range(2):
        process = subprocess.Popen(
            [*command, str(folder)], env=environment, stdout=subprocess.PIPE, cwd=ROOT
        )
        assert process.stdout is not None
        process.stdout.readline()
        before = _last(folder)
        deadline = time.monotonic() + 60
        while _last(folder) == before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.15)
        process.send_signal(signal.SIGKILL)
        process.stdout.close()
        process.wait()
    assert (folder / "checkpoints" / "last.ckpt").exists()
    subprocess.run([*command, str(folder)], env=environment, check=True, cwd=ROOT)
    (whole / "checkpoints").mkdir(parents=True)
    trainer(whole, 800, callbacks(10**6)).fit(module("sghmc"), datamodule=ToyData())
    expected, found = draws(whole), draws(folder)
    assert list(expected) == list(found)
    assert len(expected) > 100
    assert all(torch.equal(t, found[f][k]) for f, ts in expected.items() for k, t in ts.items())


def _last(folder: Path) -> float:
    path = folder / "checkpoints" / "last.ckpt"
    return path.stat().st_mtime_ns if path.exists() else 0.0
