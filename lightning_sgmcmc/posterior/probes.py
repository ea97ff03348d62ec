"""What every draw leaves for the diagnostics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray
from torch import Tensor

from lightning_sgmcmc.chain import Chain
from lightning_sgmcmc.common.waiting import said_if_long
from lightning_sgmcmc.diagnostics import gradient_of_potential
from lightning_sgmcmc.posterior.directions import (
    TRACES,
    FollowedDirections,
    examples_needed,
    find_directions,
)
from lightning_sgmcmc.posterior.held_out import PROBES
from lightning_sgmcmc.posterior.predict import cut
from lightning_sgmcmc.posterior.traces import Traces
from lightning_sgmcmc.target import Batch

Array = NDArray[np.float64]

#: Weights that are followed, of all chains together, and the fewest of each.
_WEIGHTS, _FEWEST = 1024, 16
#: Most minibatches of a draw's grad U, and minibatches of the chain's own steps that one costs.
_BATCHES, _STEPS_A_BATCH = 8, 4
#: Minibatches of the curvature by which directions are found.
_CURVATURE_BATCHES = 4
#: What the kinds of the directions' traces begin with.
_FOLLOWED = "followed/"


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

    The directions that :class:`FollowedDirections` describes are fixed at the first draw; of each
    later one a_i' theta and v_i' grad U are kept. grad U is taken on minibatches that have not
    moved the chain yet: all the data if they are at most eight, and no more minibatches than a
    quarter of the steps between draws.

    Args:
        chain: The chain.
        traces: Where the traces are kept.
        probes: Examples whose predictions count for the directions; None takes some of the training
            data, spread evenly over them.
    """

    def __init__(self, chain: Chain, traces: Traces, probes: Batch | None = None) -> None:
        count = max(_FEWEST, _WEIGHTS // chain.processes.all_chains(chain.num_chains))
        state = chain.state(0)
        places = spread_evenly({name: state[name] for name in chain.moved}, count)
        self._places, self._traces, self._probes = list(places.values()), traces, probes
        self._examples: int | None = None  # of the batch, as many as count
        #: Names such as ``net.0.weight[17]`` of the weights that are followed.
        self.names = place_names(places)
        #: How many of them lie in each tensor.
        self.layers = {name: len(chosen) for name, chosen in places.items() if len(chosen)}
        #: The directions that are followed, from the first draw on; None where grad U is not known.
        self.directions: FollowedDirections | None = None

    def record(self, chain: Chain, predictions: Tensor | None) -> dict[str, Tensor]:
        """Return what the present state leaves as a draw, by the kind of trace.

        Args:
            chain: The chain.
            predictions: [P] or [K, P], or None.
        """
        sampler, target = chain.sampler, chain.target
        dims = sampler.chain_dims
        found = {"weights": self._pick(sampler.params, dims)}
        if chain.spare is not None and target is not None:
            if self._probes is None:
                self._probes = chain.spare.spread(PROBES)
            if self._examples is None and sampler.temperature:
                self._examples = examples_needed(chain, self._probes)
            gradient = gradient_of_potential(target, self._unseen(chain))
            found["forces"] = self._pick(gradient, dims)
            if not len(self._traces) and sampler.temperature:
                self._find_directions(chain)
            if self.directions is not None:
                noted = self.directions.record(chain, gradient, self._chosen())
                found |= {_FOLLOWED + kind: value for kind, value in noted.items()}
        if predictions is not None:
            found["predictions"] = predictions.reshape(-1, predictions.shape[-1])
        return found

    def _chosen(self) -> Batch:
        """Return the examples whose predictions count for the directions."""
        return cut(self._probes, slice(0, self._examples))

    def _find_directions(self, chain: Chain) -> None:
        try:
            with said_if_long("finding the directions whose temperatures the verdict needs ..."):
                self.directions = find_directions(chain, _curvature_batches(chain), self._chosen())
        except (RuntimeError, ValueError) as error:  # a layer without a second derivative
            rank_zero_info(f"Note: the temperature of predictions is not measured: {error}")

    def _unseen(self, chain: Chain) -> list[Batch]:
        """Return minibatches for grad U that are independent of how the chain came to theta.

        Of reshuffled epochs they are of the next one: what is left of the present one is what the
        chain has not seen of it, and so depends on what it has seen. A whole epoch is all the data
        but for the examples that reshuffling leaves out.
        """
        spare = chain.spare
        assert spare is not None
        if spare.sampling == "full":
            return [spare.at(chain.steps)]
        count, first = max(1, min(_BATCHES, chain.draws.thinning // _STEPS_A_BATCH)), chain.steps
        if spare.sampling == "reshuffled":
            epoch = len(spare)
            if epoch <= count:
                count, first = epoch, -(-first // epoch) * epoch
            else:
                first += epoch
        return [spare.at(first + i) for i in range(count)]

    def _pick(self, tensors: list[Tensor], chain_dims: int) -> Tensor:
        rows = tensors[0].shape[0] if chain_dims else 1
        parts = [
            t.detach().reshape(rows, -1)[:, places.to(t.device)]
            for t, places in zip(tensors, self._places, strict=True)
        ]
        return torch.cat(parts, dim=1).double().cpu()

    def trace(self, kind: str) -> Array:
        """Return the trace of a kind over all draws, [K, D, ...].

        ``"weights"`` and ``"forces"`` are of the weights that are followed.

        Empty, [0, 0, 0], where nothing of the kind was recorded.
        """
        trace: Array = self._traces.of(kind).transpose(0, 1).contiguous().numpy()
        return trace

    def followed(self) -> dict[str, Array]:
        """Return the directions' traces, [K, D, ...]: see :meth:`FollowedDirections.record`."""
        return {kind: self.trace(_FOLLOWED + kind) for kind in TRACES}

    def state_dict(self) -> dict[str, Any]:
        """Return the directions, as tensors; the traces are files of their own."""
        followed = self.directions.state_dict() if self.directions is not None else None
        return {"directions": followed, "examples": self._examples}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore the directions on a device."""
        self._examples, followed = state["examples"], state["directions"]
        # Earlier versions followed predictions of a minibatch, or had no field for all of them.
        known = followed is not None and {f.name for f in fields(FollowedDirections)} == {*followed}
        if known and self._examples is not None:
            self.directions = FollowedDirections(**{k: t.to(device) for k, t in followed.items()})


def _curvature_batches(chain: Chain) -> list[Batch]:
    assert chain.spare is not None
    count = 1 if chain.spare.sampling == "full" else _CURVATURE_BATCHES
    return [chain.spare.at(chain.steps + i) for i in range(count)]
