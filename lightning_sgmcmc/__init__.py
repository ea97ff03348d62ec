"""Stochastic-gradient MCMC for neural networks on PyTorch Lightning."""

from lightning_sgmcmc.chain import BatchStream
from lightning_sgmcmc.chain.schedules import (
    BlockDecay,
    ConstantStep,
    CyclicalCosine,
    PolynomialDecay,
    WarmupCosine,
)
from lightning_sgmcmc.metrics import Bernoulli, Categorical, Law, Normal
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.posterior import Posterior
from lightning_sgmcmc.preconditioners import (
    AveragedLBFGS,
    BlockFisher,
    DiagonalFisher,
    FullFisher,
    Identity,
    Preconditioner,
    PriorMetric,
    QuasiDiagonalFisher,
    RMSProp,
)
from lightning_sgmcmc.priors import (
    FanInGaussianPrior,
    FlatPrior,
    GaussianPrior,
    LaplacePrior,
    LayerwiseGaussianPrior,
    NormalInverseGammaPrior,
    Prior,
    ScaleMixturePrior,
    SpikeAndSlabPrior,
)
from lightning_sgmcmc.run.load import load_posterior
from lightning_sgmcmc.samplers import (
    HAMCMC,
    HASGLD,
    HMC,
    PSGLD,
    SGFS,
    SGHMC,
    SGLD,
    SGNHT,
    NaturalLangevin,
    Sampler,
)
from lightning_sgmcmc.target import SVRG, ControlVariate, GradientEstimator, Minibatch, Target

__all__ = [
    "HAMCMC",
    "HASGLD",
    "HMC",
    "PSGLD",
    "SGFS",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SVRG",
    "AveragedLBFGS",
    "BatchStream",
    "Bernoulli",
    "BlockDecay",
    "BlockFisher",
    "Categorical",
    "ConstantStep",
    "ControlVariate",
    "CyclicalCosine",
    "DiagonalFisher",
    "FanInGaussianPrior",
    "FlatPrior",
    "FullFisher",
    "GaussianPrior",
    "GradientEstimator",
    "Identity",
    "LaplacePrior",
    "Law",
    "LayerwiseGaussianPrior",
    "Minibatch",
    "NaturalLangevin",
    "Normal",
    "NormalInverseGammaPrior",
    "PolynomialDecay",
    "Posterior",
    "Preconditioner",
    "Prior",
    "PriorMetric",
    "QuasiDiagonalFisher",
    "RMSProp",
    "SGMCMCModule",
    "Sampler",
    "ScaleMixturePrior",
    "SpikeAndSlabPrior",
    "Target",
    "WarmupCosine",
    "load_posterior",
]
