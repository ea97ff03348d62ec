"""Many chains as one computation: stacked weights of one network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.priors import GaussianPrior, Prior

# Spawn key of SeedSequence(seed) for a chain's start: (chain, this).
_STARTS = 0x57A27

Starts = Literal["reinitialise", "prior", "same"]


class MethodOf(nn.Module):
    """A method of a module as the forward of another, so that weights can be swapped in it."""

    def __init__(self, module: nn.Module, method: str) -> None:
        super().__init__()
        self.module, self.method = module, method

    def forward(self, batch: Any) -> Any:
        """Return what the method returns for a batch."""
        return getattr(self.module, self.method)(batch)


class ChainStack(nn.Module):
    """The weights of K chains of one module, evaluated by one ``torch.func.vmap``.

    Parameter i is [K, ...], the values of ``names[i]`` in each chain. The module itself, a
    template, is not a submodule; its own values of these weights are not used by the chains.

    Args:
        module: The module whose methods are evaluated.
        starts: The weights of each chain, by the names that the module gives them.
    """

    def __init__(self, module: nn.Module, starts: Sequence[Mapping[str, Tensor]]) -> None:
        super().__init__()
        self.names = list(starts[0])
        self.weights = nn.ParameterList(
            nn.Parameter(torch.stack([start[name] for start in starts])) for name in self.names
        )
        self._methods: dict[str, MethodOf] = {}
        # Following tied weights costs a walk through the module at every evaluation.
        every = list(module.named_parameters(remove_duplicate=False))
        self._tied = len(every) > len(list(module.parameters()))
        # Not an attribute that nn.Module would register: the module holds this stack.
        object.__setattr__(self, "template", module)

    def __len__(self) -> int:
        return int(self.weights[0].shape[0])

    def evaluate(self, method: str, batch: Any, stacked: bool) -> Any:
        """Return ``module.method(batch)`` under the weights of every chain, [K, ...].

        Args:
            method: A method that takes a batch and is a pure function of it and the weights.
            batch: Tensors, or tuples, lists or dicts of them.
            stacked: Whether the batch carries the chains along its first axis; otherwise all
                chains see the same one.
        """
        if method not in self._methods:
            self._methods[method] = MethodOf(self.template, method)  # type: ignore[arg-type]
        call = self._methods[method]

        def one(weights: dict[str, Tensor], example: Any) -> Any:
            return functional_call(call, weights, (example,), tie_weights=self._tied)

        weights = dict(zip([f"module.{name}" for name in self.names], self.weights, strict=True))
        evaluate = vmap(one, in_dims=(0, 0 if stacked else None), randomness="error")
        return evaluate(weights, batch)

    def state_of(self, chain: int) -> dict[str, Tensor]:
        """Return the weights of one chain by name, as views."""
        pairs = zip(self.names, self.weights, strict=True)
        return {name: weight.detach()[chain] for name, weight in pairs}


@contextmanager
def holding(module: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Let a module hold other weights for a while."""
    own = {name: p for name, p in module.named_parameters() if name in weights}
    kept = {name: p.detach().clone() for name, p in own.items()}
    with torch.no_grad():
        try:
            for name, p in own.items():
                p.copy_(weights[name])
            yield
        finally:
            for name, p in own.items():
                p.copy_(kept[name])


def starts(
    module: nn.Module,
    names: Sequence[str],
    kind: Starts,
    seed: int,
    chains: Sequence[int],
    prior: Prior,
) -> list[dict[str, Tensor]]:
    """Return where each chain starts; chain 0 always where the module stands.

    Args:
        module: The module.
        names: Its sampled weights.
        kind: ``"reinitialise"`` calls ``reset_parameters`` of every submodule that has it, as
            torch did when the module was built; ``"prior"`` draws from the prior; ``"same"``
            starts all chains alike.
        seed: Seed of the run.
        chains: Numbers of the chains.
        prior: The prior, for ``"prior"``.

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
    return result


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


def _reinitialised(
    module: nn.Module, first: Mapping[str, Tensor], seed: int, chain: int
) -> dict[str, Tensor]:
    state = np.random.SeedSequence(seed, spawn_key=(chain, _STARTS)).generate_state(1)
    everything = {name: p.detach().clone() for name, p in module.named_parameters()}
    buffers = {name: b.detach().clone() for name, b in module.named_buffers()}
    with torch.random.fork_rng(devices=[]), holding(module, everything):
        torch.manual_seed(int(state[0]))
        for part in module.modules():
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
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
