"""The statistical runner: a sampler's discretised chain on a Gaussian against its exact law.

On a Gaussian every integrator here is a linear recursion x <- M x + xi, xi ~ N(0, Q), whose first
d components are the weights theta. From its start, :func:`check` propagates the exact joint
covariance of (theta_t, theta_t+lag), runs many chains as one tensor, whitens what they gave, and
puts the result to Kolmogorov-Smirnov, chi-square and correlation tests. Bias of the step is part
of the law, so a factor of two in the noise or the step cannot hide behind it.

A new sampler is one line in ``CASES``; a new integrator one function like :func:`langevin`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from scipy import stats
from scipy.linalg import cholesky, solve_discrete_lyapunov, solve_triangular
from torch import Tensor

from lightning_sgmcmc import HASGLD, PSGLD, SGHMC, SGLD, GaussianPrior, RMSProp, Sampler

#: Probability that one test statistic of a correct sampler falls outside its bounds. A check
#: makes 18 of them at d = 2 (mean, variance and shape of four numbers, six cross products), and
#: seeds are fixed, so that a red test is a changed chain.
FALSE_ALARM = 1e-6


@dataclass(frozen=True)
class Gaussian:
    """N(0, Sigma) as a posterior of N examples under a Gaussian prior.

    The likelihood's Hessian is Sigma^-1 - I / prior_variance, so a forgotten prior shows.

    Attributes:
        covariance: Sigma [d, d].
        num_data: N.
        prior_variance: Variance of the prior on every coordinate.
        gradient_noise: Standard deviation of the noise on N * (mean likelihood gradient), [d].
    """

    covariance: np.ndarray
    num_data: int = 50
    prior_variance: float = 2.0
    gradient_noise: tuple[float, ...] = (0.0, 0.0)

    @property
    def precision(self) -> np.ndarray:
        """A, the Hessian of U."""
        return np.linalg.inv(self.covariance)

    def gradient(self, theta: Tensor, generator: torch.Generator) -> Tensor:
        """Return the stochastic gradient of the mean likelihood loss at theta [R, d]."""
        d = len(self.covariance)
        likelihood = (self.precision - np.eye(d) / self.prior_variance) / self.num_data
        result = theta.detach() @ torch.as_tensor(likelihood, dtype=theta.dtype)
        if any(self.gradient_noise):
            sd = torch.tensor(self.gradient_noise, dtype=theta.dtype) / self.num_data
            result = result + sd * torch.randn(theta.shape, generator=generator, dtype=theta.dtype)
        return result


SCALES = Gaussian(np.diag([1.0, 0.01]))
CORRELATED = Gaussian(np.array([[1.0, 0.95], [0.95, 1.0]]))
NOISY = replace(SCALES, gradient_noise=(3.0, 20.0))


@dataclass(frozen=True)
class Law:
    """x <- M x + xi with xi ~ N(0, Q), started from N(0, start)."""

    M: np.ndarray
    Q: np.ndarray
    start: np.ndarray

    def stationary(self) -> np.ndarray:
        """Return P = M P M' + Q."""
        return solve_discrete_lyapunov(self.M, self.Q)

    def joint(self, dim: int, steps: int | None, lag: int) -> np.ndarray:
        """Return the covariance of (theta_t, theta_t+lag); t = None is stationarity."""
        P = self.stationary() if steps is None else self._advance(self.start, steps)
        later = self._advance(P, lag)
        cross = np.linalg.matrix_power(self.M, lag) @ P
        d = slice(0, dim)
        return np.block([[P[d, d], cross[d, d].T], [cross[d, d], later[d, d]]])

    def _advance(self, P: np.ndarray, steps: int) -> np.ndarray:
        for _ in range(steps):
            P = self.M @ P @ self.M.T + self.Q
        return P


def langevin(target: Gaussian, C: np.ndarray, lr: float, temperature: float, _: float) -> Law:
    """Euler-Maruyama with h = lr/N: M = I - h C A, Q = 2 h T C + h^2 C V C; P0 is its own P."""
    h = lr / target.num_data
    V = np.diag(np.square(target.gradient_noise))
    M = np.eye(len(C)) - h * C @ target.precision
    Q = 2 * h * temperature * C + h**2 * C @ V @ C
    return Law(M, Q, solve_discrete_lyapunov(M, Q))


