"""Draws on disk, predicting with them, and distilling them."""

from lightning_sgmcmc.posterior.diagnosis import diagnose
from lightning_sgmcmc.posterior.distill import distill
from lightning_sgmcmc.posterior.draws import Draw, DrawStore, chains_in, open_stores
from lightning_sgmcmc.posterior.evaluation import EnsembleSteps
from lightning_sgmcmc.posterior.export import probe, to_arviz
from lightning_sgmcmc.posterior.kept import KeptDraws
from lightning_sgmcmc.posterior.posterior import Posterior

__all__ = [
    "Draw",
    "DrawStore",
    "EnsembleSteps",
    "KeptDraws",
    "Posterior",
    "chains_in",
    "diagnose",
    "distill",
    "open_stores",
    "probe",
    "to_arviz",
]
