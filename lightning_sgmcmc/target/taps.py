"""What flows into and back out of layers, noted during one forward and backward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _are_functorch_transforms_active


class Records:
    """Pairs (input, gradient of the loss with respect to the output), by layer.

    Deliberately no container type: ``torch.func.vmap`` passes other objects through as they are.
    """

    def __init__(self) -> None:
        self.pairs: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def add(self, layer: int, activation: Tensor, gradient: Tensor) -> None:
        """Note one pass through a layer."""
        self.pairs.setdefault(layer, []).append((activation, gradient))


class Tap(torch.autograd.Function):
    """The identity, which notes the gradient that comes back.

    Inside ``torch.func.vmap`` it works on the tensors that carry the chains along their first
    axis, so that what it notes are plain tensors [K, B, ...]. The output is a copy, because a view
    would forbid the in-place activation that may follow.
    """

    @staticmethod
    def forward(output: Tensor, activation: Tensor, records: Records, layer: int) -> Tensor:
        """Return a copy of ``output``."""
        return output.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the activation until the gradient comes."""
        _, ctx.activation, ctx.records, ctx.layer = inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Note the gradient and hand it on."""
        ctx.records.add(ctx.layer, ctx.activation, gradients[0])
        return gradients[0], None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        output: Tensor,
        activation: Tensor,
        records: Records,
        layer: int,
    ) -> tuple[Tensor, int]:
        """Apply the tap to the tensors of all chains."""

        def in_front(tensor: Tensor, dim: int | None) -> Tensor:
            if dim is None:
                return tensor.expand(info.batch_size, *tensor.shape)
            return tensor.movedim(dim, 0)

        tapped: Tensor = Tap.apply(
            in_front(output, in_dims[0]), in_front(activation, in_dims[1]), records, layer
        )
        return tapped, 0


class PlainTap(torch.autograd.Function):
    """A tap outside ``torch.func``, where a context made apart would cost more than the copy."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, activation: Tensor, records: Records, layer: int
    ) -> Tensor:
        """Return a copy of ``output``, keeping the activation until the gradient comes."""
        ctx.activation, ctx.records, ctx.layer = activation, records, layer
        return output.clone()

    backward = Tap.backward


@contextmanager
def tapped(layers: Mapping[int, nn.Module], records: Records) -> Iterator[None]:
    """Note what passes through the layers, by their numbers, while the context lasts."""

    def hook(number: int) -> Any:
        def tap(module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Tensor) -> Tensor:
            if not torch.is_grad_enabled():
                return output
            activation = args[0] if args else kwargs["input"]
            kind = Tap if _are_functorch_transforms_active() else PlainTap
            result: Tensor = kind.apply(output, activation.detach(), records, number)
            return result

        return tap

    handles = [
        layer.register_forward_hook(hook(number), with_kwargs=True)
        for number, layer in layers.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
