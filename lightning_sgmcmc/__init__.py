"""Stochastic-gradient MCMC for neural networks on PyTorch Lightning."""

from lightning_sgmcmc.batches import BatchStream
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.posterior import Posterior, load_posterior
from lightning_sgmcmc.preconditioners import AveragedLBFGS, Identity, Preconditioner, RMSProp
from lightning_sgmcmc.priors import FlatPrior, GaussianPrior, Prior
from lightning_sgmcmc.samplers import HASGLD, PSGLD, SGHMC, SGLD, Sampler
from lightning_sgmcmc.target import Target

__all__ = [
    "HASGLD",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "AveragedLBFGS",
    "BatchStream",
    "FlatPrior",
    "GaussianPrior",
    "Identity",
    "Posterior",
    "Preconditioner",
    "Prior",
    "RMSProp",
    "SGMCMCModule",
    "Sampler",
    "Target",
    "load_posterior",
]
