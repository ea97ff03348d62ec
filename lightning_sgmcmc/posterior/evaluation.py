"""What a Trainer's ``validate``, ``test`` and ``predict`` do with a task: its draws predict."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import lightning as L
import torch
from torch import Tensor

from lightning_sgmcmc.chain import Task
from lightning_sgmcmc.common.arguments import is_plain
from lightning_sgmcmc.metrics import Unstated
from lightning_sgmcmc.posterior.posterior import Posterior
from lightning_sgmcmc.posterior.predict import joined
from lightning_sgmcmc.target import Batch


class EnsembleSteps(Task, L.LightningModule):
    """A task whose draws predict in a Trainer's ``validate``, ``test`` and ``predict``.

    The draws are those of the run that the task was fitted in, of the run whose checkpoint was
    loaded (:meth:`load_from_checkpoint`), or of the one that ``ckpt_path`` names. ``validate`` and
    ``test`` log the task's ``metrics`` of the ensemble over the whole set, as ``val/ensemble_nll``
    or ``test/ensemble_nll``; on several processes each measures its share and the shares are
    averaged. While a task is fitted, validation logs the NLL of the current weights.
    """

    #: Folder of the run whose checkpoint was loaded.
    run_folder: Path | None = None

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Self:
        """Build the task of a checkpoint, with the weights and the draws of its run.

        Arguments of the class that are no numbers, words, lists or mappings are not kept in a
        checkpoint: give the network and the sampler as keywords. The task of a run of the command
        line is ``load_posterior(RUN).module``.

        Raises:
            TypeError: If the class needs arguments that neither the checkpoint nor the call gives.
        """
        try:
            task: Self = super().load_from_checkpoint(checkpoint_path, *args, **kwargs)
        except TypeError as error:
            if "missing" not in str(error):
                raise
            raise TypeError(
                f"{error}: a checkpoint keeps plain arguments alone; give the others, such as net "
                "and sampler, to load_from_checkpoint as keywords"
            ) from error
        task.run_folder = Path(checkpoint_path).absolute().parent.parent
        return task

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep hyperparameters that are read without running code of the checkpoint."""
        given = checkpoint.get(self.CHECKPOINT_HYPER_PARAMS_KEY, {})
        plain = {name: value for name, value in given.items() if is_plain(value)}
        checkpoint[self.CHECKPOINT_HYPER_PARAMS_KEY] = plain

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the first of several chains into a task that runs none."""
        state = checkpoint["state_dict"]
        if self._modules.get("chains") is None:
            stacked = [name for name in state if name.startswith("chains.")]
            for name, own in zip(stacked, self.chain.sampled, strict=False):
                state[own] = state.pop(name)[0]

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the mean NLL of the current weights, and keep what the draws are to predict."""
        self.chain.complete()
        nll = self.chain.evaluate("nll", batch)
        self.log("val/nll", nll.mean(), batch_size=nll.shape[-1], sync_dist=True)
        if self._examples is not None:
            self._examples.append(batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Keep what the draws are to predict."""
        assert self._examples is not None
        self._examples.append(batch)

    def on_validation_start(self) -> None:
        """Open the draws, if there are some and the task is not being fitted."""
        fitting = self.trainer.state.fn == "fit"
        self._posterior = None if fitting or self._run() is None else self._open()
        self._examples = None if self._posterior is None else []

    def on_test_start(self) -> None:
        """Open the draws."""
        self._posterior, self._examples = self._open(), []

    def on_predict_start(self) -> None:
        """Open the draws."""
        self._posterior = self._open()

    def on_validation_epoch_end(self) -> None:
        """Log the ensemble's metrics."""
        if self._examples:
            self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        """Log the ensemble's metrics."""
        self._log_metrics("test")

    def predict_step(self, batch: Any, batch_idx: int = 0) -> dict[str, Tensor]:
        """Return what the draws predict for inputs x, or for batches (x, ...), in float64.

        Returns:
            ``mean``, ``std``, the total predictive deviation, and ``epistemic_std``, the weights'
            part of it, each [B, ...]; without ``std`` where the task states no law.
        """
        assert self._posterior is not None
        x = batch[0] if isinstance(batch, (tuple, list)) else batch
        law = self._posterior.predict(x)
        found = {"mean": law.mean, "epistemic_std": law.epistemic_std}
        return found if law.law is Unstated else found | {"std": law.std}

    _posterior: Posterior | None = None
    _examples: list[Batch] | None = None

    def _run(self) -> Path | None:
        """Return the folder of the run whose draws predict, None where no draw is stored."""
        if self.trainer.ckpt_path:
            folder: Path | None = Path(self.trainer.ckpt_path).absolute().parent.parent
        else:
            folder = self.kept.folder.parent if hasattr(self, "kept") else self.run_folder
        return folder if folder and any(folder.glob("samples/chain*/index.json")) else None

    def on_predict_end(self) -> None:
        """Let go of the draws."""
        self._posterior = None

    def _open(self) -> Posterior:
        self._posterior = self._examples = None  # no copy of them goes into the module's own
        folder = self._run()
        if folder is None:
            raise ValueError(
                f"{type(self).__name__} has no draws: fit it first, with a draw_budget above 0, or "
                "name a checkpoint of its run, which lies beside the draws"
            )
        posterior = Posterior.of(self, folder)
        posterior.module.to(self.device)
        return posterior

    @torch.no_grad()
    def _log_metrics(self, name: str) -> None:
        assert self._posterior is not None
        examples = joined(self._examples or [])
        found = self.metrics(self._posterior.predictive(examples), examples)
        values = {f"{name}/ensemble_{key}": float(value) for key, value in found.items()}
        self.log_dict(values, sync_dist=True)
        self._posterior = self._examples = None
