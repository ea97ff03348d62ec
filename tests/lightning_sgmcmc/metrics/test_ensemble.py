"""The ensemble metric against direct averages."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lightning_sgmcmc.metrics import Normal, PosteriorEnsemble


def test_weighted_averages_over_draws_in_any_order_of_examples() -> None:
    rng = np.random.default_rng(0)
    draws = 1e4 + rng.standard_normal((7, 11, 3))
    nll = 50 + 30 * rng.standard_normal((7, 11))
    noise = rng.uniform(1, 2, (7, 11, 1))
    weights = rng.uniform(0.1, 2, 7)
    metric = PosteriorEnsemble(11, (3,), Normal, (1,))
    for f, loss, v, w in zip(*map(torch.from_numpy, (draws, nll, noise, weights)), strict=True):
        order = torch.from_numpy(rng.permutation(11))
        for part in order.split(4):
            metric.update(f[part], loss[part], part, float(w), v[part])
    result = metric.compute()
    share = weights / weights.sum()
    mean = np.einsum("k,kij->ij", share, draws)
    std = np.sqrt(np.einsum("k,kij->ij", share, (draws - mean) ** 2))
    np.testing.assert_allclose(result.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(result.epistemic_std, std, rtol=1e-6)
    assert result.noise is not None
    assert result.noise.shape == (11, 1)
    total = np.sqrt(std**2 + np.einsum("k,kij->ij", share, noise))
    np.testing.assert_allclose(result.std, total, rtol=1e-6)
    expected = -np.log(np.einsum("k,ki->i", share, np.exp(-(nll - nll.min(0)))))
    np.testing.assert_allclose(result.nll, expected + nll.min(0), rtol=1e-12)


def test_processes_join_to_the_whole() -> None:
    """Two processes with half the examples each, or with other draws, give what one gives."""
    rng = np.random.default_rng(1)
    f, nll = torch.from_numpy(rng.random((4, 6))), torch.from_numpy(rng.random((4, 6)))
    index = torch.arange(6)
    whole, by_example, by_draw = (
        PosteriorEnsemble(6, law=Normal, noise_shape=()),
        [PosteriorEnsemble(6, law=Normal, noise_shape=()) for _ in range(2)],
        [PosteriorEnsemble(6, law=Normal, noise_shape=()) for _ in range(2)],
    )
    for k in range(4):
        whole.update(f[k], nll[k], index, noise=f[k])
        by_draw[k % 2].update(f[k], nll[k], index, noise=f[k])
        for rank in range(2):
            part = index[rank::2]
            by_example[rank].update(f[k][part], nll[k][part], part, noise=f[k][part])
    for parts in (by_example, by_draw):
        joined = PosteriorEnsemble(6, law=Normal, noise_shape=())
        joined.update(f[0], nll[0], index)
        for name, reduction in joined._reductions.items():
            stacked = torch.stack([getattr(p, name) for p in parts])
            setattr(joined, name, reduction(stacked))
        a, b = whole.compute(), joined.compute()
        for name in ("mean", "epistemic_std", "std", "nll"):
            torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=1e-12, atol=1e-12)


def test_an_example_without_draws_is_an_error() -> None:
    metric = PosteriorEnsemble(3)
    metric.update(torch.ones(2), torch.ones(2), torch.tensor([0, 1]))
    with pytest.raises(RuntimeError, match="no draw for some examples"):
        metric.compute()
    with pytest.raises(ValueError, match="weight must be positive"):
        metric.update(torch.ones(2), torch.ones(2), torch.tensor([0, 1]), 0.0)


def test_deviations_far_from_zero() -> None:
    """As of Unix seconds: squares about 0 would leave nothing of a deviation of 1."""
    generator = torch.Generator().manual_seed(0)
    f = 1.7e9 + torch.randn(50, 4, 1, dtype=torch.float64, generator=generator)
    ensemble = PosteriorEnsemble(4, (1,), Normal, origin=f[0].mean(0))
    for draw in f:
        ensemble.update(draw, torch.zeros(4), torch.arange(4))
    found = ensemble.compute()
    torch.testing.assert_close(found.mean, f.mean(0), rtol=1e-15, atol=0)
    torch.testing.assert_close(found.epistemic_std, f.std(0, correction=0), rtol=1e-6, atol=0)
