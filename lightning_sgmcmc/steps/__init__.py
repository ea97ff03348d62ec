"""From (integrator, metric, prior, device) to a step: the one place that chooses an implementation.

A sampler states its step once, in ``Sampler.formula``, in plain torch; a metric its ``update``,
``apply_`` and ``noise``. The modules of this folder register faster implementations for exact
combinations of classes (:mod:`lightning_sgmcmc.steps.registry`), each with the methods that it
stands for. One is used only while every class still has these very methods: a subclass or an
instance that overrides one of them gets the formula, by itself.

Every module beside this one is imported here, so that another implementation, for another device
say, is one new file.
"""

from importlib import import_module
from pkgutil import iter_modules

from lightning_sgmcmc.steps.registry import (
    FORMULA,
    faster_move,
    faster_update,
    move,
    observe,
    update,
)

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["FORMULA", "faster_move", "faster_update", "move", "observe", "update"]
