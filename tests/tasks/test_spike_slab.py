"""The spike-and-slab regression: its data, its exact reference, what it finds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate
from torch import Tensor

from lightning_sgmcmc import HASGLD, SpikeAndSlabPrior
from tasks.experiments.hasgld import spike_slab
from tasks.experiments.hasgld.gibbs import gibbs
from tasks.experiments.hasgld.spike_slab_chains import THINNING, Chains, Data, run
from tasks.experiments.hasgld.spike_slab_report import errors, running_means, scores

# Data


def test_data_are_those_of_the_paper() -> None:
    """Covariance of 20,000 rows within 5 standard errors; noise variance 3 within 5 of its own."""
    data = Data.simulate(1, n=20_000, p=6, held_out=10)
    x, y = (each[0].numpy() for each in data.train)
    steps = abs(np.subtract.outer(np.arange(6), np.arange(6)))
    assert np.allclose(data.covariance, 0.8 ** (steps / 4))
    assert abs(np.cov(x.T) - data.covariance).max() < 5 * np.sqrt(2 / 20_000)
    noise = y - 3 * x[:, 0] - x[:, 1]
    assert noise.var() == pytest.approx(3, abs=5 * 3 * np.sqrt(2 / 20_000))


def test_data_sets_do_not_depend_on_their_number() -> None:
    few, many = Data.simulate(2), Data.simulate(3)
    for part in ("train", "validation", "test"):
        for a, b in zip(getattr(few, part), getattr(many, part), strict=True):
            assert torch.equal(a, b[:2])
    assert [len(x[0]) for x in (many.train[0], many.validation[0], many.test[0])] == [100, 50, 50]
    rows = torch.cat([many.train[0], many.validation[0], many.test[0]], 1).reshape(600, -1)
    assert len(rows.unique(dim=0)) == 600


# The exact reference


def test_gibbs_on_an_orthogonal_design() -> None:
    """X'X = n I leaves independent coordinates, whose moments quadrature gives.

    3,000 draws, of which a coordinate has an ESS of 1,000 or more: 6 standard errors.
    """
    rng = np.random.default_rng(0)
    n, p = 30, 6
    x = np.linalg.qr(rng.standard_normal((n, p)))[0] * n**0.5
    y = x @ np.array([2.0, -0.6, 0.3, 0.0, 0.0, 1.0]) + rng.standard_normal(n)
    kink = np.array([0.0, 3.0, 8.0, 8.0, 20.0, 1.0])
    curvature = np.array([0.5, 0.0, 1.0, 0.0, 0.2, 30.0])
    variance, ols = 1.7, x.T @ y / n
    stack = [torch.from_numpy(a)[None] for a in (x, y, kink, curvature)]
    mean, deviation = gibbs(*stack[:2], torch.tensor([variance]).double(), *stack[2:], draws=3_000)
    for j in range(p):

        def density(t: float, power: int = 0, j: int = j) -> float:
            fit = n * (t - ols[j]) ** 2 / (2 * variance)
            return t**power * np.exp(-fit - kink[j] * abs(t) - curvature[j] * t**2 / 2)

        moments = [
            integrate.quad(density, -6, 6, args=(k,), points=[0, ols[j]], limit=200)[0]
            for k in range(3)
        ]
        exact = moments[1] / moments[0]
        spread = np.sqrt(moments[2] / moments[0] - exact**2)
        assert mean[0, j] == pytest.approx(exact, abs=6 * spread / 1000**0.5)
        assert deviation[0, j] == pytest.approx(spread, rel=6 / 2000**0.5)


# Chains


def repeated(chains: int) -> Data:
    """Return one easy data set, p = 12 and hardly correlated, many times over."""
    data = Data.simulate(1, n=60, p=12, correlation=0.3, held_out=20, seed=3)
    parts = {
        part: tuple(each.expand(chains, *each.shape[1:]) for each in getattr(data, part))
        for part in ("train", "validation", "test")
    }
    return dataclasses.replace(data, **parts)


def test_frozen_chains_draw_from_the_exact_posterior() -> None:
    """Each of 24 chains has hyper-parameters of its own; Gibbs knows what they then draw from.

    Averaged over the chains, a coordinate has over 1,000 effective draws of either kind: 5
    standard errors of a mean are .2 sd, of a standard deviation 16 %. The step's own bias is 6 %.
    """
    data = repeated(24)
    found = run(spike_slab.METHODS["sgld"].make, 0.15, *data.train, 600, 2500)
    exact, deviation = gibbs(*data.train, found.variance, *found.rates, draws=200, burn_in=50)
    draws = found.sampled
    gap = (draws.mean(1) - exact).mean(0) / deviation.mean(0)
    assert abs(gap).max() < 0.2
    ratio = draws.std(1).mean(0) / deviation.mean(0)
    assert abs(ratio - 1).max() < 0.16


@pytest.mark.parametrize("name", ["sgld", "hasgld1"])
def test_true_coefficients_come_first(name: str) -> None:
    data = Data.simulate(4, n=100, p=12, correlation=0.3, held_out=20)
    method = spike_slab.METHODS[name]
    lr = {"sgld": 0.15, "hasgld1": 0.3}[name]
    found = run(method.make, lr, *data.train, 800, 400)
    order = np.abs(found.sampled.mean(1)).argsort(1)[:, ::-1]
    assert (order[:, :2] == [0, 1]).all()
    assert (found.rho[:, 0] > 0.99).all()
    assert (found.rho[:, 2:] < 0.2).all()


def test_a_chain_alone_is_the_one_in_the_stack() -> None:
    data = Data.simulate(3, n=20, p=6, held_out=5)
    make = spike_slab.METHODS["hasgld2"].make
    stacked = run(make, 0.1, *data.train, 40, 20)
    alone = run(make, 0.1, *data.train, 40, 20, chain=1)
    for name in ("adapting", "sampled", "rho", "delta"):
        both = getattr(stacked, name)[1:2], getattr(alone, name)
        np.testing.assert_allclose(*both, rtol=1e-7, atol=1e-10)


# Scores


def test_running_means_are_of_the_second_half() -> None:
    draws = np.arange(16.0).reshape(1, 16, 1)
    rest = {f.name: None for f in dataclasses.fields(Chains)}
    chains = Chains(
        **rest
        | {"adapting": draws[:, :6], "sampled": draws[:, 6:]}
        | {"cost_adapting": 2, "cost_sampling": 1}
    )
    gradients, means = running_means(chains)
    assert gradients[-1] == THINNING * (6 * 2 + 10)
    assert gradients[0] == THINNING * 2
    assert means[-1].item() == draws[:, 8:].mean()
    assert means[0].item() == 0


def test_errors_of_the_truth_are_the_noise() -> None:
    data = Data.simulate(2, n=5, p=4, held_out=4000)
    mse, mae = errors(np.tile(data.beta, (2, 1)), data.test)
    assert np.allclose(mse, 3, atol=6 * 3 * np.sqrt(2 / 4000))
    assert np.allclose(mae, np.sqrt(6 / np.pi), atol=6 * np.sqrt(3 / 4000))


def test_settings_are_chosen_without_the_test_examples(tmp_path: Path) -> None:
    data = Data.simulate(2, n=20, p=6, held_out=5)
    found = run(spike_slab.METHODS["sgld"].make, 0.05, *data.train, 40, 40)
    blind = dataclasses.replace(data, test=(data.test[0] * float("nan"), data.test[1]))
    assert scores(found, blind, "validation", tmp_path, 0) == scores(
        found, data, "validation", tmp_path, 0
    )
    assert all(study.compute.keywords["part"] == "validation" for study in spike_slab.choices())


def test_study(tmp_path: Path) -> None:
    """Every method runs, the table has its rows and the figure its lines."""
    results: dict[str, Any] = {}
    for name, method in spike_slab.METHODS.items():
        (tmp_path / name).mkdir()
        settings = {"repetitions": 2, "adapting": 40, "sampling": 80, "reference": 10}
        results[name] = spike_slab.compute(name, method.value, tmp_path / name, **settings)
    table = spike_slab.EXPERIMENT.render(results)
    for name, method in spike_slab.METHODS.items():
        row = next(r for r in table.splitlines() if f"| {spike_slab.LABELS[name]} |" in r)
        assert f"{method.setting} = {method.value:g}" in row
    figure = spike_slab.figures(results, tmp_path)["spike-slab"]
    assert [len(axes.get_lines()) >= 4 for axes in figure.axes] == [True] * 3
    partial = spike_slab.EXPERIMENT.render(results | {"printed": None})
    assert f"| {spike_slab.LABELS['printed']} | - | - | - | - |" in partial


def test_a_trial_is_named_by_its_own_temperature() -> None:
    assert spike_slab.EXPERIMENT.choices is not None
    labels = spike_slab.EXPERIMENT.choices.labels
    shown = [labels(study.name)[0] for study in spike_slab.choices()]
    for value in ("", ", T = 0.01", ", T = 0.0001"):
        assert any(name.endswith(f"adapting{value}") for name in shown)


def test_one_pair_says_little_about_two_hundred_weights() -> None:
    """The averaged metric stays within 30 % of a multiple of the identity (docs/spike-slab.md)."""
    x, y = (each[0] for each in Data.simulate(1).train)
    made: list[HASGLD] = []

    def make(params: list[Tensor], lr: float) -> HASGLD:
        made.append(HASGLD(params, lr, memory=1, slots=None, prior=SpikeAndSlabPrior()))
        return made[-1]

    run(make, 0.3, x[None], y[None], 800, 10, chain=0)
    matrix = made[0].preconditioner.matrix
    assert matrix is not None
    values = torch.linalg.eigvalsh(matrix)
    assert values[-1] / values[0] < 1.3
    assert torch.linalg.matrix_norm(x, 2) ** 2 / torch.linalg.matrix_norm(x, -2) ** 2 > 1000
