"""The ensemble metric against direct averages."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lightning_sgmcmc.metrics import PosteriorEnsemble


def test_weighted_averages_over_draws_in_any_order_of_examples() -> None:
    rng = np.random.default_rng(0)
    draws = 1e4 + rng.standard_normal((7, 11, 3))
    nll = 50 + 30 * rng.standard_normal((7, 11))
    weights = rng.uniform(0.1, 2, 7)
    metric = PosteriorEnsemble(11, (3,))
    for f, loss, w in zip(draws, nll, weights, strict=True):
        order = torch.from_numpy(rng.permutation(11))
        for part in order.split(4):
            metric.update(torch.from_numpy(f)[part], torch.from_numpy(loss)[part], part, float(w))
    result = metric.compute()
    share = weights / weights.sum()
    mean = np.einsum("k,kij->ij", share, draws)
    std = np.sqrt(np.einsum("k,kij->ij", share, (draws - mean) ** 2))
    np.testing.assert_allclose(result.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(result.std, std, rtol=1e-6)
    expected = -np.log(np.einsum("k,ki->i", share, np.exp(-(nll - nll.min(0)))))
    np.testing.assert_allclose(result.nll, expected + nll.min(0), rtol=1e-12)


def test_processes_join_to_the_whole() -> None:
    """Two processes with half the examples each, or with other draws, give what one gives."""
    rng = np.random.default_rng(1)
    f, nll = torch.from_numpy(rng.random((4, 6))), torch.from_numpy(rng.random((4, 6)))
    index = torch.arange(6)
    whole, by_example, by_draw = (
        PosteriorEnsemble(6),
        [PosteriorEnsemble(6) for _ in range(2)],
        [PosteriorEnsemble(6) for _ in range(2)],
    )
    for k in range(4):
        whole.update(f[k], nll[k], index)
        by_draw[k % 2].update(f[k], nll[k], index)
        for rank in range(2):
            by_example[rank].update(f[k][rank::2], nll[k][rank::2], index[rank::2])
    for parts in (by_example, by_draw):
        joined = PosteriorEnsemble(6)
        joined.update(f[0], nll[0], index)
        for name, reduction in joined._reductions.items():
            stacked = torch.stack([getattr(p, name) for p in parts])
            setattr(joined, name, reduction(stacked))
        for a, b in zip(whole.compute(), joined.compute(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_an_example_without_draws_is_an_error() -> None:
    metric = PosteriorEnsemble(3)
    metric.update(torch.ones(2), torch.ones(2), torch.tensor([0, 1]))
    with pytest.raises(RuntimeError, match="no draw for some examples"):
        metric.compute()
    with pytest.raises(ValueError, match="weight must be positive"):
        metric.update(torch.ones(2), torch.ones(2), torch.tensor([0, 1]), 0.0)
