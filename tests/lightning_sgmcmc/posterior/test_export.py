"""Draws as ArviZ data: what was written to disk is what comes out, in ArviZ's convention."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_sgmcmc.posterior import DrawStore, Posterior, open_stores, probe, to_arviz
from tests.toy import Toy, toy_data

CHAINS, DRAWS = 2, 5


def weight(chain: int, draw: int) -> Tensor:
    return torch.tensor([[1.0 + chain, 0.1 * draw, -(2.0**draw)]])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with draws of a linear net, written by hand."""
    for chain in range(CHAINS):
        store = DrawStore(tmp_path / "samples", chain)
        store.save_constants({})
        for draw in range(DRAWS):
            store.save(
                100 + 10 * draw, {"net.weight": weight(chain, draw)}, weight=1.0 / (1 + draw)
            )
    return tmp_path


def test_draws_come_out_by_name_chain_and_draw(run: Path) -> None:
    pytest.importorskip("arviz_base")
    data = to_arviz(run)
    values = data["posterior"]["net.weight"]
    assert values.dims[:2] == ("chain", "draw")
    assert values.shape == (CHAINS, DRAWS, 1, 3)
    for chain in range(CHAINS):
        for draw in range(DRAWS):
            expected = weight(chain, draw).double().numpy()
            np.testing.assert_array_equal(values.sel(chain=chain, draw=draw), expected)
    np.testing.assert_array_equal(data["sample_stats"]["step"][1], 100 + 10 * np.arange(DRAWS))
    np.testing.assert_allclose(data["sample_stats"]["weight"][0], 1 / np.arange(1, DRAWS + 1))


def test_a_posterior_gives_the_same_with_its_predictions(run: Path) -> None:
    pytest.importorskip("arviz_base")
    posterior = Posterior(Toy(), open_stores(run))
    x, y = toy_data()
    predictions, log_likelihood = probe(posterior, (x, y))
    for chain in range(CHAINS):
        for draw in range(DRAWS):
            mean = (x.double() @ weight(chain, draw).double()[0]).numpy()
            np.testing.assert_allclose(predictions[chain, draw], mean, rtol=1e-4, atol=1e-4)
            normal = -0.5 * ((y.numpy() - mean) / 0.5) ** 2 - np.log(0.5 * np.sqrt(2 * np.pi))
            np.testing.assert_allclose(log_likelihood[chain, draw], normal, rtol=1e-4, atol=1e-4)
    data = to_arviz(posterior, log_likelihood=log_likelihood, predictions=predictions)
    np.testing.assert_array_equal(
        data["posterior"]["net.weight"], to_arviz(run)["posterior"]["net.weight"]
    )
    np.testing.assert_array_equal(data["log_likelihood"]["y"], log_likelihood)
    np.testing.assert_array_equal(data["posterior_predictive"]["y"], predictions)


def test_without_the_extra_the_error_names_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arviz_base", None)
    with pytest.raises(ImportError, match=r'pip install "lightning-sgmcmc\[arviz\]"'):
        to_arviz(run)


def test_chains_of_different_lengths(run: Path) -> None:
    pytest.importorskip("arviz_base")
    DrawStore.open(run / "samples", 1).rewind(DrawStore.open(run / "samples", 1).draws[:3])
    with pytest.raises(ValueError, match=r"have \[5, 3\] draws: give draws=3"):
        to_arviz(run)
    assert to_arviz(run, draws=3)["posterior"]["net.weight"].shape == (CHAINS, 3, 1, 3)
    with pytest.raises(ValueError, match="between 1 and 3, got 4"):
        to_arviz(run, draws=4)
    with pytest.raises(ValueError, match="give draws=3"):
        probe(Posterior(Toy(), open_stores(run)), toy_data())


def test_bad_input_is_one_line(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("arviz_base")
    with pytest.raises(
        ValueError, match=r"posterior_predictive is .*= \[2, 5, ...\], got shape \(5, 2, 4\)"
    ):
        to_arviz(run, predictions=np.zeros((5, 2, 4)))
    with pytest.raises(FileNotFoundError, match="holds no draws"):
        open_stores(tmp_path / "nothing")
