"""Keep draws: on disk, in the ensemble's predictions, and in the mean of the weights."""

from __future__ import annotations

import math
from collections.abc import ValuesView
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import DataLoader

from lightning_sgmcmc.callbacks import fingerprint
from lightning_sgmcmc.callbacks.checkpoint_files import LAST, PREVIOUS
from lightning_sgmcmc.callbacks.guard import ChainDivergedError, look_back
from lightning_sgmcmc.callbacks.log import CSVLog
from lightning_sgmcmc.callbacks.monitoring import rhat_of_predictions, wait_for_draws
from lightning_sgmcmc.callbacks.run import (
    BATCH_HOOKS,
    continue_log,
    keep_fuller,
    open_log,
    overrides,
    publish,
    received,
    record,
    run_folder,
    task_of,
)
from lightning_sgmcmc.chain import BatchStream, checks
from lightning_sgmcmc.common.files import clear_temporary
from lightning_sgmcmc.posterior.held_out import MEASURED, HeldOut
from lightning_sgmcmc.posterior.kept import KeptDraws


class KeepDraws(L.Callback):
    """Ask the chain's schedule whether a state is a draw, and keep it in the task's ``kept``.

    In a ``fast_dev_run`` the state after the last step is kept, in a folder that is removed.

    Args:
        budget: Largest number of draws of a chain written to disk.
        dtype: Type that draws are stored in.
    """

    def __init__(self, budget: int = 200, dtype: str = "float32") -> None:
        self.budget, self.dtype = budget, dtype
        self._kept: KeptDraws | None = None
        self._restored: dict[str, Any] | None = None
        self._log: CSVLog | None = None
        self._monitored: dict[str, float] = {}
        self._scratch: TemporaryDirectory[str] | None = None
        self._target: fingerprint.Fingerprint = {}
        self._data: fingerprint.Fingerprint = {}

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Open the log, in whose folder the draws lie."""
        if stage != "fit":
            return
        self._restored = None  # of a test of a checkpoint, before this fit
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._scratch = TemporaryDirectory(prefix="sgmcmc")
        else:
            self._log = open_log(trainer)
        wait_for_draws(trainer, task_of(pl_module))

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Go on in the folder of the checkpoint's draws, unless another was chosen for the run."""
        if self._log is not None:
            continue_log(trainer, self._log)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note what is sampled, and remove what killed runs in the folder left unfinished.

        Raises:
            ValueError: If the run goes on with another target.
        """
        folder = run_folder(trainer)  # which all processes ask for together
        if trainer.is_global_zero:
            samples = [*folder.glob("samples/chain*"), *folder.glob("samples/chain*/traces")]
            clear_temporary(folder, folder / "checkpoints", *samples)
        self._kept = None
        chain = task_of(pl_module).chain
        self._target = fingerprint.of_target(chain)
        if self._restored:
            unstated = fingerprint.defaults(chain)
            fingerprint.refuse_other(self._restored["target"], self._target, unstated)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Open the folder, refusing one that holds other draws, and restore what is to be.

        Raises:
            FileExistsError: If the folder holds draws and the run does not continue them.
            TypeError: If the run has held-out sets, but the task does not say what it predicts.
            ValueError: If the run goes on with other data.
        """
        task = task_of(pl_module)
        chain, sets = task.chain, held_out_sets(trainer)
        if sets and not task.predicts:
            raise TypeError(
                f"{type(task).__name__} must define law(x), or predictive(batch), for its draws to "
                f"predict the held-out sets: {', '.join(sets)}"
            )
        self._data = fingerprint.of_data(chain, training_data(trainer), sets)
        if self._restored:
            fingerprint.refuse_other(self._restored["data"], self._data)
        steps = trainer.max_steps if trainer.max_steps > 0 else trainer.estimated_stepping_batches
        due = chain.draws.count(int(steps)) if math.isfinite(steps) else 0
        if self.budget and not math.isfinite(steps):
            rank_zero_info(
                "Note: how many draws will come is not known, so that all are written: give "
                f"trainer.max_steps too, and no more than the draw_budget of {self.budget} are"
            )
        self._kept = task.kept = KeptDraws(
            chain,
            sets,
            (Path(self._scratch.name) if self._scratch else run_folder(trainer)) / "samples",
            budget=self.budget,
            dtype=self.dtype,
            due=due,
        )
        if self._restored:
            _forget_later(trainer)
            self._kept.load_state_dict(self._restored)
            self._monitored = dict(self._restored.get("monitored", {}))
            publish(trainer, self._monitored)
        else:
            self._kept.begin()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Keep the state that the step just reached, if it is a draw."""
        task = task_of(pl_module)
        chain, kept = task.chain, task.kept
        rehearsed = self._scratch is not None and chain.steps == trainer.max_steps
        keeps = chain.draws.keeps(chain.steps) or rehearsed
        if keeps or chain.steps == chain.draws.burn_in:
            look_back(trainer, chain)
        if chain.steps == chain.draws.burn_in:
            kept.measure_burn_in()
        if not keeps:
            return
        if not (
            bool(torch.isfinite(chain.last_loss).all()) and checks.parameters_finite(chain.sampler)
        ):
            raise ChainDivergedError(
                f"the chain diverged at step {chain.steps} with step size {chain.lr:.3g}: a "
                "weight is not finite. Lower lr; draws kept before are whole"
            )
        row = kept.keep()
        values = {"draws": float(kept.num_draws)} | {k: row[k] for k in row if "val" in k}
        values |= rhat_of_predictions(trainer, kept)
        self._monitored |= values
        record(trainer, values)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restore the draws of a run that was continued with no step left.

        Raises:
            ValueError: If the folder holds results of more draws.
        """
        if self._kept is None:
            if self._restored and trainer.is_global_zero:
                keep_fuller(run_folder(trainer), self._restored["num_draws"])
            self.on_train_start(trainer, pl_module)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Remove what a ``fast_dev_run`` kept."""
        self._clean()

    def on_exception(self, *args: Any) -> None:
        """Remove what a ``fast_dev_run`` kept."""
        self._clean()

    def _clean(self) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def state_dict(self) -> dict[str, Any]:
        """Return everything that was kept, but the files, and what the draws are of."""
        if self._kept is None:
            return self._restored or {}
        own = {"target": self._target, "data": self._data, "monitored": self._monitored}
        return self._kept.state_dict() | own

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take in a checkpoint's state; the files follow when training starts."""
        self._restored = state_dict


