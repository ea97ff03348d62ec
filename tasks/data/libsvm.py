"""Two-class data in LIBSVM's sparse text format, and the Adult set a9a in it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from tasks.data.binary import BinaryData, Examples
from tasks.data.download import data_root, fetch, require

#: Checksums of a9a's files as LIBSVM's site serves them.
A9A = {
    "a9a": "sha256:f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
    "a9a.t": "sha256:1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
}
_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/{name}"


class LIBSVMData(BinaryData):
    """A training file and, if there is one, a test file in LIBSVM's format.

    Args:
        train: Training file, relative to ``root``.
        num_features: D. It is not read off the files: a test file need not use every feature.
        test: Test file, relative to ``root``; None for none.
        root: Folder of data sets; None is $SGMCMC_DATA_ROOT or ``./data``.
        **kwargs: As for :class:`~tasks.data.binary.BinaryData`.

    Raises:
        ValueError: If ``num_val`` is negative or ``num_features`` is not positive.
    """

    def __init__(
        self,
        train: str,
        num_features: int,
        test: str | None = None,
        root: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if num_features < 1:
            raise ValueError(f"num_features must be positive, got {num_features}")
        self.root, self.num_features = data_root(root), num_features
        self.train_file = self.root / train
        self.test_file = self.root / test if test is not None else None

    def examples(self) -> tuple[Examples, Examples | None]:
        """Read both files."""
        test = None if self.test_file is None else read_libsvm(self.test_file, self.num_features)
        return read_libsvm(self.train_file, self.num_features), test


class A9AData(LIBSVMData):
    """Adult as LIBSVM's a9a: 32,561 training and 16,281 test examples of 123 binary features.

    Who earns more than 50,000 dollars. The test file ends at feature 122.

    Args:
        root: Folder of data sets, into which the files are fetched as ``libsvm/a9a`` and
            ``libsvm/a9a.t`` unless they are there; None is $SGMCMC_DATA_ROOT or ``./data``.
        **kwargs: As for :class:`~tasks.data.binary.BinaryData`.
    """

    paper: dict[str, Any] = {  # noqa: RUF012
        "source": "Li, Chen, Carlson, Carin 2016, Table 1: test error, percent",
        "table": {
            "pSGLD": 14.85,
            "SGLD": 14.85,
            "DSVI": 15.20,
            "L-BFGS-SGVI": 14.91,
            "HFSGVI": 15.16,
        },
    }

    def __init__(self, root: str | None = None, **kwargs: Any) -> None:
        super().__init__("libsvm/a9a", 123, "libsvm/a9a.t", root=root, **kwargs)

    def prepare_data(self) -> None:
        """Fetch both files, unless they are there, and check them."""
        for name, checksum in A9A.items():
            fetch(_URL.format(name=name), self.root / "libsvm" / name, checksum)


def read_libsvm(path: Path, num_features: int) -> Examples:
    """Read ``label index:value index:value ...`` lines; indices start at 1 and ascend.

    Args:
        path: The file. What follows a ``#`` in a line is left out, and so are empty lines.
        num_features: D.

    Returns:
        Features [N, D], and labels [N]: 1 for +1, 0 for -1 or 0.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line is not of that form, or the file holds no example.
    """
    require(path)
    labels: list[float] = []
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            tokens = line.split("#", 1)[0].split()
            if not tokens:
                continue
            try:
                label, indices, entries = _parse(tokens, num_features)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            rows += [len(labels)] * len(indices)
            columns += indices
            values += entries
            labels.append(label)
    if not labels:
        raise ValueError(f"{path} holds no examples")
    y = np.array(labels)
    if {-1.0, 0.0} <= set(labels):
        raise ValueError(f"{path} has labels -1 and 0: two classes are -1 and +1, or 0 and 1")
    x = np.zeros((len(y), num_features))
    x[rows, columns] = values
    return x, (y > 0).astype(np.float64)


def _parse(tokens: list[str], num_features: int) -> tuple[float, list[int], list[float]]:
    """Return the label, the indices from 0 and the values of a line."""
    try:
        label = float(tokens[0])
    except ValueError:
        label = math.nan
    if label not in (-1.0, 0.0, 1.0):
        raise ValueError(f"the label is {tokens[0]!r}, not -1 or +1 (or 0 or 1)")
    indices: list[int] = []
    values: list[float] = []
    last = 0
    for token in tokens[1:]:
        left, _, right = token.partition(":")
        try:
            index, value = int(left), float(right)
        except ValueError:
            raise ValueError(f"{token!r} is not of the form index:value") from None
        if not 1 <= index <= num_features:
            raise ValueError(f"feature {index} is not one of 1 to {num_features}")
        if index <= last:
            raise ValueError(f"feature {index} follows feature {last}: indices must ascend")
        if not math.isfinite(value):
            raise ValueError(f"{token!r} is not a finite value")
        last = index
        indices.append(index - 1)
        values.append(value)
    return label, indices, values
