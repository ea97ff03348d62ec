"""The 2-D Gaussian experiments: closed forms against ALGORITHMS' and against the samplers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_sgmcmc import SGHMC, SGLD
from tasks.experiments import gaussians
from tasks.experiments.hasgld import gaussian as hasgld_gaussian
from tasks.experiments.loop import sample
from tasks.experiments.psgld import gaussian as psgld_gaussian

DIAGONAL = np.diag([0.16, 1.0])
TILTED = hasgld_gaussian.target("variance")


def test_langevin_law_is_the_published_closed_form() -> None:
    """P = (A - (h/2) A C A)^-1; with gradient noise v, (1 + h g v / 2) / (a (1 - h g a / 2))."""
    A, C, h = np.linalg.inv(TILTED), np.array([[0.2, -0.1], [-0.1, 0.8]]), 0.05
    P, _ = gaussians.langevin(TILTED, h, C, 0.0).law(2)
    np.testing.assert_allclose(P, np.linalg.inv(A - h / 2 * A @ C @ A), rtol=1e-10)
    a, g, h, sd = 1 / np.diag(DIAGONAL), 0.7, 0.3, 0.1
    P, times = gaussians.langevin(DIAGONAL, h, g * np.eye(2), sd).law(2)
    expected = (1 + h * g * sd**2 / 2) / (a * (1 - h * g * a / 2))
    np.testing.assert_allclose(np.diag(P), expected, rtol=1e-10)
    np.testing.assert_allclose(times, 1 / (h * g * a) - 0.5, rtol=1e-10)


def test_published_numbers_of_the_demo() -> None:
    """h = .3: SGLD's variances 2.5638 and 1.1782, error .6455; pSGLD's .2323, 1.1624 and .0587."""
    P, _ = gaussians.langevin(DIAGONAL, 0.3, np.eye(2), 0.1).law(2)
    np.testing.assert_allclose(np.diag(P), [2.5638, 1.1782], atol=1e-4)
    assert gaussians.error(DIAGONAL, P) == pytest.approx(0.6455, abs=1e-4)
    C = gaussians.adapted(np.diag(DIAGONAL), 0.3, psgld_gaussian.LAMBDA, 0.1)
    P, _ = gaussians.langevin(DIAGONAL, 0.3, C, 0.1).law(2)
    np.testing.assert_allclose(np.diag(P), [0.2323, 1.1624], atol=1e-4)
    assert gaussians.error(DIAGONAL, P) == pytest.approx(0.0587, abs=1e-4)


@pytest.mark.parametrize("h", [0.3, 0.05])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_underdamped_law_is_exact_without_gradient_noise(h: float, momentum: float) -> None:
    """BAOAB has the target's covariance at every stable step."""
    chain = gaussians.underdamped(DIAGONAL, h, momentum, 0.0)
    assert chain.stable
    P, _ = chain.law(2)
    np.testing.assert_allclose(P, DIAGONAL, rtol=1e-10, atol=1e-12)


def test_underdamped_step_is_the_sampler_s() -> None:
    """M and Q are the mean and covariance of one step of ``SGHMC``, with noise in the gradient.

    20,000 chains; seeded, tolerances five standard errors of a product's mean.
    """
    chains, h, momentum, sd = 20_000, 0.2, 0.8, 0.5
    draws, sampler = gaussians.run(
        DIAGONAL,
        lambda p, h: SGHMC(p, h, momentum=momentum),
        h,
        chains=chains,
        steps=2,
        burn_in=0,
        sd=sd,
    )
    # Two steps from the stationary law of the noiseless chain, (theta, w) ~ N(0, diag(S, I)).
    chain = gaussians.underdamped(DIAGONAL, h, momentum, sd)
    P0 = np.diag([*np.diag(DIAGONAL), 1.0, 1.0])
    P1 = chain.M @ P0 @ chain.M.T + chain.Q
    P2 = chain.M @ P1 @ chain.M.T + chain.Q
    cross = (chain.M @ P1)[:2, :2]
    states = draws - draws.mean(0)
    for i, j, expected in ((0, 0, P1[:2, :2]), (1, 1, P2[:2, :2]), (1, 0, cross)):
        found = states[:, i].T @ states[:, j] / chains
        np.testing.assert_allclose(found, expected, atol=5 * 1.5 / np.sqrt(chains))
    assert isinstance(sampler, SGHMC)


