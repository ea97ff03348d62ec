"""The posterior of a small discriminative RBM: closed forms, modes and a small comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lightning_sgmcmc import Target
from lightning_sgmcmc.target import PerExample
from tasks.experiments.sgfs import kdd99_posterior as study
from tasks.experiments.sgfs.drbm_chains import FlatMachine, Machines, merged
from tasks.nets.drbm import DiscriminativeRBM

MACHINES = Machines(features=3, hidden=2, classes=4)


def problem(count: int, chains: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights [K, d], x [K, n, 3] and y [K, n]."""
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(chains, MACHINES.size, generator=generator, dtype=torch.float64)
    x = torch.randn(chains, count, 3, generator=generator, dtype=torch.float64)
    return theta, x, torch.randint(4, (chains, count), generator=generator)


def test_likelihood_is_that_of_the_network() -> None:
    theta, x, y = problem(6, 2)
    for k in range(2):
        net = DiscriminativeRBM(3, 2, 4).double()
        values = dict(zip("WUcd", MACHINES.split(theta[k]), strict=True))
        net.load_state_dict(values)
        expected = functional.cross_entropy(net(x[k]), y[k], reduction="none")
        torch.testing.assert_close(MACHINES.nll(theta, x, y)[k], expected.detach())
    shared = MACHINES.nll(theta, x[0], y[0])
    torch.testing.assert_close(shared[1], MACHINES.nll(theta[1:], x[0], y[0])[0])


def test_gradients_are_those_of_autograd() -> None:
    theta, x, y = problem(6, 2)
    free = theta.clone().requires_grad_()
    (expected,) = torch.autograd.grad(MACHINES.nll(free, x, y).mean(1).sum(), [free])
    torch.testing.assert_close(MACHINES.gradient(theta, x, y), expected)
    weights = torch.arange(6.0, dtype=torch.float64)
    total = (MACHINES.nll(free, x, y) * weights).sum()
    (expected,) = torch.autograd.grad(total, [free])
    torch.testing.assert_close(MACHINES.gradient(theta, x, y, weights), expected)
    rows = torch.func.jacrev(lambda t: MACHINES.nll(t, x[0], y[0]))(theta[0])
    torch.testing.assert_close(MACHINES.scores(theta[0], x[0], y[0]), rows)


def test_fisher_matrix_is_the_covariance_of_scores_over_labels() -> None:
    theta, x, _ = problem(5, 1)
    counts = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0], dtype=torch.float64)
    p = MACHINES.logits(theta, x[0])[0].softmax(-1)
    expected = torch.zeros(MACHINES.size, MACHINES.size, dtype=torch.float64)
    for i in range(5):
        for label in range(4):
            g = MACHINES.scores(theta[0], x[0, i : i + 1], torch.tensor([label]))[0]
            expected += counts[i] * p[i, label] * torch.outer(g, g)
    torch.testing.assert_close(MACHINES.fisher(theta[0], x[0], counts), expected)


def test_statistics_of_a_chain_are_its_scores() -> None:
    theta, x, y = problem(5, 2)
    net = FlatMachine(MACHINES)
    target = Target(lambda batch: MACHINES.nll(theta, *batch), [theta], 5, chain_dims=1)
    target.per_example = PerExample(net, ["theta"], [theta], net, chain_dims=1)
    target.use((x, y))
    with target.recording():
        pass
    found = target.per_example.matrix()
    for k in range(2):
        torch.testing.assert_close(found[k], MACHINES.scores(theta[k], x[k], y[k]))


def test_images_predict_alike() -> None:
    theta, x, _ = problem(7, 1)
    images = MACHINES.images(theta[0])
    assert len(images) == 8
    assert torch.equal(images[0], theta[0])
    gaps = torch.cdist(images, images) + torch.eye(8)
    assert gaps.min() > 0.1  # eight different places
    p = MACHINES.logits(images, x[0]).softmax(-1)
    torch.testing.assert_close(p, p[:1].expand(8, -1, -1))


