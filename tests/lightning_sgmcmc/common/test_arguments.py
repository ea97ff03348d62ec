"""Objects name the arguments that they were built with."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from lightning_sgmcmc import preconditioners, priors
from lightning_sgmcmc.common.arguments import argument_names, arguments_of, shown
from lightning_sgmcmc.samplers import PSGLD, SGLD


class Base:
    def __init__(self, a: float, b: tuple[float, ...] = (1.0, 2.5)) -> None:
        self.a, self.b = a, b


class Passing(Base):
    def __init__(self, c: str, **options: Any) -> None:
        super().__init__(**options)
        self.c = c


class Closed(Base):
    def __init__(self, metric: Any) -> None:
        super().__init__(1.0)
        self.metric = metric


def test_arguments_are_those_that_a_class_takes() -> None:
    assert argument_names(Passing) == ["c", "a", "b"]
    assert argument_names(Closed) == ["metric"]
    assert argument_names(PSGLD)[:4] == ["lr", "alpha", "eps", "floor"]
    assert "preconditioner" in argument_names(SGLD)
    assert "preconditioner" not in argument_names(PSGLD)


def test_an_object_is_shown_as_its_call() -> None:
    assert shown(Passing("x", a=1e-6)) == "Passing(c='x', a=1e-06, b=(1, 2.5))"
    assert arguments_of(Closed(Base(1.0))) == {"metric": "Base"}


BUILT = [getattr(preconditioners, n)() for n in preconditioners.__all__ if n not in (
    "Fisher", "Preconditioner")] + [getattr(priors, n)() for n in priors.__all__ if n not in (
    "GAUSSIAN_PRIORS", "Prior", "LayerwiseGaussianPrior", "TensorwiseGaussianPrior")]  # fmt: skip


@pytest.mark.parametrize("built", BUILT, ids=lambda b: type(b).__name__)
def test_every_argument_of_a_metric_or_prior_is_shown(built: Any) -> None:
    text = repr(built)
    assert text.startswith(f"{type(built).__name__}(")
    parameters = inspect.signature(type(built)).parameters
    passed_on = [n for n, p in parameters.items() if p.kind is p.VAR_KEYWORD]
    of_base = inspect.signature(preconditioners.Fisher).parameters if passed_on else {}
    fixed = ["centred"] if isinstance(built, preconditioners.QuasiDiagonalFisher) else []
    for name in {*parameters, *of_base}.difference(passed_on, fixed):
        assert f"{name}=" in text
