"""Draws on disk, and predicting with them."""

from lightning_sgmcmc.posterior.draws import Draw, DrawStore
from lightning_sgmcmc.posterior.load import Posterior, load_posterior

__all__ = ["Draw", "DrawStore", "Posterior", "load_posterior"]
