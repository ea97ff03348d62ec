"""Stochastic-gradient MCMC for neural networks on PyTorch Lightning.

A name is imported when it is first used. Torch and Lightning take seconds, which the command's help
and its answer to a wrong name need not wait for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_sgmcmc.chain import BatchStream, OnDisk
    from lightning_sgmcmc.chain.adapters import LowRankLinear, add_adapters
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
        DecayingRMSProp,
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
        MCLMC,
        PSGLD,
        SGFS,
        SGHMC,
        SGLD,
        SGNHT,
        SMILE,
        NaturalLangevin,
        Sampler,
    )
    from lightning_sgmcmc.target import SVRG, ControlVariate, GradientEstimator, Minibatch, Target
else:

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first asked for."""
        if name in __all__:
            for room in _ROOMS:
                found = getattr(import_module(f"{__name__}.{room}"), name, None)
                if found is not None:
                    globals()[name] = found
                    return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__version__ = "0.2.0"

#: Where public names are looked for, from the lowest room up.
_ROOMS = (
    "priors",
    "preconditioners",
    "samplers",
    "metrics",
    "target",
    "chain",
    "chain.adapters",
    "chain.schedules",
    "posterior",
    "module",
    "run.load",
)

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
    "DecayingRMSProp",
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
    "LowRankLinear",
    "Minibatch",
    "NaturalLangevin",
    "Normal",
    "NormalInverseGammaPrior",
    "OnDisk",
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
    "add_adapters",
    "load_posterior",
]
