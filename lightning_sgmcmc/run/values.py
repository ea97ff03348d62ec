"""Laws that every value of a run's configuration holds, whatever class it is for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pkgutil import resolve_name
from typing import Any

import torch

from lightning_sgmcmc.run.folder import started_by_others

_LARGEST = torch.finfo(torch.float32).max
#: The least value of the trainer's numbers, where Lightning itself would divide by zero or ignore.
_LEAST = {
    "accumulate_grad_batches": 1,
    "check_val_every_n_epoch": 1,
    "log_every_n_steps": 1,
    "num_nodes": 1,
}
_MOST = {"devices": 10_000, "num_nodes": 10_000}


def check(config: dict[str, Any]) -> None:
    """Check a parsed configuration.

    Raises:
        ValueError: If a number is not finite in float32, a text is empty, a value is null that its
            class does not take as such, or a setting of the trainer has no meaning for a chain.
    """
    for field, value in _leaves(config):
        if isinstance(value, float) and not abs(value) <= _LARGEST:
            raise ValueError(f"{field}: {value} is not a finite number in float32")
        if isinstance(value, str) and not value.strip():
            raise ValueError(f"{field} is empty: give a value, or null where it may be left out")
    for field, path, arguments in _classes(config):
        _refuse_nulls(field, path, arguments)
    _check_trainer(config.get("trainer") or {})
    name = config.get("name")
    if name is not None and ("/" in name or "\\" in name or name in (".", "..")):
        raise ValueError(f"name: {name!r} is not the name of a folder; --out takes a path")
    minutes = config.get("max_time")
    if minutes is not None and minutes <= 0:
        raise ValueError(f"max_time must be positive, in minutes, got {minutes:g}")
    if config.get("max_time") is not None and config.get("until") is None:
        raise ValueError(
            "max_time is for --until sampled; the time of one run is --trainer.max_time=DD:HH:MM:SS"
        )
    if config.get("until") is not None and (config["trainer"].get("max_steps") or -1) < 0:
        raise ValueError("--until sampled makes runs longer by their steps: give trainer.max_steps")
    every = config.get("checkpoint_every")
    if every is not None and every < 1:
        raise ValueError(f"checkpoint_every must be at least 1, got {every}")


def _check_trainer(trainer: dict[str, Any]) -> None:
    for field, least in _LEAST.items():
        value = trainer.get(field)
        if value is not None and value < least:
            raise ValueError(f"trainer.{field} must be at least {least}, got {value}")
    for field, most in _MOST.items():
        value = str(trainer.get(field))
        if value.isdigit() and int(value) > most:
            raise ValueError(f"trainer.{field}: {value} is more than any machine has")
    if (trainer.get("num_nodes") or 1) > 1 and not started_by_others():
        raise ValueError(
            f"trainer.num_nodes={trainer['num_nodes']}: torchrun or srun starts the processes of "
            "several machines; start the command by one of them"
        )
    if trainer.get("val_check_interval") == 0:
        raise ValueError("trainer.val_check_interval must be positive, got 0")
    if trainer.get("limit_train_batches") == 0:
        raise ValueError("trainer.limit_train_batches = 0 leaves no step")
    if trainer.get("fast_dev_run"):
        raise ValueError(
            "trainer.fast_dev_run keeps no checkpoint: a short run is --trainer.max_steps=N"
        )
    if trainer.get("enable_checkpointing") is False:
        raise ValueError(
            "trainer.enable_checkpointing: a run keeps two checkpoints, from which it continues; "
            "--checkpoint_every=N makes them rare"
        )
    if trainer.get("barebones"):
        raise ValueError(
            "trainer.barebones keeps no draw: it is for L.Trainer(barebones=True) in a script"
        )
    if trainer.get("default_root_dir") is not None:
        raise ValueError("trainer.default_root_dir: the folder of a run is --out")


def _refuse_nulls(field: str, path: str, arguments: dict[str, Any]) -> None:
    """Refuse None for an argument whose type and default are not None."""
    try:
        kind = resolve_name(path)
    except (ImportError, AttributeError, ValueError):
        return  # the parser has said it, or finds the class by another way
    for name in [name for name, value in arguments.items() if value is None]:
        stated = _parameter(kind, name)
        if stated is None or stated.default is None:
            continue
        kinds = str(stated.annotation)
        if stated.annotation is not stated.empty and not _takes_none(kinds):
            raise ValueError(f"{field}.{name}: expected {kinds}, got null")


def _takes_none(annotation: str) -> bool:
    return any(word in annotation for word in ("None", "Optional", "Any"))


def _parameter(kind: Any, name: str) -> inspect.Parameter | None:
    """Return a parameter of a class, or of the bases that it passes keywords on to."""
    for base in getattr(kind, "__mro__", ()):
        init = vars(base).get("__init__")
        if init is not None and name in (stated := inspect.signature(init).parameters):
            return stated[name]
    return None


def _leaves(value: Any, field: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and value of all that is no mapping and no list."""
    if isinstance(value, dict):
        for key, item in value.items():
            name = field if key == "init_args" else f"{field}.{key}".lstrip(".")
            yield from _leaves(item, name)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item, field)
    else:
        yield field, value


def _classes(value: Any, field: str = "") -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield field, path and arguments of the classes that a configuration names."""
    if not isinstance(value, dict):
        return
    if isinstance(value.get("class_path"), str):
        yield field, value["class_path"], value.get("init_args") or {}
    for key, item in value.items():
        name = field if key == "init_args" else f"{field}.{key}".lstrip(".")
        yield from _classes(item, name)
