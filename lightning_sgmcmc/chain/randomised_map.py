"""Starts that are nearly draws: optima of perturbed potentials."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from lightning_sgmcmc.chain.batches import BatchStream
from lightning_sgmcmc.chain.task import Task
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.priors import GAUSSIAN_PRIORS
from lightning_sgmcmc.samplers import Sampler
from lightning_sgmcmc.target import Batch

# Spawn key of SeedSequence(seed) for a chain's perturbations: (chain, this, which).
_PERTURBATION = 0x3A9


class RandomisedMAP:
    """The potential of each chain with its data and its prior's mean moved by their own noise.

    With y ~ N(f(x; theta), S) and theta ~ N(m, P^-1), the burn-in optimizer of chain k minimises

        |f(x; theta) - y - sqrt(T) S^(1/2) z_k|^2_(S^-1) / 2
            + |theta - m - sqrt(T) P^(-1/2) w_k|^2_P / 2,   z_k, w_k ~ N(0, I).

    Where f is linear, its minimiser is an exact draw from exp(-U/T), a Gaussian; elsewhere it is an
    approximation that gets the spread of each mode and not the modes' masses. A flat prior has
    P = 0. The optimizer has to converge: what it is away from the minimum by is the start's error.

    z_k and w_k are functions of (seed, chain), z_k also of the example, so that a run that resumes
    minimises the same potential.

    Sources: Chen and Oliver 2012 (randomized maximum likelihood, Math. Geosci. 44); Pearce,
    Leibfried and Brintrup 2020 (anchored ensembles, AISTATS).

    Args:
        task: Says how labels are perturbed, :meth:`~lightning_sgmcmc.chain.Task.perturb_labels`.
        sampler: The chain's sampler, for its prior, temperature, seed and chain numbers.
        stream: The minibatches. Each chain's labels are held in memory.

    Raises:
        ValueError: If the prior is not Gaussian.
        TypeError: If the task's labels have no additive noise.
    """

    def __init__(self, task: Task, sampler: Sampler, stream: BatchStream) -> None:
        if not isinstance(sampler.prior, GAUSSIAN_PRIORS):
            raise ValueError(
                f'starts "randomised_map" move the mean of a Gaussian prior, not of '
                f'{sampler.prior!r}: use "reinitialise"'
            )
        self._stream, self._chains = stream, sampler.num_chains
        numbers = range(sampler.chain, sampler.chain + (sampler.num_chains or 1))
        root = math.sqrt(sampler.temperature)
        moved = [self._perturbed(task, sampler.seed, chain, root) for chain in numbers]
        #: What the data became: [N, ...], or [K, N, ...] where it differs between stacked chains.
        self.tensors: list[Tensor] = []
        self._own: list[bool] = []
        leaves, self._kind = tree_flatten(stream.tensors)
        for i, tensor in enumerate(leaves):
            own = any(chain[i] is not tensor for chain in moved)
            self._own.append(own and sampler.num_chains is not None)
            self.tensors.append(torch.stack([c[i] for c in moved]) if self._own[i] else moved[0][i])
        self._pull = self._anchor(sampler, numbers, root)

    def _perturbed(self, task: Task, seed: int, chain: int, root: float) -> Sequence[Tensor]:
        # 1 is the anchor's.
        numbers = itertools.chain([0], itertools.count(2))

        def normal(like: Tensor) -> Tensor:
            return root * _normal([like], seed, chain, next(numbers))[0]

        with torch.no_grad():
            return tree_leaves(task.perturb_labels(self._stream.tensors, normal))

    def _anchor(self, sampler: Sampler, numbers: range, root: float) -> list[Tensor]:
        """Return sqrt(T) P^(1/2) w / N, the prior's precision times how far its mean is moved."""
        assert sampler.num_data is not None
        precision = [torch.zeros_like(p) for p in sampler.params]
        for at, sign in ((torch.ones_like, 1.0), (torch.zeros_like, -1.0)):
            sampler.prior.add_gradient_(precision, [at(p) for p in sampler.params], sign)
        like = [p.detach() if self._chains is None else p.detach()[0] for p in sampler.params]
        draws = [_normal(like, sampler.seed, chain, 1) for chain in numbers]
        w = draws[0] if self._chains is None else [torch.stack(z) for z in zip(*draws, strict=True)]
        scale = root / sampler.num_data
        return [scale * p.sqrt() * z for p, z in zip(precision, w, strict=True)]

    def at(self, step: int) -> Batch:
        """Return the minibatch of a step, [n, ...], or [K, n, ...] with stacked chains."""
        stream = self._stream
        indices = stream.indices(step).to(self.tensors[0].device)
        if self._chains is None:
            return tree_unflatten([t[indices] for t in self.tensors], self._kind)
        rows = torch.arange(self._chains, device=indices.device).unsqueeze(-1)
        indices = indices.expand(self._chains, indices.shape[-1])
        chosen = [
            t[rows, indices] if own else t[indices]
            for t, own in zip(self.tensors, self._own, strict=True)
        ]
        return tree_unflatten(chosen, self._kind)

    def add_anchor_(self, grads: list[Tensor]) -> None:
        """Turn the gradient of U/N into that of the perturbed potential, as to the prior."""
        torch._foreach_sub_(grads, self._pull)


def _normal(like: Sequence[Tensor], seed: int, chain: int, which: int) -> list[Tensor]:
    sequence = np.random.SeedSequence(seed, spawn_key=(chain, _PERTURBATION, which))
    stream = NoiseStream(list(like), int(sequence.generate_state(1)[0]))
    return [z.clone() for z in stream.normal()]
