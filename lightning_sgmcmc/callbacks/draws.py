"""Keep draws: on disk, in the ensemble's predictions, and in the mean of the weights."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_sgmcmc import checks
from lightning_sgmcmc.callbacks.guard import ChainDivergedError
from lightning_sgmcmc.callbacks.run import run_folder
from lightning_sgmcmc.metrics import PosteriorEnsemble, Prediction
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.posterior.draws import Draw, DrawStore
from lightning_sgmcmc.posterior.held_out import MEASURED, HeldOut
from lightning_sgmcmc.posterior.probes import Probes, place_names, spread_evenly
from lightning_sgmcmc.strategies import replicas

Array = NDArray[np.float64]


class KeepDraws(L.Callback):
    """Ask the module's schedule whether a state is a draw, and keep it.

    A draw is written to ``samples/chain<c>/`` within the module's budget, its predictions enter a
    :class:`~lightning_sgmcmc.metrics.PosteriorEnsemble` for each held-out set of the datamodule
    (``val``, ``test`` and its extra ones), and its weights enter their running mean. Of several
    chains each keeps the state of the same steps. All of it continues exactly from a checkpoint.

    Attributes:
        num_draws: Draws of each chain kept so far, written or not.
        history: One row of numbers per draw, for the trace; means over the chains.
        reference: Metrics of the network where burn-in ended, per held-out set.
    """

    def __init__(self) -> None:
        self.num_draws = 0
        self.history: list[dict[str, float]] = []
        self.reference: dict[str, dict[str, float]] = {}
        self._held_out: dict[str, HeldOut] = {}
        self._ensembles: dict[str, PosteriorEnsemble] = {}
        self._totals: dict[str, Tensor] = {}
        self._mean: list[Tensor] = []
        self._mean_weight = 0.0
        self._stride = 1
        self._stores: list[DrawStore] = []
        self._weights: list[float] = []
        self._probes: Probes | None = None
        self._restored: dict[str, Any] | None = None
        self._trainer: L.Trainer | None = None

    @classmethod
    def of(cls, trainer: L.Trainer) -> KeepDraws:
        """Return the one among a trainer's callbacks, which a module adds itself.

        Raises:
            LookupError: If there is none: the trainer has not met a module yet.
        """
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        for callback in callbacks:
            if isinstance(callback, cls):
                return callback
        raise LookupError("the trainer has no KeepDraws: it has not been given an SGMCMCModule")

    @property
    def held_out(self) -> dict[str, HeldOut]:
        """The held-out sets by name."""
        return self._held_out

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Open the folder, refusing one that holds other draws, and restore what is to be.

        Raises:
            FileExistsError: If the folder holds draws and the run does not continue them.
        """
        module = _module(pl_module)
        self._trainer = trainer
        folder = run_folder(trainer) / "samples"
        self._stores = [DrawStore(folder, c, module.draw_dtype) for c in module.chain_numbers]
        self._held_out = HeldOut.of(trainer, module)
        self._probes = Probes(module)
        due = module.draw_schedule.count(trainer.max_steps) if trainer.max_steps > 0 else 0
        if module.draw_budget:
            self._stride = max(1, math.ceil(due / module.draw_budget))
        writes = replicas(trainer).rank == 0
        if self._restored is not None:
            self._restore(trainer, self._restored, module.device)
        elif writes and any((store.folder / "index.json").exists() for store in self._stores):
            raise FileExistsError(
                f"{folder} already holds draws of a run: choose another folder, or continue that "
                "run from its checkpoint"
            )

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Keep the state that the step just reached, if it is a draw."""
        module = _module(pl_module)
        step = trainer.global_step
        if step == module.draw_schedule.burn_in:
            for name in self._held_out:
                if name in MEASURED:
                    self.reference[name] = self.measure_network(trainer, module, name)
        if not module.draw_schedule.keeps(step):
            return
        if not (
            bool(torch.isfinite(module.last_loss).all())
            and checks.parameters_finite(module.sampler)
        ):
            raise ChainDivergedError(
                f"the chain diverged at step {step} with step size {module.current_lr:.3g}: a "
                "weight is not finite. Lower lr; draws kept before are whole"
            )
        self._keep(trainer, module, step)

    def _keep(self, trainer: L.Trainer, module: SGMCMCModule, step: int) -> None:
        weight = module.sampler.draw_weight()
        self.num_draws += 1
        self._weights.append(weight)
        module.on_draw(weight)
        states = [module.chain_state(k) for k in range(len(self._stores))]
        if module.draw_budget and (self.num_draws - 1) % self._stride == 0:
            for store, state in zip(self._stores, states, strict=True):
                if replicas(trainer).rank == 0:
                    if not store.draws:
                        store.save_constants(constants(module))
                    store.save(step, state, weight)
                else:
                    store.draws.append(Draw(step, f"step_{step}.safetensors", weight))
        if not self._mean:
            self._mean = [torch.zeros_like(t, dtype=torch.float64) for t in states[0].values()]
        for state in states:
            for total, value in zip(self._mean, state.values(), strict=True):
                total.add_(value, alpha=weight)
            self._mean_weight += weight
        row = {"step": float(step), "train/nll": float(module.last_loss.mean())}
        temperature = module.kinetic_temperature()
        if temperature is not None:
            row["kinetic_temperature"] = temperature
        probed: Tensor | None = None
        for i, (name, data) in enumerate(self._held_out.items()):
            ensemble = self._ensemble(name, module)
            totals = self._totals_of(name, trainer, module, ensemble)
            predicted = data.add_draw(trainer, module, ensemble, weight, totals)
            probed = predicted if i == 0 else probed
            if name in module.followed:
                values = module.metrics(ensemble.compute(), data.examples)
                row |= {f"{name}/ensemble_{key}": value for key, value in values.items()}
        self.probes.record(module, probed)
        self.history.append(row)
        module.record({"draws": float(self.num_draws)} | {k: row[k] for k in row if "val" in k})

    def _ensemble(self, name: str, module: SGMCMCModule) -> PosteriorEnsemble:
        if name not in self._ensembles:
            self._ensembles[name] = self._held_out[name].new_ensemble(module)
        return self._ensembles[name]

    def _totals_of(
        self, name: str, trainer: L.Trainer, module: SGMCMCModule, ensemble: PosteriorEnsemble
    ) -> Tensor | None:
        """Return each chain's own weighted sum of predictions, None for a single chain."""
        processes = 1 if replicas(trainer).data_parallel else trainer.world_size
        if module.num_chains * processes == 1:
            return None
        if name not in self._totals:
            self._totals[name] = ensemble.total.new_zeros(module.num_chains, *ensemble.total.shape)
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
        trainer, total = self._trainer, self._joined(self._totals[name])
        assert trainer is not None
        if trainer.world_size > 1 and not replicas(trainer).data_parallel:
            total = trainer.strategy.all_gather(total).flatten(0, 1)
        return total / float(np.sum(self._weights))

    def _joined(self, totals: Tensor) -> Tensor:
        """Return the sums [K, N, ...] over the processes that share these chains' examples."""
        assert self._trainer is not None
        if replicas(self._trainer).size == 1:
            return totals
        joined: Tensor = self._trainer.strategy.reduce(totals.clone(), reduce_op="sum")
        return joined

    def measure_network(
        self, trainer: L.Trainer, module: SGMCMCModule, name: str
    ) -> dict[str, Any]:
        """Return the metrics of single networks on a held-out set, as they stand now.

        For several chains, the mean over the chains of each one's metrics.
        """
        if module.chains is None:
            return self._measure_one(trainer, module, name)
        rows = []
        for k in range(len(self._stores)):
            with module.holding(module.chain_state(k)):
                rows.append(self._measure_one(trainer, module, name))
        return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}

    def measure_mean(self, trainer: L.Trainer, module: SGMCMCModule, name: str) -> dict[str, Any]:
        """Return the metrics of the network whose weights are the posterior mean."""
        with module.holding(self.mean_weights(module)):
            return self._measure_one(trainer, module, name)

    def mean_weights(self, module: SGMCMCModule) -> dict[str, Tensor]:
        """Return the weighted mean over all draws and chains of the sampled weights, by name."""
        total = [*self._mean, torch.tensor(self._mean_weight, device=self._mean[0].device)]
        if not replicas(module.trainer).data_parallel:  # the chains of all processes
            total = [module.trainer.strategy.reduce(t, reduce_op="sum") for t in total]
        pairs = zip(module.chain_state(0), total[:-1], strict=True)
        return {name: value / total[-1] for name, value in pairs}

    def _measure_one(self, trainer: L.Trainer, module: SGMCMCModule, name: str) -> dict[str, Any]:
        data = self._held_out[name]
        single = data.new_ensemble(module)
        data.add_draw(trainer, module, single, 1.0)
        return module.metrics(single.compute(), data.examples)

    @property
    def draw_weights(self) -> Array:
        """The draws' weights in averages, [draws]."""
        return np.array(self._weights)

    @property
    def probes(self) -> Probes:
        """Traces of some weights, of grad U and of predictions over all draws."""
        assert self._probes is not None
        return self._probes

    def weight_traces(self, module: SGMCMCModule, count: int) -> tuple[list[str], Array]:
        """Return names and traces over the stored draws of weights spread evenly over the network.

        Args:
            module: The module that was sampled.
            count: Number of weights, at most as many as there are.

        Returns:
            Names such as ``net.0.weight[17]``, and values [K, draws, count] of the K chains of
            this process; no draws where none is stored.
        """
        places = spread_evenly(module.chain_state(0), count)
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
        """Return the index, the ensembles (joined over processes) and the mean of the weights."""
        ensembles = {}
        for name, ensemble in self._ensembles.items():
            with ensemble.sync_context():
                ensembles[name] = {
                    k: v.clone() for k, v in ensemble.metric_state.items() if isinstance(v, Tensor)
                }
        totals = {name: self._joined(total) for name, total in self._totals.items()}
        draws = self._stores[0].draws if self._stores else []
        return {
            "num_draws": self.num_draws,
            "history": self.history,
            "reference": self.reference,
            "draws": [[d.step, d.file, d.weight] for d in draws],
            "weights": self._weights,
            "probes": self._probes.state_dict() if self._probes is not None else {},
            "ensembles": ensembles,
            "totals": totals,
            "mean": self._mean,
            "mean_weight": self._mean_weight,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take in a checkpoint's state; the files follow when training starts."""
        self._restored = state_dict

    def _restore(self, trainer: L.Trainer, state: dict[str, Any], device: torch.device) -> None:
        self.num_draws, self.history = state["num_draws"], list(state["history"])
        self.reference = dict(state["reference"])
        draws = [Draw(step, file, weight) for step, file, weight in state["draws"]]
        self._weights = list(state["weights"])
        self.probes.load_state_dict(state["probes"])
        for store in self._stores:
            if replicas(trainer).rank == 0:
                store.rewind(draws)
            store.draws = list(draws)
        self._mean = [m.to(device) for m in state["mean"]]
        self._mean_weight = state["mean_weight"]
        for name, total in state["totals"].items():
            # Of processes that share the chains, one continues their joint sums.
            kept = total if replicas(trainer).rank == 0 else torch.zeros_like(total)
            self._totals[name] = kept.to(device)
        for name, saved in state["ensembles"].items():
            shape = tuple(saved["total"].shape)
            ensemble = PosteriorEnsemble(shape[0], shape[1:]).to(device)
            if trainer.is_global_zero:
                for key, value in saved.items():
                    setattr(ensemble, key, value.to(device))
                ensemble._update_count = 1
            self._ensembles[name] = ensemble


def constants(module: SGMCMCModule) -> dict[str, Tensor]:
    """Return the part of a module's state that is not sampled, by name."""
    chosen = set(module.sampled)
    state: dict[str, Tensor] = module.state_dict()
    return {n: t for n, t in state.items() if n not in chosen and not n.startswith("chains.")}


def _module(pl_module: L.LightningModule) -> SGMCMCModule:
    if not isinstance(pl_module, SGMCMCModule):
        raise TypeError(f"KeepDraws needs an SGMCMCModule, got {type(pl_module).__name__}")
    return pl_module
