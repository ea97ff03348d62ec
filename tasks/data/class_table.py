"""A user's own table with a column of classes, in a text file or a NumPy file."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray

from tasks.data.classes import ClassData, Examples, Transform, standardiser
from tasks.data.table import ENCODE_WORDS, LARGEST, is_number, places, read_table


class ClassTableData(ClassData):
    """Features [B, D] and classes of the rows of a table.

    Labels that are the integers 0 to C - 1 stay as they are. Any other values, numbers or words,
    are numbered in their order; ``class_names`` holds them, and they are logged.

    Args:
        file: A text file (see :func:`~tasks.data.table.read_table`), a ``.npy`` file of numbers
            [rows, columns], or a ``.npz`` file: either of ``x`` [N, D] and ``y`` [N], or of
            columns [N] by name. All but the labels are numbers.
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

    def examples(self) -> tuple[Examples, Examples | None]:
        """Read the files and number the classes.

        Raises:
            ValueError: If the files do not fit one another, or the target does not hold classes.
        """
        x, y, names = read_rows(self.file, self.target)
        test = None if self.test_file is None else read_rows(Path(self.test_file), self.target)
        if test is not None and test[2] != names:
            raise ValueError(
                f"{self.test_file} has features {_shown(test[2])}, {self.file} {_shown(names)}"
            )
        labels = y if test is None else _joined(y, test[1])
        if self._given is not None:
            if labels.dtype.kind in "US":
                raise ValueError(
                    f"num_classes = {self._given} says that labels are 0 to {self._given - 1}, but "
                    f"those of {self.file} are words, such as {max(labels.tolist())!r}: drop it"
                )
            self.num_classes = self._given
            return (x, y), (None if test is None else test[:2])
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
        return standardiser(train) if self.standardise else super().transform(train)


def read_rows(
    path: Path, target: str | int | None
) -> tuple[NDArray[np.float64], NDArray[Any], tuple[str, ...]]:
    """Return features [N, D], labels [N], numbers or words, and the names of the features.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not of a form that :class:`ClassTableData` takes, or a value is
            missing or no number; row (from 0) and column are named.
    """
    if path.suffix not in (".npy", ".npz"):
        table = read_table(path)
        place, rest = places(path, table.names, target)
        return table.numbers(rest), table.labels(place), tuple(table.names[i] for i in rest)
    arrays = _arrays(path)
    if {"x", "y"} <= set(arrays) and target in (None, "y"):
        x, y = arrays["x"], arrays["y"]
        if x.ndim != 2 or y.ndim != 1 or len(x) != len(y):
            raise ValueError(
                f"{path} needs x [N, D] and y [N], got {list(x.shape)}, {list(y.shape)}"
            )
        names = tuple(str(i) for i in range(x.shape[1]))
        return _numbers(path, names, x), _labels(path, "y", y), names
    columns = _columns(path, arrays)
    place, rest = places(path, tuple(columns), target)
    names = tuple(columns)
    x = np.hstack([_numbers(path, (names[i],), columns[names[i]][:, None]) for i in rest])
    y = _labels(path, names[place], columns[names[place]])
    return x, y, tuple(names[i] for i in rest)


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
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        raise ValueError(f"{path} is not a NumPy file of numbers: {error}") from error


def _columns(path: Path, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the columns [N] of a NumPy file by name."""
    if "" in arrays:
        values = arrays[""]
        if values.ndim != 2:
            raise ValueError(f"{path} needs to be [rows, columns], got {list(values.shape)}")
        return {str(i): column for i, column in enumerate(values.T)}
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    if any(len(shape) != 1 for shape in shapes.values()) or len({*map(tuple, shapes.values())}) > 1:
        given = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"{path} needs x [N, D] and y [N], or columns [N], got {given}")
    return arrays


def _labels(path: Path, name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return labels [N] that are words as they are, others in float64."""
    return array if array.dtype.kind in "US" else _numbers(path, (name,), array[:, None])[:, 0]


def _joined(y: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
    """Return the labels of two files, as words where those of one are."""
    if (y.dtype.kind in "US") == (others.dtype.kind in "US"):
        return np.concatenate([y, others])
    return np.concatenate([a if a.dtype.kind in "US" else _names(a) for a in (y, others)])


def _names(values: NDArray[Any]) -> NDArray[Any]:
    """Return what labels are called."""
    return np.array([f"{v:.15g}" if values.dtype.kind == "f" else str(v) for v in values])


def _numbers(path: Path, names: tuple[str, ...], array: NDArray[Any]) -> NDArray[np.float64]:
    """Return an array [rows, columns] in float64, all of it finite."""
    if array.dtype.kind in "US":
        for row, column in np.ndindex(array.shape):
            field = str(array[row, column])
            if not is_number(field):
                raise ValueError(
                    f"{path}, row {row}, column {names[column]!r}: {field!r} is not a number; "
                    f"{ENCODE_WORDS}"
                )
    elif array.dtype.kind not in "biuf":
        raise ValueError(f"{path} holds {array.dtype}, not numbers")
    values = array.astype(np.float64)
    wrong = np.argwhere(~(np.abs(values) <= LARGEST))
    if len(wrong):
        row, column = wrong[0]
        raise ValueError(
            f"{path}, row {row}, column {names[column]!r}: {values[row, column]} is missing, not "
            f"finite or larger than {LARGEST:g}; fill it or drop the row"
        )
    return values


def _shown(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (f", ... ({len(names)} in all)" if len(names) > 5 else "")