def baoab(target: Gaussian, C: np.ndarray, lr: float, temperature: float, mu: float) -> Law:
    """B A O A on (theta, w) with the squared time step eta = 2 lr / ((1 + mu) N).

    theta starts from its stationary law and w from N(0, T C), independently.
    """
    d = len(C)
    eye, zero = np.eye(d), np.zeros((d, d))
    dt = np.sqrt(2 * lr / ((1 + mu) * target.num_data))
    B = np.block([[eye, zero], [-dt * C @ target.precision, eye]])
    A = np.block([[eye, dt / 2 * eye], [zero, eye]])
    O = np.block([[eye, zero], [zero, mu * eye]])  # noqa: E741
    V = np.diag(np.square(target.gradient_noise))
    kick = np.block([[zero, zero], [zero, dt**2 * C @ V @ C]])
    thermal = np.block([[zero, zero], [zero, (1 - mu**2) * temperature * C]])
    M = A @ O @ A @ B
    Q = A @ O @ A @ kick @ (A @ O @ A).T + A @ thermal @ A.T
    P = solve_discrete_lyapunov(M, Q)
    start = np.block([[P[:d, :d], zero], [zero, temperature * C]])
    return Law(M, Q, start)


@dataclass(frozen=True)
class Case:
    """A sampler under test.

    Attributes:
        name: Shown by pytest.
        build: Makes the sampler from parameters and the keywords lr, num_data, prior, ...
        law: The recursion that it should follow.
        momentum: What the law's last argument is.
        metric: Diagonal of C, which :func:`_set_metric` puts into the preconditioner.
        replicas: False where C ties all coordinates together, so that a chain cannot be a row of
            a tensor. The innovations theta_t+1 - M theta_t of one long chain are then tested,
            which are independent N(0, Q) and uncorrelated with theta_t.
    """

    name: str
    build: Callable[..., Sampler]
    law: Callable[[Gaussian, np.ndarray, float, float, float], Law] = langevin
    momentum: float = 0.0
    metric: tuple[float, ...] = (1.0, 1.0)
    replicas: bool = True
    options: dict[str, Any] = field(default_factory=dict)


METRIC = (2.0, 0.03)
CASES = [
    Case("SGLD", SGLD),
    Case("PSGLD", PSGLD, metric=METRIC, options={"alpha": 0.0}),
    Case("SGHMC-0", SGHMC, baoab, 0.0, options={"momentum": 0.0}),
    Case("SGHMC-.9", SGHMC, baoab, 0.9, options={"momentum": 0.9}),
    Case(
        "SGHMC-.9-RMSProp",
        lambda p, **kw: SGHMC(p, preconditioner=RMSProp(alpha=0.0), **kw),
        baoab,
        0.9,
        METRIC,
        options={"momentum": 0.9},
    ),
    Case("HASGLD", HASGLD, replicas=False),
    Case("HASGLD-slots", HASGLD, replicas=False, options={"slots": 4, "memory": 1}),
    Case("HASGLD-all", HASGLD, replicas=False, options={"slots": None}),
]


def stable_lr(case: Case, target: Gaussian, C: np.ndarray, fraction: float) -> float:
    """Return a fraction of the largest stable lr."""
    largest = float(np.abs(np.linalg.eigvals(C @ target.precision)).max())
    return fraction * 2 * (1 + case.momentum) * target.num_data / largest


