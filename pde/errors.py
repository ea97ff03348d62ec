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

    def __init__(
        self,
        said: str = "the system is numerically singular; the permeability spans more decades than "
        "double precision resolves",
    ) -> None:
        super().__init__(said)  # which a worker's error is made of again in this process


def check_conserved(excess: Any, flow: Any, kappa: Any, pressure: Any) -> None:
    """Raise `SingularError` where a flow loses mass: 1e-6 of the largest flow through an edge.

    Where nothing flows, all of it is rounding: what 1e-10 of the pressure drives is let through.

    Args:
        excess: Sources less what flows out, of each sample in its cells, `[n, num_cells]`.
        flow: Through the edges, `[n, num_edges]`, in the same unit.
        kappa: Permeabilities, `[n, ...]`, or `[1, ...]` for one of all samples.
        pressure: In the cells, `[n, num_cells]`.
    """
    driven = np.exp(np.log(kappa).reshape(len(kappa), -1).mean(1)) * np.abs(pressure).max(1)
    if (np.abs(excess).max(1) > 1e-6 * np.abs(flow).max(1) + 1e-10 * driven).any():
        raise SingularError


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
