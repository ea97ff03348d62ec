"""Every task with a user's own network: from the command line, from Python, and of wrong shapes."""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_sgmcmc import PSGLD, GaussianPrior, load_posterior
from lightning_sgmcmc.metrics import class_metrics, label_nll, relative_l2_error
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.run import cli
from tasks.classification import Classification
from tasks.data.class_table import ClassTableData
from tasks.data.classes import Examples
from tasks.data.images import ImageData
from tasks.data.pde_perm import PDEPermData
from tasks.data.pde_source import PDESourceData
from tasks.data.uci import UCIData
from tasks.nets.normalisation import FrozenBatchNorm2d
from tasks.networks import fit_network
from tasks.pde_perm import PDEPerm
from tasks.pde_source import PDESource
from tasks.uci import UCIRegression
from tests.device import DEVICE
from tests.toy import trainer

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTED = (ROOT / "docs" / "own-task.md").read_text()
EDGES = {"pde_source": 7320, "pde_perm": 144}


class Stripes(ImageData):
    """Images of 6x6 pixels, bright in their upper or in their lower half."""

    shape, num_classes = (1, 6, 6), 2

    def images(self) -> tuple[Examples, Examples]:
        rng = np.random.default_rng(0)
        y = rng.integers(0, 2, 90)
        x = rng.integers(0, 100, (90, 1, 6, 6))
        x[y == 0, :, :3] += 100
        x[y == 1, :, 3:] += 100
        return (x[:60].astype(np.uint8), y[:60]), (x[60:].astype(np.uint8), y[60:])


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of tables, in which the flows of the two PDE problems are solved once."""
    folder = tmp_path_factory.mktemp("sets")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3))
    numbers = [",".join(map(repr, row)) for row in np.column_stack([x, x @ [1, -1, 2]]).tolist()]
    words = [
        f"{line},{'high' if s > 0 else 'low'}" for line, s in zip(numbers, x[:, 0], strict=True)
    ]
    (folder / "numbers.csv").write_text("\n".join(["a,b,c,y", *numbers]))
    (folder / "words.csv").write_text("\n".join(["a,b,c,y,kind", *words]))
    return folder


def data_of(task: str, sets: Path) -> Any:
    made = {
        "images": Stripes,
        "class_table": partial(ClassTableData, str(sets / "words.csv"), num_val=8),
        "uci_regression": partial(UCIData, file=str(sets / "numbers.csv")),
        "pde_source": partial(PDESourceData, str(sets), num_samples=20),
        "pde_perm": partial(PDEPermData, str(sets), grid=8, num_samples=30, num_test=8, terms=6),
    }[task](batch_size=10)
    made.prepare_data()
    made.setup()
    return made


MODULES: dict[str, Any] = {
    "images": Classification,
    "class_table": Classification,
    "uci_regression": UCIRegression,
    "pde_source": PDESource,
    "pde_perm": partial(PDEPerm, power=1.0, conservative=True, symmetric=True),
}
OUTPUTS = {"images": 2, "class_table": 2, "uci_regression": 1, **EDGES}


@pytest.fixture(autouse=True)
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the network that docs/own-task.md shows, which knows none of the tasks."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENTED, re.S)
    (tmp_path / "my_net.py").write_text(next(b for b in blocks if "class MyNet" in b))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_net", raising=False)


def command(task: str, sets: Path, out: Path, outputs: int) -> Path:
    """Run a task with that network, as a user does from the shell."""
    data = {
        "images": ["--data=tests.tasks.test_own_network.Stripes", "--data.flatten=false"],
        "class_table": [f"--data.file={sets / 'words.csv'}", "--data.num_val=8"],
        "uci_regression": [f"--data.file={sets / 'numbers.csv'}"],
        "pde_source": [f"--data.root={sets}", "--data.num_samples=20"],
        "pde_perm": [
            f"--data.root={sets}", "--data.grid=8", "--data.num_samples=30", "--data.terms=6",
            "--data.num_test=8", "--data.num_val=0", "--model.noise=residuals",
        ],
    }[task]  # fmt: skip
    name = "mnist" if task == "images" else task
    prior = ["--model.sampler.prior=GaussianPrior", "--model.sampler.prior.variance=1"]
    return cli.main(
        ROOT / "configs",
        [
            f"--task={name}", *data, "--data.batch_size=10", *prior,
            "--model.net=my_net.MyNet", f"--model.net.edges={outputs}", "--model.net.hidden=6",
            "--model.num_chains=1", "--model.burn_in_optimizer.steps=4", "--model.burn_in=6",
            "--model.thinning=2", "--trainer.max_steps=12", f"--out={out}",
            "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false",
            "--trainer.logger=false",
        ],
    )  # fmt: skip


@pytest.mark.parametrize("task", MODULES)
def test_a_run_from_the_shell_and_its_posterior(task: str, sets: Path, tmp_path: Path) -> None:
    """What results.json says of the ensemble is what the stored draws and constants say."""
    folder = command(task, sets, tmp_path / "run", OUTPUTS[task])
    results = json.loads((folder / "results.json").read_text())
    data = data_of(task, sets)
    if task == "pde_perm":  # the scales are those of the run, not of these data
        data.path.rename(tmp_path / "gone")
    x, y = data.tensors("test")
    posterior = load_posterior(folder)
    assert len(posterior) == results["num_draws"] == 3
    found = posterior.predictive((x, y))
    ensemble = results["metrics"]["ensemble"]
    if isinstance(posterior.module, Classification):
        expected = class_metrics(found.mean, label_nll(found.mean, y), y)["brier"]
        assert ensemble["brier"] == pytest.approx(expected, rel=1e-5)
    elif task == "uci_regression":
        rmse = float((found.mean - y).square().mean().sqrt())
        assert ensemble["rmse"] == pytest.approx(rmse, rel=1e-5)
    else:
        error = 100 * relative_l2_error(found.mean, y.double())
        assert ensemble["relative_l2_mean_percent"] == pytest.approx(float(error.mean()), rel=1e-5)
    assert ensemble["nll"] == pytest.approx(float(found.nll.mean()), rel=1e-4)
    assert bool((found.epistemic_std > 0).any())


@pytest.mark.parametrize("task", MODULES)
def test_a_sequential_from_python(task: str, sets: Path, tmp_path: Path) -> None:
    """Two chains of a network that is made of torch's layers alone."""
    data, wanted = data_of(task, sets), OUTPUTS[task]
    inputs = int(np.prod(data.tensors("train")[0].shape[1:]))

    def made() -> SGMCMCModule:
        net = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 4), nn.SiLU(), nn.Linear(4, wanted))
        sampler = partial(PSGLD, lr=1e-5, prior=GaussianPrior(1.0))
        module: SGMCMCModule = MODULES[task](net, sampler, burn_in=4, num_chains=2)
        return module

    run = trainer(tmp_path, 8, limit_val_batches=0)
    run.fit(made(), datamodule=data)
    prediction = run.lightning_module.kept.ensemble("test")
    assert bool(prediction.mean.isfinite().all())
    held_out = tuple(t.to(DEVICE) for t in data.tensors("test"))
    stored = load_posterior(tmp_path, made()).predictive(held_out)
    torch.testing.assert_close(stored.mean, prediction.mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("task", MODULES)
def test_outputs_of_another_shape_are_one_line(
    task: str, sets: Path, tmp_path: Path, capsys: Any
) -> None:
    shape = list(data_of(task, sets).tensors("train")[0].shape[1:])
    seen = [2, 1, *shape] if task in EDGES else [2, *shape]
    wanted = OUTPUTS[task]
    with pytest.raises(SystemExit) as stop:
        command(task, sets, tmp_path / "run", 5)
    assert stop.value.code == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"the network gives [2, 5] for two examples {seen}, but the data have {wanted}" in line
    assert f"it must give [2, {wanted}]" in line
    assert not (tmp_path / "run" / "results.json").exists()


@pytest.mark.parametrize("task", MODULES)
def test_inputs_of_another_shape_are_one_line(task: str, sets: Path, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(7, OUTPUTS[task]))
    module = MODULES[task](net, partial(PSGLD, lr=1e-5), burn_in=1)
    with pytest.raises(ValueError, match=r"does not take two examples \[2, .* cannot be multi"):
        trainer(tmp_path, 2).fit(module, datamodule=data_of(task, sets))


class Counting(nn.Module):
    """A user's network that has its sizes told, in layers that were there before."""

    def __init__(self, empty: bool) -> None:
        super().__init__()
        if empty:
            self.weight = nn.Parameter(torch.empty(0))

    def take_sizes(self, inputs: int, outputs: int) -> None:
        self.weight = nn.Parameter(torch.ones(inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def test_any_class_may_take_sizes() -> None:
    net = Counting(empty=True)
    fit_network(net, torch.ones(5, 3), 4)
    assert net.weight.shape == (3, 4)
    with pytest.raises(ValueError, match=r"Counting.take_sizes adds the parameters weight"):
        fit_network(Counting(empty=False), torch.ones(5, 3), 4)


def test_frozen_normalisation_in_any_network_gets_its_statistics() -> None:
    """They are the means over batches, here one, of its mean; modes stay as they were."""
    layers = nn.Sequential(FrozenBatchNorm2d(1), nn.Dropout(), nn.Flatten(), nn.Linear(4, 3))
    x = torch.arange(80.0).reshape(20, 1, 2, 2)
    fit_network(layers, x, 3)
    assert float(layers[0].running_mean) == pytest.approx(39.5)
    assert layers[1].training
