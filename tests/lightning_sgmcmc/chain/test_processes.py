"""``--trainer.strategy chains``: every process runs chains of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[3]

SCRIPT = """
import sys, warnings
warnings.filterwarnings("ignore")
from functools import partial
from pathlib import Path
import torch
from torch import nn
from safetensors.torch import save_file
from lightning_sgmcmc import SGHMC, GaussianPrior
from lightning_sgmcmc.callbacks import ChainCheckpoint
from tests.toy import NUM_FEATURES, Toy, ToyData, trainer

folder, processes, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
resume = sys.argv[4] == "resume"
(folder / "checkpoints").mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(NUM_FEATURES, 8), nn.Tanh(), nn.Linear(8, 1))
make = partial(SGHMC, lr=1e-2, prior=GaussianPrior(variance=4.0))
chains = 4 // processes
module = Toy(make, net, burn_in=10, thinning=5, num_chains=chains)
extra = {"strategy": "chains", "devices": processes} if processes > 1 else {}
run = trainer(folder, steps, [ChainCheckpoint(20)], **extra)
run.fit(
    module, datamodule=ToyData(),
    ckpt_path=str(folder / "checkpoints" / "last.ckpt") if resume else None, weights_only=True,
)
keep = run.lightning_module.kept
result = keep.ensemble("test")
mean = keep.mean_weights()
if run.is_global_zero:
    found = {"mean": result.mean, "std": result.epistemic_std, **mean}
    save_file(found, folder / "result.safetensors")
"""


def launch(folder: Path, processes: int, steps: int, resume: bool = False) -> None:
    folder.mkdir(exist_ok=True)
    script = folder / "run.py"
    script.write_text(SCRIPT)
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
    }
    arguments = [str(folder), str(processes), str(steps), "resume" if resume else "start"]
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env=environment,
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_processes_with_chains_are_one_process_with_them_all(tmp_path: Path) -> None:
    """Four chains: draws, ensemble and mean weights are those of one process.

    As two processes of two, also after a resume, and as four processes of one.
    """
    one, two, four = tmp_path / "one", tmp_path / "two", tmp_path / "four"
    launch(one, 1, 40)
    launch(two, 2, 20)
    launch(two, 2, 40, resume=True)
    launch(four, 4, 40)
    draws = []
    for chain in range(4):
        single, *others = (
            load_file(folder / f"samples/chain{chain}/step_40.safetensors")
            for folder in (one, two, four)
        )
        for joint in others:
            for name, value in single.items():
                torch.testing.assert_close(joint[name], value, rtol=1e-4, atol=1e-5)
        draws.append(single["net.0.weight"])
    for i in range(4):
        for j in range(i):
            assert (draws[i] - draws[j]).abs().max() > 1e-2
    expected, *results = (load_file(f / "result.safetensors") for f in (one, two, four))
    for found in results:
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
