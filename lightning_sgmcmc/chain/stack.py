"""Many chains as one computation: stacked weights of one network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from lightning_sgmcmc.common.functional import FunctionalCall
from lightning_sgmcmc.target.hessian import no_fused_encoder


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
        self._methods: dict[str, FunctionalCall] = {}
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
            self._methods[method] = FunctionalCall(MethodOf(self.template, method))  # type: ignore[arg-type]
        weights = dict(zip([f"module.{name}" for name in self.names], self.weights, strict=True))
        call = self._methods[method]
        evaluate = vmap(call, in_dims=(0, 0 if stacked else None), randomness="error")
        with no_fused_encoder():
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
