"""Laplace and normal-inverse-gamma: their densities against SciPy's and quadrature."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from lightning_sgmcmc import LaplacePrior, NormalInverseGammaPrior
from tests.lightning_sgmcmc.priors.cases import params


@given(st.floats(1e-2, 1e3))
def test_laplace(scale: float) -> None:
    exact = sum(stats.laplace.logpdf(p.numpy(), scale=scale).sum() for p in params())
    assert float(LaplacePrior(scale).log_density(params())) == pytest.approx(exact, rel=1e-10)


@given(st.floats(0.1, 20), st.floats(0.01, 20), st.floats(-2, 2))
def test_normal_inverse_gamma_is_a_multivariate_t(a: float, b: float, mean: float) -> None:
    """One t a tensor: 2a degrees of freedom, scale (b/a) I."""
    exact = 0.0
    for p in params():
        n = p.numel()
        t = stats.multivariate_t(np.full(n, mean), b / a * np.eye(n), df=2 * a)
        exact += t.logpdf(p.numpy().reshape(-1))
    found = float(NormalInverseGammaPrior(a, b, mean).log_density(params()))
    assert found == pytest.approx(exact, rel=1e-9, abs=1e-9)


def test_normal_inverse_gamma_integrates_the_variance_out() -> None:
    theta = params()[0]

    def joint(v: float) -> float:
        normal = stats.norm.logpdf(theta.numpy(), 0.3, v**0.5).sum()
        return float(np.exp(normal + stats.invgamma.logpdf(v, 0.5, scale=0.5)))

    exact, _ = integrate.quad(joint, 0, np.inf, epsabs=0, epsrel=1e-10)
    found = NormalInverseGammaPrior(mean=0.3).log_density([theta])
    assert float(found.exp()) == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_arguments_out_of_range(value: float) -> None:
    with pytest.raises(ValueError, match="scale must be positive"):
        LaplacePrior(value)
    with pytest.raises(ValueError, match="a must be positive"):
        NormalInverseGammaPrior(a=value)
    with pytest.raises(ValueError, match="b must be positive"):
        NormalInverseGammaPrior(b=value)
