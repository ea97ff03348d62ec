"""The Australian credit approval data (Statlog)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tasks.data.binary import BinaryData, Examples, hold_out
from tasks.data.download import data_root, fetch, require
from tasks.data.table import read_table

#: Numbers in a line of the file: 14 features and the label.
COLUMNS = 15
#: The file as the UCI archive serves it.
CHECKSUM = "sha256:3abe5af151afa50b999a9ba21cbc884e80d80a4050b716cf88b34a2e6ecb731c"
_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/statlog/australian/australian.dat"


class AustralianData(BinaryData):
    """690 credit card applications, 14 features each, approved or not.

    Features are standardised, as Girolami and Calderhead (2011) do; their intercept is the
    model's. All examples are for training unless ``num_test`` says otherwise.

    Args:
        root: Folder of data sets, into which the file is fetched as
            ``australian/australian.dat`` unless it is there; None is $SGMCMC_DATA_ROOT or
            ``./data``.
        num_test: Examples held out for testing, at random.
        batch_size: Examples in a minibatch.
        **kwargs: As for :class:`~tasks.data.binary.BinaryData`: ``num_val``, ``sampling``,
            ``split_seed``.

    Raises:
        ValueError: If ``num_test`` or ``num_val`` is negative.
    """

    def __init__(
        self,
        root: str | None = None,
        num_test: int = 0,
        batch_size: int = 5,
        **kwargs: Any,
    ) -> None:
        super().__init__(standardise=True, batch_size=batch_size, **kwargs)
        if num_test < 0:
            raise ValueError(f"num_test must not be negative, got {num_test}")
        self.path = data_root(root) / "australian" / "australian.dat"
        self.num_test = num_test

    def prepare_data(self) -> None:
        """Fetch the file, unless it is there, and check it."""
        fetch(_URL, self.path, CHECKSUM)

    def examples(self) -> tuple[Examples, Examples | None]:
        """Read the file and split off the test examples."""
        x, y = read_statlog(self.path)
        if self.num_test >= len(x):
            raise ValueError(
                f"num_test = {self.num_test} leaves none of the {len(x)} examples: lower it"
            )
        test = hold_out(len(x), self.num_test, self.split_seed)
        return (x[~test], y[~test]), ((x[test], y[test]) if self.num_test else None)


def read_statlog(path: Path) -> Examples:
    """Read lines of 14 numbers and a label, 0 or 1, between spaces.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line is not of that form, or the file holds no example.
    """
    require(path)
    table = read_table(path)
    if len(table.features) != COLUMNS - 1:
        raise ValueError(f"{path} has {len(table.features) + 1} columns, not {COLUMNS}")
    wrong = np.flatnonzero((table.y != 0) & (table.y != 1))
    if len(wrong):
        where = table.place(int(wrong[0]), table.target)
        raise ValueError(f"{where}: the label is {table.y[wrong[0]]:g}, not 0 or 1")
    return table.x, table.y
