"""The experiment of Ahn et al. on 7 against 9: its data file and its chains on a small problem."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest

from lightning_sgmcmc.chain import Sampling
from tasks.data.mnist import read_idx
from tasks.experiments.sgfs import mnist79, step_sizes
from tasks.laplace import laplace


def test_idx_files() -> None:
    content = b"\0\0\x08\x03" + struct.pack(">3I", 2, 3, 1) + bytes(range(6))
    np.testing.assert_array_equal(read_idx(content), np.arange(6).reshape(2, 3, 1))
    with pytest.raises(ValueError, match="not an IDX file of unsigned bytes"):
        read_idx(b"\0\0\x0d\x01" + content[4:])


def test_pairs_of_weights_that_agree_best_and_worst() -> None:
    reference = np.diag([1.0, 1.0, 1.0, 1.0])
    found = np.diag([1.0, 1.1, 1.0, 2.0])
    assert step_sizes.pair_extremes(found, reference) == [(2, 0), (3, 1)]


def test_errors_at_a_budget() -> None:
    errors = [{"seconds": s, "e1": s, "e2": 0.0} for s in (0.1, 0.2, 0.3)]
    assert step_sizes.at_budget(errors, 0.25) == errors[1]
    assert step_sizes.at_budget(errors, 0.4) is None
    assert step_sizes.at_budget([], 0.1) is None


@pytest.mark.parametrize(
    ("sampling", "low", "high"), [("independent", 0.8, 1.25), ("reshuffled", 0.2, 0.6)]
)
def test_chains_of_the_largest_step(
    monkeypatch: pytest.MonkeyPatch, sampling: Sampling, low: float, high: float
) -> None:
    """SGFS-f has the posterior's variances with independent minibatches only.

    16 chains of 600 draws with autocorrelation time 8 leave a standard error of 4 percent; the
    bounds are five of them.
    """
    monkeypatch.setattr(mnist79, "BATCH", 100)
    monkeypatch.setattr(mnist79, "N", 800)
    monkeypatch.setattr(mnist79, "BURN_IN", 60)
    rng = np.random.default_rng(0)
    x = np.hstack([rng.standard_normal((800, 2)), np.ones((800, 1))])
    y = (rng.random(800) < 1 / (1 + np.exp(-x @ np.array([1.0, -0.5, 0.3])))).astype(float)
    monkeypatch.setattr(mnist79, "CHAINS", 16)
    monkeypatch.setattr(mnist79, "DRAWS", 600)
    exact = laplace(x, y, 1.0)
    method = replace(mnist79.METHODS["sgfs_full"], sampling=sampling)
    draws, seconds = mnist79.chains(method, x, y, 0.0)
    assert draws.shape == (16, 600, 3)
    ratios = draws.reshape(-1, 3).var(0) / np.diag(exact.covariance)
    assert low < ratios.min() <= ratios.max() < high
    errors = step_sizes.errors_in_time(draws, seconds, exact._asdict(), 200)
    assert [e["seconds"] for e in errors] == pytest.approx([seconds * k / 48 for k in (1, 2, 3)])
