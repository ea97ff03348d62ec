"""The priors that the tests go through, and parameters for them."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from lightning_sgmcmc import (
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

PRIORS: list[Prior] = [
    FlatPrior(),
    GaussianPrior(),
    GaussianPrior(0.3),
    GaussianPrior(7.0, -1.5),
    LayerwiseGaussianPrior({"net.0.*": 0.5, "*.bias": 10.0}, default=2.0),
    LayerwiseGaussianPrior({"*.bias": 10.0}, default=2.0, per_fan_in=True),
    FanInGaussianPrior(2.0, 0.7),
    LaplacePrior(0.4),
    ScaleMixturePrior(0.3, 1.5, 0.2),
    NormalInverseGammaPrior(),
    NormalInverseGammaPrior(1.5, 0.2, mean=0.3),
    SpikeAndSlabPrior(v0=0.3, v1=4.0, delta=0.2, variance=2.0),
]
SHAPES = {"net.0.weight": (3, 2), "scale": (), "net.1.bias": (4,), "net.2.weight": (2, 3, 1, 2)}
CHAINS = 3


def params(chains: int | None = None, seed: int = 0) -> list[Tensor]:
    """Return parameters of one chain or of several, none of them zero."""
    generator = torch.Generator().manual_seed(seed)
    lead = () if chains is None else (chains,)
    return [
        torch.randn(lead + s, generator=generator, dtype=torch.float64) for s in SHAPES.values()
    ]


def attached(prior: Prior, theta: list[Tensor], chain_dims: int = 0) -> Prior:
    """Return a copy of a prior, attached; an adaptive one has followed a chain for a while."""
    prior = copy.copy(prior)
    prior.attach(theta, chain_dims, list(SHAPES))
    for i in range(3):
        # Chain k sees the same whether it runs alone or not.
        prior.update([(1 + 0.3 * i) * p for p in theta])
    return prior
