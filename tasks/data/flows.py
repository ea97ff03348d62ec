"""What the data of the Darcy surrogates share: splits, tensors and loaders."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_sgmcmc import OnDisk
from lightning_sgmcmc.chain import Sampling
from tasks.data.splits import NOT_READY, Pair, SplitData
from tasks.data.splits import Split as Split

Array = NDArray[np.float64]
Set = TypeVar("Set")

#: Bytes of training data as the chain sees them up to which they are taken into memory by default.
IN_MEMORY = 4_000_000_000
#: Samples that are read at once of data on disk.
BLOCK = 1024


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
        in_memory: Whether the training data are taken into memory, or read from their file as
            minibatches need them; None takes up to 4 GB, and all for ``full`` ones. Held-out data
            are in memory in any case.

    Raises:
        ValueError: If a split leaves nothing to train on, a number is negative, or ``full``
            minibatches are to be read from a file.
    """

    def __init__(
        self,
        num_samples: int,
        num_test: int,
        num_val: int,
        num_calibration: int,
        batch_size: int,
        sampling: Sampling,
        in_memory: bool | None = None,
    ) -> None:
        super().__init__(batch_size, sampling, eval_batch_size=100)
        if not 0 < num_test < num_samples:
            raise ValueError(f"num_test = {num_test} leaves no training sample of {num_samples = }")
        if not 0 <= num_val < num_samples - num_test:
            left = num_samples - num_test
            raise ValueError(f"num_val = {num_val} leaves no training sample of the {left} others")
        if num_calibration < 0:
            raise ValueError(f"num_calibration must not be negative, got {num_calibration}")
        if sampling == "full" and in_memory is False:
            raise ValueError(
                "in_memory = False reads minibatches, and sampling = full puts all data into every "
                "step: choose reshuffled or independent ones"
            )
        self.num_samples, self.num_test, self.num_val = num_samples, num_test, num_val
        self.num_calibration = num_calibration
        self._in_memory = in_memory
        self._data: Set | None = None

    @abstractmethod
    def load(self) -> Set:
        """Open the set that :meth:`prepare_data` made."""

    def setup(self, stage: str | None = None) -> None:
        """Open the set and take its splits into memory, the training data if they are to be."""
        if self._data is None:
            self._data = self.load()
            held_out = (name for name in get_args(Split) if name != "train")
            self._splits = {name: self._pair(name) for name in held_out}
            self._splits["train"] = self._pair("train") if self.in_memory else self._on_disk()

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

    @property
    def in_memory(self) -> bool:
        """Whether the training data are taken into memory."""
        if self._in_memory is not None or self.sampling == "full":
            return self._in_memory is not False
        field, velocity = self.samples(slice(0, 1))
        return bool(4 * self.split("train").stop * (field.size + velocity.size) <= IN_MEMORY)

    @abstractmethod
    def samples(self, chosen: slice) -> tuple[Array, Array]:
        """Return fields [n, ny, nx] and velocities [n, edges] of some samples."""

    def _stored(self, chosen: slice) -> tuple[OnDisk, OnDisk]:
        """Return what :meth:`samples` does as rows of the file, float64.

        Raises:
            ValueError: If the data are of a kind that is always in memory.
        """
        raise ValueError(f"{type(self).__name__} takes its data into memory: in_memory = True")

    def arrays(self, name: Split) -> tuple[Array, Array]:
        """Return fields [n, ny, nx] and velocities [n, edges] of a split."""
        return self.samples(self.split(name))

    def training_blocks(self) -> Iterator[tuple[Array, Array]]:
        """Yield fields and velocities of training, all at once if they are in memory."""
        stop = self.split("train").stop
        size = stop if self.in_memory else BLOCK
        for first in range(0, stop, size):
            yield self.samples(slice(first, min(first + size, stop)))

    def _on_disk(self) -> Any:
        return tuple(rows.map(torch.Tensor.float) for rows in self._stored(self.split("train")))

    def _pair(self, name: Split) -> Pair:
        field, velocity = self.arrays(name)
        return torch.from_numpy(field).float(), torch.from_numpy(velocity).float()
