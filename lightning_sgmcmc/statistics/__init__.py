"""Statistics of per-example gradients, from the backward pass that computes the gradient."""

from lightning_sgmcmc.statistics.per_example import PerExample

__all__ = ["PerExample"]
