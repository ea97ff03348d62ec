"""Priors over the weights: log density and gradient."""

from lightning_sgmcmc.priors.base import FlatPrior, Prior
from lightning_sgmcmc.priors.fan_in import FanInGaussianPrior
from lightning_sgmcmc.priors.gaussian import GaussianPrior
from lightning_sgmcmc.priors.laplace import LaplacePrior
from lightning_sgmcmc.priors.layerwise import LayerwiseGaussianPrior
from lightning_sgmcmc.priors.normal_inverse_gamma import NormalInverseGammaPrior
from lightning_sgmcmc.priors.scale_mixture import ScaleMixturePrior
from lightning_sgmcmc.priors.spike_slab import SpikeAndSlabPrior

#: Priors that are Gaussian with independent weights.
GAUSSIAN_PRIORS = (FlatPrior, GaussianPrior, LayerwiseGaussianPrior, FanInGaussianPrior)

__all__ = [
    "GAUSSIAN_PRIORS",
    "FanInGaussianPrior",
    "FlatPrior",
    "GaussianPrior",
    "LaplacePrior",
    "LayerwiseGaussianPrior",
    "NormalInverseGammaPrior",
    "Prior",
    "ScaleMixturePrior",
    "SpikeAndSlabPrior",
]
