"""The Gaussian prior's gradient is that of its density, and its density is SciPy's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lightning_sgmcmc import FlatPrior, GaussianPrior, Prior

PRIORS: list[Prior] = [GaussianPrior(), GaussianPrior(0.3), GaussianPrior(7.0, -1.5), FlatPrior()]


def params() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 2), (), (4,)]
    return [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
@pytest.mark.parametrize("scale", [1.0, 1 / 60])
def test_gradient_is_that_of_the_density(prior: Prior, scale: float) -> None:
    theta = [p.requires_grad_() for p in params()]
    grads = [torch.full_like(p, 0.25) for p in theta]
    expected = [g.clone() for g in grads]
    density = prior.log_density(theta)
    if density.requires_grad:
        for total, g in zip(expected, torch.autograd.grad(density, theta), strict=True):
            total -= scale * g
    prior.add_gradient_(grads, [p.detach() for p in theta], scale)
    for found, exact in zip(grads, expected, strict=True):
        assert torch.allclose(found, exact, rtol=1e-12)


@given(st.floats(1e-3, 1e3), st.floats(-5, 5))
def test_log_density(variance: float, mean: float) -> None:
    theta = params()
    found = float(GaussianPrior(variance, mean).log_density(theta))
    exact = sum(stats.norm.logpdf(p.numpy(), mean, variance**0.5).sum() for p in theta)
    assert found == pytest.approx(exact, rel=1e-10)


def test_properness() -> None:
    assert GaussianPrior().proper
    assert not FlatPrior().proper


@pytest.mark.parametrize("variance", [0.0, -1.0, float("nan")])
def test_refuses_a_variance(variance: float) -> None:
    with pytest.raises(ValueError, match="variance must be positive"):
        GaussianPrior(variance)
