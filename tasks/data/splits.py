"""Examples in memory in up to four splits: the base of all data of the tasks."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import lightning as L
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lightning_sgmcmc import BatchStream
from lightning_sgmcmc.chain import Sampling

Split = Literal["train", "val", "test", "calibration"]
Pair = tuple[Tensor, Tensor]
NOT_READY = "call prepare_data() and setup() first"


class SplitData(L.LightningDataModule):
    """Inputs x [N, ...] and targets y [N, ...] for training, validation, testing and calibration.

    Examples for calibration set the width of conformal bands, and nothing else. A subclass fills
    ``_splits`` in ``setup``.

    Args:
        batch_size: Examples in a minibatch.
        sampling: ``auto``, ``independent``, ``reshuffled`` or ``full`` minibatches.
        eval_batch_size: Held-out examples that are predicted at once, a bound on memory; None
            predicts a whole split.

    Raises:
        ValueError: If ``batch_size`` is not positive.
    """

    #: Published results on this set, for ``results.json``.
    paper: dict[str, Any] | None = None
    #: Whether a set that is no larger than a minibatch goes whole into every step. Minibatches that
    #: are asked to be independent stay that.
    whole_if_small: ClassVar[bool] = False

    def __init__(
        self, batch_size: int, sampling: Sampling, eval_batch_size: int | None = None
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size must be positive, got {batch_size}")
        self.batch_size, self.sampling = batch_size, sampling
        self.eval_batch_size = eval_batch_size
        self._splits: dict[str, Pair] = {}

    def tensors(self, name: Split) -> Pair:
        """Return inputs and targets of a split.

        Raises:
            RuntimeError: Before ``setup``.
            KeyError: If the data have no such split.
        """
        if not self._splits:
            raise RuntimeError(NOT_READY)
        if name not in self._splits:
            raise KeyError(f"no split {name!r}: there are {', '.join(self._splits)}")
        return self._splits[name]

    def train_dataloader(self) -> BatchStream:
        """Return the minibatch stream."""
        tensors = self.tensors("train")
        rows = len(tensors[0])
        if self.whole_if_small and self.batch_size >= rows:
            kept = self.sampling == "independent"
            return BatchStream(tensors, rows, self.sampling if kept else "full")
        return BatchStream(tensors, self.batch_size, self.sampling)

    def val_dataloader(self) -> Any:
        """Return the validation examples in order, an empty list if none are held out."""
        return self._loader(self._splits.get("val"))

    def test_dataloader(self) -> Any:
        """Return the test examples in order, an empty list if there are none."""
        return self._loader(self._splits.get("test"))

    def extra_dataloaders(self) -> dict[str, Any]:
        """Return the examples for calibration, if there are any, as ``calibration``."""
        loader = self._loader(self._splits.get("calibration"))
        return {"calibration": loader} if loader else {}

    def _loader(self, pair: Pair | None) -> Any:
        if pair is None or not len(pair[0]):
            return []
        return DataLoader(TensorDataset(*pair), self.eval_batch_size or len(pair[0]))
