"""Per-example gradients of any layer, by ``torch.func``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from lightning_sgmcmc.common.functional import FunctionalCall
from lightning_sgmcmc.target.hessian import math_attention


class _Likelihood(nn.Module):
    """The task's ``nll`` as a forward, so that weights can be swapped in it."""

    def __init__(self, module: nn.Module, nll: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.module, self.nll = module, nll

    def forward(self, batch: Any) -> Tensor:
        return self.nll(batch)


class Examples:
    """A batch whose tensors carry its examples along one axis; other leaves belong to all.

    Args:
        batch: Tensors, or tuples, lists or dicts of them.
        axis: The axis of examples: 1 if the first one counts chains.
    """

    def __init__(self, batch: Any, axis: int) -> None:
        self.batch, self.axis = batch, axis
        lengths = [
            leaf.shape[axis]
            for leaf in tree_leaves(batch)
            if isinstance(leaf, Tensor) and leaf.dim() > axis
        ]
        if not lengths:
            raise RuntimeError("the batch holds no tensor with an axis of examples")
        self.count = lengths[0]

    @cached_property
    def _carry(self) -> Any:
        """Which leaves carry examples."""
        return tree_map(self._carries, self.batch)

    def _carries(self, leaf: Any) -> bool:
        return (
            isinstance(leaf, Tensor)
            and leaf.dim() > self.axis
            and leaf.shape[self.axis] == self.count
        )

    def cut(self, start: int, stop: int) -> Any:
        """Return a batch of some examples."""

        def narrow(leaf: Any) -> Any:
            return leaf.narrow(self.axis, start, stop - start) if self._carries(leaf) else leaf

        return tree_map(narrow, self.batch)

    def take(self, rows: Sequence[int]) -> Any:
        """Return a batch of the examples with these numbers, in this order."""

        def select(leaf: Any) -> Any:
            if not self._carries(leaf):
                return leaf
            return leaf.index_select(self.axis, torch.tensor(rows, device=leaf.device))

        return tree_map(select, self.batch)

    def dims(self, dim: int) -> Any:
        """Return ``dim`` where a leaf carries examples and None elsewhere, for ``vmap``."""
        return tree_map(lambda carries: dim if carries else None, self._carry)

    def as_batch(self, example: Any) -> Any:
        """Return one example, without its axis, as a batch of one."""
        leaves, spec = tree_flatten(example)
        carry = tree_leaves(self._carry)
        ones = [
            leaf.unsqueeze(0) if carries else leaf
            for leaf, carries in zip(leaves, carry, strict=True)
        ]
        return tree_unflatten(ones, spec)


class SingleExamples:
    """Gradients of ``nll`` on one example at a time, of K chains of a module.

    Args:
        module: The module whose weights ``nll`` uses.
        nll: Maps a batch to the negative log-likelihood of each of its examples, [B].
    """

    def __init__(self, module: nn.Module, nll: Callable[[Any], Tensor]) -> None:
        self._call = FunctionalCall(_Likelihood(module, nll))

    def _loss(self, weights: dict[str, Tensor], others: dict[str, Tensor], batch: Any) -> Tensor:
        result: Tensor = self._call(weights | others, batch)
        return result.sum()

    def gradients(
        self,
        wanted: Mapping[str, Tensor],
        fixed: Mapping[str, Tensor],
        examples: Examples,
        start: int,
        stop: int,
    ) -> dict[str, Tensor]:
        """Return the gradients of some examples, [K, stop - start, ...], by name.

        Args:
            wanted: The weights of K chains, [K, ...], to differentiate by.
            fixed: The other weights that differ from chain to chain, [K, ...].
            examples: The batch; its examples lie along axis 1 if each chain has its own.
            start: First example.
            stop: Last example, exclusive.
        """

        def loss(weights: dict[str, Tensor], others: dict[str, Tensor], example: Any) -> Tensor:
            return self._loss(weights, others, examples.as_batch(example))

        per_example = vmap(grad(loss), (None, None, examples.dims(0)), randomness="error")
        dims = (0, 0, examples.dims(0) if examples.axis else None)
        per_chain = vmap(per_example, dims, randomness="error")
        with math_attention():  # vmap takes fused attention example by example
            found: dict[str, Tensor] = per_chain(
                _inside(wanted), _inside(fixed), examples.cut(start, stop)
            )
        return {name: found[f"module.{name}"] for name in wanted}

    def one(
        self,
        wanted: Mapping[str, Tensor],
        fixed: Mapping[str, Tensor],
        examples: Examples,
        index: int,
    ) -> dict[str, Tensor]:
        """Return the gradients of one example, [K, ...], without a ``vmap`` over examples."""
        batch = examples.cut(index, index + 1)
        gradient = grad(self._loss)
        weights, others = _inside(wanted), _inside(fixed)
        if len(next(iter(weights.values()))) == 1:
            first = {name: w[0] for name, w in weights.items()}
            rest = {name: w[0] for name, w in others.items()}
            if examples.axis:
                batch = tree_map(lambda leaf: leaf[0] if isinstance(leaf, Tensor) else leaf, batch)
            found = {name: g.unsqueeze(0) for name, g in gradient(first, rest, batch).items()}
        else:
            dims = (0, 0, examples.dims(0) if examples.axis else None)
            with math_attention():
                found = vmap(gradient, dims, randomness="error")(weights, others, batch)
        return {name: found[f"module.{name}"] for name in wanted}


def _inside(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"module.{name}": w.detach() for name, w in weights.items()}


def mixing_layers(module: nn.Module) -> list[str]:
    """Return the layers that make an example's loss depend on the rest of its batch."""
    return [
        f"{name} ({type(layer).__name__})"
        for name, layer in module.named_modules()
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None)
    ]


def owners(module: nn.Module, names: Iterable[str]) -> str:
    """Name the layers that own some weights, with their types."""
    found: dict[str, None] = {}
    for name in names:
        layer = name.rpartition(".")[0]
        found[f"{layer or 'the module'} ({type(module.get_submodule(layer)).__name__})"] = None
    return ", ".join(found)


def refused(module: nn.Module, names: Sequence[str], error: Exception) -> RuntimeError:
    """Return the error for layers that neither taps nor ``torch.func`` can serve."""
    reason = str(error).strip().splitlines()
    return RuntimeError(
        f"no per-example gradients of {owners(module, names)}: its activations do not give them "
        f"and torch.func cannot vectorise it ({reason[0] if reason else type(error).__name__}); "
        "replace the layer, sample the others only, or use a metric without per-example gradients"
    )


def same(found: Tensor, expected: Tensor) -> bool:
    """Whether two gradients agree up to rounding."""
    tolerance = 2e3 * torch.finfo(found.dtype).eps
    scale = expected.double().norm()
    return bool((found.double() - expected.double()).norm() <= tolerance * scale)
