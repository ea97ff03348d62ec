"""A user's own table with a column of classes, in a text file or a NumPy file."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray

from tasks.data.classes import ClassData, Examples, Standardiser, standardiser
from tasks.data.delimited import is_number
from tasks.data.scales import examine
from tasks.data.table import Table, described, read_table
from tasks.data.table_arrays import ArrayTable

#: The sets of classes that scikit-learn has with it.
SETS = ("iris", "wine", "breast_cancer", "digits")


class ClassTableData(ClassData):
    """Features [B, D] and classes of the rows of a table.

    Labels that are the integers 0 to C - 1 stay as they are. Any other values, numbers or words,
    are numbered in their order; ``class_names`` holds them, and they are logged.

    Args:
        file: A table, see :func:`~tasks.data.table.read_table`. Features are numbers, or words of a
            few categories.
        target: Name or number of the column of classes; None is the last one.
        drop: Names of columns that are neither classes nor features.
        name: A set of scikit-learn's in place of a file, one of :data:`SETS`.
        test_file: Rows for testing, with the same columns by name; None draws them from ``file``.
        num_classes: C, where labels are 0 to C - 1 and not every one need occur; None reads it
            off the labels of both files.
        standardise: Shift and scale every feature to mean 0 and variance 1 over the training rows.
        batch_size: Rows in a minibatch; the whole training set if that is no larger.
        num_val: Rows for validation; below 1, the fraction.
        num_test: Rows for testing, at random; below 1, the fraction. None is a tenth, or none
            with a ``test_file``.
        **kwargs: As for :class:`~tasks.data.classes.ClassData`.

    Raises:
        ValueError: If a number lies outside its range, both ``test_file`` and ``num_test`` are
            given, or not one of ``file`` and ``name``.
    """

    whole_if_small = True

    def __init__(
        self,
        file: str | None = None,
        target: str | int | None = None,
        drop: Sequence[str] = (),
        name: str | None = None,
        test_file: str | None = None,
        num_classes: int | None = None,
        standardise: bool = True,
        batch_size: int = 10_000,
        num_val: int | float = 0,
        num_test: int | float | None = None,
        **kwargs: Any,
    ) -> None:
        known = ", ".join(SETS)
        if (name is None) == (file is None):
            raise ValueError(
                f"say which data: either data.file=TABLE.csv, or data.name= one of {known}"
            )
        if name is not None and name not in SETS:
            raise ValueError(f"unknown data set {name!r}: choose among {known}, or give data.file")
        if num_test and test_file is not None:
            raise ValueError(f"test_file is given: drop num_test = {num_test}")
        if num_classes is not None and num_classes < 2:
            raise ValueError(f"num_classes must be at least 2, got {num_classes}")
        drawn = 0.1 if num_test is None and test_file is None else num_test or 0
        super().__init__(num_val=num_val, num_test=drawn, batch_size=batch_size, **kwargs)
        self.name, self.file, self.test_file = name, file, test_file
        self.target, self.drop = target, drop
        self.standardise, self._given = standardise, num_classes
        self._table: Table | None = None
        #: What turns a row into the network's input: the table's ``columns`` (see
        #: :data:`~tasks.data.table.Columns`), and ``lowest``, ``highest``, ``mean`` and ``scale``
        #: of the features in the training rows.
        self.inputs: dict[str, Any] = {}

    @property
    def title(self) -> str:
        """The name of the data."""
        return self.name or str(self.file)

    def examples(self) -> tuple[Examples, Examples | None]:
        """Read the files and number the classes.

        Raises:
            ValueError: If the files do not fit one another, or the target does not hold classes.
        """
        table = self._read()
        self._table, x, y = table, table.x, table.y
        test = None
        if self.test_file is not None:
            other = read_table(self.test_file, labels=True, like=table)
            test = other.x, other.y
        labels = y if test is None else _joined(y, test[1])
        if self._given is not None:
            if labels.dtype.kind in "US":
                raise ValueError(
                    f"num_classes = {self._given} says that labels are 0 to {self._given - 1}, but "
                    f"those of {self.title} are words, such as {max(labels.tolist())!r}: drop it"
                )
            self.num_classes = self._given
            return (x, y), test
        values, codes = np.unique(labels, return_inverse=True)
        if not 2 <= len(values) <= len(labels) / 2:
            raise ValueError(
                f"the target of {self.title} has {len(values)} different values in {len(labels)} "
                "rows: choose a column of classes as data.target"
            )
        self.class_names = tuple(_names(values).tolist())
        self.num_classes = len(values)
        if values.dtype.kind not in "US" and np.array_equal(values, np.arange(len(values))):
            codes = labels.astype(np.int64)
        else:
            pairs = ", ".join(f"{i} = {name}" for i, name in enumerate(self.class_names))
            rank_zero_info(f"classes of {self.title}: {pairs}")
        return (x, codes[: len(x)]), (None if test is None else (test[0], codes[len(x) :]))

    def _read(self) -> Table:
        source = str(self.file) if self.name is None else bundled(self.name)
        return read_table(source, self.target, labels=True, drop=self.drop)

    def transform(self, train: NDArray[Any]) -> Standardiser:
        """Return the standardisation, which does nothing unless it is asked for."""
        table, self._table = self._table, None
        assert table is not None
        width = train.shape[1]
        scaled = Standardiser(np.zeros(width), np.ones(width))
        if self.standardise:
            examine(table, train)
            scaled = standardiser(train)
        self.inputs = described(table.columns, train) | {
            "mean": scaled.mean.tolist(),
            "scale": scaled.scale.tolist(),
        }
        return scaled


def bundled(name: str) -> ArrayTable:
    """Return a set that comes with scikit-learn.

    Args:
        name: One of :data:`SETS`.

    Raises:
        ImportError: If scikit-learn is not installed.
    """
    try:
        loaded = getattr(import_module("sklearn.datasets"), f"load_{name}")()
    except ImportError as error:
        raise ImportError(
            f"data.name={name} needs scikit-learn: pip install 'lightning-sgmcmc[sklearn]'"
        ) from error
    columns = dict(zip(map(str, loaded.feature_names), loaded.data.T, strict=True))
    columns["class"] = np.array(loaded.target_names)[loaded.target]
    return ArrayTable(Path(name), columns)


def _joined(y: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
    """Return the labels of two files, as words where those of one are."""
    if (y.dtype.kind in "US") == (others.dtype.kind in "US"):
        return np.concatenate([y, others])
    return np.concatenate([_as_names(a) for a in (y, others)])


def _as_names(labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels as words, a number as it is called in any file."""
    if labels.dtype.kind not in "US":
        return _names(labels)
    return np.array([f"{float(v):.15g}" if is_number(v) else v for v in labels.tolist()])


def _names(values: NDArray[Any]) -> NDArray[Any]:
    """Return what labels are called."""
    return np.array([f"{v:.15g}" if values.dtype.kind == "f" else str(v) for v in values])
