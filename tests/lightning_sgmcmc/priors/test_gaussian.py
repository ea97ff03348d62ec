"""The Gaussian priors' densities are SciPy's, with the variances that they name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lightning_sgmcmc import (
    SGLD,
    FanInGaussianPrior,
    GaussianPrior,
    LayerwiseGaussianPrior,
    NormalInverseGammaPrior,
)
from tests.lightning_sgmcmc.priors.cases import SHAPES, attached, params


def density(variances: list[float], mean: float = 0.0) -> float:
    pairs = zip(params(), variances, strict=True)
    return sum(stats.norm.logpdf(p.numpy(), mean, v**0.5).sum() for p, v in pairs)


@given(st.floats(1e-3, 1e3), st.floats(-5, 5))
def test_one_variance(variance: float, mean: float) -> None:
    found = float(GaussianPrior(variance, mean).log_density(params()))
    assert found == pytest.approx(density([variance] * 4, mean), rel=1e-10)


@pytest.mark.parametrize("mean", [float("nan"), float("inf")])
def test_means_are_finite(mean: float) -> None:
    for kind in (GaussianPrior, NormalInverseGammaPrior):
        with pytest.raises(ValueError, match="mean must be finite"):
            kind(mean=mean)


@pytest.mark.parametrize("variance", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_a_variance(variance: float) -> None:
    with pytest.raises(ValueError, match="variance must be positive"):
        GaussianPrior(variance)
    with pytest.raises(ValueError, match="variance must be positive"):
        FanInGaussianPrior(variance)
    with pytest.raises(ValueError, match="bias_variance must be positive"):
        FanInGaussianPrior(1.0, variance)
    with pytest.raises(ValueError, match="variance for 'net' must be positive"):
        LayerwiseGaussianPrior({"net": variance})
    with pytest.raises(ValueError, match="variance must be positive"):
        LayerwiseGaussianPrior({}, default=variance)


def test_variances_by_layer() -> None:
    """The first pattern that matches decides: net.0.weight by net.0.*, not by *.weight."""
    patterns = {"net.0.*": 0.5, "*.weight": 3.0, "*.b?as": 10.0}
    prior = attached(LayerwiseGaussianPrior(patterns, default=2.0), params())
    assert list(SHAPES) == ["net.0.weight", "scale", "net.1.bias", "net.2.weight"]
    found = float(prior.log_density(params()))
    assert found == pytest.approx(density([0.5, 2.0, 10.0, 3.0]), rel=1e-12)


def test_fan_in() -> None:
    """[3, 2] has fan-in 2, [2, 3, 1, 2] has 6, a scalar and a vector are biases."""
    found = float(FanInGaussianPrior(1.5, 0.7).log_density(params()))
    assert found == pytest.approx(density([0.75, 0.7, 0.7, 0.25]), rel=1e-12)


def test_variances_by_layer_divided_by_fan_in() -> None:
    patterns = {"net.0.*": 0.5, "*.b?as": 10.0}
    prior = attached(LayerwiseGaussianPrior(patterns, default=3.0, per_fan_in=True), params())
    found = float(prior.log_density(params()))
    assert found == pytest.approx(density([0.25, 3.0, 10.0, 0.5]), rel=1e-12)


def test_fan_in_gives_every_width_the_same_output() -> None:
    """The prior variance of a layer's output for |x|^2 = n inputs is the given one."""
    for n in (3, 300):
        (variance,) = FanInGaussianPrior(2.0).variances([torch.zeros(5, n)])
        assert variance * np.ones(n) @ np.ones(n) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("prior", "names", "message"),
    [
        (LayerwiseGaussianPrior({"*": 1.0}), None, r"give it net.named_parameters\(\)"),
        (LayerwiseGaussianPrior({"net.7.*": 1.0}, 1.0), ["a", "b"], "'net.7.*' matches no .* a, b"),
        (
            LayerwiseGaussianPrior({"*": 1.0, "b": 2.0}),
            ["a", "b"],
            "'b' matches only what earlier ones match",
        ),
        (LayerwiseGaussianPrior({"a": 1.0}), ["a", "b"], "no pattern matches b"),
    ],
)
def test_names_that_do_not_fit_are_an_error_before_anything_moves(
    prior: LayerwiseGaussianPrior, names: list[str] | None, message: str
) -> None:
    theta = [torch.ones(2, requires_grad=True) for _ in range(2)]
    for p in theta:
        p.grad = torch.ones(2)
    given = theta if names is None else list(zip(names, theta, strict=True))
    sampler = SGLD(given, 0.1, num_data=5, prior=prior)
    noise = sampler.state_dict()["chain"]["noise"]
    with pytest.raises(ValueError, match=message):
        sampler.step(lambda: pytest.fail("the gradient was asked for"))
    assert all(torch.equal(p, torch.ones(2)) for p in theta)
    assert str(sampler.state_dict()["chain"]["noise"]) == str(noise)
    with pytest.raises(ValueError, match=message):
        sampler.prior.log_density(theta)


def test_never_attached() -> None:
    with pytest.raises(ValueError, match="never attached"):
        LayerwiseGaussianPrior({"*": 1.0}).log_density(params())
