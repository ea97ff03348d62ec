"""The errors of the package, each a `ValueError` of one line, and checks of plain values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


class PdeError(ValueError):
    """A value that no Darcy problem can have: says what came, what was expected, what to do."""


class IncompatibleSourceError(PdeError):
    """Without a pressure side the sources must sum to zero, and these do not."""


class SingularError(PdeError):
    """A linear system cannot be solved in double precision."""

    def __init__(self) -> None:
        super().__init__(
            "the system is numerically singular; the permeability spans more decades than double "
            "precision resolves"
        )


class FileContentError(PdeError):
    """A file is not what it should be: cut short, of another format, or of other parameters."""


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise `PdeError` unless a value is one of the choices."""
    if value not in (known := tuple(choices)):
        raise PdeError(f"{name}={value!r}, expected one of {', '.join(known)}")


def check_count(what: str, value: object, least: int = 1) -> int:
    """Return an integer of at least `least`; raise `PdeError` if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise PdeError(f"{what}, expected an integer of at least {least}")
    return int(value)


def check_positive(name: str, value: Any) -> float:
    """Return a positive finite number; raise `PdeError` if it is none."""
    if not (isinstance(value, int | float | np.number) and 0 < value < np.inf):
        raise PdeError(f"{name}={value!r}, expected a positive finite number")
    return float(value)
