"""The matrix C of a sampler: apply, square-root noise, update, freeze."""

from lightning_sgmcmc.preconditioners.base import Preconditioner
from lightning_sgmcmc.preconditioners.identity import Identity
from lightning_sgmcmc.preconditioners.lbfgs import AveragedLBFGS
from lightning_sgmcmc.preconditioners.rmsprop import RMSProp

__all__ = ["AveragedLBFGS", "Identity", "Preconditioner", "RMSProp"]
