"""Draws on disk, predicting with them, and distilling them."""

from lightning_sgmcmc.posterior.distill import distill
from lightning_sgmcmc.posterior.draws import Draw, DrawStore
from lightning_sgmcmc.posterior.load import Posterior, load_posterior

__all__ = ["Draw", "DrawStore", "Posterior", "distill", "load_posterior"]
