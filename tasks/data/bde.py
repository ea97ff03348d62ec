"""Airfoil self-noise and hourly bike sharing, with the split that bde publishes results on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from lightning_sgmcmc.chain import Sampling
from tasks.data.download import check_digest, digest, require
from tasks.data.table import Table, read_table
from tasks.data.uci import UCIData

#: The target of each set, and its columns that are no features: numbers of rows, dates, and the
#: two counts that add up to the target.
TARGETS = {"airfoil": "target", "bikesharing": "cnt"}
DROPPED = {"airfoil": (), "bikesharing": ("instant", "dteday", "casual", "registered")}


def split_rows(rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the training and test rows of ``train_test_split(test_size=.2, random_state=0)``.

    The first fifth of a permutation by NumPy's ``RandomState(0)``, rounded up, is for testing.
    """
    order = np.random.RandomState(0).permutation(rows)
    cut = math.ceil(0.2 * rows)
    return order[cut:], order[:cut]


class BDEData(UCIData):
    """Features x [B, D] and target y [B, 1] of the two tables, float64, in their own units.

    ``airfoil``: 1,503 rows, 5 features, the sound pressure level in dB; ``bikesharing``: 17,379
    hours, 12 features as they stand in the file, the number of bikes that were rented. Both are
    from the UCI repository.

    Args:
        name: ``airfoil``, read from ``root/uci_regression/airfoil/airfoil.csv``, or
            ``bikesharing``, from ``root/uci_regression/bikesharing/hour.csv``.
        root: Folder of data sets; None is $SGMCMC_DATA_ROOT or ``./data``.
        num_val: Training rows that are held out for validation, the last of the permutation.
        batch_size: Rows in a minibatch; the whole training set if that is no larger.
        sampling: ``auto``, ``independent``, ``reshuffled`` or ``full`` minibatches.

    Raises:
        ValueError: If there is no such set, or a value lies outside its range.
    """

    sets: ClassVar[dict[str, str]] = {
        "airfoil": "sha256:356556903993df2c20396f645e473f363df736f7f93899c2e25350f56d0e4d92",
        "bikesharing": "sha256:b03a2d02e8c10f435c43c7f0b358b7e34a003afea53dbc37f0183f2763295133",
    }

    def __init__(
        self,
        name: Literal["airfoil", "bikesharing"],
        root: str | None = None,
        num_val: int = 0,
        batch_size: int = 20_000,
        sampling: Sampling = "auto",
    ) -> None:
        super().__init__(name, root=root, num_val=num_val, batch_size=batch_size, sampling=sampling)

    def prepare_data(self) -> None:
        """Check that the file is there, and that it is the one expected.

        Raises:
            FileNotFoundError: If it is missing.
            ValueError: If it is another file.
        """
        require(self._path)
        checksum = self.sets[str(self.name)]
        check_digest(digest(self._path, checksum), checksum, f"{self._path}", "get the original")

    @property
    def _path(self) -> Path:
        file = "hour.csv" if self.name == "bikesharing" else "airfoil.csv"
        return self.root / "uci_regression" / str(self.name) / file

    def _read(self) -> Table:
        name = str(self.name)
        return read_table(self._path, TARGETS[name], drop=DROPPED[name])

    def _parts(self, rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return split_rows(rows)
