"""Continue K chains on another number of processes: a checkpoint by the chains' numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedParameter

from lightning_sgmcmc.callbacks.checkpoint_files import Read, groups_of, read_part
from lightning_sgmcmc.callbacks.draws import KeepDraws
from lightning_sgmcmc.chain import Chain
from lightning_sgmcmc.chain.split import state_of, together
from lightning_sgmcmc.posterior.kept import KeptDraws

_KEPT = KeepDraws.__qualname__


def regroup(checkpoint: dict[str, Any], path: Path, chain: Chain, read: Read) -> None:
    """Make the first file of a checkpoint that of this process's chains, in place.

    Where the chains of a file are just these, it is taken as it is. Otherwise weights, sampler,
    optimizer, gradient estimator, draws and traces of each chain are taken from the file that has
    them, and stacked where there are several. The rest is that of the file of the first one.

    Args:
        checkpoint: The content of the first file.
        path: Its name.
        chain: The chains, placed and not built yet.
        read: Reads a file.

    Raises:
        ValueError: If the run has another number of chains, or these cannot run together, or its
            weights have other shapes.
        FileNotFoundError: If a file is missing.
        DamagedFileError: If one is not what was written.
    """
    before, now = groups_of(path, checkpoint), chain.groups
    numbers = now[0 if chain.processes.data_parallel else chain.processes.number]
    count = len(before[0])
    if [n for group in before for n in group] != [n for group in now for n in group]:
        total = len(before) * count
        raise ValueError(
            f"the run has {total} chains, not {len(now)} x {len(now[0])} (processes x num_chains): "
            f"continue it with numbers of these whose product is {total}"
        )
    ranks = [rank for rank, group in enumerate(before) if set(group) & set(numbers)]
    parts = [read_part(path, checkpoint, r, read) if r else dict(checkpoint) for r in ranks]
    whole = dict(parts[0])
    if before[ranks[0]] != numbers:
        held = {
            n: (p, k) for r, p in zip(ranks, parts, strict=True) for k, n in enumerate(before[r])
        }
        places = [held[n] for n in numbers]
        whole |= {
            "state_dict": _weights(places, count, chain),
            "optimizer_states": _optimizers(places, count, chain.in_turn),
            "sgmcmc_gradients": together(
                [state_of(part["sgmcmc_gradients"], k, count) for part, k in places]
            ),
            "callbacks": dict(whole["callbacks"]),
        }
        kept = [part["callbacks"].get(_KEPT) for part in parts]
        if all(kept):
            whole["callbacks"][_KEPT] = KeptDraws.regrouped(kept, numbers)
    _refuse_other_shapes(whole["state_dict"], chain)
    checkpoint.clear()
    checkpoint.update(whole)


def _refuse_other_shapes(state: dict[str, Tensor], chain: Chain) -> None:
    """Refuse weights that are not of the network's shapes, which the data may set."""
    own = chain.task.state_dict()
    for i, name in enumerate(chain.sampled):
        key = name if chain.stack is None else f"chains.weights.{i}"
        if key not in state or isinstance(own[name], UninitializedParameter):
            continue
        before = state[key].shape[0 if chain.stack is None else 1 :]
        if before != own[name].shape:
            raise ValueError(
                f"the run cannot be continued with another network or other data: {name} is "
                f"{list(before)} so far, {list(own[name].shape)} now; give what it had, or start "
                "a run of its own"
            )


def _optimizers(
    places: Sequence[tuple[dict[str, Any], int]], count: int, in_turn: bool
) -> list[Any]:
    """Return the states of the sampler and of the burn-in optimizer, if there is one."""
    return [
        together(
            [state_of(part["optimizer_states"][i], k, count) for part, k in places],
            in_turn and i == 0,
        )
        for i in range(len(places[0][0]["optimizer_states"]))
    ]


def _weights(
    places: Sequence[tuple[dict[str, Any], int]], count: int, chain: Chain
) -> dict[str, Tensor]:
    """Return the task's state, with the weights of some chains."""
    first, names = places[0][0]["state_dict"], chain.sampled
    state = {name: value for name, value in first.items() if not name.startswith("chains.")}

    def value(part: dict[str, Any], k: int, i: int) -> Tensor:
        own: dict[str, Tensor] = part["state_dict"]
        return own[names[i]] if count == 1 else own[f"chains.weights.{i}"][k]

    for i, name in enumerate(names):
        if chain.stack is None:
            state[name] = value(*places[0], i)
        else:
            state[name] = chain.task.state_dict()[name]
            state[f"chains.weights.{i}"] = torch.stack([value(*place, i) for place in places])
    return state
