"""The arguments that samplers share: every sampler takes them, by keyword and on a command line."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import pytest
import torch
from jsonargparse import ArgumentParser

from lightning_sgmcmc import (
    HAMCMC,
    HASGLD,
    HMC,
    MCLMC,
    PSGLD,
    SGFS,
    SGHMC,
    SGLD,
    SGNHT,
    SMILE,
    BlockFisher,
    DiagonalFisher,
    GaussianPrior,
    NaturalLangevin,
    QuasiDiagonalFisher,
    RMSProp,
    Sampler,
)
from lightning_sgmcmc.samplers.common import Common, CommonAndIncrements, CommonAndMetric

OWN_METRIC = [PSGLD, NaturalLangevin, HASGLD, HAMCMC, SGFS]
FREE_METRIC = [SGLD, SGHMC, SGNHT, MCLMC, SMILE, HMC]
DEFAULTS = {
    name: p.default
    for name, p in inspect.signature(Sampler.__init__).parameters.items()
    if p.kind is inspect.Parameter.KEYWORD_ONLY
}
GIVEN: dict[str, Any] = {
    "num_data": 7,
    "prior": GaussianPrior(0.5),
    "temperature": 0.5,
    "seed": 3,
    "chain": 2,
}


def weights() -> list[torch.Tensor]:
    return [torch.zeros(2, requires_grad=True)]


def test_they_are_stated_as_the_base_class_takes_them() -> None:
    """The annotation of ``**common`` has the names and types of ``Sampler``'s own arguments."""
    stated = get_type_hints(CommonAndMetric)
    taken = get_type_hints(Sampler.__init__)
    assert stated == {name: taken[name] for name in DEFAULTS}
    assert set(get_type_hints(Common)) == set(DEFAULTS) - {"preconditioner"}
    increments = get_type_hints(CommonAndIncrements)["increments"]
    assert increments == get_type_hints(SGLD.__init__)["increments"]


@pytest.mark.parametrize("kind", [*OWN_METRIC, *FREE_METRIC])
def test_every_sampler_takes_them(kind: type[Sampler]) -> None:
    sampler = kind(weights(), 0.1, **GIVEN)
    for name in ("num_data", "temperature", "seed", "chain"):
        assert getattr(sampler, name) == GIVEN[name]
    assert repr(sampler.prior) == repr(GIVEN["prior"])


@pytest.mark.parametrize("kind", [SGLD, PSGLD, NaturalLangevin, HASGLD, HAMCMC])
def test_every_langevin_sampler_takes_increments(kind: type[Sampler]) -> None:
    sampler = kind(weights(), 0.1, increments="moment-matched")
    assert sampler.stream.kind == "moment-matched"


@pytest.mark.parametrize("kind", [*OWN_METRIC, *FREE_METRIC])
def test_a_wrong_keyword_is_an_error_that_names_it(kind: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'temprature'"):
        kind(weights(), 0.1, temprature=1.0)


@pytest.mark.parametrize("kind", OWN_METRIC)
def test_a_metric_of_its_own_is_not_replaced(kind: Any) -> None:
    with pytest.raises(TypeError, match="preconditioner"):
        kind(weights(), 0.1, preconditioner=RMSProp())


@pytest.mark.parametrize("kind", [*OWN_METRIC, *FREE_METRIC])
def test_a_command_line_shows_and_checks_them(kind: type[Sampler]) -> None:
    """With defaults and help, which the base class alone states."""
    parser = ArgumentParser(exit_on_error=False)
    skip = {"params", "b"} if kind is SGFS else {"params"}
    parser.add_class_arguments(kind, "sampler", skip=skip)
    found = parser.parse_args(["--sampler.lr=0.1", "--sampler.temperature=0.5"]).sampler
    expected = DEFAULTS | {"temperature": 0.5}
    if kind in OWN_METRIC:
        expected.pop("preconditioner")
    assert {name: found[name] for name in expected} == expected
    assert ("preconditioner" in found) == (kind in FREE_METRIC)
    help_text = " ".join(parser.format_help().split())
    assert "T; 1 samples the posterior, 0 optimises." in help_text
    with pytest.raises(Exception, match="temprature"):
        parser.parse_args(["--sampler.lr=0.1", "--sampler.temprature=0.5"])


def test_fisher_metrics_show_and_check_theirs() -> None:
    """The quasi-diagonal one has no centred form, and says so."""
    parser = ArgumentParser(exit_on_error=False)
    for kind in (DiagonalFisher, QuasiDiagonalFisher, BlockFisher):
        parser.add_class_arguments(kind, kind.__name__)
    found = parser.parse_args(["--BlockFisher.blocks=unit", "--BlockFisher.power=1"])
    average = {"labels": "data", "eps": 1e-4, "floor": 0.0, "power": 0.5, "memory": None}
    assert vars(found.QuasiDiagonalFisher) == average
    assert vars(found.DiagonalFisher) == average | {"centred": False}
    dense = {"centred": False, "diagonal_start": False, "blocks": "unit", "power": 1.0}
    assert vars(found.BlockFisher) == average | dense
    with pytest.raises(TypeError, match="centred"):
        QuasiDiagonalFisher(centred=True)  # type: ignore[call-arg]
