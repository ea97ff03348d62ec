"""Laws against scipy's, and mixtures of them against quadrature."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor
from torch.func import vmap

from lightning_sgmcmc.metrics import Bernoulli, Categorical, Law, Moments, Normal, Unstated
from tests.device import DEVICE

ROOT = Path(__file__).resolve().parents[3]
X = torch.linspace(-2, 2, 5, dtype=torch.float64)


def generator(device: torch.device | str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(0)


@pytest.mark.parametrize("shape", [(5,), (5, 1), (5, 3)])
def test_normal_density(shape: tuple[int, ...]) -> None:
    mean = torch.randn(shape, generator=generator(), dtype=torch.float64)
    std = X.reshape(5, *[1] * (len(shape) - 1)).exp()
    y = mean + 0.3
    expected = stats.norm(mean, std).logpdf(y).reshape(5, -1).sum(1)
    np.testing.assert_allclose(Normal(mean, std).log_density(y), expected, rtol=1e-12)
    one = stats.norm(mean, 0.7).logpdf(y).reshape(5, -1).sum(1)
    np.testing.assert_allclose(Normal(mean, 0.7).log_density(y), one, rtol=1e-12)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 1), (1, 3), (5, 1), (5, 3)])
def test_a_deviation_has_one_row_per_example(shape: tuple[int, ...]) -> None:
    std = torch.rand(shape, generator=generator()) + 0.5
    mean, y = torch.randn(2, 5, 3, generator=generator())
    law = Normal(mean, std)
    assert law.noise is not None
    assert len(law.noise) == 5
    expected = stats.norm.logpdf(y, mean, std.expand(5, 3)).sum(1)
    np.testing.assert_allclose(law.log_density(y), expected, rtol=1e-5)
    np.testing.assert_allclose(law.noise.expand(5, 3), std.expand(5, 3) ** 2)


@pytest.mark.parametrize("shape", [(2,), (5,), (2, 3), (5, 3, 1)])
def test_a_deviation_that_does_not_broadcast_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=re.escape(f"std of shape {list(shape)} is no deviation")):
        Normal(torch.zeros(5, 3), torch.ones(shape))


def test_targets_do_not_broadcast() -> None:
    with pytest.raises(ValueError, match=r"targets have shape \[5\], .* law \[5, 1\]"):
        Normal(X[:, None], 1).log_density(X)


def test_densities_of_labels() -> None:
    logits = torch.randn(5, 3, generator=generator(), dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 0, 1])
    p = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(1, keepdims=True)
    law = Categorical(logits)
    np.testing.assert_allclose(law.mean, p, rtol=1e-12)
    expected = [
        stats.multinomial(1, q).logpmf(np.eye(3)[c]) for q, c in zip(p, labels, strict=True)
    ]
    np.testing.assert_allclose(law.log_density(labels), expected, rtol=1e-12)
    coin, y = Bernoulli(X), torch.tensor([0.0, 1, 1, 0, 1]).double()
    np.testing.assert_allclose(coin.log_density(y), stats.bernoulli(coin.mean).logpmf(y), rtol=1e-9)


@pytest.mark.parametrize(
    "law", [Normal(X, X.exp()), Bernoulli(X), Categorical(torch.stack([X, -X, 0 * X], 1))]
)
def test_samples_have_the_laws_moments(law: Law) -> None:
    """Means over 4,000 samples; at most 15 of them, beyond 4.5 deviations once in 10,000."""
    g = generator(DEVICE)
    samples = torch.stack([law.sample(g) for _ in range(4_000)]).double()
    if isinstance(law, Categorical):
        samples = torch.nn.functional.one_hot(samples.long(), 3).double()
    variance = law.variance(law.mean, torch.zeros_like(law.mean), law.noise)
    assert float(((samples.mean(0) - law.mean) / (variance / 4_000).sqrt()).abs().max()) < 4.5
    fourth = ((samples - law.mean) ** 4).mean(0)
    error = ((fourth - variance**2) / 4_000).sqrt() + 1 / 4_000
    assert float(((samples.var(0) - variance) / error).abs().max()) < 4.5


def test_moments_of_a_mixture_of_normals() -> None:
    """By quadrature over the mixture's density."""
    q, m, s = np.array([0.2, 0.5, 0.3]), np.array([-1.0, 0.5, 2.0]), np.array([0.3, 1.0, 0.1])

    def moment(order: int, centre: float) -> float:
        parts = [
            w
            * integrate.quad(
                lambda y, n=n: (y - centre) ** order * n.pdf(y), *n.interval(1 - 1e-14)
            )[0]
            for w, n in zip(q, map(stats.norm, m, s), strict=True)
        ]
        return float(sum(parts))

    mean = moment(1, 0.0)
    of_weights = np.sqrt(q @ (m - q @ m) ** 2)
    values = (torch.tensor([v], dtype=torch.float64) for v in (q @ m, of_weights, q @ s**2))
    found = Moments(Normal, *values)
    assert float(found.mean) == pytest.approx(mean, rel=1e-10)
    assert float(found.std) == pytest.approx(np.sqrt(moment(2, mean)), rel=1e-10)


