"""Keep draws: on disk, in the ensemble's predictions, and in the mean of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
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
from lightning_sgmcmc.posterior.held_out import HeldOut

Array = NDArray[np.float64]


class KeepDraws(L.Callback):
    """Ask the module's schedule whether a state is a draw, and keep it.

    A draw is written to ``samples/chain<c>/`` within the module's budget, its predictions enter a
    :class:`~lightning_sgmcmc.metrics.PosteriorEnsemble` for each held-out set of the datamodule
    (``val`` and ``test``), and its weights enter their running mean. All of it continues exactly
    from a checkpoint.

    Attributes:
        num_draws: Draws kept so far, written or not.
        history: One row of numbers per draw, for the trace.
        reference: Metrics of the network where burn-in ended, per held-out set.
    """

    def __init__(self) -> None:
        self.num_draws = 0
        self.history: list[dict[str, float]] = []
        self.reference: dict[str, dict[str, float]] = {}
        self._held_out: dict[str, HeldOut] = {}
        self._ensembles: dict[str, PosteriorEnsemble] = {}
        self._mean: list[Tensor] = []
        self._mean_weight = 0.0
        self._stride = 1
        self._store: DrawStore | None = None
        self._restored: dict[str, Any] | None = None

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
        folder = run_folder(trainer) / "samples"
        self._store = DrawStore(folder, module.sampler.chain, module.draw_dtype)
        self._held_out = HeldOut.of(trainer, module)
        due = module.draw_schedule.count(trainer.max_steps) if trainer.max_steps > 0 else 0
        if module.draw_budget:
            self._stride = max(1, math.ceil(due / module.draw_budget))
        if self._restored is not None:
            self._restore(trainer, self._restored, module.device)
        elif (self._store.folder / "index.json").exists() and trainer.is_global_zero:
            raise FileExistsError(
                f"{self._store.folder} already holds draws of a run: choose another folder, or "
                "continue that run from its checkpoint"
            )

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Keep the state that the step just reached, if it is a draw."""
        module = _module(pl_module)
        step = trainer.global_step
        if step == module.draw_schedule.burn_in:
            for name in self._held_out:
                self.reference[name] = self.measure_network(trainer, module, name)
        if not module.draw_schedule.keeps(step):
            return
        if not (
            math.isfinite(float(module.last_loss)) and checks.parameters_finite(module.sampler)
        ):
            raise ChainDivergedError(
                f"the chain diverged at step {step} with step size {module.current_lr:.3g}: a "
                "weight is not finite. Lower lr; draws kept before are whole"
            )
        self._keep(trainer, module, step)

    def _keep(self, trainer: L.Trainer, module: SGMCMCModule, step: int) -> None:
        assert self._store is not None
        weight = module.sampler.draw_weight()
        self.num_draws += 1
        params = module.sampler.params
        if module.draw_budget and (self.num_draws - 1) % self._stride == 0:
            if trainer.is_global_zero:
                sampled, rest = split_state(module)
                if not self._store.draws:
                    self._store.save_constants(rest)
                self._store.save(step, sampled, weight)
            else:
                self._store.draws.append(Draw(step, f"step_{step}.safetensors", weight))
        if not self._mean:
            self._mean = [torch.zeros_like(p, dtype=torch.float64) for p in params]
        for total, p in zip(self._mean, params, strict=True):
            total.add_(p.detach(), alpha=weight)
        self._mean_weight += weight
        row = {"step": float(step), "train/nll": float(module.last_loss)}
        temperature = module.kinetic_temperature()
        if temperature is not None:
            row["kinetic_temperature"] = temperature
        for name, data in self._held_out.items():
            ensemble = self._ensemble(name, module)
            data.add_draw(trainer, module, ensemble, weight)
            if name == "val":
                values = module.metrics(ensemble.compute(), data.examples)
                row |= {f"val/ensemble_{key}": value for key, value in values.items()}
        self.history.append(row)
        module.record({"draws": float(self.num_draws)} | {k: row[k] for k in row if "val" in k})

    def _ensemble(self, name: str, module: SGMCMCModule) -> PosteriorEnsemble:
        if name not in self._ensembles:
            self._ensembles[name] = self._held_out[name].new_ensemble(module)
        return self._ensembles[name]

    def ensemble(self, name: str) -> Prediction:
        """Return the ensemble's prediction for a held-out set."""
        prediction: Prediction = self._ensembles[name].compute()
        return prediction

    def measure_network(
        self, trainer: L.Trainer, module: SGMCMCModule, name: str
    ) -> dict[str, Any]:
        """Return the metrics of the module's current weights on a held-out set."""
        data = self._held_out[name]
        single = data.new_ensemble(module)
        data.add_draw(trainer, module, single, 1.0)
        return module.metrics(single.compute(), data.examples)

    @contextmanager
    def mean_weights(self, module: SGMCMCModule) -> Iterator[None]:
        """Hold the posterior mean of the weights in the module for a while."""
        params = module.sampler.params
        current = [p.detach().clone() for p in params]
        with torch.no_grad():
            for p, total in zip(params, self._mean, strict=True):
                p.copy_(total / self._mean_weight)
            try:
                yield
            finally:
                for p, old in zip(params, current, strict=True):
                    p.copy_(old)

    def weight_traces(self, module: SGMCMCModule, count: int) -> tuple[list[str], Array]:
        """Return names and traces over the stored draws of weights spread evenly over the network.

        Args:
            module: The module that was sampled.
            count: Number of weights, at most as many as there are.

        Returns:
            Names such as ``net.0.weight[17]``, and values [draws, count]; empty without draws.
        """
        sizes = {name: p.numel() for name, p in module.named_parameters() if p.requires_grad}
        ends = np.cumsum(list(sizes.values()))
        chosen = np.unique(np.linspace(0, ends[-1] - 1, count).astype(int))
        layers = np.searchsorted(ends, chosen, side="right")
        names = list(sizes)
        places = [
            (names[layer], int(index - (ends[layer] - sizes[names[layer]])))
            for layer, index in zip(layers, chosen, strict=True)
        ]
        stored = self._store.draws if self._store is not None else []
        rows = []
        for draw in stored:
            assert self._store is not None
            tensors = {name: t.reshape(-1).numpy() for name, t in self._store.load(draw).items()}
            rows.append([tensors[name][i] for name, i in places])
        values = np.array(rows, dtype=np.float64).reshape(len(stored), len(places))
        return [f"{name}[{i}]" for name, i in places], values

    def state_dict(self) -> dict[str, Any]:
        """Return the index, the ensembles (joined over processes) and the mean of the weights."""
        ensembles = {}
        for name, ensemble in self._ensembles.items():
            with ensemble.sync_context():
                ensembles[name] = {
                    k: v.clone() for k, v in ensemble.metric_state.items() if isinstance(v, Tensor)
                }
        draws = self._store.draws if self._store is not None else []
        return {
            "num_draws": self.num_draws,
            "history": self.history,
            "reference": self.reference,
            "draws": [[d.step, d.file, d.weight] for d in draws],
            "ensembles": ensembles,
            "mean": self._mean,
            "mean_weight": self._mean_weight,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take in a checkpoint's state; the files follow when training starts."""
        self._restored = state_dict

    def _restore(self, trainer: L.Trainer, state: dict[str, Any], device: torch.device) -> None:
        assert self._store is not None
        self.num_draws, self.history = state["num_draws"], list(state["history"])
        self.reference = dict(state["reference"])
        draws = [Draw(step, file, weight) for step, file, weight in state["draws"]]
        if trainer.is_global_zero:
            self._store.rewind(draws)
        self._store.draws = draws
        self._mean = [m.to(device) for m in state["mean"]]
        self._mean_weight = state["mean_weight"]
        for name, saved in state["ensembles"].items():
            shape = tuple(saved["total"].shape)
            ensemble = PosteriorEnsemble(shape[0], shape[1:]).to(device)
            if trainer.is_global_zero:
                for key, value in saved.items():
                    setattr(ensemble, key, value.to(device))
                ensemble._update_count = 1
            self._ensembles[name] = ensemble


def split_state(module: SGMCMCModule) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the sampled weights and everything else of a module's state, by name."""
    sampled = {name for name, p in module.named_parameters() if p.requires_grad}
    state: dict[str, Tensor] = module.state_dict()
    return (
        {name: t for name, t in state.items() if name in sampled},
        {name: t for name, t in state.items() if name not in sampled},
    )


def _module(pl_module: L.LightningModule) -> SGMCMCModule:
    if not isinstance(pl_module, SGMCMCModule):
        raise TypeError(f"KeepDraws needs an SGMCMCModule, got {type(pl_module).__name__}")
    return pl_module
