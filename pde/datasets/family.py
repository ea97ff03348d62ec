"""What a data set is made of: the protocol that every family of problems follows.

A family is one file with a specification, `DataSpec`, and what a worker keeps to draw and solve
its samples, `Family`. The runner does the rest: chunks, workers, journal, resume and file.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias
from uuid import uuid4

import numpy as np

from ..darcy.family import choose_backend
from ..darcy.solver import DarcySolution
from ..errors import check_choice, check_count
from ..fields.streams import check_draw
from ..grid import Array, Grid

Arrays: TypeAlias = dict[str, Array]
#: The specification of each kind of data set, by the format that its files name.
FORMATS: dict[str, type[DataSpec]] = {}


@dataclass(frozen=True)
class DataSpec(ABC):
    """What a data set is, in plain values; its subclasses' defaults are their papers'.

    A subclass that sets `format` can be generated and loaded.

    Args:
        nx: Cells in x.
        ny: Cells in y.
        lx: Width of the domain.
        ly: Height of the domain.
        num_samples: Number of samples.
        seed: Sample i depends on (seed, i) alone.
        save_pressure: Whether the pressures are kept too.

    Raises:
        PdeError: A value that is not one of these.
    """

    format: ClassVar[str]  # in the file's header, with the version
    version: ClassVar[int] = 1
    backends: ClassVar[tuple[str, ...]] = ("auto", "scipy")
    ignored: ClassVar[tuple[str, ...]] = ()  # parameters that a resumed run may change

    nx: int
    ny: int
    lx: float = 1.0
    ly: float = 1.0
    num_samples: int = field(default=1500, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    save_pressure: bool = field(default=False, kw_only=True)

    def __init_subclass__(cls) -> None:
        if "format" in cls.__dict__:
            FORMATS[cls.format] = cls

    def __post_init__(self) -> None:
        for name, value in vars(self).copy().items():
            if isinstance(value, np.generic):  # which JSON does not have
                object.__setattr__(self, name, value.item())
            elif isinstance(value, list):  # which JSON has for a tuple
                object.__setattr__(self, name, tuple(value))
            elif isinstance(value, Mapping):
                plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in value.items()}
                object.__setattr__(self, name, plain)
        _ = self.grid
        check_draw(self.seed, 0)
        check_count(f"num_samples={self.num_samples!r}", self.num_samples)

    @property
    def grid(self) -> Grid:
        """The grid."""
        return Grid(self.nx, self.ny, lx=self.lx, ly=self.ly)

    def parameters(self) -> dict[str, Any]:
        """The values that shape this data set, ready for JSON."""
        names = [f.name for f in sorted(dataclasses.fields(self), key=lambda f: bool(f.kw_only))]
        values = {name: getattr(self, name) for name in names}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def backend(self, asked: str) -> str:
        """The solver that `asked` means on this machine: its name, or `auto`.

        Raises:
            PdeError: The family has no such solver, or it is not installed.
        """
        check_choice("backend", asked, self.backends)
        return choose_backend(asked)[0] if "compiled" in self.backends else "scipy"

    def in_threads(self, backend: str) -> bool:
        """Whether workers are threads; if not, they are processes of one BLAS thread each."""
        return backend == "compiled"

    def shared(self) -> Arrays:
        """Arrays that all samples have in common, made once and sent to every worker."""
        return {}

    def notes(self) -> dict[str, str]:
        """What the file says of the problem beside the parameters."""
        return {}

    @abstractmethod
    def drawn(self) -> dict[str, tuple[int, ...]]:
        """The arrays that `Family.draw` gives, and the shape of one sample in each."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The arrays of the file that have a row a sample, and the shape of one row."""
        shapes = self.drawn() | {"velocity": (self.grid.num_edges,)}
        return shapes | {"pressure": self.grid.shape} if self.save_pressure else shapes

    @abstractmethod
    def family(self, shared: Arrays, backend: str) -> Family:
        """What one worker keeps."""

    def unlike(self, arrays: Mapping[str, Array]) -> list[str]:
        """In what a finished file of the same parameters is still another data set."""
        return []


class Family(ABC):
    """What one worker, a thread or a process, keeps from chunk to chunk."""

    spec: DataSpec

    @abstractmethod
    def draw(self, samples: range) -> Arrays:
        """The random inputs of some samples, each a function of the seed and its index."""

    @abstractmethod
    def solve(self, drawn: Arrays) -> DarcySolution | Array:
        """The flows of a batch of drawn inputs, or their pressures where the file has no flow."""

    def compute(self, samples: range) -> Arrays:
        """The rows of all arrays of the file, drawn and solved."""
        drawn = self.draw(samples)
        solution = self.solve(drawn)
        if isinstance(solution, np.ndarray):
            return drawn | {"pressure": solution}
        rows = drawn | {"velocity": solution.velocity}
        return rows | {"pressure": solution.pressure} if self.spec.save_pressure else rows


@dataclass(frozen=True)
class Job:
    """What is sent to every worker.

    Attributes:
        spec: What to make.
        shared: What `spec.shared()` gave.
        backend: The solver.
        key: Of this run alone.
    """

    spec: DataSpec
    shared: Arrays
    backend: str
    key: str = field(default_factory=lambda: uuid4().hex)

    def family(self) -> Family:
        """A worker's own."""
        return self.spec.family(self.shared, self.backend)
