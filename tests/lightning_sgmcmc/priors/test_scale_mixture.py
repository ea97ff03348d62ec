"""The scale mixture's density against SciPy's and quadrature; its small scale in float32."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from lightning_sgmcmc import ScaleMixturePrior
from tests.lightning_sgmcmc.priors.cases import params


@given(st.floats(0.01, 0.99), st.floats(0.05, 20), st.floats(0.05, 20))
def test_density(pi: float, std1: float, std2: float) -> None:
    exact = 0.0
    for p in params():
        terms = [stats.norm.logpdf(p.numpy(), scale=s) for s in (std1, std2)]
        exact += np.logaddexp(math.log(pi) + terms[0], math.log1p(-pi) + terms[1]).sum()
    found = float(ScaleMixturePrior(pi, std1, std2).log_density(params()))
    assert found == pytest.approx(exact, rel=1e-10)


def test_moments() -> None:
    """Mass 1, variance pi std1^2 + (1 - pi) std2^2, E[theta grad(-log p)] = 1."""
    prior = ScaleMixturePrior(0.25, 2.0, 0.01)

    def moment(power: int, slope: bool = False) -> float:
        def integrand(theta: float) -> float:
            weight = torch.tensor([theta], dtype=torch.float64)
            density = math.exp(prior.log_density([weight]))
            grad = torch.ones_like(weight) * (not slope)
            if slope:
                prior.add_gradient_([grad], [weight], 1.0)
            return theta**power * float(grad) * density

        edges = [0.0, 0.02, 0.1, 1.0, 30.0]
        parts = [
            integrate.quad(integrand, a, b, epsabs=1e-12, epsrel=1e-9, limit=200)[0]
            for a, b in itertools.pairwise(edges)
        ]
        return 2 * sum(parts)

    assert moment(0) == pytest.approx(1, rel=1e-7)
    assert moment(2) == pytest.approx(0.25 * 4 + 0.75 * 1e-4, rel=1e-7)
    assert moment(1, slope=True) == pytest.approx(1, rel=1e-7)


def test_the_papers_scales_in_single_precision() -> None:
    """1/std2^2 is 3e6 at -log std2 = 7.5; weights of the wide part feel only the wide one."""
    prior = ScaleMixturePrior(0.5, 1.0, math.exp(-7.5))
    theta = torch.tensor([1e-5, 5e-4, 2e-3, 3e-3, 0.05, 1.0, 4.0])
    for scale in (torch.float32, torch.float64):
        weights = theta.to(scale)
        grads = [torch.zeros_like(weights)]
        prior.add_gradient_(grads, [weights], 1.0)
        if scale == torch.float32:
            found, density = grads[0].double(), float(prior.log_density([weights]))
    torch.testing.assert_close(found, grads[0], rtol=3e-5, atol=0)
    assert density == pytest.approx(float(prior.log_density([theta.double()])), rel=1e-5)
    torch.testing.assert_close(found[-3:], theta[-3:].double(), rtol=1e-6, atol=0)


def test_the_density_has_a_second_derivative_far_out() -> None:
    """The curvature that steps are chosen from is the density's, by automatic differentiation."""
    prior = ScaleMixturePrior(0.25, 1.0, 0.1)
    theta = torch.tensor([0.01, 0.3, 1.4, 5.0], requires_grad=True)
    (slope,) = torch.autograd.grad(-prior.log_density([theta]), theta, create_graph=True)
    (found,) = torch.autograd.grad(slope.sum(), theta)
    near, h = theta.detach().double(), 1e-4
    sides = [[torch.zeros_like(near)], [torch.zeros_like(near)]]
    for grads, at in zip(sides, (near + h, near - h), strict=True):
        prior.add_gradient_(grads, [at], 1.0)
    expected = (sides[0][0] - sides[1][0]) / (2 * h)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_arguments_out_of_range(value: float) -> None:
    with pytest.raises(ValueError, match=r"pi must lie in \(0, 1\)"):
        ScaleMixturePrior(pi=value)
    with pytest.raises(ValueError, match="std1 must be positive"):
        ScaleMixturePrior(std1=value)
    with pytest.raises(ValueError, match="std2 must be positive"):
        ScaleMixturePrior(std2=value)
    with pytest.raises(ValueError, match=r"pi must lie in \(0, 1\), got 1"):
        ScaleMixturePrior(pi=1.0)
