"""The draws of a chain: on disk, in the ensemble's predictions, in the mean of the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_sgmcmc.chain import Chain
from lightning_sgmcmc.metrics import PosteriorEnsemble, Prediction
from lightning_sgmcmc.posterior.directions import SHARED
from lightning_sgmcmc.posterior.draws import Draw, DrawStore
from lightning_sgmcmc.posterior.held_out import MEASURED, HeldOut
from lightning_sgmcmc.posterior.probes import Probes, place_names, spread_evenly
from lightning_sgmcmc.posterior.traces import Traces

Array = NDArray[np.float64]

#: Name of the draws' weights in averages among the traces.
_WEIGHTS = "weights in averages"
#: Chains whose draws are written at once: to wait until each is on the disk takes most of the time.
#: The threads call no torch, whose operations have no threads in a process that was forked.
_WRITERS = 4


class KeptDraws:
    """What is kept of a chain's draws while it runs.

    A draw is written to ``chain<c>/`` of the folder within the budget, its predictions enter a
    :class:`~lightning_sgmcmc.metrics.PosteriorEnsemble` for each held-out set, and its weights
    enter their running mean. Of several chains each keeps the state of the same steps. All of it
    continues exactly from a checkpoint.

    Args:
        chain: The chain.
        held_out: The held-out sets by name.
        folder: Where draws are written.
        budget: Largest number of draws of a chain written; evenly spaced ones if more are due. With
            0 nothing is written before :meth:`state_dict` is asked for.
        dtype: Type that draws are stored in.
        due: Number of draws of the whole run, 0 if it is not known.

    Attributes:
        folder: The same.
        num_draws: Draws of each chain kept so far, written or not.
        reference: Metrics of the network where burn-in ended, per held-out set.
        probes: Traces of some weights, of grad U and of predictions over all draws.
    """

    def __init__(
        self,
        chain: Chain,
        held_out: dict[str, HeldOut],
        folder: Path,
        *,
        budget: int = 200,
        dtype: str = "float32",
        due: int = 0,
    ) -> None:
        self.chain, self.held_out, self.budget = chain, held_out, budget
        self.num_draws = 0
        self.reference: dict[str, dict[str, float]] = {}
        first = next(iter(held_out.values()), None)
        self.folder, self._writes = folder, chain.processes.rank == 0
        self._stores = [DrawStore(folder, c, dtype) for c in chain.numbers]
        self._traces = Traces([store.folder / "traces" for store in self._stores], self._writes)
        self.probes = Probes(chain, self._traces, first.first if first is not None else None)
        self._stride = max(1, math.ceil(due / budget)) if budget else 1
        self._ensembles: dict[str, PosteriorEnsemble] = {}
        self._totals: dict[str, Tensor] = {}
        self._buffers: dict[str, Tensor] = {}
        self._mean: list[Tensor] = []
        self._mean_weight = 0.0
        self._weights: list[float] = []

    @property
    def history(self) -> list[dict[str, float]]:
        """One row of numbers per draw, for the trace; means over the chains."""
        return self._traces.numbers()

    def begin(self) -> None:
        """Begin without a draw, and refuse a folder that holds those of another run.

        Raises:
            FileExistsError: If it does.
        """
        if self._writes and any((store.folder / "index.json").exists() for store in self._stores):
            raise FileExistsError(
                f"{self.folder} already holds draws of a run: choose another folder, or continue "
                "that run from its checkpoint"
            )
        self._traces.clear()

    def measure_burn_in(self) -> None:
        """Measure the network where burn-in ended on the held-out sets."""
        for name in self.held_out:
            if name in MEASURED:
                self.reference[name] = self.measure_network(name)

    def keep(self) -> dict[str, float]:
        """Keep the chain's state as a draw.

        Returns:
            The draw's row of ``history``.
        """
        chain = self.chain
        weight = chain.draw_weight
        if not weight > 0:
            raise ValueError(
                f"the step size has come down to {chain.last_lr:g} at step {chain.steps}, where "
                "the chain stands still and a draw has no weight: let the schedule end above 0, or "
                "the run before"
            )
        self.num_draws += 1
        self._weights.append(weight)
        chain.complete()
        chain.task.on_draw(weight)
        states = [chain.state(k) for k in range(len(self._stores))]
        self._check_buffers()
        if self.budget and (self.num_draws - 1) % self._stride == 0:
            self._write(states, weight * self._stride)  # it stands for that many draws
        if not self._mean:
            self._mean = [torch.zeros_like(t, dtype=torch.float64) for t in states[0].values()]
        for state in states:
            for total, value in zip(self._mean, state.values(), strict=True):
                total.add_(value, alpha=weight)
            self._mean_weight += weight
        row = {"step": float(chain.steps), "lr": chain.last_lr} | chain.log_row()
        probed: Tensor | None = None
        for i, (name, data) in enumerate(self.held_out.items()):
            ensemble = self._ensemble(name)
            predicted = data.add_draw(chain, ensemble, weight, self._totals_of(name, ensemble))
            probed = predicted if i == 0 else probed
            if name in chain.task.followed:
                values = chain.task.metrics(ensemble.compute(), data.examples)
                row |= {f"{name}/ensemble_{key}": value for key, value in values.items()}
        found = self.probes.record(chain, probed)
        self._traces.add(found | {_WEIGHTS: torch.tensor(weight, dtype=torch.float64)}, row)
        return row

    def _check_buffers(self) -> None:
        """Raise ValueError if a buffer changes from draw to draw: it is stored once."""
        if not self.chain.sampler.temperature:
            return
        buffers = {n: b for n, b in self.chain.task.named_buffers() if b.is_floating_point()}
        if not self._buffers:
            self._buffers = {name: b.clone() for name, b in buffers.items()}
        for name, first in self._buffers.items():
            if not torch.equal(buffers[name], first):
                raise ValueError(
                    f"{name} changes while the chain samples, so that there is no likelihood of "
                    "the weights alone: put its layer into eval() before the module is built"
                )

    def _write(self, states: list[dict[str, Tensor]], weight: float) -> None:
        step = self.chain.steps
        if not self._writes:
            for store in self._stores:
                store.draws.append(Draw(step, f"step_{step}.safetensors", weight))
            return

        for store in self._stores:
            if not store.draws:
                store.save_constants(self.chain.constants())
        if len(states) == 1:
            self._stores[0].save(step, states[0], weight)
            return
        with ThreadPoolExecutor(_WRITERS) as pool:
            for i in range(0, len(states), _WRITERS):
                stores = self._stores[i : i + _WRITERS]
                contents = [s.encoded(w) for s, w in zip(stores, states[i:], strict=False)]
                list(pool.map(DrawStore.write, stores, repeat(step), contents, repeat(weight)))

    def _ensemble(self, name: str) -> PosteriorEnsemble:
        if name not in self._ensembles:
            self._ensembles[name] = self.held_out[name].new_ensemble(self.chain)
        return self._ensembles[name]

    def _totals_of(self, name: str, ensemble: PosteriorEnsemble) -> Tensor | None:
        """Return each chain's own weighted sum of predictions, None for a single chain."""
        chains = self.chain.num_chains
        if self.chain.processes.all_chains(chains) == 1:
            return None
        if name not in self._totals:
            self._totals[name] = ensemble.total.new_zeros(chains, *ensemble.total.shape)
        return self._totals[name]

    def ensemble(self, name: str) -> Prediction:
        """Return the ensemble's prediction for a held-out set."""
        prediction: Prediction = self._ensembles[name].compute()
        return prediction

    def chain_means(self, name: str) -> Tensor | None:
        """Return the mean prediction of each chain's own draws for a held-out set, [K, N, ...].

        Chains of all processes count; None for a single chain.
        """
        if name not in self._totals:
            return None
        total = self._joined(self._totals[name])
        if not self.chain.processes.data_parallel:
            total = self.chain.processes.gather(total).flatten(0, 1)
        return total / float(np.sum(self._weights))

    def _joined(self, totals: Tensor) -> Tensor:
        """Return the sums [K, N, ...] over the processes that share these chains' examples."""
        shared = self.chain.processes.size > 1
        return self.chain.processes.reduce(totals.clone()) if shared else totals

    def measure_network(self, name: str) -> dict[str, Any]:
        """Return the metrics of single networks on a held-out set, as they stand now.

        For several chains, the mean over the chains of each one's metrics.
        """
        chain, rows = self.chain, []
        chain.complete()
        if chain.processes.all_chains(chain.num_chains) == 1:
            return self._measure_one(name)
        for k in range(len(self._stores)):
            with chain.holding(chain.state(k)):
                rows.append(self._measure_one(name))
        own = torch.tensor([list(row.values()) for row in rows], dtype=torch.float64)
        every = chain.processes.of_all_chains(own.numpy(), chain.device)
        return dict(zip(rows[0], np.mean(every, axis=0).tolist(), strict=True))

    def measure_mean(self, name: str) -> dict[str, Any]:
        """Return the metrics of the network whose weights are the posterior mean."""
        with self.chain.holding(self.mean_weights()):
            return self._measure_one(name)

    def mean_weights(self) -> dict[str, Tensor]:
        """Return the weighted mean over all draws and chains of the sampled weights, by name."""
        total = [*self._mean, torch.tensor(self._mean_weight, device=self._mean[0].device)]
        if not self.chain.processes.data_parallel:  # the chains of all processes
            total = [self.chain.processes.reduce(t) for t in total]
        pairs = zip(self.chain.state(0), total[:-1], strict=True)
        return {name: value / total[-1] for name, value in pairs}

    def _measure_one(self, name: str) -> dict[str, Any]:
        data = self.held_out[name]
        single = data.new_ensemble(self.chain, alone=not self.chain.processes.data_parallel)
        data.add_draw(self.chain, single, 1.0)
        return self.chain.task.metrics(single.compute(), data.examples)

    @property
    def draw_weights(self) -> Array:
        """The draws' weights in averages, [draws]."""
        return np.array(self._weights)

    def weight_traces(self, count: int) -> tuple[list[str], Array]:
        """Return names and traces over the stored draws of weights spread evenly over the network.

        Args:
            count: Number of weights, at most as many as there are.

        Returns:
            Names such as ``net.0.weight[17]``, and values [K, draws, count] of the K chains of
            this process; no draws where none is stored.
        """
        places = spread_evenly(self.chain.state(0), count)
        names = place_names(places)
        chains = []
        for store in self._stores:
            rows = []
            for draw in store.draws:
                tensors = store.load(draw)
                parts = [tensors[name].reshape(-1)[i].double() for name, i in places.items()]
                rows.append(torch.cat(parts).numpy())
            chains.append(np.array(rows, dtype=np.float64).reshape(len(rows), len(names)))
        return names, np.stack(chains)

    def state_dict(self) -> dict[str, Any]:
        """Return the index, the ensembles (joined over processes) and the mean of the weights.

        What grows with every draw is written as a piece of its own.
        """
        ensembles = {}
        for name, ensemble in self._ensembles.items():
            with ensemble.sync_context():
                ensembles[name] = {
                    k: v.clone() for k, v in ensemble.metric_state.items() if isinstance(v, Tensor)
                }
        return {
            "num_draws": self.num_draws,
            "reference": self.reference,
            "chains": list(self.chain.numbers),
            "draws": [[list(astuple(d)) for d in store.draws] for store in self._stores],
            "constants": self._stores[0].constants,
            "pieces": self._traces.save(),
            "probes": self.probes.state_dict(),
            "ensembles": ensembles,
            "totals": {name: self._joined(total) for name, total in self._totals.items()},
            "mean": self._mean,
            "mean_weight": self._mean_weight,
        }

    @staticmethod
    def regrouped(states: Sequence[dict[str, Any]], numbers: Sequence[int]) -> dict[str, Any]:
        """Return the state of some chains, from those of the processes that held them.

        The sums over the chains of a process go on where its first chain does, so that all
        processes together keep them.

        Args:
            states: Of these processes, in the order of their chains.
            numbers: Of the chains.

        Raises:
            ValueError: If an earlier version kept the traces of several chains together.
        """
        for state in states:
            if not isinstance(state["pieces"], list) or len(state["pieces"]) < len(state["chains"]):
                raise ValueError(
                    "an earlier version kept the traces of several chains together: continue them "
                    "with the number of processes and the num_chains that they had"
                )
        held = {n: (s, k) for s in states for k, n in enumerate(s["chains"])}
        places = [held[n] for n in numbers]
        first, probes = places[0][0], dict(places[0][0]["probes"])
        if probes["directions"] is not None:
            probes["directions"] |= {
                name: torch.stack([s["probes"]["directions"][name][k] for s, k in places])
                for name in probes["directions"]
                if name not in SHARED
            }
        sums = [s for s in states if s["chains"][0] in numbers]
        return first | {
            "chains": list(numbers),
            "draws": [s["draws"][k] for s, k in places],
            "pieces": [s["pieces"][k] for s, k in places],
            "probes": probes,
            "totals": {
                name: torch.stack([s["totals"][name][k] for s, k in places])
                for name in first["totals"]
            },
            "mean": [
                torch.stack([torch.zeros_like(t), *(s["mean"][i] for s in sums)]).sum(0)
                for i, t in enumerate(first["mean"])
            ],
            "mean_weight": sum(s["mean_weight"] for s in sums),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue what gave ``state``, removing the files of later draws.

        Raises:
            FileNotFoundError: If a draw's file is missing.
            DamagedFileError: If a draw or a piece is not what was written.
        """
        device = self.chain.device
        self.num_draws, self.reference = state["num_draws"], dict(state["reference"])
        self._traces.load(state["pieces"])
        self._weights = self._traces.of(_WEIGHTS).flatten().tolist()
        self.probes.load_state_dict(state["probes"], device)
        for store, rows in zip(self._stores, state["draws"], strict=True):
            draws = [Draw(*row) for row in rows]
            if self._writes:
                store.rewind(draws, state["constants"])
                if draws:
                    store.heal_constants(self.chain.constants())
            store.draws = draws
        self._mean = [m.to(device) for m in state["mean"]]
        self._mean_weight = state["mean_weight"]
        for name, total in state["totals"].items():
            # Of processes that share the chains, one continues their joint sums.
            kept = total if self._writes else torch.zeros_like(total)
            self._totals[name] = kept.to(device)
        for name, saved in state["ensembles"].items():
            ensemble = self.held_out[name].new_ensemble(self.chain)
            # Sums of an earlier version are about 0.
            origin = saved.get("origin", torch.zeros_like(ensemble.origin))
            ensemble.origin = origin.to(device)
            if self.chain.processes.first:
                for key, value in saved.items():
                    setattr(ensemble, key, value.to(device))
                ensemble._update_count = 1
            self._ensembles[name] = ensemble
