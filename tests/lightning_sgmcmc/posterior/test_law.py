"""The predictive law of stored draws, on a linear model whose predictive law is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from lightning_sgmcmc import Normal
from lightning_sgmcmc.posterior import DrawStore, Posterior
from lightning_sgmcmc.posterior.draws import Draw
from tests.device import DEVICE
from tests.toy import NOISE, Toy, exact_posterior, toy_data


class Stated(Toy):
    """The toy, which says how y is distributed."""

    def law(self, x: Tensor) -> Normal:
        return Normal(self(x).squeeze(-1), NOISE)


class Stored(DrawStore):
    """Draws [draws, features] in memory, of equal weights or others."""

    def __init__(self, weights: np.ndarray, shares: Sequence[float] = ()) -> None:
        super().__init__(Path())
        self.rows = torch.from_numpy(weights).float()
        shares = shares or [1.0] * len(weights)
        self.draws = [Draw(i, "", share) for i, share in enumerate(shares)]

    def load(self, draw: Draw) -> dict[str, Tensor]:
        return {"net.weight": self.rows[draw.step][None]}

    def load_constants(self) -> dict[str, Tensor]:
        return {}


@pytest.fixture(scope="module")
def exact() -> Posterior:
    """2,000 exact draws of the toy's posterior."""
    draws = np.random.default_rng(0).multivariate_normal(*exact_posterior(), size=2000)
    return Posterior(Stated(), [Stored(draws)])


def test_moments_and_density_of_the_conjugate_model(exact: Posterior) -> None:
    """y ~ N(m'x, NOISE^2 + x'Sx): 5 standard errors of 2,000 draws, at 10 inputs."""
    x, y = toy_data(3, 10)
    mean, covariance = exact_posterior()
    inputs = x.double().numpy()
    location = inputs @ mean
    of_weights = np.sqrt(np.einsum("bi,ij,bj->b", inputs, covariance, inputs))
    scale = np.sqrt(NOISE**2 + of_weights**2)
    found = exact.predict(x)
    assert (np.abs(found.mean.numpy() - location) < 5 * of_weights / np.sqrt(2000)).all()
    np.testing.assert_allclose(found.epistemic_std, of_weights, rtol=5 / np.sqrt(4000))
    np.testing.assert_allclose(found.std, scale, rtol=0.01)
    for probability in (0.5, 0.9):
        ends = stats.norm(location, scale).interval(probability)
        np.testing.assert_allclose(torch.stack(found.interval(probability)), ends, atol=0.02)
    density = found.log_density(y)
    np.testing.assert_allclose(density, stats.norm(location, scale).logpdf(y), atol=0.03)
    torch.testing.assert_close(density, -exact.predictive((x, y)).nll, rtol=1e-6, atol=1e-6)


def test_samples_are_of_the_joint_law(exact: Posterior) -> None:
    """One draw of the weights serves all inputs: y ~ N(m'x, NOISE^2 I + X S X'), jointly."""
    x, _ = toy_data(3, 10)
    x[5:] *= 5
    mean, covariance = exact_posterior()
    inputs = x.double().numpy()
    samples = (
        exact.predict(x).sample(4000, torch.Generator(DEVICE).manual_seed(0)).double().cpu().numpy()
    )
    assert samples.shape == (4000, 10)
    joint = inputs @ covariance @ inputs.T + NOISE**2 * np.eye(10)
    white = np.linalg.solve(np.linalg.cholesky(joint), (samples - inputs @ mean).T)
    # Ten tests at 1e-4; and 4,000 samples' covariance, 55 entries within 5 standard errors, to
    # which the 2,000 draws add.
    assert min(stats.kstest(row, "norm").pvalue for row in white) > 1e-4
    error = np.abs(np.cov(white) - np.eye(10))
    assert error.max() < 5 * np.sqrt(2 * (1 / 4000 + 1 / 2000))


def test_samples_are_of_the_mixture_and_not_of_its_moments() -> None:
    """Two draws far apart, one with three times the other's weight."""
    stored = Stored(np.array([[-4.0, 0, 0], [4.0, 0, 0]]), [3.0, 1.0])
    found = Posterior(Stated(), [stored]).predict(torch.eye(3)[:1])
    samples = found.sample(2000, torch.Generator(DEVICE).manual_seed(1)).cpu().numpy()[:, 0]

    def cdf(y: np.ndarray) -> np.ndarray:
        low, high = (stats.norm(m, NOISE).cdf(y) for m in (-4, 4))
        return np.asarray(0.75 * low + 0.25 * high)

    assert stats.kstest(samples, cdf).pvalue > 1e-4
    y = np.array([-4.2])
    density = 0.75 * stats.norm(-4, NOISE).pdf(y) + 0.25 * stats.norm(4, NOISE).pdf(y)
    np.testing.assert_allclose(
        found.log_density(torch.from_numpy(y).float()), np.log(density), rtol=1e-5
    )
    assert float(found.std) == pytest.approx(np.sqrt(NOISE**2 + 0.75 * 0.25 * 64))
    order = samples[: len(samples) // 2] > 0  # samples come in no order of the draws
    assert 0.2 < order.mean() < 0.3


def test_memory_does_not_change_what_is_predicted(exact: Posterior) -> None:
    x, y = toy_data(3, 500)
    whole, tiled = exact.predict(x), exact.predict(x, memory="20 KiB")
    torch.testing.assert_close(whole.std, tiled.std, rtol=1e-5, atol=0)
    torch.testing.assert_close(whole.log_density(y), tiled.log_density(y), rtol=1e-5, atol=1e-5)
    assert tiled.sample(3).shape == (3, 500)


def test_a_task_without_a_law_predicts_moments_of_its_mean() -> None:
    draws = np.random.default_rng(0).multivariate_normal(*exact_posterior(), size=5)
    found = Posterior(Toy(), [Stored(draws)]).predict(toy_data(3, 10)[0])
    outputs = toy_data(3, 10)[0].double().numpy() @ draws.T
    np.testing.assert_allclose(found.mean, outputs.mean(1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.epistemic_std, outputs.std(1), rtol=1e-4)
    with pytest.raises(TypeError, match=r"let it define law\(x\)"):
        found.interval(0.9)
    with pytest.raises(TypeError, match=r"let it define law\(x\)"):
        found.sample(2)
    assert found.log_density(toy_data(3, 10)[1]).shape == (10,)  # nll has it


def test_a_number_of_samples_is_positive(exact: Posterior) -> None:
    with pytest.raises(ValueError, match="num must be positive, got 0"):
        exact.predict(torch.eye(3)).sample(0)
