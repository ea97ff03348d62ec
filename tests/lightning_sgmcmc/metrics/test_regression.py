"""Band metrics against the law that they assume, and CRPS against its integral."""

from __future__ import annotations

import numpy as np
import torch
from scipy import integrate, stats

from lightning_sgmcmc.metrics import band_metrics, gaussian_crps, relative_l2_error


def test_true_law_is_covered_as_stated() -> None:
    """4e5 independent entries: a coverage is off by 4 standard errors once in 16,000 runs."""
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=(400, 1000)), rng.uniform(0.1, 3, (400, 1000))
    truth = mean + std * rng.standard_normal((400, 1000))
    result = band_metrics(*(torch.from_numpy(a) for a in (truth, mean, std)))
    for level in (0.5, 0.9, 0.95):
        error = 4 * np.sqrt(level * (1 - level) / truth.size)
        assert abs(result[f"coverage_{100 * level:g}"] - level) < error
        low, high = (result[f"coverage_{100 * level:g}_output_{q}"] for q in ("p05", "p95"))
        quantiles = stats.binom(400, level).ppf([0.05, 0.95]) / 400
        np.testing.assert_allclose([low, high], quantiles, atol=0.006)
    np.testing.assert_allclose(result["width_90"], 2 * 1.6448536 * std.mean(), rtol=1e-7)


def test_crps_is_the_integral_of_the_squared_distance_of_distributions() -> None:
    for truth, mean, std in ((0.3, -0.2, 0.7), (5.0, 1.0, 0.5)):
        law = stats.norm(mean, std)
        left = integrate.quad(lambda t, law=law: law.cdf(t) ** 2, -30, truth)[0]
        right = integrate.quad(lambda t, law=law: (1 - law.cdf(t)) ** 2, truth, 30)[0]
        ours = gaussian_crps(*(torch.tensor(v, dtype=torch.float64) for v in (truth, mean, std)))
        np.testing.assert_allclose(float(ours), left + right, rtol=1e-7)


def test_relative_error_of_a_scaled_field_is_the_scale() -> None:
    truth = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(relative_l2_error(1.02 * truth, truth), torch.full((5,), 0.02))
    numbers = truth[:, 0, 0]
    torch.testing.assert_close(relative_l2_error(1.02 * numbers, numbers), torch.full((5,), 0.02))
