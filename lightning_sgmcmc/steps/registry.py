"""Which implementation takes a step: the formula, or a faster one that stands for it exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import Tensor

from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.preconditioners import Preconditioner

#: Name of the plain torch formula among the implementations.
FORMULA = "torch"

_PACKAGE = "lightning_sgmcmc"
Vectors = Sequence[Tensor]
#: The weights and gradient before a move, negated.
Start = tuple[list[Tensor], list[Tensor]]


@dataclass(frozen=True)
class Faster:
    """A faster implementation for one combination of classes.

    Attributes:
        name: As results name it.
        run: What stands for the methods.
        serves: Whether it can take this very step: device, type, masks, the state of the metric.
        metric: The metric's class.
        metric_methods: Names of the metric's methods that it stands for.
        integrator: Name of the sampler's class, for a move.
        integrator_methods: Names of the sampler's methods that it stands for.
        rank: Of several that serve, the one of highest rank is taken.
    """

    name: str
    run: Callable[..., Any]
    serves: Callable[..., bool]
    metric: type[Preconditioner]
    metric_methods: tuple[str, ...]
    integrator: str = ""
    integrator_methods: tuple[str, ...] = ()
    rank: int = 0


_MOVES: list[Faster] = []
_UPDATES: list[Faster] = []
_OBSERVATIONS: list[Faster] = []

#: The methods of a sampler that make its step.
_STEP = ("formula", "drift", "noise", "_masked")


def faster_move(
    name: str,
    integrator: str,
    metric: type[Preconditioner],
    metric_methods: tuple[str, ...],
    serves: Callable[[Any, list[Tensor]], bool],
    *,
    integrator_methods: tuple[str, ...] = (),
    rank: int = 0,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register ``run(sampler, grads)`` for a move: see :class:`Faster`.

    It stands for the sampler's ``formula``, ``drift`` and ``noise``, for the prior's
    ``add_gradient_``, which it may replace by ``prior.quadratic()``, and for the methods named.
    """

    def register(run: Callable[..., None]) -> Callable[..., None]:
        methods = (*_STEP, *integrator_methods)
        _MOVES.append(Faster(name, run, serves, metric, metric_methods, integrator, methods, rank))
        _moves_of.cache_clear()
        return run

    return register


def faster_update(
    name: str,
    metric: type[Preconditioner],
    metric_methods: tuple[str, ...],
    serves: Callable[..., bool],
    *,
    of_pairs: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register how a metric learns from a gradient, or ``of_pairs``: see :class:`Faster`."""

    def register(run: Callable[..., None]) -> Callable[..., None]:
        found = Faster(name, run, serves, metric, metric_methods)
        (_OBSERVATIONS if of_pairs else _UPDATES).append(found)
        return run

    return register


def move(sampler: Any, grads: list[Tensor]) -> str:
    """Change the parameters by one step of a sampler; return the implementation's name."""
    kind, metric = sampler.__class__, sampler.preconditioner
    for integrator, one in _moves_of(kind, metric.__class__):
        if (
            _same(kind, integrator, one.integrator_methods)
            and _same(metric.__class__, one.metric, one.metric_methods)
            and _untouched(sampler, one.integrator_methods)
            and _untouched(metric, one.metric_methods)
            and _untouched(sampler.prior, ("add_gradient_", "quadratic"))
            and one.serves(sampler, grads)
        ):
            one.run(sampler, grads)
            return one.name
    sampler.formula(grads)
    return FORMULA


def update(metric: Preconditioner, grads: Vectors, params: Vectors, stream: NoiseStream) -> None:
    """Show a metric the mean likelihood gradient at the current weights."""
    faster = _faster(_UPDATES, metric, grads, params, stream)
    if faster is None:
        metric.update(grads)
    else:
        faster.run(metric, grads)


def observe(
    metric: Preconditioner, start: Start, params: Vectors, grads: Vectors, stream: NoiseStream
) -> None:
    """Show a metric the move that ends here and the change of the gradient along it.

    Args:
        metric: The metric.
        start: Minus the weights and minus the gradient before it; overwritten.
        params: The weights.
        grads: The mean likelihood gradient there.
        stream: The chain's noise.
    """
    faster = _faster(_OBSERVATIONS, metric, grads, params, stream)
    if faster is None:
        metric.observe_from_(start, params, grads, stream)
    else:
        faster.run(metric, start, params, grads, stream)


def quadratic(prior: Any) -> tuple[float, float] | None:
    """Return (a, b) with grad(-log p) = a (theta - b), None where the prior is not known as such.

    ``quadratic`` counts only if the class that has it, and no other, says what ``add_gradient_``
    is.
    """
    kind: Any = type(prior)
    owner = next(c for c in kind.__mro__ if "quadratic" in vars(c))
    gradient = kind.add_gradient_
    together = gradient is owner.add_gradient_ and gradient.__module__ == owner.__module__
    return prior.quadratic() if together else None


def pull(sampler: Any, grads: list[Tensor]) -> tuple[float, float]:
    """Return the prior's pull (a, b), which a loop adds to the gradient as a (theta - b).

    Where the prior is not known as such, its gradient is added here and the pull is (0, 0).
    """
    found = quadratic(sampler.prior)
    if found is None:
        sampler.prior.add_gradient_(grads, sampler.params, 1 / sampler.num_data)
        return 0.0, 0.0
    return found[0] / sampler.num_data, found[1]


@lru_cache(maxsize=256)
def _moves_of(sampler: Any, metric: Any) -> tuple[tuple[type, Faster], ...]:
    """Return what is registered for bases of these classes, with the integrator's, best first."""
    found = []
    for one in _MOVES:
        integrator = next((c for c in sampler.__mro__ if _is_ours(c, one.integrator)), None)
        if integrator is not None and issubclass(metric, one.metric):
            found.append((integrator, one))
    return tuple(sorted(found, key=lambda pair: -pair[1].rank))


def _faster(
    registered: list[Faster],
    metric: Preconditioner,
    grads: Vectors,
    params: Vectors,
    stream: NoiseStream,
) -> Faster | None:
    """Return the implementation that a metric learns by here, None where it is its own method."""
    able = (
        one for one in _learners(registered, metric) if one.serves(metric, grads, params, stream)
    )
    return next(able, None)


def _learners(registered: list[Faster], metric: Preconditioner) -> Iterator[Faster]:
    for one in registered:
        if (
            isinstance(metric, one.metric)
            and _same(type(metric), one.metric, one.metric_methods)
            and _untouched(metric, one.metric_methods)
        ):
            yield one


def _is_ours(cls: type, name: str) -> bool:
    return cls.__name__ == name and cls.__module__.startswith(f"{_PACKAGE}.samplers.")


def _same(cls: Any, base: Any, methods: tuple[str, ...]) -> bool:
    """Return whether a class still has a base's methods, and these are the package's own.

    Asked at every step, so that a class that is patched meanwhile counts as an override, too.
    """
    for name in methods:
        method = getattr(base, name)
        if getattr(cls, name) is not method or not method.__module__.startswith(_PACKAGE):
            return False
    return True


def _untouched(instance: Any, methods: tuple[str, ...]) -> bool:
    """Return whether an object has none of these methods of its own."""
    return not any(name in vars(instance) for name in methods)
