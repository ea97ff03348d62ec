"""KDD Cup 1999: connections to a network, normal ones and 22 kinds of attack."""

from __future__ import annotations

import gzip
import itertools
import math
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tasks.data.classes import ClassData, Examples, Transform, standardiser
from tasks.data.delimited import is_number
from tasks.data.download import data_root, digest, fetch, open_with_bar, require

_FEATURES = (
    "duration protocol_type service flag src_bytes dst_bytes land wrong_fragment urgent hot "
    "num_failed_logins logged_in num_compromised root_shell su_attempted num_root "
    "num_file_creations num_shells num_access_files num_outbound_cmds is_host_login "
    "is_guest_login count srv_count serror_rate srv_serror_rate rerror_rate srv_rerror_rate "
    "same_srv_rate diff_srv_rate srv_diff_host_rate dst_host_count dst_host_srv_count "
    "dst_host_same_srv_rate dst_host_diff_srv_rate dst_host_same_src_port_rate "
    "dst_host_srv_diff_host_rate dst_host_serror_rate dst_host_srv_serror_rate "
    "dst_host_rerror_rate dst_host_srv_rerror_rate"
)
_COUNTS = (
    "duration src_bytes dst_bytes wrong_fragment urgent hot num_failed_logins num_compromised "
    "num_root num_file_creations num_shells num_access_files count srv_count dst_host_count "
    "dst_host_srv_count"
)
#: Features in the order of the file.
FEATURES = tuple(_FEATURES.split())
#: Features that are words.
SYMBOLS = ("protocol_type", "service", "flag")
#: The feature that is 0 in every row.
CONSTANT = "num_outbound_cmds"
#: Features that count without a bound near 1, most of them with a heavy tail.
COUNTS = tuple(_COUNTS.split())
#: The 40 features that are inputs.
INPUTS = tuple(name for name in FEATURES if name != CONSTANT)

Subset = Literal["10percent", "full"]
#: File, place, and checksums: the published one, then that of another packing of the same rows.
SETS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "10percent": (
        "kddcup.data_10_percent.gz",
        "https://ndownloader.figshare.com/files/5976042",
        (
            "sha256:8045aca0d84e70e622d1148d7df782496f6333bf6eb979a1b0837c42a9fd9561",
            "sha256:7bfaa8cef1350f72842018c32893e2fa4539d57efbb22f998eb74ecefc3da3b4",
        ),
    ),
    "full": (
        "kddcup.data.gz",
        "https://ndownloader.figshare.com/files/5976045",
        ("sha256:3b6c942aa0356c0ca35b7b595a26c89d343652c9db428893e7494f837b274292",),
    ),
}
_CHUNK = 100_000  # rows parsed at once
_ROW = np.dtype(
    [("duration", "f4"), ("symbols", "S24", (3,)), ("rest", "f4", (37,)), ("label", "S24")]
)


class KDDCup99Data(ClassData):
    """40 features of a connection and which of 23 classes it belongs to.

    Ahn et al. (2012, section 5.3) give neither their encoding nor their split. Their 2,647
    parameters of a discriminative RBM with 41 hidden units and 23 classes, 40 * 41 + 41 * 23 + 41
    + 23, leave 40 features: the 41 of the file without ``num_outbound_cmds``, which is always 0,
    and each feature of words as one number. Here that is the word's rank by frequency in the file,
    0 for the commonest. Classes are numbered by frequency too: 0 is the most populous.

    Args:
        root: Folder of data sets, into which the file is fetched as
            ``kddcup99/kddcup.data_10_percent.gz`` or ``kddcup99/kddcup.data.gz`` unless it is
            there; None is $SGMCMC_DATA_ROOT or ``./data``.
        subset: ``10percent``, 494,021 rows, or ``full``, 4,898,431 rows.
        classes: Keep the rows of the most populous classes, this many; None keeps all.
        log: Take log(1 + x) of features that count. Some have heavy tails: without it, a value of
            src_bytes lies 700 standard deviations from the mean.
        standardise: Shift and scale every feature to mean 0 and variance 1 over the training rows.
        num_val: Rows for validation, at random; below 1, the fraction.
        num_test: Rows for testing, at random; below 1, the fraction.
        **kwargs: As for :class:`~tasks.data.classes.ClassData`.

    Raises:
        ValueError: If a value is unknown or lies outside its range.
    """

    test_from = 0.05

    def __init__(
        self,
        root: str | None = None,
        subset: Subset = "10percent",
        classes: int | None = None,
        log: bool = True,
        standardise: bool = True,
        num_val: int | float = 0.05,
        num_test: int | float = 0.05,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_val=num_val, num_test=num_test, **kwargs)
        if subset not in SETS:
            raise ValueError(f"subset must be {' or '.join(SETS)}, got {subset!r}")
        if classes is not None and classes < 2:
            raise ValueError(f"classes must be at least 2, got {classes}")
        self.subset, self.classes, self.log, self.standardise = subset, classes, log, standardise
        self.path = data_root(root) / "kddcup99" / SETS[subset][0]

    def prepare_data(self) -> None:
        """Fetch the file, unless it is there, and check it."""
        _, url, (published, *others) = SETS[self.subset]
        if not (self.path.is_file() and digest(self.path, published) in others):
            fetch(url, self.path, published)

    def examples(self) -> tuple[Examples, Examples | None]:
        """Read the file.

        Raises:
            ValueError: If it has fewer classes than are to be kept.
        """
        x, y, self.class_names = read_kddcup99(self.path)
        if self.classes is not None:
            if self.classes > len(self.class_names):
                raise ValueError(
                    f"{self.path} has {len(self.class_names)} classes, {self.classes} are asked for"
                )
            self.class_names = self.class_names[: self.classes]
            kept = y < self.classes
            x, y = x[kept], y[kept]
        self.num_classes = len(self.class_names)
        if self.log:
            for name in COUNTS:
                np.log1p(x[:, INPUTS.index(name)], out=x[:, INPUTS.index(name)])
        return (x, y), None

    def transform(self, train: NDArray[Any]) -> Transform:
        """Return the standardisation, if it is asked for."""
        return standardiser(train) if self.standardise else super().transform(train)


