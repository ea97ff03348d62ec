"""Data of pde_perm, and the regressions that its networks stand beside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tasks.data.pde_perm import PDEPermData
from tasks.experiments import table2
from tasks.surrogates import Regression, relative_errors

SMALL = {"grid": 8, "num_samples": 90, "num_test": 20, "num_val": 15, "terms": 6}


def opened(root: Path, **options: object) -> PDEPermData:
    data = PDEPermData(root=str(root), **(SMALL | options))
    data.prepare_data()
    data.setup()
    return data


def test_splits_part_the_samples(tmp_path: Path) -> None:
    data = opened(tmp_path)
    sizes = {name: len(data.arrays(name)[0]) for name in ("train", "val", "test")}
    assert sizes == {"train": 55, "val": 15, "test": 20}
    fields = np.concatenate([data.arrays(name)[0] for name in ("train", "val", "test")])
    np.testing.assert_array_equal(fields, data.data.permeability)
    x, y = next(iter(data.test_dataloader()))
    assert torch.equal(x.double(), torch.from_numpy(fields[-20:]).float().double())
    assert y.shape == (20, data.data.grid.num_edges)
    assert PDEPermData(**(SMALL | {"num_val": 0})).val_dataloader() == []


def test_the_set_is_that_of_the_paper(tmp_path: Path) -> None:
    data = opened(tmp_path)
    grid = data.data.grid
    velocity = np.asarray(data.data.velocity)
    assert np.abs(grid.divergence(velocity) - 1).max() < 1e-12
    assert not velocity[:, grid.boundary_edges("top")].any()
    assert data.spec.mean == 6.0
    assert PDEPermData(kind="lognormal").spec.mean == 0.0
    names = {PDEPermData(**{k: v}).path for k, v in (("terms", 32), ("seed", 1), ("mean", 5.0))}
    assert len(names | {PDEPermData().path}) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [({"num_test": 90}, "num_test must leave"), ({"num_val": 70}, "num_val must leave")],
)
def test_splits_that_leave_nothing_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PDEPermData(**(SMALL | options))


def test_regression_finds_what_is_quadratic() -> None:
    """Exact where the map has the features' form, and the noise's size where it does not."""
    rng = np.random.default_rng(0)
    xi = rng.standard_normal((200, 5))
    features = np.column_stack([np.ones(200), xi, xi[:, 0] ** 2, xi[:, 0] * xi[:, 1]])
    clean = features @ rng.standard_normal((8, 30))
    exact = Regression.fit(xi, clean, quadratic=2)
    fresh = rng.standard_normal((50, 5))
    np.testing.assert_allclose(exact.predict(xi), clean, atol=1e-11)
    assert exact.predict(fresh).shape == (50, 30)
    assert relative_errors(Regression.fit(xi, clean).predict(xi), clean).mean() > 0.05
    noisy = Regression.fit(xi, clean + 0.1 * rng.standard_normal(clean.shape), quadratic=2)
    # The mean of 30 independent variances of 191 degrees of freedom, to five standard errors.
    assert np.mean(noisy.std**2) == pytest.approx(0.01, rel=5 * np.sqrt(2 / (191 * 30)))


def test_regressions_that_cannot_be_fitted_are_refused() -> None:
    xi, velocity = np.ones((10, 4)), np.ones((10, 2))
    with pytest.raises(ValueError, match="quadratic must lie between 0 and 4"):
        Regression.fit(xi, velocity, quadratic=5)
    with pytest.raises(ValueError, match="15 features need more than 15 samples, got 10"):
        Regression.fit(xi, velocity, quadratic=4)


def test_references_are_measured_on_the_test_fields(tmp_path: Path) -> None:
    found = table2.references(tmp_path, "additive", root=str(tmp_path), **SMALL)
    rows, data = found["rows"], opened(tmp_path)
    everything = np.concatenate([data.coefficients("train"), data.coefficients("val")])
    velocity = np.concatenate([data.arrays("train")[1], data.arrays("val")[1]])
    truth = data.arrays("test")[1]
    mean = relative_errors(velocity.mean(0), truth)
    assert rows["mean field"]["relative_l2_mean_percent"] == pytest.approx(100 * mean.mean())
    ones = np.ones((len(everything), 1))
    weights = np.linalg.pinv(np.concatenate([ones, everything], 1)) @ velocity
    test = np.concatenate([ones[:20], data.coefficients("test")], 1)
    linear = relative_errors(test @ weights, truth)
    row = rows["linear regression"]
    assert row["relative_l2_mean_percent"] == pytest.approx(100 * linear.mean(), rel=1e-6)
    assert row["relative_l2_mean_percent"] < rows["mean field"]["relative_l2_mean_percent"] / 2
    tried = found["errors_held_out_percent"]
    assert tried[str(found["quadratic"])] == min(tried.values())
    for row in rows.values():  # affine combinations of flows that balance
        assert row["imbalance"] < 1e-12
    text = table2.render({"references-additive-64": found}, False)
    assert "| additive | 64 | linear regression | " in text
