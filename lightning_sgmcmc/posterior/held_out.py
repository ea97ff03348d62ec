"""Held-out examples that every draw predicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import default_collate

from lightning_sgmcmc import checks
from lightning_sgmcmc.metrics import PosteriorEnsemble
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.strategies import replicas

#: Predictions of a held-out set that every draw leaves for the diagnostics.
PROBES = 128
#: The held-out sets on which runs are measured; a datamodule's ``extra_dataloaders()`` may name
#: others, such as examples of another kind, which every draw predicts too.
MEASURED = ("val", "test")
#: Name of an extra set of training examples; other extra sets are of another kind.
TRAINING = "train"


class HeldOut:
    """A held-out set on the device, in batches whose order is fixed.

    Args:
        loader: Yields batches, tuples of tensors with examples along the first axis.
        module: Takes batches to its device and precision.
    """

    def __init__(self, loader: Any, module: SGMCMCModule) -> None:
        self._batches = [module.received(batch) for batch in checks.plain_loader(loader)]
        if not self._batches:
            raise ValueError("a held-out set is empty")
        self.examples = _join(self._batches)

    @classmethod
    def of(cls, trainer: L.Trainer, module: SGMCMCModule) -> dict[str, HeldOut]:
        """Return the sets ``val`` and ``test`` as far as the run has them, then the extra ones.

        Raises:
            ValueError: If an extra set has the name of one of the two.
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
        training = module.training
        module.eval()  # dropout draws no mask of training for this
        shape = tuple(module.predictive(self._batches[0]).shape[1:])
        module.train(training)
        return PosteriorEnsemble(self.size, shape).to(module.device)

    @torch.no_grad()
    def add_draw(
        self,
        trainer: L.Trainer,
        module: SGMCMCModule,
        ensemble: PosteriorEnsemble,
        weight: float,
        totals: Tensor | None = None,
    ) -> Tensor:
        """Add the predictions of the chains' current weights to an ensemble.

        Args:
            trainer: Says which share of the examples is this process's.
            module: The module.
            ensemble: Of this set, as :meth:`new_ensemble` gives it.
            weight: Weight of the draw.
            totals: Each chain's own weighted sum, [K, N, ...], to which its predictions are added.

        Returns:
            The predictions of the first examples, [P] or [K, P] for K chains; at most ``PROBES``
            numbers a chain, flattened.
        """
        training = module.training
        module.eval()
        rank, share, _ = replicas(trainer)
        probes = torch.empty(0)
        for i, (batch, index) in enumerate(self.batches(rank, share)):
            predictions, nll = module.evaluate("predictive_and_nll", batch)
            if i == 0:
                probes = predictions.reshape(*nll.shape[:-1], -1)[..., :PROBES].double().cpu()
            if nll.dim() == 1:
                predictions, nll = predictions[None], nll[None]
            places = index.to(module.device)
            for chain_predictions, chain_nll in zip(predictions, nll, strict=True):
                ensemble.update(chain_predictions, chain_nll, places, weight)
            if totals is not None:
                totals[:, places] += weight * predictions.to(totals.dtype)
        module.train(training)
        return probes


def _length(batch: Any) -> int:
    return len(batch[0]) if isinstance(batch, (tuple, list)) else len(batch)


def _join(batches: list[Any]) -> Any:
    first = batches[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(batches)
    if isinstance(first, (tuple, list)):
        return tuple(torch.cat(parts) for parts in zip(*batches, strict=True))
    return default_collate(batches)