def test_draws_at_other_images_are_counted() -> None:
    theta, _, _ = problem(1, 1)
    images = MACHINES.images(theta[0]).numpy()
    draws = np.repeat(images, (5, 1, 0, 0, 2, 0, 0, 0), axis=0) + 1e-3
    covariance = np.eye(MACHINES.size)
    found = study.at_other_images(MACHINES, theta[0], covariance, draws)
    assert found == pytest.approx(3 / 8)


def test_merged_examples_have_the_same_likelihood_and_the_mode_no_gradient() -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(3, (400, 3), generator=generator).float()
    y = (x.sum(1).long() + torch.randint(2, (400,), generator=generator)) % 4
    unique, labels, counts = merged(x, y)
    assert int(counts.sum()) == 400
    assert len(unique) <= 27 * 4
    theta = problem(1, 1)[0].float()
    total = float(MACHINES.nll(theta, x, y).sum())
    found = float((MACHINES.nll(theta, unique, labels) * counts).sum())
    assert found == pytest.approx(total, rel=1e-5)
    unique, counts = unique.double(), counts.double()

    def height(theta: Tensor) -> float:
        nll = MACHINES.nll(theta[None], unique, labels)[0] @ counts
        return float(nll + theta.square().sum())

    mode = MACHINES.mode(unique, labels, counts, precision=2.0, starts=4)
    assert height(mode) < height(MACHINES.mode(unique, labels, counts, precision=2.0, starts=1))
    gradient = MACHINES.gradient(mode[None], unique, labels, counts)[0] + 2.0 * mode
    assert gradient.abs().max() < 0.01  # of a sum over 400 examples


def test_names() -> None:
    names = [cell.name for cell in study.cells()]
    assert len(set(names)) == len(names)
    left, why = study.left_out()
    assert {n.removeprefix("full-") for n in left} == {"reference", *study.LABELS}
    assert "take hours" in why


def test_a_small_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGFS-f at a small step is near HMC; a step of SGLD far beyond its limit is not finite."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(3000, 3, generator=generator)
    logits = MACHINES.logits(0.7 * problem(1, 1, seed=7)[0].float(), x)[0]
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    monkeypatch.setattr(study, "_examples", lambda size: (x, labels))
    monkeypatch.setattr(study, "CLASSES", 4)
    monkeypatch.setattr(study, "BATCH", 100)
    monkeypatch.setattr(study, "BLOCK", 50)
    size = study.Size(rows=None, draws=240, chains=6, iterations=1500, thinning=3, hmc_chains=6)
    sgfs = replace(study.METHODS["sgfs_full"], values=(2.0,))
    sgld = replace(study.METHODS["sgld"], values=(1.0, 1e-3))
    (tmp_path / "sgfs_full").mkdir()
    with pytest.raises(FileNotFoundError, match="run the cell reference first"):
        study.compute(sgfs, tmp_path / "sgfs_full", size)
    results: dict[str, Any] = {}
    for name in ("reference", "sgld"):
        (tmp_path / name).mkdir()
    results["reference"] = study.reference(tmp_path / "reference", size)
    results["sgfs_full"] = study.compute(sgfs, tmp_path / "sgfs_full", size)
    results["sgld"] = study.compute(sgld, tmp_path / "sgld", size)
    assert results["reference"]["acceptance"] == pytest.approx(0.8, abs=0.1)
    (row,) = results["sgfs_full"]["rows"]
    assert 0.6 < row["variance_ratio"][1] < 1.5
    assert row["errors"][-1]["e2"] < row["errors"][0]["e2"]
    assert "act" not in results["sgld"]["rows"][0]
    text = study.EXPERIMENT.render(results)
    assert "| SGLD | epsilon = 1 | diverges |" in text
    assert f"| SGFS-f, prior counted, frozen | alpha = 2 | {row['variance_ratio'][0]:.3f}, " in text
    assert "HMC: not run." in text  # of the full size
    assert set(study.figures(results, tmp_path)) == {
        "kdd99-posterior-marginals",
        "kdd99-posterior-errors",
    }
