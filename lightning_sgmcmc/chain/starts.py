"""Where each of several chains starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lightning_sgmcmc.chain.stack import holding
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.priors import GaussianPrior, Prior

# Spawn key of SeedSequence(seed) for a chain's start: (chain, this).
_STARTS = 0x57A27

Starts = Literal["reinitialise", "prior", "same", "randomised_map"]


def starts(
    module: nn.Module,
    names: Sequence[str],
    kind: Starts,
    seed: int,
    chains: Sequence[int],
    prior: Prior,
    alike: Collection[str] = (),
) -> list[dict[str, Tensor]]:
    """Return where each chain starts; chain 0 always where the module stands.

    Args:
        module: The module.
        names: Its sampled weights.
        kind: ``"reinitialise"`` calls ``reset_parameters`` of every submodule that has it, as
            torch did when the module was built; ``"prior"`` draws from the prior; ``"same"``
            starts all chains alike; ``"randomised_map"`` is ``"reinitialise"`` with a burn-in
            optimizer that finds every chain's minimum of a perturbed potential, the first one's
            too: see :class:`~lightning_sgmcmc.chain.randomised_map.RandomisedMAP`.
        seed: Seed of the run.
        chains: Numbers of the chains.
        prior: The prior, for ``"prior"``.
        alike: Sampled weights that start alike in all chains whatever the kind.

    Raises:
        ValueError: If no weight would be drawn anew, or the prior cannot be drawn from.
    """
    parameters = dict(module.named_parameters())
    first = {name: parameters[name].detach().clone() for name in names}
    result = []
    for chain in chains:
        if chain == 0 or kind == "same":
            result.append(first)
        elif kind == "prior":
            result.append(_prior_draw(first, seed, chain, prior))
        else:
            result.append(_reinitialised(module, first, seed, chain))
    return [start | {name: first[name] for name in alike} for start in result]


def _prior_draw(
    like: Mapping[str, Tensor], seed: int, chain: int, prior: Prior
) -> dict[str, Tensor]:
    if not isinstance(prior, GaussianPrior):
        raise ValueError(
            f'chains start from a draw of a GaussianPrior, not of {prior!r}: use "reinitialise"'
        )
    state = np.random.SeedSequence(seed, spawn_key=(chain, _STARTS)).generate_state(1)
    noise = NoiseStream(list(like.values()), int(state[0])).normal()
    pairs = zip(like, noise, strict=True)
    return {name: prior.mean + prior.variance**0.5 * z.clone() for name, z in pairs}


def _from_within(module: nn.Module) -> list[Any]:
    """Return the parts with ``reset_parameters``, each after those that it holds, as when built."""
    parts = [m for m in module.modules() if callable(getattr(m, "reset_parameters", None))]
    own = {id(part) for part in parts}
    outer = [p for p in parts if any(id(m) in own for m in p.modules() if m is not p)]
    return [p for p in parts if p not in outer] + outer[::-1]


def _reinitialised(
    module: nn.Module, first: Mapping[str, Tensor], seed: int, chain: int
) -> dict[str, Tensor]:
    state = np.random.SeedSequence(seed, spawn_key=(chain, _STARTS)).generate_state(1)
    everything = {name: p.detach().clone() for name, p in module.named_parameters()}
    buffers = {name: b.detach().clone() for name, b in module.named_buffers()}
    with (
        torch.random.fork_rng(devices=range(torch.cuda.device_count())),
        holding(module, everything),
    ):
        torch.manual_seed(int(state[0]))
        for part in _from_within(module):
            part.reset_parameters()
        for part in module.modules():  # as attention calls it, which has no other
            reset = getattr(part, "_reset_parameters", None)
            if callable(reset) and not hasattr(part, "reset_parameters"):
                reset()
        drawn = {name: p.detach().clone() for name, p in module.named_parameters() if name in first}
    for name, b in module.named_buffers():  # what is not sampled is the same for all chains
        b.copy_(buffers[name])
    if all(torch.equal(drawn[name], first[name]) for name in first):
        raise ValueError(
            "no sampled weight lies in a module with reset_parameters, so that all chains would "
            'start alike: choose starts "prior", or "same" if that is meant'
        )
    return drawn
