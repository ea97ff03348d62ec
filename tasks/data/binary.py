"""Labelled examples of two classes, in memory: the base of the logistic regressions' data."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_sgmcmc.chain import Sampling
from tasks.data.splits import NOT_READY, Split, SplitData

#: Features [N, D] and labels [N], 0 or 1.
Examples = tuple[NDArray[np.float64], NDArray[np.float64]]


class BinaryData(SplitData):
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

    def __init__(
        self,
        num_val: int = 0,
        standardise: bool = False,
        batch_size: int = 50,
        sampling: Sampling = "auto",
        split_seed: int = 0,
    ) -> None:
        super().__init__(batch_size, sampling)
        if num_val < 0:
            raise ValueError(f"num_val must not be negative, got {num_val}")
        self.num_val, self.standardise, self.split_seed = num_val, standardise, split_seed
        self._arrays: dict[Split, Examples] = {}

    @abstractmethod
    def examples(self) -> tuple[Examples, Examples | None]:
        """Return the training examples, and the test examples if there are any."""

    def setup(self, stage: str | None = None) -> None:
        """Read, split and scale the examples.

        Raises:
            ValueError: If no training example would be left.
        """
        if self._arrays:
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
            train = splits["train"][0]
            mean, scale, low = train.mean(0), train.std(0, ddof=1), train.min(0)
            constant = low == train.max(0)
            mean[constant], scale[constant] = low[constant], 1.0  # without the mean's rounding
            splits = {name: ((x - mean) / scale, y) for name, (x, y) in splits.items()}
        self._arrays = splits
        self._splits = {
            name: (torch.from_numpy(x).float(), torch.from_numpy(y).float())
            for name, (x, y) in splits.items()
        }

    def arrays(self, name: Split) -> Examples:
        """Return features and labels of a split in float64.

        Raises:
            RuntimeError: Before :meth:`setup`.
            KeyError: If the set has no such split.
        """
        if not self._arrays:
            raise RuntimeError(NOT_READY)
        return self._arrays[name]


def hold_out(count: int, number: int, seed: int) -> NDArray[np.bool_]:
    """Return a mask [count] in which ``number`` entries, chosen at random by the seed, are set."""
    mask = np.zeros(count, dtype=bool)
    mask[np.random.default_rng(seed).permutation(count)[:number]] = True
    return mask
