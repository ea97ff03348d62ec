"""Priors over the weights: log density and gradient."""

from lightning_sgmcmc.priors.base import FlatPrior, Prior
from lightning_sgmcmc.priors.gaussian import GaussianPrior

__all__ = ["FlatPrior", "GaussianPrior", "Prior"]