@pytest.mark.parametrize("probability", [0.5, 0.9, 0.999])
def test_interval_of_a_normal_mixture_of_normals(probability: float) -> None:
    """Means N(0, 3^2) over draws and noise 4^2 make N(0, 5^2)."""
    zero = torch.zeros(1, dtype=torch.float64)
    lower, upper = Moments(Normal, zero + 1, zero + 3, zero + 16).interval(probability)
    expected = stats.norm(1, 5).interval(probability)
    np.testing.assert_allclose([float(lower), float(upper)], expected, rtol=1e-12)


@pytest.mark.parametrize("kind", ["each", "of outputs", "one"])
@pytest.mark.parametrize("chosen", [[False, True, False, True], slice(2, None)])
def test_some_outputs_have_their_own_noise(kind: str, chosen: Any) -> None:
    mean = torch.arange(12.0, dtype=torch.float64).reshape(3, 4)
    noises = {"each": mean + 1, "of outputs": (mean + 1)[:1] ** 2, "one": torch.full((3, 1), 2.0)}
    whole = Moments(Normal, mean, 1 + mean / 10, noises[kind])
    some = whole.outputs(torch.tensor(chosen) if isinstance(chosen, list) else chosen)
    torch.testing.assert_close(some.mean, mean[:, chosen])
    torch.testing.assert_close(some.std, whole.std[:, chosen])


@pytest.mark.parametrize("probability", [0.0, 1.0, 90, float("nan")])
def test_probability_lies_within_0_and_1(probability: float) -> None:
    found = Moments(Normal, X, X, X)
    with pytest.raises(ValueError, match=r"probability must lie in \(0, 1\), got"):
        found.interval(probability)


def test_a_probability_that_rounds_above_1_has_a_deviation() -> None:
    mean = torch.tensor([[1 + 1.2e-7, 0.0]])
    assert mean[0, 0] > 1
    assert torch.equal(Categorical.variance(mean, mean, None), torch.zeros(1, 2))


def test_labels_have_no_interval() -> None:
    found = Moments(Bernoulli, X.sigmoid(), 0 * X)
    np.testing.assert_allclose(found.std, stats.bernoulli(X.sigmoid()).std(), rtol=1e-12)
    with pytest.raises(TypeError, match="labels have no interval"):
        found.interval(0.9)


def test_a_task_without_a_law_has_no_noise() -> None:
    found = Moments(Unstated, X, X.abs())
    for call in (lambda: found.std, lambda: found.interval(0.9), Unstated(X).sample):
        with pytest.raises(TypeError, match=r"define law\(x\), such as Normal"):
            call()


def test_the_documented_law_has_samples_and_no_interval() -> None:
    """As docs/own-task.md shows it."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "own-task.md").read_text(), re.S)
    names: dict[str, Any] = {"Law": Law, "Tensor": Tensor, "torch": torch}
    exec(next(block for block in blocks if "class Poisson" in block), names)
    rate, y = X.exp(), torch.arange(5).double()
    law = names["Poisson"](rate)
    np.testing.assert_allclose(law.log_density(y), stats.poisson(rate).logpmf(y), rtol=1e-10)
    g = generator(DEVICE)
    samples = torch.stack([law.sample(g) for _ in range(4_000)])
    assert float(((samples.mean(0) - rate) / (rate / 4_000).sqrt()).abs().max()) < 4.5
    found = Moments(type(law), rate, 0 * X, law.noise)
    np.testing.assert_allclose(found.std, stats.poisson(rate).std(), rtol=1e-12)
    with pytest.raises(TypeError, match="Poisson has no central interval: take quantiles"):
        found.interval(0.9)


def test_vmap_follows_laws() -> None:
    stacked, y = torch.stack([X, 2 * X]), torch.ones_like(X)
    for make in (lambda m: Normal(m, m.exp()), lambda m: Normal(m, 2.0), Bernoulli):
        found = vmap(lambda m, make=make: make(m).log_density(y))(stacked)
        torch.testing.assert_close(found, torch.stack([make(m).log_density(y) for m in stacked]))


def test_scores_of_labels_count_wrong_ones() -> None:
    p = torch.tensor([[0.2, 0.8], [0.9, 0.1], [0.4, 0.6], [0.7, 0.3]])
    labels = torch.tensor([1, 1, 1, 0])
    assert Categorical.scores(p, p, labels) == {"error_percent": 25.0}
    unknown = torch.tensor([0, 1, -1, 2])
    assert Bernoulli(p[:, 1].log()).log_density(unknown).isnan().tolist() == [
        False,
        False,
        True,
        True,
    ]
    assert Bernoulli.scores(p[:, 1], p[:, 1], labels.double()) == {"error_percent": 25.0}
    assert Unstated.scores(p, p, labels) == {}


@pytest.mark.parametrize("unit", [1e-25, 1e25])
def test_a_deviation_in_any_unit_has_a_variance(unit: float) -> None:
    """Its square is 0 or infinite in float32."""
    law = Normal(torch.zeros(3, 1, dtype=torch.float64), torch.full((3, 1), unit))
    assert law.noise is not None
    torch.testing.assert_close(law.noise.sqrt() / unit, torch.ones(3, 1, dtype=torch.float64))
