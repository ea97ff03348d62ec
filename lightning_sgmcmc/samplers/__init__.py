"""Samplers: torch optimizers whose iterates are draws."""

from lightning_sgmcmc.samplers.base import Sampler, Stacked
from lightning_sgmcmc.samplers.chains_in_turn import ChainsInTurn
from lightning_sgmcmc.samplers.gradients import NonFiniteGradientError
from lightning_sgmcmc.samplers.hamcmc import HAMCMC
from lightning_sgmcmc.samplers.hasgld import HASGLD
from lightning_sgmcmc.samplers.hmc import HMC
from lightning_sgmcmc.samplers.mclmc import MCLMC
from lightning_sgmcmc.samplers.natural_langevin import NaturalLangevin
from lightning_sgmcmc.samplers.psgld import PSGLD
from lightning_sgmcmc.samplers.sgfs import SGFS
from lightning_sgmcmc.samplers.sghmc import SGHMC
from lightning_sgmcmc.samplers.sgld import SGLD
from lightning_sgmcmc.samplers.sgnht import SGNHT
from lightning_sgmcmc.samplers.smile import SMILE

__all__ = [
    "HAMCMC",
    "HASGLD",
    "HMC",
    "MCLMC",
    "PSGLD",
    "SGFS",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SMILE",
    "ChainsInTurn",
    "NaturalLangevin",
    "NonFiniteGradientError",
    "Sampler",
    "Stacked",
]
