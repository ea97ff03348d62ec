"""The sets of classes that come with scikit-learn, and what its own classifiers find on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris, load_wine  # type: ignore[import-untyped]
from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
from sklearn.metrics import log_loss  # type: ignore[import-untyped]
from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped]

from tasks.data.class_table import ClassTableData
from tasks.experiments.class_tables import compute


def test_a_set_by_name_is_the_whole_of_it() -> None:
    data = ClassTableData(name="iris", standardise=False, num_val=30)
    data.setup()
    assert data.class_names == ("setosa", "versicolor", "virginica")
    assert next(iter(data.inputs["columns"])) == "sepal length (cm)"
    rows = [
        (*row, label)
        for name in ("train", "val", "test")
        for row, label in zip(*(t.tolist() for t in data.tensors(name)), strict=True)  # type: ignore[arg-type]
    ]
    iris = load_iris()
    x = iris.data.astype(np.float32).tolist()
    assert sorted(rows) == sorted((*row, k) for row, k in zip(x, iris.target.tolist(), strict=True))


def test_what_does_not_say_which_data() -> None:
    for given in ({}, {"file": "a.csv", "name": "iris"}):
        with pytest.raises(ValueError, match=r"either data\.file=TABLE\.csv, or data\.name="):
            ClassTableData(**given)
    with pytest.raises(ValueError, match="unknown data set 'wines': choose among iris, wine, "):
        ClassTableData(name="wines")


def test_the_rival_is_scikit_learn_s_on_the_rows_of_the_run(tmp_path: Path) -> None:
    """Found again by the rows' own values; the scale is that of the training rows."""
    data = ClassTableData(name="wine", split_seed=3, num_val=0.1, standardise=False)
    data.setup()
    wine = load_wine()
    places = {tuple(row): i for i, row in enumerate(wine.data.astype(np.float32).tolist())}
    train, test = (
        [places[tuple(row)] for row in data.tensors(name)[0].tolist()] for name in ("train", "test")
    )
    scale = StandardScaler().fit(wine.data[train])
    fitted = LogisticRegression(max_iter=10_000).fit(
        scale.transform(wine.data[train]), wine.target[train]
    )
    p = fitted.predict_proba(scale.transform(wine.data[test]))
    found = compute("wine", 3, tmp_path)["metrics"]["logistic"]
    assert found["nll"] == pytest.approx(log_loss(wine.target[test], p), rel=1e-3)
    assert found["error_percent"] == pytest.approx(100 * (p.argmax(1) != wine.target[test]).mean())
