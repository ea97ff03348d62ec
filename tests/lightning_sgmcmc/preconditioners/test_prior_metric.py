"""The metric of the prior: a chain moves as in weights over the prior's deviations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_sgmcmc import (
    SGHMC,
    SGLD,
    FanInGaussianPrior,
    GaussianPrior,
    LaplacePrior,
    Prior,
    PriorMetric,
    Sampler,
    ScaleMixturePrior,
    Target,
)

SHAPES = [(3, 5), (3,)]
PRIOR = FanInGaussianPrior(variance=2.0, bias_variance=0.3)
DEVIATIONS = [(2 / 5) ** 0.5, 0.3**0.5]


def run(
    make: Callable[..., Sampler], prior: Prior, scales: list[float], chains: int
) -> list[Tensor]:
    """Return x after some steps on the likelihood of theta = scale * x, from x = 1."""
    params = [torch.ones(chains, *shape, dtype=torch.float64) for shape in SHAPES]
    weights = [(p / s).requires_grad_() for p, s in zip(params, scales, strict=True)]
    sampler = make(weights, 0.05, num_data=10, prior=prior)
    sampler.stack()

    def loss(_: Any = None) -> Tensor:
        theta = [w * s for w, s in zip(weights, scales, strict=True)]
        return sum(t.sin().flatten(1).sum(1) for t in theta)  # type: ignore[return-value]

    sampler.attach(Target(lambda _: loss()[:, None], weights, 10, sampler.prior, chain_dims=1))
    for _ in range(30):
        sampler.zero_grad()
        loss().sum().backward()
        sampler.step()
    return [(w * s).detach() for w, s in zip(weights, scales, strict=True)]


@pytest.mark.parametrize("make", [SGLD, SGHMC])
def test_chain_is_that_of_whitened_weights(make: Callable[..., Sampler]) -> None:
    found = run(partial(make, preconditioner=PriorMetric()), PRIOR, [1.0, 1.0], 2)
    expected = run(make, GaussianPrior(1.0), DEVIATIONS, 2)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_kinetic_energy_has_the_inverse_metric() -> None:
    params = [torch.zeros(shape, requires_grad=True) for shape in SHAPES]
    sampler = SGHMC(params, 0.1, num_data=10, prior=PRIOR, preconditioner=PriorMetric())
    with pytest.raises(RuntimeError, match="attach"):
        sampler.step()
    sampler.attach(Target(lambda _: torch.zeros(1), params, 10, sampler.prior))
    vectors = [torch.full(shape, 2.0) for shape in SHAPES]
    expected = 15 * 4 / (2 / 5) + 3 * 4 / 0.3
    found = sampler.preconditioner.inverse_norm(vectors)
    assert float(found) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("prior", [LaplacePrior(1.0), ScaleMixturePrior(), None])
def test_prior_must_be_gaussian(prior: Prior | None) -> None:
    params = [torch.zeros(3, requires_grad=True)]
    sampler = SGLD(params, 0.1, num_data=10, prior=prior, preconditioner=PriorMetric())
    with pytest.raises(ValueError, match="Gaussian prior"):
        sampler.attach(Target(lambda _: torch.zeros(1), params, 10, sampler.prior))
