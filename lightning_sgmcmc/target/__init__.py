"""The potential, its derivatives, and statistics of per-example gradients."""

from lightning_sgmcmc.target.per_example import PerExample
from lightning_sgmcmc.target.potential import Batch, Target

__all__ = ["Batch", "PerExample", "Target"]
