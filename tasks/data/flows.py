"""What the data of the Darcy surrogates share: splits, tensors and loaders."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_sgmcmc.chain import Sampling
from tasks.data.splits import NOT_READY, Pair, SplitData
from tasks.data.splits import Split as Split

Array = NDArray[np.float64]
Set = TypeVar("Set")


class FlowData(SplitData, Generic[Set]):
    """Pairs of a field on the cells and the velocities on the edges.

    The last ``num_test`` samples are for testing, and the last ``num_val`` of the others are held
    out for validation where a protocol chooses anything. ``num_calibration`` further samples set
    the width of conformal bands.

    Args:
        num_samples: Pairs for training, validation and testing.
        num_test: Pairs for testing.
        num_val: Training pairs that are held out.
        num_calibration: Further pairs.
        batch_size: Pairs in a minibatch.
        sampling: ``auto``, ``independent``, ``reshuffled`` or ``full`` minibatches.

    Raises:
        ValueError: If a split leaves nothing to train on, or a number is negative.
    """

    def __init__(
        self,
        num_samples: int,
        num_test: int,
        num_val: int,
        num_calibration: int,
        batch_size: int,
        sampling: Sampling,
    ) -> None:
        super().__init__(batch_size, sampling, eval_batch_size=100)
        if not 0 < num_test < num_samples:
            raise ValueError(f"num_test = {num_test} leaves no training sample of {num_samples = }")
        if not 0 <= num_val < num_samples - num_test:
            left = num_samples - num_test
            raise ValueError(f"num_val = {num_val} leaves no training sample of the {left} others")
        if num_calibration < 0:
            raise ValueError(f"num_calibration must not be negative, got {num_calibration}")
        self.num_samples, self.num_test, self.num_val = num_samples, num_test, num_val
        self.num_calibration = num_calibration
        self._data: Set | None = None

    @abstractmethod
    def load(self) -> Set:
        """Open the set that :meth:`prepare_data` made."""

    def setup(self, stage: str | None = None) -> None:
        """Open the set and take its splits into memory."""
        if self._data is None:
            self._data = self.load()
            self._splits = {name: self._pair(name) for name in get_args(Split)}

    @property
    def data(self) -> Set:
        """The whole set.

        Raises:
            RuntimeError: Before :meth:`setup`.
        """
        if self._data is None:
            raise RuntimeError(NOT_READY)
        return self._data

    def split(self, name: Split) -> slice:
        """Return which samples a split holds."""
        first_test = self.num_samples - self.num_test
        first_val = first_test - self.num_val
        return {
            "train": slice(0, first_val),
            "val": slice(first_val, first_test),
            "test": slice(first_test, self.num_samples),
            "calibration": slice(self.num_samples, self.num_samples + self.num_calibration),
        }[name]

    @abstractmethod
    def arrays(self, name: Split) -> tuple[Array, Array]:
        """Return fields [n, ny, nx] and velocities [n, edges] of a split."""

    def _pair(self, name: Split) -> Pair:
        field, velocity = self.arrays(name)
        return torch.from_numpy(field).float(), torch.from_numpy(velocity).float()
