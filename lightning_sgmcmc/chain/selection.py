"""Which weights of a network are sampled, and what they start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn


def sampled_names(module: nn.Module, patterns: Sequence[str] | None) -> list[str]:
    """Return the names of the parameters to sample, in the module's order.

    Args:
        module: The module; parameters that need no gradient are never sampled.
        patterns: Shell patterns such as ``"net.4.*"`` over parameter names; None takes all.

    Raises:
        ValueError: If a pattern matches no parameter, or none is left to sample.
    """
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    if patterns is None:
        chosen = names
    else:
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"no parameter is named like {pattern!r}: choose among {', '.join(names)}"
                )
        chosen = [n for n in names if any(fnmatchcase(n, pattern) for pattern in patterns)]
    if not chosen:
        raise ValueError("the module has no parameter to sample")
    return chosen


def mismatched(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """Return the names that are in one of two states alone, or have another shape there."""
    return sorted(
        name
        for name in own.keys() | given.keys()
        if name not in own or name not in given or own[name].shape != given[name].shape
    )


def load_pretrained(module: nn.Module, path: str | Path) -> None:
    """Load the weights of a checkpoint into a module, before anything is sampled.

    Args:
        module: Takes a ``state_dict`` of itself or of its ``net``.
        path: A ``.safetensors`` file, or a file of ``torch.save`` that holds a ``state_dict`` or
            a Lightning checkpoint. Nothing is unpickled.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file holds no ``state_dict``, or a weight of the module is missing in it,
            unknown or of another shape.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"the pretrained weights {file} are missing")
    given: dict[str, Tensor]
    if file.suffix == ".safetensors":
        given = load_file(file)
    else:
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
            given = content.get("state_dict", content)
        except Exception as error:  # what is no pickle fails in any way
            raise ValueError(
                f"{file} holds no weights that are read without running code of the file: save "
                "them with torch.save(net.state_dict(), FILE)"
            ) from error
    own = module.state_dict()
    if not given.keys() & own.keys():
        given = {f"net.{name}": value for name, value in given.items()}
        own = {name: value for name, value in own.items() if name.startswith("net.")}
    wrong = mismatched(own, given)
    if wrong:
        raise ValueError(
            f"{file} does not fit the module: {', '.join(wrong[:5])} differ in name or shape"
        )
    module.load_state_dict(given, strict=False)


def compiled_in_place(net: nn.Module) -> nn.Module:
    """Return a network whose compiled parts are compiled in place.

    ``torch.compile(module)`` wraps a module and puts ``_orig_mod`` into the names of its weights.
    A module that is compiled in place keeps them, so that draws and checkpoints fit the network
    whether it is compiled or not.
    """
    inner = getattr(net, "_orig_mod", None)
    if isinstance(inner, nn.Module):
        inner._compiled_call_impl = net.dynamo_ctx(inner._call_impl)  # type: ignore[operator]
        net = inner
    for name, child in list(net.named_children()):
        setattr(net, name, compiled_in_place(child))
    return net
