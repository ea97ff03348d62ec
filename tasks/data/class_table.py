"""A user's own table with a column of classes, in a text file or a NumPy file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray

from tasks.data.classes import ClassData, Examples, Transform, standardiser
from tasks.data.column import Column
from tasks.data.delimited import is_number, shown
from tasks.data.scales import examine
from tasks.data.table import Places, Table, assemble, place_of, read_table


class ClassTableData(ClassData):
    """Features [B, D] and classes of the rows of a table.

    Labels that are the integers 0 to C - 1 stay as they are. Any other values, numbers or words,
    are numbered in their order; ``class_names`` holds them, and they are logged.

    Args:
        file: A text file (see :func:`~tasks.data.table.read_table`), a ``.npy`` file of numbers
            [rows, columns], or a ``.npz`` file: either of ``x`` [N, D] and ``y`` [N], or of
            columns [N] by name. Features are numbers, or words of a few categories.
        target: Name or number of the column of classes; None is the last one, or ``y``.
        test_file: Rows for testing, with the same columns; None draws them from ``file``.
        num_classes: C, where labels are 0 to C - 1 and not every one need occur; None reads it
            off the labels of both files.
        standardise: Shift and scale every feature to mean 0 and variance 1 over the training rows.
        batch_size: Rows in a minibatch; the whole training set if that is no larger.
        num_val: Rows for validation; below 1, the fraction.
        num_test: Rows for testing, at random; below 1, the fraction. None is a tenth, or none
            with a ``test_file``.
        **kwargs: As for :class:`~tasks.data.classes.ClassData`.

    Raises:
        ValueError: If a number lies outside its range, or both ``test_file`` and ``num_test`` are
            given.
    """

    whole_if_small = True

    def __init__(
        self,
        file: str,
        target: str | int | None = None,
        test_file: str | None = None,
        num_classes: int | None = None,
        standardise: bool = True,
        batch_size: int = 10_000,
        num_val: int | float = 0,
        num_test: int | float | None = None,
        **kwargs: Any,
    ) -> None:
        if num_test and test_file is not None:
            raise ValueError(f"test_file is given: drop num_test = {num_test}")
        if num_classes is not None and num_classes < 2:
            raise ValueError(f"num_classes must be at least 2, got {num_classes}")
        drawn = 0.1 if num_test is None and test_file is None else num_test or 0
        super().__init__(num_val=num_val, num_test=drawn, batch_size=batch_size, **kwargs)
        self.file, self.test_file, self.target = Path(file), test_file, target
        self.standardise, self._given = standardise, num_classes
        self._table: Table | None = None
        #: Of the features, in their order: ``names``, and where they are standardised ``mean`` and
        #: ``scale``.
        self.inputs: dict[str, list[Any]] = {}

    def examples(self) -> tuple[Examples, Examples | None]:
        """Read the files and number the classes.

        Raises:
            ValueError: If the files do not fit one another, or the target does not hold classes.
        """
        table = read_rows(self.file, self.target)
        self._table, x, y = table, table.x, table.y
        self.inputs = {"names": list(table.features)}
        test = None
        if self.test_file is not None:
            other = read_rows(Path(self.test_file), self.target, table)
            if other.features != table.features:
                raise ValueError(
                    f"{self.test_file} has features {shown(other.features)}, "
                    f"{self.file} {shown(table.features)}"
                )
            test = other.x, other.y
        labels = y if test is None else _joined(y, test[1])
        if self._given is not None:
            if labels.dtype.kind in "US":
                raise ValueError(
                    f"num_classes = {self._given} says that labels are 0 to {self._given - 1}, but "
                    f"those of {self.file} are words, such as {max(labels.tolist())!r}: drop it"
                )
            self.num_classes = self._given
            return (x, y), test
        values, codes = np.unique(labels, return_inverse=True)
        if not 2 <= len(values) <= len(labels) / 2:
            raise ValueError(
                f"the target of {self.file} has {len(values)} different values in {len(labels)} "
                "rows: choose a column of classes as data.target"
            )
        self.class_names = tuple(_names(values).tolist())
        self.num_classes = len(values)
        if values.dtype.kind not in "US" and np.array_equal(values, np.arange(len(values))):
            codes = labels.astype(np.int64)
        else:
            pairs = ", ".join(f"{i} = {name}" for i, name in enumerate(self.class_names))
            rank_zero_info(f"classes of {self.file}: {pairs}")
        return (x, codes[: len(x)]), (None if test is None else (test[0], codes[len(x) :]))

    def transform(self, train: NDArray[Any]) -> Transform:
        """Return the standardisation, if it is asked for."""
        table, self._table = self._table, None
        if not self.standardise:
            return super().transform(train)
        assert table is not None
        examine(table, train)
        scaled = standardiser(train)
        self.inputs |= {"mean": scaled.mean.tolist(), "scale": scaled.scale.tolist()}
        return scaled


#: Whole numbers from here on are no longer told apart in double precision.
_EXACT = 2**53


def read_rows(path: Path, target: str | int | None, like: Table | None = None) -> Table:
    """Return the table of a text file or a NumPy file.

    Args:
        path: The file.
        target: Name or number of the column of classes.
        like: A table whose categories this one has.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not of a form that :class:`ClassTableData` takes, or a value is
            missing or no number; line or row (from 0) and column are named.
    """
    if path.suffix not in (".npy", ".npz"):
        return read_table(path, target, labels=True, like=like)
    arrays = _arrays(path)
    if {"x", "y"} <= set(arrays) and target in (None, "y"):
        x, y = arrays["x"], arrays["y"]
        if x.ndim != 2 or y.ndim != 1 or len(x) != len(y) or not x.size:
            raise ValueError(
                f"{path} needs x [N, D] and y [N], got {list(x.shape)}, {list(y.shape)}"
            )
        named = {str(i): column for i, column in enumerate(x.T)} | {"y": y}
        place = x.shape[1]
    else:
        named = _columns(path, arrays)
        place = place_of(path, tuple(named), target)
    columns = [
        _column(path, name, array, labels=i == place)
        for i, (name, array) in enumerate(named.items())
    ]
    return assemble(columns, place, Places(path), like)


def _column(path: Path, name: str, array: NDArray[Any], labels: bool) -> Column:
    """Return a column of a NumPy file."""
    if not array.size:
        raise ValueError(f"{path}, column {name!r} has no rows")
    if array.dtype.kind == "S":
        try:
            array = np.char.decode(array, "utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}, column {name!r} holds bytes that are no UTF-8") from error
    beyond = array.dtype.kind in "iu" and (abs(int(array.min())) | abs(int(array.max()))) >= _EXACT
    if array.dtype.kind == "U" or (labels and beyond):
        column = Column(name, path, labels=labels, unit="row")
        column.add(array.astype(str).tolist(), range(len(array)))
        return column
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{path}, column {name!r} holds {array.dtype}, not numbers")
    values = array.astype(np.float64)
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise ValueError(
            f"{Places(path).of(int(wrong[0]), name)}: {values[wrong[0]]} is missing, not finite "
            "or too large; fill it or drop the row"
        )
    return Column(name, path, parts=[values], first="0")


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a NumPy file by name, one of a ``.npy`` file as ``""``."""
    if not path.is_file():
        raise FileNotFoundError(f"the table {path} is missing: check the path")
    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.ndarray):
                return {"": content}
            return {name: content[name] for name in content.files}
    except Exception as error:  # NumPy, zipfile, zlib and tokenize raise a dozen kinds
        raise ValueError(f"{path} is not a NumPy file of numbers: {error}") from error


def _columns(path: Path, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the columns [N] of a NumPy file by name."""
    if "" in arrays:
        values = arrays[""]
        if values.ndim != 2:
            raise ValueError(f"{path} needs to be [rows, columns], got {list(values.shape)}")
        return {str(i): column for i, column in enumerate(values.T)}
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    if {len(shape) for shape in shapes.values()} != {1} or len({*map(tuple, shapes.values())}) > 1:
        given = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"{path} needs x [N, D] and y [N], or columns [N], got {given}")
    return arrays


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
