"""Held-out examples that every draw predicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import default_collate

from lightning_sgmcmc import checks
from lightning_sgmcmc.metrics import PosteriorEnsemble
from lightning_sgmcmc.module import SGMCMCModule


class HeldOut:
    """A held-out set on the device, in batches whose order is fixed.

    Args:
        loader: Yields batches, tuples of tensors with examples along the first axis.
        module: Moves batches to its device.
    """

    def __init__(self, loader: Any, module: SGMCMCModule) -> None:
        self._batches = [
            module.transfer_batch_to_device(batch, module.device, 0)
            for batch in checks.plain_loader(loader)
        ]
        if not self._batches:
            raise ValueError("a held-out set is empty")
        self.examples = _join(self._batches)

    @classmethod
    def of(cls, trainer: L.Trainer, module: SGMCMCModule) -> dict[str, HeldOut]:
        """Return the sets ``val`` and ``test`` as far as the run has them."""
        sources: dict[str, Any] = {}
        data = trainer.datamodule  # type: ignore[attr-defined]
        if data is not None:
            for name in ("val", "test"):
                if is_overridden(f"{name}_dataloader", data, L.LightningDataModule):
                    sources[name] = getattr(data, f"{name}_dataloader")()
        elif trainer.val_dataloaders is not None:
            sources["val"] = trainer.val_dataloaders
        return {
            name: cls(loader, module)
            for name, loader in sources.items()
            if loader is not None and len(loader)
        }

    @property
    def size(self) -> int:
        """Number of examples."""
        return sum(_length(batch) for batch in self._batches)

    def batches(self, rank: int, world_size: int) -> Iterator[tuple[Any, torch.Tensor]]:
        """Yield this process's share of the batches, with the indices of their examples."""
        first = 0
        for i, batch in enumerate(self._batches):
            last = first + _length(batch)
            if i % world_size == rank:
                yield batch, torch.arange(first, last)
            first = last

    @torch.no_grad()
    def new_ensemble(self, module: SGMCMCModule) -> PosteriorEnsemble:
        """Return an empty ensemble for this set's examples."""
        shape = tuple(module.predictive(self._batches[0]).shape[1:])
        return PosteriorEnsemble(self.size, shape).to(module.device)

    @torch.no_grad()
    def add_draw(
        self, trainer: L.Trainer, module: SGMCMCModule, ensemble: PosteriorEnsemble, weight: float
    ) -> None:
        """Add the predictions of the module's current weights to an ensemble."""
        training = module.training
        module.eval()
        for batch, index in self.batches(trainer.global_rank, trainer.world_size):
            ensemble.update(
                module.predictive(batch), module.nll(batch), index.to(module.device), weight
            )
        module.train(training)


def _length(batch: Any) -> int:
    return len(batch[0]) if isinstance(batch, (tuple, list)) else len(batch)


def _join(batches: list[Any]) -> Any:
    first = batches[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(batches)
    if isinstance(first, (tuple, list)):
        return tuple(torch.cat(parts) for parts in zip(*batches, strict=True))
    return default_collate(batches)
