"""What a chain was built of, for ``results.json`` and for the first line of a run's last table."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_sgmcmc.chain.schedules import ConstantStep
from lightning_sgmcmc.common.arguments import arguments_of, listed, shown_optimizer
from lightning_sgmcmc.preconditioners import AveragedLBFGS, Identity, Preconditioner
from lightning_sgmcmc.samplers import ChainsInTurn, Sampler
from lightning_sgmcmc.target import GradientEstimator, Minibatch

#: What has a place of its own beside a sampler's options.
_APART = (
    "lr", "num_data", "prior", "preconditioner", "temperature", "seed", "increments",
)  # fmt: skip


def describe(
    sampler: Sampler,
    schedule: LRScheduler,
    batches: str,
    gradients: GradientEstimator | None = None,
) -> dict[str, Any]:
    """Return what a chain was built of, read from the objects that took its steps.

    Args:
        sampler: The sampler.
        schedule: Of its step size.
        batches: How minibatches were drawn.
        gradients: How gradients were estimated from them; None for the minibatch's own.

    Returns:
        ``label``, a line of words; the sampler's name, class and own ``options``; ``metric``, C
        with its arguments, and whether it is constant, adapting or frozen; the ``prior``; ``step``
        on the mean loss, the ``first`` and the ``last``, whether it was ``auto`` or given, and its
        schedule; temperature, increments, ``noise``, the generator's name, batches and gradients.
        ``preconditioner`` and ``lr`` are C and the last step once more.
    """
    own = sampler.samplers[0] if isinstance(sampler, ChainsInTurn) else sampler
    metric = own.preconditioner
    options = {k: v for k, v in arguments_of(own).items() if k not in _APART}
    inner = getattr(own, "optimizer", None)  # of a baseline
    if isinstance(inner, Optimizer):
        options["optimizer"] = shown_optimizer(inner)
    timetable = {k: v for k, v in arguments_of(schedule).items() if k not in ("optimizer", "lr")}
    step = {
        "first": sampler.param_groups[0].get("initial_lr", sampler.lr),
        "last": sampler.lr,
        "auto": sampler.auto_lr,
        "schedule": f"{type(schedule).__name__}({listed(timetable)})",
    }
    described = {
        "label": "",
        "name": sampler.name,
        "class": f"{type(own).__module__}.{type(own).__qualname__}",
        "options": options,
        "metric": {
            "name": type(metric).__name__,
            "state": _state(metric),
            "arguments": arguments_of(metric),
        },
        "preconditioner": repr(metric),
        "prior": repr(sampler.prior),
        "lr": sampler.lr,
        "step": step,
        "temperature": sampler.temperature,
        "increments": own.increments,
        "noise": own.stream.generator,
        "implementation": sampler.implementation,
        "batches": batches,
        "gradients": repr(gradients or Minibatch()),
    }
    label = _label(described, metric, isinstance(schedule, ConstantStep))
    if own.generator is not None:
        label += f", {own.generator} noise"
    return described | {"label": label}


def _state(metric: Preconditioner) -> str:
    if not metric.adaptive:
        return "constant"
    return "frozen" if metric.frozen else "adapting"


def _label(described: dict[str, Any], metric: Preconditioner, constant: bool) -> str:
    """Return sampler, metric, step, prior and temperature in a line."""
    name = described["name"]
    options = {
        k: v for k, v in described["options"].items() if v is not False and f"({v})" not in name
    }
    state = described["metric"]["state"]
    if isinstance(metric, AveragedLBFGS):
        state = f"M={metric.memory}, slots={metric.held or 'all'}, {state}"
    step = described["step"]
    how = ["auto"] * step["auto"] + [step["schedule"]] * (not constant)
    parts = [
        name + (f"({listed(options)})" if options else ""),
        "no metric" if type(metric) is Identity else f"{type(metric).__name__} metric ({state})",
        f"lr {step['last' if constant else 'first']:.3g}" + (f" ({', '.join(how)})" if how else ""),
        described["prior"],
    ]
    if described["gradients"] != repr(Minibatch()):
        parts.append(described["gradients"])
    if described["temperature"] != 1:
        parts.append(f"T = {described['temperature']:g}")
    if described["increments"] != "gaussian":
        parts.append(f"{described['increments']} increments")
    return ", ".join(parts)
