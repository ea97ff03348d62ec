"""Calls of a module under other weights than its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


class FunctionalCall:
    """A module that is called with the values of some of its parameters and buffers.

    A weight that several layers share may be given by any of its names. What the module is made of
    is looked at once, here. ``torch.func.functional_call`` swaps a layer that has two names twice,
    and then leaves the given weights in it; hence the names are found here.

    Args:
        module: The module; a call leaves it as it is.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        names: dict[int, list[str]] = {}
        for prefix, layer in module.named_modules():  # each layer once, by its first name
            for name, tensor in _named(layer, prefix=prefix, recurse=False):
                names.setdefault(id(tensor), []).append(name)
        #: For every name, those of the layers that hold the same tensor.
        self._names = {name: names[id(tensor)] for name, tensor in _named(module)}

    def __call__(self, weights: Mapping[str, Tensor], batch: Any) -> Any:
        """Return what the module returns for a batch under these weights, by their names."""
        swapped = {n: tensor for name, tensor in weights.items() for n in self._names[name]}
        return functional_call(self._module, swapped, (batch,), tie_weights=False)


def _named(module: nn.Module, **options: Any) -> Iterator[tuple[str, Tensor]]:
    kinds = (module.named_parameters, module.named_buffers)
    return chain.from_iterable(named(remove_duplicate=False, **options) for named in kinds)
