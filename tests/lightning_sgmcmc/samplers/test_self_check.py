"""The harness tests itself: deliberately wrong samplers are caught by its own functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_sgmcmc import HMC, PSGLD, SGHMC, SGLD, RMSProp
from lightning_sgmcmc.samplers import hmc
from lightning_sgmcmc.samplers.energy import potential
from tests.harness import SCALES, Case, assert_close, assert_normal, baoab, check_law, invariant
from tests.posteriors import LinearRegression


class HalfNoise(SGLD):
    """Has half of the noise's variance."""

    def noise(self) -> list[Tensor]:
        return [z * 0.5**0.5 for z in super().noise()]


class ForgottenPrior(SGLD):
    def drift(self, grads: list[Tensor]) -> list[Tensor]:
        return self.preconditioner.apply_(grads)


class DoubleStep(SGLD):
    def drift(self, grads: list[Tensor]) -> list[Tensor]:
        return [2 * g for g in super().drift(grads)]


class PriorOnBoth(SGLD):
    """Adds the prior's gradient without the 1/N."""

    def drift(self, grads: list[Tensor]) -> list[Tensor]:
        self.prior.add_gradient_(grads, self.params, 1.0)
        return grads


class UnrootedNoise(PSGLD):
    """Scales the noise by C instead of its root."""

    def noise(self) -> list[Tensor]:
        return self.preconditioner.apply_(self.stream.normal())


class ColdMetric(RMSProp):
    """Has half of the noise's variance."""

    def noise(self, stream: Any) -> list[Tensor]:
        return [z * 0.5**0.5 for z in super().noise(stream)]


class ColdMomentum(SGHMC):
    """Refreshes the velocity with sqrt(1 - mu) for sqrt(1 - mu^2)."""

    def noise(self) -> list[Tensor]:
        full = super().noise()
        return [z / (1 + self.momentum) ** 0.5 for z in full] if self._velocity else full


class NoMetropolis(HMC):
    """Accepts every proposal."""

    def _settle(self, accept: Tensor, loss: Tensor, grads: list[Tensor]) -> None:
        super()._settle(torch.ones_like(accept), loss, grads)


class WrongSign(HMC):
    """Accepts with probability exp(+dH), by turning the potential's sign in the energy error."""

    def _propose(self, closure: Callable[[], Any]) -> tuple[Tensor, Tensor]:
        with mock.patch.object(hmc, "potential", lambda *given: -potential(*given)):
            return super()._propose(closure)


class ColdVelocities(HMC):
    """Draws velocities of half the temperature."""

    def noise(self) -> list[Tensor]:
        return [z * 0.5**0.5 for z in super().noise()]


WRONG = [
    Case("noise halved", HalfNoise),
    Case("prior forgotten", ForgottenPrior),
    Case("step doubled", DoubleStep),
    Case("prior times N", PriorOnBoth),
    Case("C in place of its root", UnrootedNoise),
    Case("metric with cold noise", lambda p, **kw: SGLD(p, preconditioner=ColdMetric(), **kw)),
    Case(
        "another momentum",
        lambda p, momentum, **kw: SGHMC(p, momentum=0.85, **kw),
        baoab,
        {"momentum": 0.9},
    ),
    Case("momentum resampled cold", ColdMomentum, baoab, {"momentum": 0.9}),
    Case(
        "Euler noise in BAOAB's place",
        lambda p, momentum, **kw: SGLD(p, **kw),
        baoab,
        {"momentum": 0.0},
    ),
    Case("HMC without Metropolis", NoMetropolis, invariant, {"leapfrog_steps": 4}, rows=8_000),
    Case("HMC with a wrong sign", WrongSign, invariant, {"leapfrog_steps": 4}, rows=8_000),
    Case("HMC with cold velocities", ColdVelocities, invariant, {"leapfrog_steps": 4}, rows=8_000),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda c: c.name)
def test_a_wrong_sampler_leaves_the_law(wrong: Case) -> None:
    with pytest.raises(AssertionError, match="not of the stated law"):
        check_law(wrong, SCALES, fraction=0.25, steps=100)


def test_an_adapting_metric_without_gamma_leaves_the_law() -> None:
    """PSGLD that never freezes leaves N(0, I) even at a hundredth of the stable step.

    Only the law after 500 steps is looked at, which is N(0, I) for every constant C, and is kept
    by the same sampler once it freezes.
    """

    class Unfrozen(PSGLD):
        def freeze(self) -> None:
            if self.chain_dims:
                self.preconditioner.frozen = False

    options = {"alpha": 0.9, "eps": 0.02}
    unit = LinearRegression.with_posterior(np.eye(2))
    check_law(Case("frozen", PSGLD, options=options), unit, fraction=0.01, steps=500, lags=())
    wrong = Case("dropped Gamma", Unfrozen, options=options)
    with pytest.raises(AssertionError, match="not of the stated law"):
        check_law(wrong, unit, fraction=0.01, steps=500, lags=())


def test_the_assertions_see_shape_variance_and_mean() -> None:
    rng = np.random.default_rng(0)
    assert_normal(rng.standard_normal((20_000, 2)), np.eye(2))
    uniform = rng.uniform(-np.sqrt(3), np.sqrt(3), (20_000, 2))
    with pytest.raises(AssertionError, match="shape"):
        assert_normal(uniform, np.eye(2))
    with pytest.raises(AssertionError, match="product 1, 0"):
        assert_normal(rng.multivariate_normal([0, 0], [[1, 0.1], [0.1, 1]], 20_000), np.eye(2))
    assert_close(uniform**2, np.ones(2), "variance")
    with pytest.raises(AssertionError, match="variance: not of the stated law"):
        assert_close(1.03 * uniform**2, np.ones(2), "variance")
