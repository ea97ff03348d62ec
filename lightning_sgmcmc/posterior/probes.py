"""What every draw leaves in memory for the diagnostics: some weights, forces and predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_sgmcmc.chain import Chain
from lightning_sgmcmc.diagnostics import gradient_of_potential

Array = NDArray[np.float64]

#: Weights that are followed, of all chains together, and the fewest of each.
_WEIGHTS, _FEWEST = 1024, 16


def spread_evenly(weights: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Return the indices, in each flattened tensor, of weights spread evenly over all of them.

    Args:
        weights: Tensors by name.
        count: Number of weights, at most as many as there are.
    """
    sizes = [value.numel() for value in weights.values()]
    ends = np.cumsum(sizes)
    chosen = np.unique(np.linspace(0, ends[-1] - 1, count).astype(int))
    layers = np.searchsorted(ends, chosen, side="right")
    return {
        name: torch.from_numpy(chosen[layers == i] - (ends[i] - sizes[i]))
        for i, name in enumerate(weights)
    }


def place_names(places: Mapping[str, Tensor]) -> list[str]:
    """Return names such as ``net.0.weight[17]`` of the weights at some indices."""
    return [f"{name}[{i}]" for name, chosen in places.items() for i in chosen.tolist()]


class Probes:
    """Traces of weights spread evenly over the network, of grad U there, and of predictions.

    Args:
        chain: The chain.
    """

    def __init__(self, chain: Chain) -> None:
        count = max(_FEWEST, _WEIGHTS // chain.num_chains)
        state = chain.state(0)
        places = spread_evenly({name: state[name] for name in chain.moved}, count)
        self._places = list(places.values())
        #: Names such as ``net.0.weight[17]`` of the weights that are followed.
        self.names = place_names(places)
        #: How many of them lie in each tensor.
        self.layers = {name: len(chosen) for name, chosen in places.items() if len(chosen)}
        self._traces: dict[str, list[Tensor]] = {"weights": [], "forces": [], "predictions": []}

    def record(self, chain: Chain, predictions: Tensor | None) -> None:
        """Take in the present state as a draw.

        Args:
            chain: The chain; grad U is taken on a minibatch that has not moved the chain yet.
            predictions: [P] or [K, P], or None.
        """
        sampler, target = chain.sampler, chain.target
        self._traces["weights"].append(self._pick(sampler.params, sampler.chain_dims))
        if chain.stream is not None and target is not None:
            batch = chain.minibatch()
            forces = gradient_of_potential(target, [batch])
            self._traces["forces"].append(self._pick(forces, sampler.chain_dims))
        if predictions is not None:
            self._traces["predictions"].append(predictions.reshape(-1, predictions.shape[-1]))

    def _pick(self, tensors: list[Tensor], chain_dims: int) -> Tensor:
        rows = tensors[0].shape[0] if chain_dims else 1
        parts = [
            t.detach().reshape(rows, -1)[:, places.to(t.device)]
            for t, places in zip(tensors, self._places, strict=True)
        ]
        return torch.cat(parts, dim=1).double().cpu()

    def trace(self, kind: str) -> Array:
        """Return ``"weights"``, ``"forces"`` or ``"predictions"`` of all draws, [K, D, ...].

        Empty, [0, 0, 0], where nothing of the kind was recorded.
        """
        rows = self._traces[kind]
        return torch.stack(rows, dim=1).numpy() if rows else np.empty((0, 0, 0))

    def state_dict(self) -> dict[str, Any]:
        """Return the traces, as tensors."""
        return {kind: list(rows) for kind, rows in self._traces.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the traces."""
        self._traces = {kind: list(rows) for kind, rows in state.items()}
