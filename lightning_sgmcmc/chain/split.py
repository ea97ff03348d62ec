"""The state of stacked chains as states of single ones, and the other way round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

#: States of a noise stream and of blocks of a Fisher matrix, which have a row a chain also where
#: there is one.
_ROWS = ("sfc64", "philox", "J", "roots")
#: The kind of a sampler that runs its chains in turn: it keeps their states as they are.
_IN_TURN = "ChainsInTurn"


def state_of(state: Any, chain: int, count: int) -> Any:
    """Return the part of a state that is one chain's, as that chain alone would have it.

    Tensors are views. What the chains share, numbers, words and the 0-dimensional counters of a
    torch optimizer, is the same for each.

    Args:
        state: Of a sampler, an optimizer or a gradient estimator: tensors, with chains along the
            first axis if there are several, and plain values, in dicts, lists and tuples.
        chain: Which of them, counted from 0.
        count: How many there are.
    """
    if count == 1:
        return state
    if isinstance(state, dict) and state.get("chain", {}).get("sampler") == _IN_TURN:
        return state["chain"]["chains"][chain] | {"param_groups": state["param_groups"]}
    return _row(state, chain)


def _row(state: Any, chain: int, shared: bool = False, key: object = None) -> Any:
    if isinstance(state, Tensor):
        if shared and not state.dim():
            return state
        return state[chain : chain + 1] if key in _ROWS else state[chain]
    if isinstance(state, dict):
        return {k: _row(v, chain, shared or _counts(state, k), k) for k, v in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_row(v, chain, shared, key) for v in state)
    return state


def together(states: Sequence[Any], in_turn: bool = False) -> Any:
    """Return what chains that run as one computation have for a state.

    Args:
        states: One a chain, as :func:`state_of` gives it.
        in_turn: Whether the state is that of a sampler that runs its chains in turn.

    Raises:
        ValueError: If the chains differ in what they would share.
    """
    if len(states) == 1:
        return states[0]
    if not in_turn:
        return _stacked(states, "state")
    chains = [state["chain"] for state in states]
    common = ("steps_taken", "gradients", "num_data", "noise", "prior", "masks")
    own = {name: _stacked([c[name] for c in chains], name) for name in common}
    own |= {"preconditioner": {"frozen": chains[0]["preconditioner"]["frozen"]}}
    groups = states[0]["param_groups"]
    # Only the sampler of all chains has a scheduler.
    bare = [{k: v for k, v in group.items() if k != "initial_lr"} for group in groups]
    chains = [state | {"param_groups": bare} for state in states]
    chain = own | {"sampler": _IN_TURN, "chains": chains}
    return {"state": {}, "param_groups": groups, "chain": chain}


def _stacked(states: Sequence[Any], path: str, shared: bool = False) -> Any:
    first, key = states[0], path.rpartition(".")[2]
    if any(type(state) is not type(first) for state in states):
        raise _differ(path)
    if isinstance(first, Tensor):
        if any(state.shape != first.shape for state in states):
            raise _differ(path)
        if not (shared and not first.dim()):
            return torch.cat(list(states)) if key in _ROWS else torch.stack(list(states))
        if not all(torch.equal(state, first) for state in states):
            raise _differ(path)
        return first
    if isinstance(first, dict):
        if any(state.keys() != first.keys() for state in states):
            raise _differ(path)
        return {
            k: _stacked([s[k] for s in states], f"{path}.{k}", shared or _counts(first, k))
            for k in first
        }
    if isinstance(first, (list, tuple)):
        if any(len(state) != len(first) for state in states):
            raise _differ(path)
        rows = zip(*states, strict=True)
        return type(first)(_stacked(row, path, shared) for row in rows)
    if any(state != first for state in states):
        raise _differ(path)
    return first


def _counts(state: dict[Any, Any], key: object) -> bool:
    """Return whether a part of a dict is what a torch optimizer keeps of its weights."""
    return key == "state" and "param_groups" in state


def _differ(path: str) -> ValueError:
    return ValueError(
        f"chains that ran in processes of their own differ in {path}, which they would share in "
        "one: continue them on as many processes as before"
    )
