"""The classification task: its likelihood, and what a run says of its predictions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_sgmcmc import (
    PSGLD,
    SGLD,
    BatchStream,
    GaussianPrior,
    Posterior,
    Sampler,
    load_posterior,
)
from lightning_sgmcmc.posterior import KeptDraws
from lightning_sgmcmc.run import cli
from tasks.classification import Classification
from tasks.nets.mlp import MLP
from tasks.nets.smooth_mlp import SmoothMLP
from tests.toy import trainer

CLASSES = 3
CENTRES = torch.tensor([[0.0, 2.0], [1.7, -1.0], [-1.7, -1.0]])


def blobs(count: int, seed: int, spread: float = 0.5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (count,), generator=generator)
    return CENTRES[y] + spread * torch.randn(count, 2, generator=generator), y


class Blobs(L.LightningDataModule):
    """Three round clouds, and points all over the plane as examples of another kind."""

    num_classes = CLASSES

    def __init__(self, ood: bool = True, batch_size: int = 40) -> None:
        super().__init__()
        self.ood, self.batch_size = ood, batch_size

    def train_dataloader(self) -> BatchStream:
        return BatchStream(blobs(200, 0), self.batch_size)

    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*blobs(100, 4)), batch_size=100)

    def test_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*blobs(300, 1)), batch_size=100)

    def extra_dataloaders(self) -> dict[str, Any]:
        if not self.ood:
            return {}
        x = torch.zeros(60, 2) + 0.05 * blobs(60, 2)[0]  # the middle, as far from each as can be
        return {"middle": DataLoader(TensorDataset(x, torch.zeros(60).long()), batch_size=60)}


class Task(Classification):
    """Two hidden layers are enough."""

    def __init__(
        self,
        sampler: Callable[[Iterable[Any]], Sampler],
        hidden: int = 16,
        outputs: int | None = None,
        **chain: Any,
    ) -> None:
        super().__init__(MLP((hidden,), outputs=outputs), sampler, **chain)


def fitted(folder: Path, **chain: Any) -> tuple[Task, KeptDraws]:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"burn_in": 300, "thinning": 10} | chain
    sampler = partial(PSGLD, lr=3e-3, prior=GaussianPrior(variance=1.0))
    module = Task(sampler, **settings)
    run = trainer(folder, 600, log_every_n_steps=100)
    run.fit(module, datamodule=Blobs())
    return module, run.lightning_module.kept


def test_likelihood_and_prediction_by_hand() -> None:
    net = nn.Linear(2, CLASSES)
    module = Classification(net, partial(SGLD, lr=0.1))
    x, y = blobs(5, 3)
    scores = (x @ net.weight.T + net.bias).detach().double().numpy()
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    expected = torch.from_numpy(p).float()
    nll = -expected[torch.arange(5), y].log()
    with torch.no_grad():
        torch.testing.assert_close(module.predictive((x, y)), expected)
        torch.testing.assert_close(module.nll((x, y)), nll)
        both = module.moments_and_nll((x, y))
    torch.testing.assert_close(both[0], expected)
    torch.testing.assert_close(both[1], nll)


def test_labels_are_drawn_from_the_model() -> None:
    """Frequencies of 20,000 labels for one example are within 4 standard errors."""
    module = Classification(nn.Linear(2, CLASSES), partial(SGLD, lr=0.1))
    count = 20_000
    x = torch.tensor([[0.4, -0.3]]).expand(count, 2)
    uniforms = torch.rand(count, 1, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        _, y = module.draw_labels(((x, torch.zeros(count)), uniforms))
        p = module.predictive((x[:1], x))[0]
        certain = module.draw_labels(((x[:2], x), torch.tensor([[0.0], [1 - 2**-24]])))[1]
    frequencies = torch.bincount(y, minlength=CLASSES) / count
    assert bool(((frequencies - p).abs() < 4 * (p * (1 - p) / count).sqrt()).all())
    assert certain.tolist() == [0, CLASSES - 1]


def test_chains_agree_and_the_middle_is_strange(tmp_path: Path) -> None:
    module, keep = fitted(tmp_path, num_chains=2)
    found = module.describe(module.kept)
    assert found["chains"]["agreement"] > 0.97
    assert 0 < found["chains"]["total_variation"] < 0.05
    means = keep.chain_means("test")
    assert means is not None
    labels = keep.held_out["test"].examples[1]
    for p, error, nll in zip(
        means,
        found["chains"]["metrics"]["error_percent"],
        found["chains"]["metrics"]["nll"],
        strict=True,
    ):
        assert error == pytest.approx(100 * float((p.argmax(1) != labels).double().mean()))
        assert nll == pytest.approx(-float(p[torch.arange(300), labels].log().mean()))
    strange = found["out_of_distribution"]["middle"]
    assert strange["auroc"] > 0.95
    assert strange["entropy"] > 0.5  # log 3 is 1.1
    metrics = module.metrics(keep.ensemble("test"), keep.held_out["test"].examples)
    assert metrics["error_percent"] < 2  # Bayes' rule: less than 1
    assert set(keep.reference) == {
        "val",
        "test",
    }  # the others have no labels
    assert set(module.figures(keep)) == {"weights", "reliability", "error", "entropy"}
    last = keep.history[-1]["test/ensemble_error_percent"]
    assert last == metrics["error_percent"]


def test_a_run_from_the_command_line_says_it_all(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = cli.main(
        tmp_path,
        [
            "--model=tests.tasks.test_classification.Task",
            "--model.sampler=PSGLD",
            "--model.sampler.lr=0.003",
            "--model.burn_in=300",
            "--model.thinning=10",
            "--data=tests.tasks.test_classification.Blobs",
            "--trainer.max_steps=600",
            "--trainer.accelerator=cpu",
            "--wandb_project=null",
        ],
    )
    printed = capsys.readouterr().out
    for row in ("error, ensemble of draws", "Brier score", "AUROC of the entropy, middle"):
        assert row in printed
    content = json.loads((folder / "results.json").read_text())
    assert {"error_percent", "nll", "brier", "ece", "entropy"} == set(
        content["metrics"]["ensemble"]
    )
    figures = {p.stem for p in (folder / "figures").glob("*.png")}
    assert {"weights", "reliability", "error", "entropy"} <= figures
    # The sizes that the data gave the network are those of its draws.
    x, y = blobs(300, 1)
    p = load_posterior(folder).predict(x).mean
    error = 100 * float((p.argmax(1) != y).double().mean())
    assert error == pytest.approx(content["metrics"]["ensemble"]["error_percent"], abs=1)


def test_a_filter_of_the_datas_size_is_that_of_the_draws(tmp_path: Path) -> None:
    x, y = blobs(200, 0)
    images = torch.cat([x, x.flip(1)], 1)

    def made(inputs: int | None) -> Classification:
        net = SmoothMLP((8,), inputs=inputs, outputs=CLASSES)
        sampler = partial(PSGLD, lr=3e-3, prior=GaussianPrior(variance=1.0))
        return Classification(net, sampler, burn_in=20, thinning=20)

    run = trainer(tmp_path, 60)
    run.fit(made(4), BatchStream((images, y), 40), DataLoader(TensorDataset(images, y), 200))
    kept = Posterior.from_trainer(run)
    loaded = load_posterior(kept.stores[0].folder.parent.parent, made(None))
    torch.testing.assert_close(loaded.predict(images).mean, kept.predict(images).mean)


@pytest.mark.parametrize("hidden", [(), (5,)])
def test_a_network_takes_its_open_sizes_from_the_data(hidden: tuple[int, ...]) -> None:
    open_net = MLP(hidden, outputs=None)
    torch.manual_seed(1)
    open_net.take_sizes(4, 3)
    torch.manual_seed(1)
    open_net.take_sizes(4, 3)  # idle: nothing is drawn anew
    assert torch.equal(torch.rand(1), torch.rand(1, generator=torch.Generator().manual_seed(1)))
    assert open_net(torch.zeros(2, 4)).shape == (2, 3)
    assert [p.shape for p in open_net.parameters()] == [
        p.shape for p in MLP(hidden, inputs=4, outputs=3).parameters()
    ]
    bound = open_net.layers[0].in_features ** -0.5
    assert 0 < float(open_net.layers[0].weight.detach().abs().max()) <= bound  # as torch draws them
    with pytest.raises(ValueError, match="takes 4 inputs, the data have 5"):
        open_net.take_sizes(5, 3)


def test_a_network_with_too_few_outputs_is_refused(tmp_path: Path) -> None:
    module = Task(partial(SGLD, lr=0.1), outputs=2, burn_in=1)
    with pytest.raises(ValueError, match=r"the data have 3 classes: it must give \[2, 3\]"):
        trainer(tmp_path, 3).fit(module, datamodule=Blobs())


def test_an_extra_set_cannot_take_the_place_of_the_test_set(tmp_path: Path) -> None:
    class Wrong(Blobs):
        def extra_dataloaders(self) -> dict[str, Any]:
            return {"test": self.test_dataloader()}

    module = Task(partial(SGLD, lr=0.1), burn_in=1)
    with pytest.raises(ValueError, match="names 'test', which is no extra set"):
        trainer(tmp_path, 3).fit(module, datamodule=Wrong())