@pytest.mark.parametrize("name", ["sgld", "psgld_frozen", "sghmc"])
def test_measured_rows_agree_with_their_closed_forms(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the largest step; five standard errors over five groups, seeded."""
    method = psgld_gaussian.METHODS[name]
    row = psgld_gaussian.row(method, psgld_gaussian.STEPS[0], chains=100, draws=1000)
    closed = np.diag(row["closed"]["covariance"])
    found = np.diag(row["covariance"])
    times = {"sgld": 1.9, "psgld_frozen": 2.6, "sghmc": 1.0}[name]
    errors = closed * np.sqrt(2 * 2 * times / 100_000)
    assert np.abs(found - closed) == pytest.approx(np.zeros(2), abs=5 * errors.max())
    if name != "sghmc":  # whose negative correlations the estimate cuts
        assert row["act"] == pytest.approx(row["closed"]["act"], rel=0.1)


def test_sgld_is_unstable_at_every_step_as_printed_and_at_none_as_a_variance() -> None:
    make = hasgld_gaussian.METHODS["sgld"]
    for h in hasgld_gaussian.STEPS:
        row, draws = gaussians.row(make, hasgld_gaussian.target("printed"), h, draws=1)
        assert row["closed"] == {"stable": False}
        assert draws is None
        C = np.eye(2)
        assert gaussians.langevin(TILTED, h, C, 0.0).stable
    assert 2 / np.linalg.eigvalsh(np.linalg.inv(TILTED)).max() == pytest.approx(0.0211, abs=1e-4)
    assert np.linalg.eigvalsh(np.linalg.inv(hasgld_gaussian.target("printed"))).max() == (
        pytest.approx(721.5, abs=0.1)
    )


def test_matrices_are_the_preconditioner_s() -> None:
    _, sampler = gaussians.run(
        DIAGONAL,
        psgld_gaussian.METHODS["psgld_99"].make,
        0.1,
        chains=3,
        steps=20,
        burn_in=10,
    )
    C = gaussians.matrices(sampler)
    assert C.shape == (3, 2, 2)
    (theta,) = sampler.params
    for k in range(3):
        vector = torch.zeros_like(theta)
        vector[k] = torch.tensor([2.0, -1.0])
        (product,) = sampler.preconditioner.apply_([vector])
        np.testing.assert_allclose(product[k].numpy(), C[k] @ [2.0, -1.0], rtol=1e-12)


def test_noise_is_the_same_where_a_step_is_asked_for_twice() -> None:
    gradient = gaussians.NoisyGradient(DIAGONAL, 0.5, seed=1)
    theta = torch.ones(4, 2, dtype=torch.float64)
    first, again, other = gradient(theta, 0), gradient(theta, 0), gradient(theta, 1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    moved = gradient(theta + 1, 1) - other
    torch.testing.assert_close(moved, torch.tensor([6.25, 1.0]).double().expand(4, 2))


def toy_sampler(chains: int | None) -> SGLD:
    shape = (2,) if chains is None else (chains, 2)
    sampler = SGLD([torch.zeros(shape, dtype=torch.float64, requires_grad=True)], 0.1, num_data=1)
    if chains is not None:
        sampler.stack()
    return sampler


@pytest.mark.parametrize("chains", [None, 3])
def test_loop_keeps_the_states_that_the_sampler_passes(chains: int | None) -> None:
    sampler, twin = toy_sampler(chains), toy_sampler(chains)
    draws, seconds = sample(
        sampler, steps=10, nll=lambda theta, _: (theta**2).sum(-1), burn_in=3, thinning=2
    )
    assert draws.shape == (chains or 1, 3, 2)
    assert seconds >= 0
    (theta,) = twin.params
    kept = []
    for step in range(10):
        theta.grad = 2 * theta.detach()
        twin.step()
        if step + 1 in (5, 7, 9):
            kept.append(theta.detach().numpy().copy())
    np.testing.assert_allclose(draws, np.stack(kept).reshape(3, -1, 2).swapaxes(0, 1), rtol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 10, "burn_in": 10}, "no draw in 10 steps"),
        ({"steps": 10, "nll": None}, "give gradient or nll"),
    ],
)
def test_loop_refuses_what_keeps_nothing(arguments: dict[str, Any], message: str) -> None:
    given = {"nll": lambda theta, _: (theta**2).sum(-1)} | arguments
    with pytest.raises(ValueError, match=message):
        sample(toy_sampler(None), **given)


def study_results() -> dict[str, Any]:
    row = {"h": 0.3, "error": 0.25, "error_se": 0.01, "act": 3.0, "act_se": None}
    closed = {"stable": True, "error": 0.125, "act": 2.5}
    return {
        "sgld": {"rows": [row | {"closed": closed}]},
        "psgld_99": {"rows": [row | {"closed": None, "error": 23456.0, "error_se": None}]},
        "sgld-printed": {"rows": [{"h": 0.02, "closed": {"stable": False}}]},
    }


def test_tables_and_figures_of_unfinished_studies(tmp_path: Path) -> None:
    lines = psgld_gaussian.EXPERIMENT.render(study_results()).splitlines()
    rest = " | -" * 7 + " |"
    assert "| SGLD | 0.2500 ± 0.0100 (0.1250)" + rest in lines
    assert "| SGLD | 3.00 (2.50)" + rest in lines
    assert (
        "| PSGLD, RMSProp metric (alpha = 0.99, eps = 0.0001), adapting | 2.3e+04" + rest in lines
    )
    assert "| SGHMC, mu = 0.9 | -" + rest in lines
    other = hasgld_gaussian.EXPERIMENT.render(study_results()).splitlines()
    assert "| SGLD | diverges | - | - | - |" in other
    assert list(psgld_gaussian.figures(study_results(), tmp_path)) == ["psgld-gaussian"]
    assert hasgld_gaussian.figures({}, tmp_path) == {}
