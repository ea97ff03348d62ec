"""Overrides of a configuration as data: dotted names and their values.

A value is a number, a word, a list, or a component: the class and all arguments of a sampler, a
prior, a schedule, which do not depend on the class that the configuration file names.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

#: Dotted names, such as ``model.burn_in``, and what they are set to.
Overrides = Mapping[str, Any]
Component = dict[str, Any]

OPTIMIZED = "baselines.Optimized"


def component(path: str, /, **arguments: Any) -> Component:
    """Return a class and its arguments as configuration files state them."""
    return {"class_path": path, "init_args": arguments}


def ours(name: str, /, **arguments: Any) -> Component:
    """Return a component of ``lightning_sgmcmc``."""
    return component(f"lightning_sgmcmc.{name}", **arguments)


def sampler(name: str, /, lr: float | str, prior: Component, **arguments: Any) -> dict[str, Any]:
    """Return the override that states a sampler completely."""
    return {"model.sampler": ours(name, lr=lr, prior=prior, **arguments)}


def gaussian(variance: float) -> Component:
    """Return the prior N(0, variance)."""
    return ours("GaussianPrior", variance=variance)


def schedule(name: str, /, **arguments: Any) -> dict[str, Any]:
    """Return the override that states how the step size changes."""
    return {"model.schedule": ours(name, **arguments)}


def changed(overrides: Overrides, changes: Overrides) -> dict[str, Any]:
    """Return overrides with some values changed.

    A name such as ``model.sampler.lr`` changes an argument of a component that ``overrides`` has,
    ``trainer.callbacks.0.rate`` one of a component in a list.
    """
    found: dict[str, Any] = copy.deepcopy(dict(overrides))
    for name, value in changes.items():
        known = (k for k, v in found.items() if isinstance(v, (dict, list)))
        whole = next((k for k in known if name.startswith(f"{k}.")), None)
        if whole is None:
            found[name] = copy.deepcopy(value)
            continue
        place = found[whole]
        *path, last = name.removeprefix(f"{whole}.").split(".")
        for part in path:
            place = place[int(part)] if isinstance(place, list) else _arguments(place)[part]
        _arguments(place)[last] = copy.deepcopy(value)
    return found


def _arguments(value: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = value.get("init_args", value)
    return found


def arguments(overrides: Overrides) -> list[str]:
    """Return overrides as a command line."""
    return [f"--{name}={_text(value)}" for name, value in overrides.items()]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
