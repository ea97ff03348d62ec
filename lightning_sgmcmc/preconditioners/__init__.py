"""The matrix C of a sampler: apply, square-root noise, update, freeze."""

from lightning_sgmcmc.preconditioners.base import Preconditioner
from lightning_sgmcmc.preconditioners.decaying_rmsprop import DecayingRMSProp
from lightning_sgmcmc.preconditioners.fisher import DiagonalFisher, Fisher
from lightning_sgmcmc.preconditioners.fisher_dense import BlockFisher, FullFisher
from lightning_sgmcmc.preconditioners.fisher_quasi import QuasiDiagonalFisher
from lightning_sgmcmc.preconditioners.identity import Identity
from lightning_sgmcmc.preconditioners.lbfgs import AveragedLBFGS
from lightning_sgmcmc.preconditioners.prior_metric import PriorMetric
from lightning_sgmcmc.preconditioners.rmsprop import RMSProp

__all__ = [
    "AveragedLBFGS",
    "BlockFisher",
    "DecayingRMSProp",
    "DiagonalFisher",
    "Fisher",
    "FullFisher",
    "Identity",
    "Preconditioner",
    "PriorMetric",
    "QuasiDiagonalFisher",
    "RMSProp",
]
