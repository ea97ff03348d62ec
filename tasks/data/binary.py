"""Labelled examples of two classes, in memory: the base of the logistic regressions' data."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lightning_sgmcmc import BatchStream
from lightning_sgmcmc.chain import Sampling

Split = Literal["train", "val", "test"]
#: Features [N, D] and labels [N], 0 or 1.
Examples = tuple[NDArray[np.float64], NDArray[np.float64]]


class BinaryData(L.LightningDataModule):
    """Training, validation and test examples as pairs x [B, D], y [B] in {0, 1}, float32.

    A subclass says where they come from, in :meth:`examples`. Validation examples are drawn from
    the training set at random.

    Args:
        num_val: Training examples held out for validation, where a protocol chooses anything.
        standardise: Shift and scale every feature to mean 0 and variance 1 (of n - 1 degrees of
            freedom) over the training examples; features that are constant there are shifted only.
        batch_size: Examples in a minibatch.
        sampling: ``auto``, ``independent``, ``reshuffled`` or ``full`` minibatches.
        split_seed: Seed of the random splits.

    Raises:
        ValueError: If ``num_val`` is negative.
    """

    #: Published results on this set, for ``results.json``.
    paper: dict[str, Any] | None = None

    def __init__(
        self,
        num_val: int,
        standardise: bool,
        batch_size: int,
        sampling: Sampling,
        split_seed: int,
    ) -> None:
        super().__init__()
        if num_val < 0:
            raise ValueError(f"num_val must not be negative, got {num_val}")
        self.num_val, self.standardise = num_val, standardise
        self.batch_size, self.sampling, self.split_seed = batch_size, sampling, split_seed
        self._splits: dict[Split, Examples] = {}

    @abstractmethod
    def examples(self) -> tuple[Examples, Examples | None]:
        """Return the training examples, and the test examples if there are any."""

    def setup(self, stage: str | None = None) -> None:
        """Read, split and scale the examples.

        Raises:
            ValueError: If no training example would be left.
        """
        if self._splits:
            return
        (x, y), test = self.examples()
        if self.num_val >= len(x):
            raise ValueError(
                f"num_val = {self.num_val} leaves none of the {len(x)} training examples: lower it"
            )
        held_out = hold_out(len(x), self.num_val, self.split_seed)
        splits: dict[Split, Examples] = {"train": (x[~held_out], y[~held_out])}
        if self.num_val:
            splits["val"] = (x[held_out], y[held_out])
        if test is not None:
            splits["test"] = test
        if self.standardise:
            mean, scale = splits["train"][0].mean(0), splits["train"][0].std(0, ddof=1)
            scale[scale == 0] = 1.0
            splits = {name: ((x - mean) / scale, y) for name, (x, y) in splits.items()}
        self._splits = splits

    def arrays(self, name: Split) -> Examples:
        """Return features and labels of a split in float64.

        Raises:
            RuntimeError: Before :meth:`setup`.
            KeyError: If the set has no such split.
        """
        if not self._splits:
            raise RuntimeError("call prepare_data() and setup() first")
        return self._splits[name]

    def tensors(self, name: Split) -> tuple[Tensor, Tensor]:
        """Return features and labels of a split in float32."""
        x, y = self.arrays(name)
        return torch.from_numpy(x).float(), torch.from_numpy(y).float()

    def train_dataloader(self) -> BatchStream:
        """Return the minibatch stream."""
        return BatchStream(self.tensors("train"), self.batch_size, self.sampling)

    def val_dataloader(self) -> Any:
        """Return the validation examples in order, an empty list if none are held out."""
        return self._loader("val")

    def test_dataloader(self) -> Any:
        """Return the test examples in order, an empty list if there are none."""
        return self._loader("test")

    def _loader(self, name: Split) -> Any:
        if name not in self._splits:
            return []
        # One batch: the sets are small, and every draw predicts them all.
        x, y = self.tensors(name)
        return DataLoader(TensorDataset(x, y), batch_size=len(x))


def hold_out(count: int, number: int, seed: int) -> NDArray[np.bool_]:
    """Return a mask [count] in which ``number`` entries, chosen at random by the seed, are set."""
    mask = np.zeros(count, dtype=bool)
    mask[np.random.default_rng(seed).permutation(count)[:number]] = True
    return mask