def _forget_later(trainer: L.Trainer) -> None:
    """Remove a last checkpoint that counts on draws which a run from the one before it removes."""
    path = Path(str(trainer.ckpt_path))
    if trainer.is_global_zero and path.name == PREVIOUS:
        for file in path.parent.glob(f"{LAST}*"):
            file.unlink()


def training_data(trainer: L.Trainer) -> Any:
    """Return the loader of the training data, in the run's precision if it is a BatchStream.

    Raises:
        ValueError: If some of the data are never seen, or a hook on batches would not be called.
    """
    loader: Any = trainer.train_dataloader
    if isinstance(loader, BatchStream):
        hook = next((hook for hook in BATCH_HOOKS if overrides(trainer, hook)), None)
        if hook is not None:
            raise ValueError(
                f"{hook} is not called for a BatchStream, which takes minibatches on the device: "
                "change the data before, or return a DataLoader"
            )
        # As Lightning converts batches that it fetches itself, for precision "64-true".
        loader.convert(trainer.precision_plugin.convert_input)
    elif checks.sampling_of(
        loader
    ) == "the same in every pass" and trainer.num_training_batches < len(loader):
        raise ValueError(
            "limit_train_batches takes the same minibatches in every pass of a dataloader without "
            "shuffling, so that the other examples are never seen: give it shuffle=True, or leave "
            "the limit out"
        )
    return loader


def training_stream(trainer: L.Trainer) -> BatchStream | None:
    """Return the stream that the data module will train on, None if it is another loader."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    loader = data.train_dataloader() if data is not None else None
    return loader if isinstance(loader, BatchStream) else None


def held_out_sets(trainer: L.Trainer) -> dict[str, HeldOut]:
    """Return the sets ``val`` and ``test`` as far as the run has them, then the extra ones.

    Raises:
        ValueError: If an extra set has the name of one of the two, or a set is no single loader.
    """
    sources: dict[str, Any] = {}
    data = trainer.datamodule  # type: ignore[attr-defined]
    if data is not None:
        for name in MEASURED:
            if is_overridden(f"{name}_dataloader", data, L.LightningDataModule):
                sources[name] = getattr(data, f"{name}_dataloader")()
        extra = data.extra_dataloaders() if hasattr(data, "extra_dataloaders") else {}
        taken = sorted(set(extra) & set(MEASURED))
        if taken:
            raise ValueError(f"extra_dataloaders() names {taken[0]!r}, which is no extra set")
        sources |= extra
    else:  # the trainer itself opens it at the first validation only
        source = trainer.fit_loop.epoch_loop.val_loop._data_source
        if source.is_defined():
            sources["val"] = source.dataloader()
    for name, loader in sources.items():
        parts = loader.values() if isinstance(loader, dict) else loader
        several = isinstance(parts, (list, tuple, ValuesView)) and any(
            isinstance(part, (DataLoader, BatchStream)) for part in parts
        )  # and not a list of batches
        if several:
            raise ValueError(
                f"{name}_dataloader() returns several loaders: return one DataLoader; "
                "extra_dataloaders() names further sets"
            )
        if isinstance(loader, BatchStream):
            raise ValueError(
                f"{name}_dataloader() returns a BatchStream, which has no end: return one "
                "DataLoader"
            )
    return {
        name: HeldOut([received(trainer, batch) for batch in checks.plain_loader(loader)])
        for name, loader in sources.items()
        if loader is not None and not _empty(loader)
    }


def _empty(loader: Any) -> bool:
    try:
        return not len(loader)
    except TypeError:  # of a data set without a length
        return False