def read_kddcup99(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64], tuple[str, ...]]:
    """Return features [N, 40], labels [N] and the names of the classes, the commonest first.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a row is not of the form of the set, or the file is damaged or empty.
    """
    require(path)
    numbers: list[NDArray[np.float32]] = []
    labels: list[NDArray[np.int64]] = []
    words: dict[str, dict[bytes, int]] = {name: {} for name in (*SYMBOLS, "label")}
    try:
        with (
            open_with_bar(path) as raw,
            gzip.open(raw, "rt", encoding="ascii", errors="replace") as file,
        ):
            first = 1
            while lines := list(itertools.islice(file, _CHUNK)):
                rows = _parse(path, first, lines)
                first += len(lines)
                x = np.empty((len(rows), len(FEATURES)), np.float32)
                x[:, 0], x[:, 4:] = rows["duration"], rows["rest"]
                for j, name in enumerate(SYMBOLS):
                    x[:, 1 + j] = _codes(rows["symbols"][:, j], words[name])
                labels.append(_codes(rows["label"], words["label"]))
                numbers.append(np.delete(x, FEATURES.index(CONSTANT), axis=1))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it to fetch it anew") from error
    if not numbers:
        raise ValueError(f"{path} holds no examples")
    x, y = np.concatenate(numbers), np.concatenate(labels)
    for name in SYMBOLS:
        column = INPUTS.index(name)
        ranks, _ = _by_frequency(x[:, column].astype(np.int64), words[name])
        x[:, column] = ranks
    y, names = _by_frequency(y, words["label"])
    return x, y, tuple(name.rstrip(".") for name in names)


def _parse(path: Path, first: int, lines: list[str]) -> NDArray[Any]:
    """Return lines, the first of which has the number ``first`` in the file, as rows."""
    try:
        rows = np.loadtxt(lines, _ROW, delimiter=",", comments=None, ndmin=1)
    except ValueError as error:
        _explain(path, first, lines)
        last = first + len(lines) - 1
        raise ValueError(f"{path}, lines {first} to {last}: {error}") from None
    whole = np.isfinite(rows["duration"]) & np.isfinite(rows["rest"]).all(1)
    if not (whole & (rows["symbols"] != b"").all(1) & (rows["label"] != b"")).all():
        _explain(path, first, lines)
    return rows


def _explain(path: Path, first: int, lines: list[str]) -> None:
    """Raise an error that names the first line that is wrong."""
    for number, line in enumerate(lines, first):
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 1 and not fields[0]:
            continue
        if len(fields) != len(FEATURES) + 1:
            raise ValueError(
                f"{path}, line {number}: {len(fields)} fields, not {len(FEATURES)} features and "
                "a label"
            )
        for name, field in zip((*FEATURES, "label"), fields, strict=True):
            if name in SYMBOLS or name == "label":
                wrong = not field and "is missing"
            else:
                finite = is_number(field) and math.isfinite(float(field))
                wrong = not finite and f"is {field!r}, not a finite number"
            if wrong:
                raise ValueError(f"{path}, line {number}: {name} {wrong}")


def _codes(words: NDArray[np.bytes_], known: dict[bytes, int]) -> NDArray[np.int64]:
    """Return the words' codes, new ones numbered as they come."""
    found, places = np.unique(words, return_inverse=True)
    return np.array([known.setdefault(word, len(known)) for word in found.tolist()])[places]


def _by_frequency(
    codes: NDArray[np.int64], words: dict[bytes, int]
) -> tuple[NDArray[np.int64], list[str]]:
    """Return codes renumbered, the commonest word 0 and ties by alphabet, and words in order."""
    counts = np.bincount(codes, minlength=len(words))
    order = sorted(words, key=lambda word: (-counts[words[word]], word))
    ranks = np.empty(len(words), np.int64)
    ranks[[words[word] for word in order]] = np.arange(len(words))
    return ranks[codes], [word.decode() for word in order]
