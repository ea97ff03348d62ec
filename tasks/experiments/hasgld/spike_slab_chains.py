"""Data sets and chains of the large-p-small-n regression with a spike and slab."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_sgmcmc import Sampler, SpikeAndSlabPrior
from tasks.experiments.loop import Array, sample

#: Steps between draws.
THINNING = 10
Part = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Data:
    """K data sets; a part is its inputs [K, n, p] and responses [K, n]."""

    beta: Array
    covariance: Array
    train: Part
    validation: Part
    test: Part

    @classmethod
    def simulate(
        cls,
        repetitions: int,
        n: int = 100,
        p: int = 200,
        correlation: float = 0.8**0.25,
        held_out: int = 50,
        seed: int = 0,
    ) -> Data:
        """Draw data sets, the k-th one the same whatever their number is."""
        beta = np.zeros(p)
        beta[:2] = 3, 1
        covariance = correlation ** np.abs(np.subtract.outer(np.arange(p), np.arange(p)))
        root, total, parts = np.linalg.cholesky(covariance), n + 2 * held_out, []
        for k in range(repetitions):
            rng = np.random.default_rng((seed, k))
            x = rng.standard_normal((total, p)) @ root.T
            parts.append((x, x @ beta + np.sqrt(3) * rng.standard_normal(total)))
        inputs, responses = (torch.from_numpy(np.stack(e)) for e in zip(*parts, strict=True))
        cuts = [slice(n), slice(n, n + held_out), slice(n + held_out, None)]
        train, validation, test = ((inputs[:, cut], responses[:, cut]) for cut in cuts)
        return cls(beta, covariance, train, validation, test)


def start(x: Tensor, y: Tensor) -> Tensor:
    """Return ridge regressions with penalty 1: SGLD-SA does not leave zero (delta follows)."""
    n = x.shape[-2]
    dual = torch.linalg.solve(x @ x.mT + torch.eye(n, dtype=x.dtype), y.unsqueeze(-1))
    solution: Tensor = (x.mT @ dual).squeeze(-1)
    return solution


@dataclass(frozen=True)
class Chains:
    """What K chains gave.

    Attributes:
        adapting: Draws [K, draws, p], one in ``THINNING`` steps, while the target moved.
        sampled: Draws after that.
        rho: Inclusion probabilities [K, p] where they froze.
        delta: Their prior's delta, [K].
        variance: sigma^2, [K].
        rates: kappa0 / sigma and kappa1 / sigma^2, [K, p].
        cost_adapting: Gradients a step while adapting.
        cost_sampling: Gradients a step after that.
    """

    adapting: Array
    sampled: Array
    rho: Array
    delta: Array
    variance: Tensor
    rates: Part
    cost_adapting: int
    cost_sampling: int


def run(
    make: Callable[[list[Tensor], float], Sampler],
    lr: float,
    x: Tensor,
    y: Tensor,
    adapting: int,
    sampling: int,
    chain: int | None = None,
) -> Chains:
    """Run chains on data sets x [K, n, p], y [K, n].

    Args:
        make: Builds the sampler, with a ``SpikeAndSlabPrior``, from its parameters and lr.
        lr: Its step size.
        x: Inputs.
        y: Responses.
        adapting: Gradients for which metric and hyper-parameters adapt.
        sampling: Gradients after that.
        chain: Run this one of the data sets alone; None stacks the chains of all.
    """
    if chain is not None:
        x, y = x[chain], y[chain]
    n = x.shape[-2]
    beta = start(x, y).requires_grad_()
    sampler = make([beta], lr)
    sampler.num_data = n
    if chain is None:
        sampler.stack()
    else:
        sampler.set_first_chain(chain)
    prior = sampler.prior
    assert isinstance(prior, SpikeAndSlabPrior)

    def residuals(theta: Tensor) -> Tensor:
        return y - (x @ theta.unsqueeze(-1)).squeeze(-1)

    def gradient(theta: Tensor, step: int) -> Tensor:
        total = (x.mT @ residuals(theta).unsqueeze(-1)).squeeze(-1)
        return -total / (n * prior.noise_variance.unsqueeze(-1))

    prior.bind_residuals(lambda: residuals(beta.detach()).square().sum(-1), n)

    def draws(gradients: int, label: str) -> tuple[Array, int]:
        cost = sampler.gradients_per_step
        settings: Any = {"thinning": THINNING, "freeze": False, "label": label}
        return sample(sampler, steps=gradients // cost, gradient=gradient, **settings)[0], cost

    first, cost_adapting = draws(adapting, "adapting")
    sampler.freeze()
    second, cost_sampling = draws(sampling, "sampling")
    (rates,) = prior.rates()
    K = len(first)
    return Chains(
        first,
        second,
        prior.rho[0].reshape(K, -1).numpy(),
        prior.delta.reshape(K).numpy(),
        prior.noise_variance.reshape(K),
        (rates[0].reshape(K, -1), rates[1].reshape(K, -1)),
        cost_adapting,
        cost_sampling,
    )


def together(parts: list[Chains]) -> Chains:
    """Return chains that ran alone as if they had been stacked."""
    return Chains(*(_joined([getattr(p, f.name) for p in parts]) for f in fields(Chains)))


def _joined(values: list[Any]) -> Any:
    """Return arrays and tensors end to end, pairs of them one by one, and the first number."""
    if isinstance(values[0], tuple):
        return tuple(_joined(list(column)) for column in zip(*values, strict=True))
    if isinstance(values[0], Tensor):
        return torch.cat(values)
    return np.concatenate(values) if isinstance(values[0], np.ndarray) else values[0]