def check(
    case: Case,
    target: Gaussian,
    fraction: float = 0.5,
    temperature: float = 1.0,
    steps: int = 200,
    lag: int = 3,
    replicas: int = 20_000,
    seed: int = 1,
) -> None:
    """Run a sampler and compare (theta_t, theta_t+lag) with its exact law.

    Args:
        case: The sampler.
        target: The posterior.
        fraction: Step size as a fraction of the largest stable one.
        temperature: T.
        steps: t.
        lag: Steps between the two looks.
        replicas: Number of independent chains; a single chain runs an eighth as many steps.
        seed: Seed of everything.

    Raises:
        AssertionError: If a statistic falls outside its bounds; a correct sampler's does so with
            probability ``FALSE_ALARM`` each.
    """
    d = len(target.covariance)
    rows = replicas if case.replicas else 1
    theta = torch.zeros(rows, d, dtype=torch.float32 if case.replicas else torch.float64)
    theta.requires_grad_()
    sampler = case.build(
        [theta],
        lr=0.3,
        num_data=target.num_data,
        prior=GaussianPrior(target.prior_variance),
        temperature=temperature,
        seed=seed,
        **case.options,
    )
    generator = torch.Generator().manual_seed(seed)

    def closure() -> float:
        theta.grad = target.gradient(theta, generator)
        return 0.0

    C = _set_metric(case, sampler, theta, target)
    sampler.param_groups[0]["lr"] = lr = stable_lr(case, target, C, fraction)
    law = case.law(target, C, lr, temperature, case.momentum)
    assert np.abs(np.linalg.eigvals(law.M)).max() < 1
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        start = rng.standard_normal((rows, d)) @ cholesky(law.start[:d, :d])
        theta.copy_(torch.from_numpy(start))
    if case.replicas:
        first = _run(sampler, closure, theta, steps)[-1]
        later = _run(sampler, closure, theta, lag)[-1]
        assert_normal(np.hstack([first, later]), law.joint(d, steps, lag))
        return
    path = np.concatenate(_run(sampler, closure, theta, replicas // 8))
    before, innovations = path[:-1], path[1:] - path[:-1] @ law.M.T
    assert_normal(innovations, law.Q)
    white = solve_triangular(cholesky(law.Q, lower=True), innovations.T, lower=True)
    scores = white @ before / np.linalg.norm(before, axis=0)
    assert 2 * stats.norm.sf(np.abs(scores).max()) > FALSE_ALARM, "the drift is not M theta"


def assert_normal(states: np.ndarray, covariance: np.ndarray) -> None:
    """Assert that rows are independent draws of N(0, covariance), to ``FALSE_ALARM`` a statistic.

    Chi-square on every whitened coordinate, a normal score on every mean and cross product, and
    Kolmogorov-Smirnov on every coordinate: a wrong variance, correlation or shape each shows.
    """
    assert np.isfinite(states).all()
    n, k = states.shape
    white = solve_triangular(cholesky(covariance, lower=True), states.T, lower=True)
    p = {}
    for i in range(k):
        p[f"mean {i}"] = 2 * stats.norm.sf(abs(white[i].sum()) / np.sqrt(n))
        square = (white[i] ** 2).sum()
        p[f"variance {i}"] = 2 * min(stats.chi2.cdf(square, n), stats.chi2.sf(square, n))
        p[f"shape {i}"] = stats.kstest(white[i], "norm").pvalue
        for j in range(i):
            p[f"product {i}, {j}"] = 2 * stats.norm.sf(abs(white[i] @ white[j]) / np.sqrt(n))
    wrong = {name: value for name, value in p.items() if not value > FALSE_ALARM}
    assert not wrong, (
        f"not of the stated law: {wrong}\nexpected covariance\n{covariance}\n"
        f"found\n{np.cov(states.T)}"
    )


def _run(
    sampler: Sampler, closure: Callable[[], float], theta: Tensor, steps: int
) -> list[np.ndarray]:
    path = []
    for _ in range(steps):
        sampler.step(closure)
        path.append(theta.detach().numpy().astype(np.float64))
    return path


def _set_metric(case: Case, sampler: Sampler, theta: Tensor, target: Gaussian) -> np.ndarray:
    """Give the preconditioner a C, freeze it, and return the dense C of one chain."""
    d = len(target.covariance)
    if case.replicas:
        C = torch.tensor(case.metric, dtype=theta.dtype)
        if sampler.preconditioner.adaptive:
            eps = 1e-5  # alpha = 0 makes C = 1 / (eps + |g|)
            sampler.preconditioner.update([(1 / C - eps).expand_as(theta)])
        sampler.freeze()
        return np.diag(C.double().numpy())
    exact = replace(target, gradient_noise=(0.0,) * d)

    def closure() -> float:
        theta.grad = exact.gradient(theta, torch.Generator())
        return 0.0

    with torch.no_grad():
        theta.fill_(1.0)
    for _ in range(12):
        sampler.step(closure)
    sampler.freeze()
    columns = [sampler.preconditioner.apply_([e.view(1, d)])[0] for e in torch.eye(d).double()]
    C = torch.cat(columns).numpy().T
    assert np.allclose(C, C.T, rtol=1e-9)
    assert not np.allclose(C, np.eye(d), rtol=0.1)
    return C
