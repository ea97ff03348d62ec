"""HASGLD-SA's theorems on a linear regression: Wang, Deng, Lin 2020, sections 3.1 and 4.

The chain is HASGLD with the average of all operators, as a matrix. On the scale of the mean loss
its Hessian is H = X'X / N, and C stands for N times the paper's G.

- Theorem 1: E|G_k - G*|^2 = O(omega_k + sup E|delta(M, n, eps)|), delta being what minibatches and
  a limited memory change.
- Theorem 2: the bias of a time average is O(1/S_K + sum omega_k eps_k / S_K + sum eps_k^2 / S_K +
  sup E|delta|).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_sgmcmc import HASGLD
from lightning_sgmcmc.chain import Sampling
from tasks.experiments.experiment import Study
from tasks.experiments.loop import Array, walk
from tasks.experiments.theory.fits import fitted, mean_and_error
from tasks.experiments.theory.regression import Regressions, draws, posterior

EXAMPLES, WEIGHTS, CHAINS = 200, 3, 200
#: omega_k = c1 (k + c2)^-power: the rates of Theorem 1.
RATES = {f"{power:g}": (5.0, 10.0, power) for power in (0.6, 0.75, 0.9)}
LENGTHS = tuple(2**i for i in range(5, 12))
Rate = tuple[float, float, float]


def data(seed: int = 0) -> tuple[Array, Array]:
    """Return inputs [N, D] with correlation .8 between neighbours, and responses."""
    generator = np.random.default_rng(seed)
    distance = np.abs(np.subtract.outer(np.arange(WEIGHTS), np.arange(WEIGHTS)))
    x = generator.standard_normal((EXAMPLES, WEIGHTS)) @ np.linalg.cholesky(0.8**distance).T
    return x, x.sum(1) + generator.standard_normal(EXAMPLES)


@dataclass(frozen=True)
class Setting:
    """What Theorem 2's bound depends on.

    Attributes:
        batch: n, or N for the whole data.
        memory: M.
        omega: (c1, c2, power) of omega_k; power 0 is a constant rate.
        lr: The paper's epsilon.
    """

    batch: int = EXAMPLES
    memory: int = 2
    omega: Rate = (5.0, 10.0, 0.9)
    lr: float = 0.1

    def start(self, chains: int, seed: int = 0) -> tuple[HASGLD, Regressions]:
        """Return stacked chains that begin in the posterior, and their problem."""
        x, y = data()
        first = draws(np.random.default_rng(seed), *posterior(x, y), chains)[:, None]
        theta = torch.from_numpy(first).requires_grad_()
        sampler = HASGLD(
            [theta],
            self.lr,
            memory=self.memory,
            slots=None,
            omega=self.omega,
            num_data=EXAMPLES,
            seed=seed,
        )
        sampler.stack(one_generator=True)
        sampling: Sampling = "full" if self.batch == EXAMPLES else "independent"
        problem = Regressions(theta, x, y, self.batch, sampling, seed)
        return sampler, problem


def matrix_of(sampler: HASGLD) -> Tensor:
    """Return C of each chain, [K, D, D]."""
    matrix = sampler.preconditioner.matrix
    assert matrix is not None
    return matrix


def convergence(setting: Setting, lengths: Sequence[int] = LENGTHS, seed: int = 0) -> Array:
    """Return C_k of each chain at some steps, [lengths, K, D, D]."""
    sampler, problem = setting.start(CHAINS, seed)
    found: list[Array] = []

    def each(step: int, theta: Tensor) -> None:
        if step in lengths:
            found.append(matrix_of(sampler).numpy().copy())

    walk(sampler, steps=max(lengths), gradient=problem.gradient, each=each)
    return np.stack(found)


def theorem1(omega: Rate, folder: Path) -> dict[str, Any]:
    """Measure E|C_k - C*|^2 over omega_k, C* the mean at the end, in units of |H^-1|^2."""
    setting = Setting(batch=20, omega=omega)
    inverse = np.linalg.inv(posterior(*data())[1] / EXAMPLES)
    sequence = convergence(setting)
    # The limit comes from chains of their own, so that it is independent of those measured.
    limit = convergence(setting, LENGTHS[-1:], seed=1)[-1].mean(0)
    size = np.square(inverse).sum()
    errors = np.square(sequence - limit).sum((2, 3)) / size
    rates = [min(1.0, omega[0] * (k + omega[1]) ** -omega[2]) for k in LENGTHS]
    later = slice(-6, None)
    exponent, exponent_se = fitted(rates[later], errors[later])
    values = [mean_and_error(row) for row in errors]
    return {
        "lengths": LENGTHS,
        "rates": rates,
        "error": [value for value, _ in values],
        "error_se": [error for _, error in values],
        "exponent": exponent,
        "exponent_se": exponent_se,
        "delta": float(np.square(limit - inverse).sum() / size),
    }


def constant_metric(setting: Setting, C: Array) -> float:
    """Return the bias of phi where C is a constant, in closed form.

    P = M P M' + 2 lr/N C + lr^2 C S(P) C, M = I - lr C H, with S(P) the covariance of a
    minibatch's mean gradient, averaged over theta ~ (m, P).
    """
    x, y = data()
    mean, precision = posterior(x, y)
    H, lr = precision / EXAMPLES, setting.lr
    M = np.eye(WEIGHTS) - lr * C @ H
    u = (x @ mean - y)[:, None] * x
    P = np.linalg.inv(precision)
    for _ in range(20_000):
        S = np.zeros_like(H)
        if setting.batch < EXAMPLES:
            weights = np.einsum("ni,ij,nj->n", x, P, x)
            S = (u.T @ u + (weights[:, None] * x).T @ x) / EXAMPLES - H @ P @ H
            S /= setting.batch
        new = M @ P @ M.T + 2 * lr / EXAMPLES * C + lr**2 * C @ S @ C
        done = np.abs(new - P).max() < 1e-12 * np.abs(P).max()
        P = new
        if done:
            break
    return float(np.trace(P @ precision)) / WEIGHTS - 1


#: What varies in Theorem 2: one thing at a time, about two settings.
NEWEST: Rate = (1.0, 1.0, 0.0)
SETTINGS = {
    **{f"omega-{w:g}": Setting(omega=(w, 1.0, 0.0)) for w in (1.0, 0.6, 0.3, 0.1)},
    "omega-decaying": Setting(),
    **{f"eps-{e:g}": Setting(omega=NEWEST, lr=e) for e in (0.4, 0.2, 0.05)},
    **{f"memory-{m}": Setting(omega=NEWEST, memory=m) for m in (1, 4)},
    "memory-1-decaying": Setting(memory=1),
    **{f"n-{n}": Setting(omega=NEWEST, batch=n) for n in (50, 20)},
    "n-20-decaying": Setting(batch=20),
}


def theorem2(setting: Setting, folder: Path, steps: int = 2_000) -> dict[str, Any]:
    """Measure the bias of phi = (theta - m)' X'X (theta - m) / D, whose posterior mean is 1."""
    sampler, problem = setting.start(CHAINS)
    mean, precision = (torch.from_numpy(v) for v in posterior(*data()))
    total, matrix, skipped = torch.zeros(CHAINS), torch.zeros(WEIGHTS, WEIGHTS), 300

    def each(step: int, theta: Tensor) -> None:
        nonlocal total, matrix
        off = theta[:, 0] - mean
        total = total + ((off @ precision) * off).sum(1) / WEIGHTS - 1
        matrix = matrix + matrix_of(sampler).mean(0)

    walk(
        sampler,
        steps=steps,
        burn_in=skipped,
        gradient=problem.gradient,
        each=each,
    )
    count = steps - skipped
    bias, error = mean_and_error(total.numpy() / count)
    inverse = np.linalg.inv(precision.numpy() / EXAMPLES)
    C = matrix.numpy() / count
    return {
        "n": setting.batch,
        "M": setting.memory,
        "omega": setting.omega,
        "lr": setting.lr,
        "bias": bias,
        "bias_se": error,
        "constant": constant_metric(setting, C),
        "delta": float(np.linalg.norm(C - inverse) / np.linalg.norm(inverse)),
    }


def cells() -> list[Study]:
    """Return one study a rate and a setting."""
    return [
        *(Study(f"rate-{name}", partial(theorem1, omega)) for name, omega in RATES.items()),
        *(Study(f"bias-{name}", partial(theorem2, setting)) for name, setting in SETTINGS.items()),
    ]
