"""The arguments of a class, and those that an object was built with."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from types import FrameType
from typing import Any

from torch.optim import Optimizer

_NOT_OPTIONS = ("self", "args", "kwargs", "chain", "params", "net")


def argument_names(kind: type) -> list[str]:
    """Return the names of a class's options, with those that it passes on to its bases.

    ``**keywords: Unpack[Names]`` stands for the names of that ``TypedDict``, other keywords for
    the arguments of the next base.
    """
    names: dict[str, None] = {}
    for base in kind.__mro__:
        init = vars(base).get("__init__")
        if init is None:
            continue
        parameters = inspect.signature(init).parameters
        names |= dict.fromkeys(n for n, p in parameters.items() if p.kind is not p.VAR_KEYWORD)
        keywords = [p for p in parameters.values() if p.kind is p.VAR_KEYWORD]
        if not keywords:
            break
        stated = re.fullmatch(r"Unpack\[(\w+)\]", str(keywords[0].annotation))
        if stated:
            names |= dict.fromkeys(init.__globals__[stated[1]].__annotations__)
            break
    return [n for n in names if n not in _NOT_OPTIONS]


def default_arguments(kind: type) -> dict[str, Any]:
    """Return the defaults of a class's options, those of its own ``__init__`` before its bases'."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        init = vars(base).get("__init__")
        parameters = inspect.signature(init).parameters if init is not None else {}
        found |= {n: p.default for n, p in parameters.items() if p.default is not p.empty}
    return found


def arguments_of(built: object) -> dict[str, Any]:
    """Return the options that an object was built with, as far as it keeps them by their names.

    Numbers, words and collections stay as they are; anything else is the name of its class.
    """
    found = {}
    for name in argument_names(type(built)):
        value = getattr(built, name, inspect.Parameter.empty)
        if value is inspect.Parameter.empty or inspect.ismethod(value):
            continue
        if is_dataclass(value) and not isinstance(value, type):
            value = asdict(value)
        plain = value is None or isinstance(value, (bool, int, float, str, tuple, list, Mapping))
        found[name] = value if plain else type(value).__name__
    return found


def shown_optimizer(built: Optimizer) -> str:
    """Return an optimizer's name, with the arguments that differ from its defaults but for lr."""
    usual = default_arguments(type(built)) | {"lr": built.defaults.get("lr")}
    stated = {k: v for k, v in built.defaults.items() if v != usual.get(k, v)}
    return type(built).__name__ + (f"({listed(stated)})" if stated else "")


def check_optimizer(built: Optimizer) -> None:
    """Raise ValueError if a step of an optimizer needs more than one gradient."""
    closure = inspect.signature(built.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"{type(built).__name__} evaluates the loss several times a step: choose an optimizer "
            "that steps from one gradient"
        )


def init_arguments(built: object, frame: FrameType | None) -> dict[str, Any]:
    """Return what an object is being built with, the arguments of its own class's ``__init__``.

    Args:
        built: The object.
        frame: Of the ``__init__`` of one of its bases, which its class has called.
    """
    found: dict[str, Any] = {}
    while frame is not None and frame.f_code.co_name == "__init__":
        names, _, keywords, values = inspect.getargvalues(frame)
        if not names or values.get(names[0]) is not built:
            break
        found = {name: values[name] for name in names[1:] if name in values}
        found |= values.get(keywords or "", {})
        frame = frame.f_back
    return found


def is_plain(value: Any) -> bool:
    """Return whether a value is made of None, numbers, words, lists and mappings alone."""
    if isinstance(value, Mapping):
        return all(is_plain(item) for item in value.values())
    if isinstance(value, (tuple, list)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def listed(options: Mapping[str, Any]) -> str:
    """Return options as in a call: ``a=1, b='c'``."""
    return ", ".join(f"{name}={_shown(value)}" for name, value in options.items())


def shown(built: object) -> str:
    """Return an object as the call that builds it: ``RMSProp(alpha=0.99, ...)``."""
    return f"{type(built).__name__}({listed(arguments_of(built))})"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (tuple, list)):
        inner = ", ".join(map(_shown, value))
        return f"({inner})" if isinstance(value, tuple) else f"[{inner}]"
    return repr(value)
