"""Labelled data: what is split how, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tasks.data.classes import ClassData, Examples, Transform, standardiser
from tasks.data.images import random_projection


class Numbered(ClassData):
    """Example i is the number i, of class i mod 3, so that a test sees where it went."""

    num_classes = 3

    def __init__(
        self, count: int = 100, test: Examples | None = None, other: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.x: NDArray[Any] = np.arange(count)[:, None].astype(float)
        self.y: NDArray[Any] = np.arange(count) % 3
        self.test, self.other = test, other

    def examples(self) -> tuple[Examples, Examples | None]:
        return (self.x, self.y), self.test

    def extras(self, test: Examples | None) -> dict[str, Examples]:
        return {"ood": self.other} if self.other is not None else {}


def made(**kwargs: Any) -> Numbered:
    data = Numbered(**kwargs)
    data.setup()
    return data


def members(data: ClassData, name: Any) -> list[int]:
    x, y = data.tensors(name)
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    numbers = x[:, 0].long()
    assert torch.equal(numbers % 3, y)  # labels stay with their examples
    return numbers.tolist()


@pytest.mark.parametrize(("val", "test"), [(20, 10), (0.2, 0.1)])
def test_splits_are_disjoint_and_leave_nothing_out(val: float, test: float) -> None:
    data = made(num_val=val, num_test=test)
    parts = [members(data, name) for name in ("train", "val", "test")]
    assert [len(part) for part in parts] == [70, 20, 10]
    assert sorted(n for part in parts for n in part) == list(range(100))
    again = made(num_val=val, num_test=test)
    assert [members(again, name) for name in ("train", "val", "test")] == parts
    other = made(num_val=val, num_test=test, split_seed=1)
    assert members(other, "test") != parts[2]


def test_one_is_a_count() -> None:
    data = made(num_val=1, num_test=1)
    assert [len(members(data, name)) for name in ("train", "val", "test")] == [98, 1, 1]


@pytest.mark.filterwarnings("ignore:no training example of class")
def test_test_examples_are_the_same_whatever_else_is_held_out() -> None:
    expected = members(made(num_test=10), "test")
    for options in ({"num_val": 5}, {"num_val": 0.3}, {"num_val": 80}, {"num_train": 7}):
        assert members(made(num_test=10, **options), "test") == expected
    assert members(made(num_test=10, num_val=20, val_from="last"), "test") == expected
    assert len(members(made(num_test=95, num_val=2), "test")) == 95


def test_the_last_examples_can_be_for_validation() -> None:
    data = made(num_val=10, val_from="last", num_train=30)
    assert members(data, "val") == list(range(90, 100))
    assert len(members(data, "train")) == 30
    assert max(members(data, "train")) < 90


@pytest.mark.parametrize("val_from", ["random", "last"])
def test_fewer_training_examples_are_a_subset_and_leave_held_out_sets_alone(val_from: Any) -> None:
    few, more, whole = (
        made(num_val=10, num_test=10, num_train=n, val_from=val_from) for n in (20, 40, None)
    )
    assert set(members(few, "train")) < set(members(more, "train")) < set(members(whole, "train"))
    assert len(members(more, "train")) == 40
    assert members(few, "test") == members(whole, "test")
    assert members(few, "val") == members(whole, "val")
    # Neither the head nor the tail of a file that may be sorted.
    assert min(members(few, "train")) < 30
    assert max(members(few, "train")) > 60


def test_loaders() -> None:
    test = (np.arange(7)[:, None] * 1.0, np.arange(7) % 3)
    data = made(test=test, num_val=5, eval_batch_size=3, batch_size=8, sampling="independent")
    batches = [x[:, 0].tolist() for x, _ in data.test_dataloader()]
    assert batches == [[0, 1, 2], [3, 4, 5], [6]]
    assert [len(y) for _, y in data.val_dataloader()] == [3, 2]
    stream = data.train_dataloader()
    assert (stream.num_data, stream.batch_size, stream.sampling) == (95, 8, "independent")
    assert data.input_shape == (1,)
    assert data.extra_dataloaders() == {}
    plain = made()
    assert (plain.val_dataloader(), plain.test_dataloader()) == ([], [])
    with pytest.raises(KeyError, match="no split 'test': there are train"):
        plain.tensors("test")
    with pytest.raises(RuntimeError, match="call prepare_data"):
        Numbered().tensors("train")
    with pytest.raises(ValueError, match="batch_size must lie between 1 and the 100 examples"):
        made(batch_size=101).train_dataloader()


def test_what_makes_inputs_sees_the_training_split_alone_and_is_applied_to_all() -> None:
    class Shifted(Numbered):
        def transform(self, train: NDArray[Any]) -> Transform:
            least = train.min()
            return lambda x: (x - least).astype(np.float32)

    test = (np.full((1, 1), 500.0), np.array([2]))
    data = Shifted(test=test, other=test, num_val=50)
    first = min(set(range(100)) - set(members(made(num_val=50), "val")))
    data.setup()
    assert data.tensors("train")[0].min() == 0
    ((seen, label),) = data.extra_dataloaders()["ood"]
    assert (seen.item(), label.item()) == (500 - first, 2)
    assert data.tensors("test")[0].item() == 500 - first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_val": -1}, "num_val is a count, or a fraction below 1, got -1"),
        ({"num_test": 1.5}, "num_test is a count, or a fraction below 1, got 1.5"),
        ({"num_train": 0}, "num_train must be positive, got 0"),
        ({"eval_batch_size": 0}, "eval_batch_size must be positive, got 0"),
        ({"val_from": "first"}, "val_from must be random or last, got 'first'"),
    ],
)
def test_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Numbered(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_val": 100}, "num_val = 100 leave none of the 100 training"),
        ({"num_val": 0.5, "num_test": 0.5}, "num_val = 0.5 and num_test = 0.5 leave none"),
        ({"num_val": 10, "num_train": 91}, "num_train = 91, but 90 of 100"),
        (
            {"num_test": 3, "test": (np.zeros((1, 1)), np.zeros(1, int))},
            "num_test = 3, but the data have a test set",
        ),
    ],
)
def test_splits_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(**options)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 3, 5], "example 2 has label 3: labels are integers from 0 to 2"),
        ([0, -1, 2, 2], "example 1 has label -1: labels are integers from 0 to 2"),
        ([0.0, 1.0, 1.5, 9.0], "example 2 has label 1.5"),
        ([0.0, np.nan, 1.0, 1.0], "example 1 has label nan"),
        (["a", "b", "a", "b"], "labels are one integer an example, got <U1"),
        ([[0], [1], [2], [0]], r"labels are one integer an example, got int64 of shape \(4, 1\)"),
        ([0, 1, 2], "4 examples and 3 labels"),
    ],
)
@pytest.mark.parametrize("name", ["training", "test", "ood"])
def test_labels(labels: Any, message: str, name: str) -> None:
    wrong = (np.zeros((4, 1)), np.array(labels))
    data = Numbered()
    if name == "training":
        data.x, data.y = wrong
    elif name == "test":
        data.test = wrong
    else:
        data.other = wrong
    with pytest.raises(ValueError, match=f"^{name}.*{message}"):
        data.setup()


def test_labels_may_be_whole_numbers_of_any_type() -> None:
    data = Numbered()
    data.y = (np.arange(100) % 3).astype(float)
    data.test = (np.zeros((3, 1)), np.array([2, 1, 0], np.uint8))
    data.setup()
    assert members(data, "train") == list(range(100))
    assert data.tensors("test")[1].tolist() == [2, 1, 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_inputs_that_are_not_finite(bad: float) -> None:
    data = Numbered(count=20_005)
    data.x[20_003] = bad  # beyond the first block of the check
    with pytest.raises(ValueError, match="train example 20003 holds a number that is not finite"):
        data.setup()


def test_shapes_differ() -> None:
    with pytest.raises(ValueError, match=r"test examples are of shape \(2,\), training .* \(1,\)"):
        made(test=(np.zeros((3, 2)), np.zeros(3, int)))


def test_a_class_that_training_never_saw_is_named() -> None:
    test = (np.zeros((5, 1)), np.array([3, 3, 4, 0, 4]))
    data = Numbered(test=test)
    data.num_classes, data.class_names = 6, tuple("abcdef")
    message = r"no training example of class 3 \(d\): 2 in test; class 4 \(e\): 2 in test$"
    with pytest.warns(UserWarning, match=message):
        data.setup()
    quiet = Numbered()
    quiet.num_classes = 6  # classes that are nowhere are no matter
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet.setup()


def test_standardised_features() -> None:
    rng = np.random.default_rng(0)
    train = rng.normal(3, 2, (25_000, 3)).astype(np.float32)  # more than one block
    train[:, 1] = 0.1
    apply = standardiser(train)
    x = apply(train).astype(float)
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(x.std(0), [1, 0, 1], atol=1e-6)
    exact = (train[:5].astype(float) - train.astype(float).mean(0))[:, [0, 2]]
    exact /= train.astype(float).std(0)[[0, 2]]
    np.testing.assert_allclose(apply(train[:5])[:, [0, 2]], exact, rtol=1e-5)
    # A constant feature is shifted to exactly 0, and only shifted.
    assert (x[:, 1] == 0).all()
    np.testing.assert_allclose(apply(train[:1] + 2.0)[0, 1], 2.0, rtol=1e-6)


def test_a_random_projection_keeps_the_geometry() -> None:
    """Before standardisation, distances over sqrt(D / d) are kept (Johnson and Lindenstrauss).

    Undoing it by a least-squares fit of the projected on the original features gives R: its
    entries have mean 0 and variance 1 / D. 60 * 40 entries; bounds of five standard errors.
    """
    rng = np.random.default_rng(1)
    train = rng.standard_normal((300, 60)).astype(np.float32)
    apply = random_projection(train, 40, seed=3)
    projected = apply(train).astype(float)
    np.testing.assert_allclose(projected.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(projected.std(0), 1, atol=1e-5)
    design = np.hstack([train.astype(float), np.ones((300, 1))])
    fitted, residual, _, _ = np.linalg.lstsq(design, projected, rcond=None)
    assert residual.max() < 1e-7  # it is linear
    # Columns were divided by their standard deviation |R_j| (x has variance near 1).
    spread = np.linalg.norm(fitted[:-1], axis=0)
    entries = (fitted[:-1] / spread * np.sqrt(60)).ravel()
    assert abs(entries.mean()) < 5 / np.sqrt(entries.size)
    assert abs((entries**4).mean() - 3 * 60 / 62) < 5 * np.sqrt(96 / entries.size)  # Gaussian
    assert not np.allclose(projected, random_projection(train, 40, seed=4)(train))
    for d in (0, 61):
        with pytest.raises(ValueError, match=f"must lie between 1 and 60, got {d}"):
            random_projection(train, d, 0)
