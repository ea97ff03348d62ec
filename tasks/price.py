"""The honest price: after how many fields a surrogate has cost less than the solver."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pde.datasets.family import Arrays
from tasks.data.flows import FlowData
from tasks.solvers import Solver, solvers_of
from tasks.surrogates import Array, relative_errors

#: Fields that a solver is measured on.
FIELDS = 8
#: A call is repeated, and its least time counts, until this much has been spent on it.
_ROUNDS, _SECONDS = 3, 1.0


@dataclass(frozen=True)
class Surrogate:
    """What a surrogate costs a field, in seconds, and its mean relative L2 error in percent."""

    seconds: float
    error_percent: float


def fields_until_it_pays(once: float, predicting: float, solving: float) -> int | None:
    """Return the least n with once + n predicting < n solving, None if there is none.

    Args:
        once: Seconds for data and training.
        predicting: Seconds for the prediction of a field.
        solving: Seconds for its solution.
    """
    if predicting >= solving:
        return None
    return math.floor(once / (solving - predicting)) + 1


def clock_of(device: torch.device) -> Callable[[], float]:
    """Return what times calls: the processor's time of all threads, or the clock beside a GPU."""
    return time.process_time if device.type == "cpu" else time.perf_counter


def seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return the least time of a call, of three rounds or of those that fit in a second."""
    least, spent = math.inf, 0.0
    for _ in range(_ROUNDS):
        began = clock()
        call()
        took = clock() - began
        least, spent = min(least, took), spent + took
        if spent >= _SECONDS:
            break
    return least


def price(
    data: FlowData[Any],
    training_seconds: float,
    surrogates: Mapping[str, Surrogate],
    clock: Callable[[], float],
) -> dict[str, Any]:
    """Return costs, and after how many fields each surrogate has cost less than the solver.

    A surrogate costs T_data + T_train + n T_predict for n fields, the solver n T_solve. The solver
    is the first of :func:`~tasks.solvers.solvers_of`, cheapest first, whose mean error on eight
    test fields is at most the surrogate's. T_data is the time of these fields, for as many as were
    solved for training, sigma and calibration. What both need once, such as a factorization for all
    sources, is left out.

    Args:
        data: Of the run.
        training_seconds: T_train.
        surrogates: By name.
        clock: Returns seconds.
    """
    test, spec = data.split("test"), data.data.spec
    samples = range(test.start, min(test.start + FIELDS, test.stop))
    family = spec.family(dict(data.data.arrays), spec.backend("auto"))
    drawn, truth = family.draw(samples), data.samples(slice(samples.start, samples.stop))[1]
    family.compute(samples[:1])  # which compiles its loops, where it has any
    solved = test.start + data.num_calibration
    making = solved * seconds(lambda: family.compute(samples), clock) / len(samples)
    solvers = _Measured(solvers_of(spec, family), drawn, truth, clock)
    found = {}
    for name, surrogate in surrogates.items():
        solver, error, solving = solvers.cheapest(surrogate.error_percent)
        once, own = making + training_seconds, surrogate.seconds
        found[name] = {
            "error_percent": surrogate.error_percent,
            "seconds_a_field": own,
            "solver": solver,
            "solver_error_percent": error,
            "solver_seconds_a_field": solving,
            "pays_after_fields": fields_until_it_pays(once, own, solving),
        }
    return {
        "fields_solved": solved,
        "data_seconds": making,
        "training_seconds": training_seconds,
        "surrogates": found,
    }


class _Measured:
    """Solvers with their errors and times, each measured once and only if it is asked for."""

    def __init__(
        self, solvers: Sequence[Solver], drawn: Arrays, truth: Array, clock: Callable[[], float]
    ) -> None:
        self._solvers, self._drawn, self._truth, self._clock = solvers, drawn, truth, clock
        self._errors: dict[str, float] = {}
        self._seconds: dict[str, float] = {}

    def cheapest(self, error_percent: float) -> tuple[str, float, float]:
        """Return the first solver of at most this error, or the last: name, error, seconds."""
        for solver in self._solvers:
            if solver.name not in self._errors:
                errors = relative_errors(solver.solve(self._drawn), self._truth)
                self._errors[solver.name] = 100 * float(errors.mean())
            if self._errors[solver.name] <= error_percent:
                break
        if solver.name not in self._seconds:
            took = seconds(lambda: solver.solve(self._drawn), self._clock)
            self._seconds[solver.name] = took / len(self._truth)
        return solver.name, self._errors[solver.name], self._seconds[solver.name]


def price_rows(found: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Return rows of a run's table that say after how many fields the surrogates pay.

    Args:
        found: As :func:`price` gives it; none of a run without draws.
    """
    rows = []
    for name, one in (found or {}).get("surrogates", {}).items():
        after = one["pays_after_fields"]
        said = "never at this size" if after is None else f"after {after:,} fields"
        own, its = (1e3 * one[k] for k in ("seconds_a_field", "solver_seconds_a_field"))
        solver = f"{one['solver']}, error {one['solver_error_percent']:.2g} %"
        rows.append((f"cheaper than a solver, {name}", f"{said}: {own:.3g} ms a field"))
        rows.append(("", f"{its:.3g} ms by {solver}"))
    return rows
