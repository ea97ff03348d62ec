"""Baselines: what a sampler is compared with, behind a sampler's interface."""

from lightning_sgmcmc.baselines.optimized import Optimized

__all__ = ["Optimized"]
