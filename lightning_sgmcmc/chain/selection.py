"""Which weights of a network are sampled, and what they start from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from lightning.pytorch.utilities import rank_zero_info
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from lightning_sgmcmc.chain.adapters import LowRankLinear

#: What ``torch.compile(net)``, a module that holds ``net`` by this name, puts into weights' names.
_COMPILED = "_orig_mod."


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


def load_pretrained(
    module: nn.Module, path: str | Path, sampled: Collection[str] = ()
) -> list[str]:
    """Load the weights of a checkpoint into a module, before anything is sampled.

    Sampled weights that the file does not give start anew, and one line says so: those of a head,
    the last layers of the module, that has another shape or name in the file, and those of
    :class:`~lightning_sgmcmc.LowRankLinear` adapters.

    Args:
        module: Takes a ``state_dict`` of itself or of its ``net``, saved compiled or not.
        path: A ``.safetensors`` file, or a file of ``torch.save`` that holds a ``state_dict`` or
            a Lightning checkpoint. Nothing is unpickled.
        sampled: Names of the parameters that may start anew.

    Returns:
        The names of those that do.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file holds no ``state_dict``; if a weight of the module is missing in it
            or of another shape, and is no sampled one of a head; or if the file has further
            weights, and no head of another name.
    """
    file = Path(path)
    given = {name.replace(_COMPILED, ""): value for name, value in _read(file).items()}
    own = module.state_dict(keep_vars=True)
    if not given.keys() & own.keys():
        given = {f"net.{name}": value for name, value in given.items()}
        own = {name: value for name, value in own.items() if name.startswith("net.")}
    wrong = mismatched(own, given)
    fits = [name for name in own if name not in wrong]
    loaded = {id(own[name]) for name in fits}
    anew = [n for n in own if id(own[n]) not in loaded]  # a weight may have two names
    unused = [name for name in given if name not in own]
    if not _head_alone(list(own), fits, anew, unused, _adapters(module)):
        raise ValueError(
            f"{file} does not fit the module: {', '.join(wrong[:5])} differ in name or shape"
        )
    parameters = {name for name, _ in module.named_parameters()}
    frozen = parameters.intersection(anew).difference(sampled)
    if frozen:
        raise ValueError(
            f"{file} does not fit the module: {_some(sorted(frozen))} would start anew and stay "
            "so, because they are not sampled: sample them too, or give a file that has them"
        )
    module.load_state_dict({name: given[name] for name in fits}, strict=False)
    if anew:
        rest = f"; {_some(unused)} of the file are not used" if unused else ""
        rank_zero_info(f"pretrained: {_some(anew)} start anew, all else is from {file}{rest}")
    return [name for name in anew if name in parameters]


def _head_alone(
    own: list[str], fits: list[str], anew: list[str], unused: list[str], adapters: set[str]
) -> bool:
    """Return whether a file and a module differ at most in the head and in adapters."""
    rest = [name for name in own if name not in adapters]
    head = [name for name in anew if name not in adapters]
    # A body that was longer would leave weights over within the parts that are loaded.
    body = {_part(name) for name in fits}
    spare = all(head and _part(name) not in body for name in unused)
    return bool(fits) and rest[len(rest) - len(head) :] == head and spare


def _part(name: str) -> str:
    """Return the largest part of the network that a weight is of."""
    return name.removeprefix("net.").split(".")[0]


def _adapters(module: nn.Module) -> set[str]:
    """Return the names of the weights of adapters."""
    layers = [n for n, layer in module.named_modules() if isinstance(layer, LowRankLinear)]
    return {f"{name}.{factor}" for name in layers for factor in ("A", "B")}


def _read(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise FileNotFoundError(f"the pretrained weights {file} are missing")
    if file.suffix == ".safetensors":
        try:
            return load_file(file)
        except SafetensorError as error:
            raise ValueError(f"{file} holds no weights, or is damaged: {error}") from error
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
        given: dict[str, Tensor] = content.get("state_dict", content)
    except Exception as error:  # what is no pickle fails in any way
        raise ValueError(
            f"{file} holds no weights that are read without running code of the file: save "
            "them with torch.save(net.state_dict(), FILE)"
        ) from error
    return given


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} others" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def compiled_in_place(net: nn.Module) -> nn.Module:
    """Return a network whose compiled parts are compiled in place.

    ``torch.compile(module)`` wraps a module and puts ``_orig_mod`` into the names of its weights.
    A module that is compiled in place keeps them, so that draws and checkpoints fit the network
    whether it is compiled or not.
    """
    inner = getattr(net, _COMPILED.rstrip("."), None)
    if isinstance(inner, nn.Module):
        inner._compiled_call_impl = net.dynamo_ctx(inner._call_impl)  # type: ignore[operator]
        net = inner
    for name, child in list(net.named_children()):
        setattr(net, name, compiled_in_place(child))
    return net
