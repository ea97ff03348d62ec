"""What a run is called in tables: what its configuration builds, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_sgmcmc import SGFS, Identity, Sampler
from lightning_sgmcmc.common.arguments import arguments_of
from tasks.experiments.overrides import Component, Overrides

#: Samplers that have a metric of their own.
_WITH_METRIC = ("PSGLD", "HASGLD", "NaturalLangevin", "SGFS")
_VARIANTS = {"full": "SGFS-f", "diagonal": "SGFS-d", "block": "SGFS-b"}
#: Arguments that rows are told apart by, and their signs.
_SIGNS = {
    "memory": "M", "slots": "slots", "r": "r", "alpha": "alpha", "eps": "eps", "momentum": "mu",
}  # fmt: skip


def label(overrides: Overrides) -> str:
    """Return what overrides that state a sampler completely build.

    The sampler; of the metric its name, the arguments stated and whether it adapts or is frozen
    where draws begin; the step and how it changes; the prior; dropout; the temperature unless it
    is 1.
    """
    drawn = overrides["model.sampler"]
    stated = drawn["init_args"]
    words = [_sampler(drawn)]
    metric = stated.get("preconditioner")
    if metric is not None:
        words.append(f"{_name(metric)} metric{_in_brackets(metric.get('init_args', {}))}")
    if signed := _signed(stated):
        words.append(signed)
    if stated.get("labels") == "model":
        words.append("labels sampled")
    if stated.get("count_prior"):
        words.append("prior counted")
    if stated.get("paper_mode"):
        words.append("as printed (normalised steps)")
    elif metric is not None or _name(drawn) in _WITH_METRIC:
        adapting = overrides.get("model.freeze_preconditioner") is False
        words.append("adapting" if adapting else "frozen")
    words += [_step(overrides), _prior(stated["prior"])]
    dropout = overrides.get("model.net", {}).get("init_args", {}).get("dropout")
    if dropout:
        words.append(f"dropout {dropout:g}")
    if stated.get("temperature", 1.0) != 1.0:
        words.append(f"T = {stated['temperature']:.3g}")
    weights = overrides.get("model.draw_weights", "auto")
    if weights != "auto":
        words.append("weighted alike" if weights == "equal" else "weighted by steps")
    return ", ".join(words)


def of_sampler(sampler: Sampler, freeze: bool = True) -> str:
    """Return what a sampler is made of, without its step: of a study over several.

    Args:
        sampler: The sampler.
        freeze: Whether its metric freezes where draws begin.
    """
    metric, own = sampler.preconditioner, arguments_of(sampler)
    printed, scoring = own.get("paper_mode"), isinstance(sampler, SGFS)
    words = [_VARIANTS[own["variant"]] if scoring else type(sampler).__name__]
    if own.get("count_prior"):
        words.append("prior counted")
    if printed:
        words.append("as printed (normalised steps)")
    of_metric = arguments_of(metric)
    if signed := _signed({k: v for k, v in own.items() if k not in of_metric}):
        words.append(signed)
    if type(metric) is not Identity and not scoring:
        # HAMCMC's M is not its metric's number of pairs.
        stated = {k: own.get(k, v) for k, v in of_metric.items()}
        words.append(f"{type(metric).__name__} metric ({_signed(stated)})")
    if metric.adaptive:
        words.append("frozen" if freeze and not printed else "adapting")
    if sampler.temperature != 1.0:
        words.append(f"T = {sampler.temperature:.3g}")
    return ", ".join(words)


def _signed(arguments: Mapping[str, Any]) -> str:
    stated = {k: arguments[k] for k in _SIGNS if k in arguments}
    known = {k: v for k, v in stated.items() if v is not None or k == "slots"}
    return ", ".join(f"{_SIGNS[k]} = {_number(v)}" for k, v in known.items())


def _number(value: float | str | None) -> str:
    """Return a value as rows state it; of slots, None is all."""
    return "all" if value is None else value if isinstance(value, str) else f"{value:g}"


def _name(value: Component) -> str:
    return str(value["class_path"]).rsplit(".", 1)[-1]


def _sampler(drawn: Component) -> str:
    stated, name = drawn["init_args"], _name(drawn)
    if name == "Optimized":
        return _optimizer(stated["optimizer"]) if "optimizer" in stated else "SGD"
    return _VARIANTS[stated.get("variant", "full")] if name == "SGFS" else name


def _optimizer(inner: Component) -> str:
    betas = inner.get("init_args", {}).get("betas")
    return _name(inner) + (f" (betas = {betas[0]:g}, {betas[1]:g})" if betas else "")


def _in_brackets(arguments: Mapping[str, Any]) -> str:
    return f" ({_signed(arguments)})" if _signed(arguments) else ""


def _step(overrides: Overrides) -> str:
    lr = overrides["model.sampler"]["init_args"]["lr"]
    fraction = overrides.get("model.step_fraction")
    if lr == "auto":
        step = "lr auto" if fraction in (None, "auto") else f"lr {fraction:g} of the largest stable"
    else:
        step = f"lr {lr:.3g}"
    schedule = overrides.get("model.schedule")
    if schedule is None:
        return step
    arguments = schedule["init_args"]
    if _name(schedule) == "BlockDecay":
        return f"{step} halved every {arguments['every']:,} steps"
    if _name(schedule) == "PolynomialDecay":
        return f"{step} (1 + t/{arguments['b']:,g})^-{arguments['gamma']:g}"
    return f"{step} by {_name(schedule)}"


def _prior(prior: Component) -> str:
    name, stated = _name(prior), prior.get("init_args", {})
    if name == "GaussianPrior":
        return f"prior N(0, {stated['variance']:g})"
    if name == "FanInGaussianPrior":
        return f"prior N(0, {stated['variance']:g} / fan-in)"
    return "no prior" if name == "FlatPrior" else name
