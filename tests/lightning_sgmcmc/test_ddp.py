"""One data-parallel chain on two processes is one chain.

In float64, so that the order of summation, all that may differ, stays below the tolerance.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests import forked

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import sys, warnings
warnings.filterwarnings("ignore")
from functools import partial
from pathlib import Path
import lightning as L
import torch
from torch import nn
from safetensors.torch import save_file
from lightning_sgmcmc import HASGLD, SGHMC, SVRG, ControlVariate, GaussianPrior, RMSProp
from lightning_sgmcmc.chain import OptimizerBurnIn
from lightning_sgmcmc.callbacks import ChainCheckpoint, GradualPruning
from torch.utils.data import DataLoader, TensorDataset
from tests.toy import NUM_FEATURES, Toy, ToyData, toy_data, trainer

folder, sampler, processes, sabotage = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
(folder / "checkpoints").mkdir(parents=True, exist_ok=True)
prior = GaussianPrior(variance=4.0)
make = {
    "hasgld": partial(HASGLD, lr=0.05, prior=prior),
    "sghmc": partial(SGHMC, lr="auto", prior=prior, preconditioner=RMSProp(floor=0.5)),
    "svrg": partial(HASGLD, lr=0.05, prior=prior),
    "control variate": partial(SGHMC, lr="auto", prior=prior),
}[sampler]
chosen = {}
if sampler == "svrg":
    chosen["gradients"] = SVRG(9)
if sampler == "control variate":
    adam = OptimizerBurnIn(partial(torch.optim.Adam, lr=1e-2), 40)
    chosen = {"gradients": ControlVariate(), "burn_in_optimizer": adam}
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(NUM_FEATURES, 8), nn.Tanh(), nn.Linear(8, 1)).double()

class Module(Toy):
    def nll(self, batch):
        return super().nll([t.double() for t in batch])

    def predictive(self, batch):
        return super().predictive([t.double() for t in batch])

    def training_step(self, batch, batch_idx):
        torch.rand(1 + 5 * self.global_rank)  # global generators part; the chain must not care
        super().training_step(batch, batch_idx)
        if sabotage == "yes" and self.global_rank == 1 and self.global_step == 50:
            with torch.no_grad():
                self.net[0].weight += 1e-3

class Few(ToyData):  # a batch for the first process, none for the second
    def val_dataloader(self):
        return DataLoader(TensorDataset(*toy_data(1, 20)), batch_size=20)

    def test_dataloader(self):
        return DataLoader(TensorDataset(*toy_data(2, 30)), batch_size=30)

class Alone(L.LightningDataModule):  # nothing held out: directions are of training examples
    def train_dataloader(self):
        return ToyData().train_dataloader()

module = Module(make, net, burn_in=100, thinning=20, **chosen)
extra = {"strategy": "ddp", "devices": processes} if processes > 1 else {}
run = trainer(folder, 200, [ChainCheckpoint(70)], **extra)
run.fit(module, datamodule={"hasgld": Few, "svrg": Alone}.get(sampler, ToyData)())
rank = module.global_rank
save_file({n: p.detach() for n, p in module.named_parameters()}, folder / f"rank{rank}.safetensors")
keep = run.lightning_module.kept
followed = keep.probes.directions  # the sign of an eigenvector is any
found = {n: getattr(followed, n) for n in ("eigenvalues", "solutions", "variances", "combinations")}
save_file(found, folder / f"directions{rank}.safetensors")
results = [keep.ensemble(name) for name in keep.held_out if name == "test"]
found = {n: getattr(r, n) for r in results for n in ("mean", "epistemic_std")}
save_file(found, folder / f"ensemble{rank}.safetensors")
"""


def run(folder: Path, sampler: str, processes: int) -> None:
    """Run the script on one process, or on two that SLURM's variables bring together."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    job = forked.job(nodes=1, each=2) | {"SLURM_NODEID": "0"} if processes == 2 else {}
    arguments = [str(folder), sampler, str(processes), "no"]
    started = []
    for rank in "01"[:processes]:
        own, said = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank}, folder / f"said{rank}"
        started.append((forked.start(folder, arguments, job | own, said), said))
    try:
        for process, said in started:
            process.join(300)
            assert process.exitcode == 0, said.read_text()
    finally:
        for process, _ in started:
            process.kill()  # nothing where it has ended


@pytest.mark.parametrize("sampler", ["sghmc", "hasgld", "svrg", "control variate"])
def test_two_processes_are_one_chain(tmp_path: Path, sampler: str) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    run(one, sampler, 1)
    run(two, sampler, 2)
    ranks = [load_file(two / f"rank{r}.safetensors") for r in (0, 1)]
    for name, value in ranks[0].items():
        assert torch.equal(value, ranks[1][name]), name
    names = [
        sorted(p.name for p in (f / "samples/chain0").glob("step_*.safetensors"))
        for f in (one, two)
    ]
    assert names[0] == names[1]
    assert len(names[0]) == 5
    for name in names[0]:
        single, joint = (load_file(f / "samples/chain0" / name) for f in (one, two))
        for key, value in single.items():
            torch.testing.assert_close(joint[key], value, rtol=1e-6, atol=1e-7)
    single = load_file(one / "directions0.safetensors")
    for rank in (0, 1):
        joint = load_file(two / f"directions{rank}.safetensors")
        for key, value in single.items():
            torch.testing.assert_close(joint[key], value, rtol=1e-9, atol=1e-9)
    ensembles = [
        load_file(f) for f in (one / "ensemble0.safetensors", two / "ensemble1.safetensors")
    ]
    for key, value in ensembles[0].items():
        torch.testing.assert_close(ensembles[1][key], value, rtol=1e-9, atol=1e-9)


def test_replicas_that_part_are_noticed(tmp_path: Path) -> None:
    """Of a run that starts its second process itself."""
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "two"), "sghmc", "2", "yes"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode != 0
    assert "hold different weights after step 100" in done.stderr
