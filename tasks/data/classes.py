"""Labelled examples of C classes, in memory: the base of the classifiers' data."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray

from lightning_sgmcmc.chain import Sampling
from tasks.data.splits import Pair, SplitData

#: Inputs [N, ...] and labels [N], integers from 0 to C - 1.
Examples = tuple[NDArray[Any], NDArray[Any]]
#: Makes inputs, float32, of what was read.
Transform = Callable[[NDArray[Any]], NDArray[np.float32]]
_BLOCK = 10_000


class ClassData(SplitData):
    """Training, validation and test examples as pairs x [B, ...] float32, y [B] int64.

    A subclass gives the examples (:meth:`examples`), the number of classes (``num_classes``, at
    the latest when the examples are read). It may give what turns them into inputs
    (:meth:`transform`) and held-out sets of other data (:meth:`extras`).

    Args:
        num_val: Training examples held out for validation; below 1, the fraction of them.
        num_test: Examples held out for testing, at random; below 1, the fraction. Only for data
            without a test set of their own.
        num_train: Training examples used of those that are left, chosen at random so that a
            smaller number uses a subset; None uses all.
        val_from: Whether validation examples are drawn at ``random`` or are the ``last`` ones.
        batch_size: Examples in a minibatch.
        eval_batch_size: Held-out examples that are predicted at once, a bound on memory.
        sampling: ``auto``, ``independent``, ``reshuffled`` or ``full`` minibatches.
        split_seed: Seed of whatever is chosen at random here.
        measure_train: Training examples, the first ones, that every draw predicts too, as an extra
            set ``train``: a run then has training errors beside the test errors.

    Raises:
        ValueError: If a number lies outside its range.
    """

    #: C.
    num_classes: int
    #: Names of the classes; their numbers if empty.
    class_names: tuple[str, ...] = ()
    #: Where test examples begin in the random order, as a fraction: at a place of their own, so
    #: that they are the same whatever is held out of the others.
    test_from = 0.1

    def __init__(
        self,
        num_val: int | float = 0,
        num_test: int | float = 0,
        num_train: int | None = None,
        val_from: Literal["random", "last"] = "random",
        batch_size: int = 100,
        eval_batch_size: int = 2000,
        sampling: Sampling = "auto",
        split_seed: int = 0,
        measure_train: int = 0,
    ) -> None:
        super().__init__(batch_size, sampling, eval_batch_size)
        for name, number in {"num_val": num_val, "num_test": num_test}.items():
            if number < 0 or (number >= 1 and number != int(number)):
                raise ValueError(f"{name} is a count, or a fraction below 1, got {number}")
        for name, count in {"num_train": num_train, "eval_batch_size": eval_batch_size}.items():
            if count is not None and count < 1:
                raise ValueError(f"{name} must be positive, got {count}")
        if measure_train < 0:
            raise ValueError(f"measure_train must not be negative, got {measure_train}")
        if val_from not in ("random", "last"):
            raise ValueError(f"val_from must be random or last, got {val_from!r}")
        self.num_val, self.num_test, self.num_train = num_val, num_test, num_train
        self.val_from, self.split_seed, self.measure_train = val_from, split_seed, measure_train
        self._extras: dict[str, Pair] = {}

    @abstractmethod
    def examples(self) -> tuple[Examples, Examples | None]:
        """Return the training examples, and the test examples if there is a test set."""

    def transform(self, train: NDArray[Any]) -> Transform:
        """Return what makes inputs of examples, given the training examples [N, ...]."""

        def apply(x: NDArray[Any]) -> NDArray[np.float32]:
            with np.errstate(over="ignore"):  # what overflows is refused where it becomes a tensor
                return x.astype(np.float32, copy=False)

        return apply

    def extras(self, test: Examples | None) -> dict[str, Examples]:
        """Return held-out sets of other data by name, given the test examples as read."""
        return {}

    def setup(self, stage: str | None = None) -> None:
        """Read, check, split and transform the examples.

        Raises:
            ValueError: If no training example would be left, a label is not one of 0 to C - 1,
                shapes differ, or an input is not finite.
        """
        if self._splits:
            return
        (x, y), test = self.examples()
        y = self._labels("training", x, y)
        if test is not None:
            if self.num_test:
                raise ValueError(
                    f"num_test = {self.num_test}, but the data have a test set: drop it"
                )
            test = (test[0], self._labels("test", *test))
        rows = self._rows(len(x))
        raw: dict[str, Examples] = {name: (x[chosen], y[chosen]) for name, chosen in rows.items()}
        del x
        if test is not None:
            raw["test"] = test
        others = self.extras(raw.get("test"))
        others = {name: (x, self._labels(name, x, y)) for name, (x, y) in others.items()}
        shape = raw["train"][0].shape[1:]
        for name, (x, _) in {**raw, **others}.items():
            if x.shape[1:] != shape:
                raise ValueError(
                    f"{name} examples are of shape {x.shape[1:]}, training examples of {shape}"
                )
        self._warn_of_unseen({name: y for name, (_, y) in raw.items()})
        transform = self.transform(raw["train"][0])
        self._extras = {name: _tensors(name, transform, *pair) for name, pair in others.items()}
        # Convert one split at a time and free it: large sets fill much of a laptop's memory.
        self._splits = {name: _tensors(name, transform, *raw.pop(name)) for name in tuple(raw)}

    def _rows(self, total: int) -> dict[str, NDArray[np.int64]]:
        """Return which of the examples read belong to which split, in their order."""
        val, test = (
            int(number) if number >= 1 else round(number * total)
            for number in (self.num_val, self.num_test)
        )
        left = total - val - test
        if left < 1:
            held_out = f"num_val = {self.num_val}" + f" and num_test = {self.num_test}" * bool(test)
            raise ValueError(f"{held_out} leave none of the {total} training examples: lower them")
        if self.num_train is not None and self.num_train > left:
            raise ValueError(
                f"num_train = {self.num_train}, but {left} of {total} training examples are left"
            )
        generator = np.random.default_rng(self.split_seed)
        order = np.arange(total)
        if test or self.val_from == "random":
            order = generator.permutation(total)
        first = min(round(self.test_from * total), total - test)
        tested, order = order[first : first + test], np.delete(order, slice(first, first + test))
        if self.val_from == "last":
            order = np.sort(order)[::-1]
            order[val:] = generator.permutation(np.sort(order[val:]))
        rows = {
            "train": order[val : None if self.num_train is None else val + self.num_train],
            "val": order[:val],
            "test": tested,
        }
        return {name: np.sort(chosen) for name, chosen in rows.items() if len(chosen)}

    def _labels(self, name: str, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.int64]:
        """Return labels as integers after a check of every one."""
        if len(x) != len(y) or not len(x):
            raise ValueError(f"{name}: {len(x)} examples and {len(y)} labels; equally many, not 0")
        numeric = np.issubdtype(y.dtype, np.number)
        if y.ndim != 1 or not numeric or np.iscomplexobj(y):
            raise ValueError(
                f"{name} labels are one integer an example, got {y.dtype} of shape {y.shape}"
            )
        with np.errstate(invalid="ignore"):
            wrong = (y != np.floor(y)) | ~((y >= 0) & (y < self.num_classes))
        if wrong.any():
            first = int(wrong.argmax())
            raise ValueError(
                f"{name} example {first} has label {y[first]}: labels are integers from 0 to "
                f"{self.num_classes - 1}"
            )
        return y.astype(np.int64)

    def _warn_of_unseen(self, labels: dict[str, NDArray[np.int64]]) -> None:
        counts = {name: np.bincount(y, minlength=self.num_classes) for name, y in labels.items()}
        unseen = []
        for c in np.flatnonzero(counts["train"] == 0):
            found = [f"{counts[n][c]} in {n}" for n in counts if counts[n][c]]
            if found:
                name = f" ({self.class_names[c]})" if self.class_names else ""
                unseen.append(f"class {c}{name}: {', '.join(found)}")
        if unseen:
            rank_zero_warn(f"no training example of {'; '.join(unseen)}")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.tensors("train")[0].shape[1:])

    def extra_dataloaders(self) -> dict[str, Any]:
        """Return the held-out sets of other data by name, and training examples as ``train``.

        Raises:
            ValueError: If more training examples are to be measured than there are.
        """
        found = super().extra_dataloaders()
        found |= {name: self._loader(pair) for name, pair in self._extras.items()}
        if self.measure_train:
            x, y = self.tensors("train")
            if self.measure_train > len(y):
                raise ValueError(
                    f"measure_train = {self.measure_train}, but there are {len(y)} training "
                    "examples: lower it"
                )
            found["train"] = self._loader((x[: self.measure_train], y[: self.measure_train]))
        return found


@dataclass(frozen=True)
class Standardiser:
    """Shifts and scales features: (x - mean) / scale, in float32.

    Attributes:
        mean: Of each feature, [D].
        scale: Of each feature, [D].
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]

    def __call__(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """Return features [N, D] shifted and scaled."""
        result = np.empty(x.shape, np.float32)
        with np.errstate(over="ignore"):  # what overflows is refused where it becomes a tensor
            for block, out in zip(_blocks(x), _blocks(result), strict=True):
                out[...] = (block - self.mean) / self.scale
        return result


def standardiser(train: NDArray[Any]) -> Standardiser:
    """Return what gives features [N, D] mean 0 and variance 1 (of N) over the training examples.

    Features that are constant there are shifted only.
    """
    mean, low = train.mean(0, dtype=np.float64), train.min(0)
    constant = low == train.max(0)
    mean[constant] = low[constant]  # without the mean's rounding
    squares = sum(np.square(block - mean).sum(0) for block in _blocks(train))
    scale = np.sqrt(squares / len(train))
    scale[constant] = 1.0
    return Standardiser(mean, scale)


def _blocks(x: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield views of the rows: float64 is never needed of all of a large set at once."""
    return (x[i : i + _BLOCK] for i in range(0, len(x), _BLOCK))


def _tensors(name: str, transform: Transform, x: NDArray[Any], y: NDArray[np.int64]) -> Pair:
    inputs = np.ascontiguousarray(transform(x))
    finite = np.concatenate([np.isfinite(b).reshape(len(b), -1).all(1) for b in _blocks(inputs)])
    if not finite.all():
        first = int(finite.argmin())
        raise ValueError(
            f"{name} example {first} holds a number that is not finite: fill it or drop the example"
        )
    return torch.from_numpy(inputs), torch.from_numpy(y)
