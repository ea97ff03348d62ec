"""Small posteriors whose answers are known, for one chain or thousands of stacked ones.

All are generalised linear, -log p(y_i | theta) = loss(x_i' theta, y_i) under a Gaussian prior, so
that one class gives per-example losses, closed gradients and curvature. x_i0 = 1: theta_0 is the
bias and the rest the weights of a ``torch.nn.Linear`` layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lightning_sgmcmc import GaussianPrior


@dataclass(frozen=True)
class Posterior(ABC):
    """exp(-sum_i loss(x_i' theta, y_i) - |theta|^2 / (2 prior_variance)).

    Attributes:
        x: Inputs, [N, d], or [K, N, d] where each of K chains has a data set of its own.
        y: What was observed, [N] or [K, N].
        prior_variance: Variance of the prior on every coordinate.
    """

    x: np.ndarray
    y: np.ndarray
    prior_variance: float = 2.0

    @property
    def num_data(self) -> int:
        """N."""
        return self.x.shape[-2]

    @property
    def dim(self) -> int:
        """d."""
        return self.x.shape[-1]

    @property
    def prior(self) -> GaussianPrior:
        """p(theta)."""
        return GaussianPrior(self.prior_variance)

    def data(self, dtype: torch.dtype, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        """Return the whole training set as a batch, on the CPU unless a device is given."""
        x, y = (torch.as_tensor(values, dtype=dtype, device=device) for values in (self.x, self.y))
        return x, y

    def row(self, k: int) -> Posterior:
        """Return the posterior of chain k where each has its own."""
        return type(self)(self.x[k], self.y[k], **self._parameters())

    def _parameters(self) -> dict[str, Any]:
        rest = set(self.__dataclass_fields__) - {"x", "y"}
        return {name: getattr(self, name) for name in rest}

    @abstractmethod
    def loss(self, eta: Tensor, y: Tensor) -> Tensor:
        """Return -log p(y | eta), elementwise."""

    @abstractmethod
    def slope(self, eta: Tensor, y: Tensor) -> Tensor:
        """Return d loss / d eta."""

    @abstractmethod
    def sample(self, eta: Tensor, uniform: Tensor) -> Tensor:
        """Map uniform numbers in (0, 1) to draws y ~ p(y | eta)."""

    @abstractmethod
    def bend(self, eta: Tensor, y: Tensor) -> Tensor:
        """Return d^2 loss / d eta^2."""

    def nll(self, theta: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return per-example losses, [n] for theta [d] and [R, n] for [R, d]."""
        return self.loss(_eta(theta, batch[0]), batch[1])

    def gradient(self, theta: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the gradient of the mean loss of a batch, shaped like theta."""
        x, y = batch
        slope = self.slope(_eta(theta, x), y) / x.shape[-2]
        return slope @ x if x.dim() == 2 else (slope.unsqueeze(-2) @ x).squeeze(-2)

    def potential(self, theta: Tensor) -> Tensor:
        """Return U up to a constant, [] for theta [d] and [R] for [R, d]."""
        loss = self.nll(theta, self.data(theta.dtype)).sum(-1)
        return loss + (theta**2).sum(-1) / (2 * self.prior_variance)

    def mode(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mode of one posterior and the Hessian of U there, by Newton's method."""
        x, y = self.data(torch.float64)
        theta, eye = torch.zeros(self.dim, dtype=torch.float64), _eye(self.dim)
        for _ in range(100):
            eta = x @ theta
            hessian = (x * self.bend(eta, y)[:, None]).T @ x + eye / self.prior_variance
            gradient = self.slope(eta, y) @ x + theta / self.prior_variance
            move = torch.linalg.solve(hessian, gradient)
            while self.potential(theta - move) > self.potential(theta) + 1e-12:
                move = move / 2
            theta = theta - move
        assert gradient.norm() < 1e-6
        return theta.numpy(), hessian.numpy()

    def largest_curvature(self, C: np.ndarray) -> float:
        """Return lambda_max(C^(1/2) H C^(1/2)), H the largest Hessian of U / N."""
        x, zero = self.data(torch.float64)[0], torch.zeros(1, dtype=torch.float64)
        most = float(self.bend(zero, zero))  # every loss here is steepest at eta = y = 0
        hessians = most * (x.mT @ x) + _eye(self.dim) / self.prior_variance
        eigenvalues = torch.linalg.eigvals(torch.as_tensor(C) @ hessians / self.num_data)
        return float(eigenvalues.real.max())

    def moments(self, points: int = 801) -> tuple[np.ndarray, np.ndarray]:
        """Return E[theta] and E[theta theta'] for d = 2, by the trapezoidal rule.

        Its error on an analytic density that vanishes at the edges is that of round-off.
        """
        mode, hessian = self.mode()
        reach = 12 * np.sqrt(np.linalg.inv(hessian).diagonal())
        axes = [m + r * np.linspace(-1, 1, points) for m, r in zip(mode, reach, strict=True)]
        grid = torch.as_tensor(np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2))
        weight = torch.softmax(-self.potential(grid), 0)
        return (weight @ grid).numpy(), ((grid * weight[:, None]).T @ grid).numpy()


def _eye(d: int) -> Tensor:
    return torch.eye(d, dtype=torch.float64)


def _eta(theta: Tensor, x: Tensor) -> Tensor:
    return theta @ x.T if x.dim() == 2 else (x @ theta.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class LinearRegression(Posterior):
    """y ~ N(x' theta, variance), whose posterior is Gaussian."""

    variance: float = 1.0

    def loss(self, eta: Tensor, y: Tensor) -> Tensor:
        return (eta - y) ** 2 / (2 * self.variance)

    def slope(self, eta: Tensor, y: Tensor) -> Tensor:
        return (eta - y) / self.variance

    def sample(self, eta: Tensor, uniform: Tensor) -> Tensor:
        return eta + self.variance**0.5 * torch.special.ndtri(uniform)

    def bend(self, eta: Tensor, y: Tensor) -> Tensor:
        return torch.full_like(eta, 1 / self.variance)

    @cached_property
    def hessian(self) -> np.ndarray:
        """H, the Hessian of the summed loss."""
        return self.x.T @ self.x / self.variance

    @cached_property
    def precision(self) -> np.ndarray:
        """A, the Hessian of U."""
        return self.hessian + np.eye(self.dim) / self.prior_variance

    @cached_property
    def mean(self) -> np.ndarray:
        """Posterior mean."""
        return np.linalg.solve(self.precision, self.x.T @ self.y / self.variance)

    @classmethod
    def with_posterior(
        cls, covariance: np.ndarray, num_data: int = 10, seed: int = 0
    ) -> LinearRegression:
        """Make a data set y = theta_0 + theta_1 x_1 + ... whose posterior is N(0, covariance).

        The likelihood's Hessian is then covariance^-1 - I / prior_variance, so that a forgotten
        prior shows, and the residuals at the mean are those of a regression: orthogonal to x.
        """
        d = len(covariance)
        hessian = np.linalg.inv(covariance) - np.eye(d) / cls.prior_variance
        variance = num_data / hessian[0, 0]
        basis = np.random.default_rng(seed).standard_normal((num_data, d + 1))
        basis[:, 0] = num_data**-0.5
        basis = np.linalg.qr(basis)[0]
        basis *= np.sign(basis[0, 0])
        x = basis[:, :d] @ np.linalg.cholesky(variance * hessian).T
        return cls(x, basis[:, d] * (variance * num_data) ** 0.5, variance=variance)

    def minibatch_noise(self, batch_size: int, replacement: bool = True) -> Any:
        """Return the covariance of N * (minibatch gradient of the mean loss) given E[theta theta'].

        V0 + K(P) with V0 = f (sum u_i u_i' - U U' / N), u_i the examples' gradients at the
        posterior mean, U their sum, and K(P) = f (sum (x_i' P x_i) x_i x_i' / s^4 - H P H / N);
        f = N / n with replacement and (N / n) (N - n) / (N - 1) without.

        Returns:
            The map from P, the covariance of theta, to the noise's.
        """
        x, N, s4, H = self.x, self.num_data, self.variance**2, self.hessian
        f = N / batch_size * (1.0 if replacement else (N - batch_size) / (N - 1))
        u = x * ((x @ self.mean - self.y) / self.variance)[:, None]
        total = u.sum(0)
        V0 = f * (u.T @ u - np.outer(total, total) / N)

        def covariance(P: np.ndarray) -> np.ndarray:
            spread = ((x @ P) * x).sum(1)
            return V0 + f * (np.einsum("i,ij,ik->jk", spread, x, x) / s4 - H @ P @ H / N)

        return covariance


@dataclass(frozen=True)
class LogisticRegression(Posterior):
    """P(y = 1) = 1 / (1 + exp(-x' theta)), y in {0, 1}."""

    def loss(self, eta: Tensor, y: Tensor) -> Tensor:
        return functional.softplus(eta) - y * eta

    def slope(self, eta: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(eta) - y

    def sample(self, eta: Tensor, uniform: Tensor) -> Tensor:
        return (uniform < torch.sigmoid(eta)).to(eta.dtype)

    def bend(self, eta: Tensor, y: Tensor) -> Tensor:
        p = torch.sigmoid(eta)
        return p * (1 - p)


@dataclass(frozen=True)
class RobustRegression(Posterior):
    """y = x' theta + e with the density sech(e) / pi, whose log falls linearly far out."""

    def loss(self, eta: Tensor, y: Tensor) -> Tensor:
        e = (eta - y).abs()
        return e + torch.log1p(torch.exp(-2 * e)) + float(np.log(np.pi / 2))

    def slope(self, eta: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(eta - y)

    def bend(self, eta: Tensor, y: Tensor) -> Tensor:
        return torch.cosh(eta - y) ** -2

    def sample(self, eta: Tensor, uniform: Tensor) -> Tensor:
        return eta + torch.log(torch.tan(torch.pi / 2 * uniform))
