"""Baselines: what a sampler is compared with, behind a sampler's interface."""

from lightning_sgmcmc.baselines.bayes_by_backprop import BayesByBackprop
from lightning_sgmcmc.baselines.dropout import Dropout, mc_dropout_predictions
from lightning_sgmcmc.baselines.optimized import Optimized
from lightning_sgmcmc.baselines.rms_spectral import RMSspectral
from lightning_sgmcmc.baselines.swag import SWAG

__all__ = [
    "SWAG",
    "BayesByBackprop",
    "Dropout",
    "Optimized",
    "RMSspectral",
    "mc_dropout_predictions",
]
