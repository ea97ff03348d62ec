"""The excess variance of minibatches against SciPy's Lyapunov solver and direct simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import expm, solve_discrete_lyapunov

from lightning_sgmcmc.adaptation.excess import BatchLaw, relaxation_time


def baoab(mu: float, u: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return one step's matrix on (x, sqrt(eta) w), where a kick enters, and the O step's noise.

    With eta N lambda = 2 u / (1 + mu) the kick is -2 lr / (1 + mu) times the gradient's noise.
    """
    kick = np.array([[1, 0], [-2 * u / (1 + mu), 1]])
    half = np.array([[1, 0.5], [0, 1]])
    after = half @ np.diag([1, mu]) @ half
    return after @ kick, after @ [0, 2 / (1 + mu)], half @ [0, np.sqrt(1 - mu**2)]


@pytest.mark.parametrize(("mu", "u"), [(0.0, 0.3), (0.9, 0.2), (0.95, 1e-3), (0.95, 3.0)])
def test_independent_batches_leave_the_variance_of_the_integrators_own_recursion(
    mu: float, u: float
) -> None:
    M, b, _ = baoab(mu, u)
    exact = solve_discrete_lyapunov(M, np.outer(b, b))[0, 0]
    assert BatchLaw(100, 10, False).gain(u, mu) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("mu", "u"), [(0.5, 1e-3), (0.95, 1e-4)])
def test_in_the_limit_of_small_steps_it_is_lr_n_v_over_2_t(mu: float, u: float) -> None:
    """The thermal variance is T / (N lambda): eta T = 2 u / ((1 + mu) lambda N) in x."""
    M, _, z = baoab(mu, u)
    thermal = solve_discrete_lyapunov(M, 2 * u / (1 + mu) * np.outer(z, z))[0, 0]
    assert thermal == pytest.approx(1, rel=1e-9)  # BAOAB is exact on a Gaussian
    gain = BatchLaw(100, 10, False).gain(u, mu)
    assert u * gain == pytest.approx(1 / (2 * (1 - mu)), rel=1e-3)


@pytest.mark.parametrize(
    ("N", "n", "mu", "u"), [(40, 10, 0.9, 0.01), (40, 10, 0.0, 0.1), (43, 10, 0.9, 0.05)]
)
def test_reshuffled_epochs_against_a_dense_computation(N: int, n: int, mu: float, u: float) -> None:
    """Noise of 300 passes as one Gaussian vector, whose covariance is that of sampling."""
    M = N // n
    step, b, _ = baoab(mu, u)
    count = max(int(40 * (1 - mu) / u) // M, 100) * M
    responses, state = [], b.astype(float)
    for _ in range(count):
        responses.append(state[0])
        state = step @ state
    law = BatchLaw(N, n, True)
    # Of means of n out of N without replacement, by counting pairs of examples: variance and
    # covariance over the variance of an example.
    variance = (N - n) / (n * (N - 1))
    covariance = -1 / (N - 1)
    found = []
    for phase in range(1, M + 1):
        h = np.array(responses)
        passes = (np.arange(count) + M - phase) // M
        total = np.sum(h**2) * (variance - covariance)
        total += covariance * np.sum(np.bincount(passes, h) ** 2)
        found.append(total)
    assert law.of_batch(1.0) * law.gain(u, mu) == pytest.approx(max(found), rel=1e-6)


@pytest.mark.parametrize(("N", "n", "mu", "u"), [(40, 10, 0.9, 0.01), (43, 10, 0.9, 0.05)])
def test_reshuffled_epochs_against_a_simulation(N: int, n: int, mu: float, u: float) -> None:
    """The worst place of a pass, over 2,000 chains and ten passes; a standard error of 3 %."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(N)
    values = (values - values.mean()) / values.std()
    M, chains = N // n, 2000
    x, before, spread = np.zeros(chains), np.zeros(chains), np.zeros(M)
    passes = int(6 * (1 - mu) / u / M) + 40
    for index in range(passes):
        order = np.argsort(rng.random((chains, N)), 1)[:, : M * n].reshape(chains, M, n)
        noise = values[order].mean(-1)
        for j in range(M):
            x, before = (1 + mu - u) * x - mu * before - noise[:, j], x
            if index >= passes - 10:
                spread[j] += x.var() / 10
    law = BatchLaw(N, n, True)
    assert law.of_batch(1.0) * law.gain(u, mu) == pytest.approx(spread.max(), rel=0.12)


def test_reshuffling_leaves_little_of_the_noise_of_slow_directions() -> None:
    """20 batches a pass, momentum .95: a tenth of it is left at u = 2e-3, and none with one."""
    slow = BatchLaw(1000, 50, True).gain(2e-3, 0.95) / BatchLaw(1000, 50, False).gain(2e-3, 0.95)
    assert 0.03 < slow < 0.1
    assert BatchLaw(50, 50, True).gain(2e-3, 0.95) == 0
    tiny = np.array([1e-300, 1e-12, 1e-7])
    assert np.isfinite(BatchLaw(1000, 50, True).gain(tiny, 0.95)).all()


@pytest.mark.parametrize(("mu", "u"), [(0.0, 0.01), (0.9, 1e-5), (0.9, 0.05)])
def test_relaxation_time_is_that_of_continuous_time(mu: float, u: float) -> None:
    """The slower rate of x'' = -k x - g x', with k = 2 u / (1 + mu) and mu = exp(-g)."""
    if mu == 0:
        rate = u
    else:
        generator = np.array([[0, 1], [-2 * u / (1 + mu), np.log(mu)]])
        rate = -np.log(np.abs(np.linalg.eigvals(expm(generator))).max())
    assert relaxation_time(u, mu) == pytest.approx(1 / rate, rel=0.02)
