"""Time averages under decaying steps: pSGLD's Theorem 1 and Corollaries 2 and 3, NLD's k^(-1/3).

Li, Chen, Carlson, Carin 2016. With weights equal to the step sizes h_t = a t^-beta,

    E (phi_hat - phi_bar)^2 <= C (sum h_t^2 E|dV_t|^2 / S^2 + 1 / S + (sum h_t^2)^2 / S^2),

S = sum h_t. The last two terms are the variance, T^-(1 - beta), and the squared bias, T^(-2 beta)
below beta = 1/2 and T^(-2 (1 - beta)) above it. The first is of order 1/T. The exponent is the
smaller of the two, with the best beta = 1/3 and MSE ~ T^(-2/3) (Teh, Thiery, Vollmer 2016; NLD's
section 1 takes the step from there).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_sgmcmc import PSGLD, SGLD, DiagonalFisher, PolynomialDecay, RMSProp, Sampler, Target
from tasks.experiments.experiment import Study
from tasks.experiments.gaussians import NoisyGradient, matrices
from tasks.experiments.loop import Array, walk
from tasks.experiments.theory.fits import fitted, jackknife, mean_and_error
from tasks.experiments.theory.regression import Regressions, draws, posterior
from tasks.experiments.theory.time_average import TimeAverages, exact

#: pSGLD's Gaussian, with a gradient noise of a fifth of the gradient of the narrow coordinate.
TARGET, NOISE, LAMBDA = np.diag([0.16, 1.0]), 0.5, 1e-4
#: Decay of the step by the name of a cell.
BETAS = {"0": 0.0, "0.2": 0.2, "0.33": 1 / 3, "0.5": 0.5, "0.67": 2 / 3}
#: Memory of V, and whether Gamma is added.
ADAPTING = {
    "0.9": (0.9, False),
    "0.99": (0.99, False),
    "0.999": (0.999, False),
    "0.99-gamma": (0.99, True),
}
LENGTHS = tuple(2**i for i in range(7, 15))
THINNINGS = (1, 8, 64)
CHAINS, BURN_IN = 500, 1000
#: C is frozen halfway through burn-in, so that the chains forget how it was learned.
FREEZE_AT = BURN_IN // 2
FROZEN_CHAINS = 2000
#: NLD's regression: N and n.
EXAMPLES, BATCH = 100, 10
#: First steps, (up to beta = 1/3, above it): large where the bias decides, small where the variance
#: does, so that the term that decides in the limit does so at these lengths.
FIRST = {"psgld": (0.6, 0.15), "nld": (0.3, 0.15)}
#: Lengths that exponents are fitted over: the last six, a factor of 32.
FITTED = slice(-6, None)
#: Length at which the closed form's own exponent is taken.
FAR = 2**18


def first(method: str, beta: float) -> float:
    """Return the first step, a."""
    return FIRST[method][beta > 0.4]


def expected_power(beta: float) -> float:
    """Return the exponent of T in Theorem 1's bound, but for a logarithm at beta = 1/2."""
    return max(beta - 1, -2 * beta) if beta <= 0.5 else beta - 1


def far_power(a: float, beta: float, g: float, variance: float, sd: float) -> float:
    """Return the closed form's exponent between T = 2^17 and 2^18, for one metric g."""
    lengths = (FAR // 2, FAR)
    h: Array = a * np.arange(1, FAR + 1, dtype=np.float64) ** -beta
    half, whole = exact(h, np.array([g]), variance, sd, lengths, 1)
    return float(np.log2(whole / half))


def rows_of(found: TimeAverages, k: int, closed: Array | None = None) -> dict[str, Any]:
    """Return the MSE at each length with its standard error, and the fitted exponent."""
    squares, lengths = found.squares(k), sorted(found.lengths)
    values = [mean_and_error(row) for row in squares]
    exponent, error = fitted(lengths[FITTED], squares[FITTED])
    row: dict[str, Any] = {
        "lengths": lengths,
        "mse": [value for value, _ in values],
        "mse_se": [value for _, value in values],
        "exponent": exponent,
        "exponent_se": error,
    }
    if closed is not None:
        slope = np.polyfit(np.log(lengths[FITTED]), np.log(closed[FITTED]), 1)[0]
        row |= {"closed": closed.tolist(), "closed_exponent": float(slope)}
    return row


def gaussian(
    beta: float,
    *,
    freeze: bool = True,
    alpha: float = 0.99,
    gamma: bool = False,
    chains: int = CHAINS,
    lengths: Sequence[int] = LENGTHS,
    seed: int = 0,
) -> tuple[TimeAverages, Sampler]:
    """Run pSGLD on the 2-D Gaussian with lr_t = a t^-beta; phi = theta_1^2 / .16.

    Args:
        beta: Decay of the step.
        freeze: Freeze C in burn-in.
        alpha: Memory of V.
        gamma: Add the Gamma term, exactly.
        chains: Stacked chains.
        lengths: Where the averages are kept.
        seed: Of starts and noise.
    """
    start = np.random.default_rng(seed).multivariate_normal(np.zeros(2), TARGET, chains)
    theta = torch.from_numpy(start).requires_grad_()
    probes = 0 if gamma else None
    sampler = PSGLD(
        [theta],
        first("psgld", beta),
        alpha=alpha,
        eps=LAMBDA,
        gamma_probes=probes,
        num_data=1,
        seed=seed,
    )
    sampler.stack(one_generator=True)
    # From V = 0 the first steps are of any length, and Gamma divides by V^(3/2).
    metric = sampler.preconditioner
    assert isinstance(metric, RMSProp)
    metric.square_avg[0].copy_(torch.from_numpy(1 / np.diag(TARGET)))
    gradient = NoisyGradient(TARGET, NOISE, seed)
    if gamma:
        target = Target(partial(_potential, theta, gradient.precision), [theta], 1, chain_dims=1)
        target.use(())
        sampler.attach(target)
    found = TimeAverages(
        lambda theta: theta[:, 0].square() / TARGET[0, 0] - 1,
        lambda: sampler.lr,
        lengths,
        THINNINGS,
    )
    walk(
        sampler,
        steps=BURN_IN + max(lengths),
        gradient=gradient,
        each=found,
        burn_in=BURN_IN,
        freeze_at=FREEZE_AT if freeze else None,
        schedule=partial(PolynomialDecay, b=1.0, gamma=beta),
    )
    return found, sampler


def _potential(theta: Tensor, precision: Tensor, batch: Any) -> Tensor:
    value: Tensor = ((theta @ precision) * theta).sum(-1, keepdim=True) / 2
    return value


def regression(beta: float) -> TimeAverages:
    """Run NLD's metric DOP on a linear regression with lr_t = a t^-beta, C frozen in burn-in.

    phi = (theta - m)' X'X (theta - m) / 2, whose posterior mean is 1.
    """
    generator = np.random.default_rng(0)
    x = generator.standard_normal((EXAMPLES, 2))
    y = x.sum(1) + generator.standard_normal(EXAMPLES)
    mean, precision = posterior(x, y)
    start = draws(generator, mean, precision, CHAINS)[:, None]
    theta = torch.from_numpy(start).requires_grad_()
    sampler = SGLD([theta], first("nld", beta), preconditioner=DiagonalFisher(), num_data=EXAMPLES)
    sampler.stack(one_generator=True)
    problem = Regressions(theta, x, y, BATCH, seed=0)
    problem.attach(sampler)
    m, A = torch.from_numpy(mean), torch.from_numpy(precision)

    def phi(theta: Tensor) -> Tensor:
        off = theta[:, 0] - m
        return ((off @ A) * off).sum(1) / 2 - 1

    found = TimeAverages(phi, lambda: sampler.lr, LENGTHS, (1,))
    walk(
        sampler,
        steps=BURN_IN + max(LENGTHS),
        gradient=problem.gradient,
        each=found,
        burn_in=BURN_IN,
        freeze_at=FREEZE_AT,
        schedule=partial(PolynomialDecay, b=1.0, gamma=beta),
    )
    return found


def cells() -> list[Study]:
    """Return one study a sampler and decay."""
    return [
        *(
            Study(f"psgld-{name}", partial(frozen, beta, seed))
            for seed, (name, beta) in enumerate(BETAS.items())
        ),
        *(Study(f"adapting-{name}", partial(adapting, *how)) for name, how in ADAPTING.items()),
        *(Study(f"nld-{name}", partial(natural, beta)) for name, beta in BETAS.items() if beta),
    ]


def frozen(beta: float, seed: int, folder: Path) -> dict[str, Any]:
    """Run pSGLD with C frozen, at three thinnings, beside the closed form."""
    found, sampler = gaussian(beta, chains=FROZEN_CHAINS, seed=seed)
    g, a, variance = matrices(sampler)[:, 0, 0], first("psgld", beta), TARGET[0, 0]
    h: Array = a * np.arange(1, LENGTHS[-1] + 1, dtype=np.float64) ** -beta
    rows = [
        {"thinning": k}
        | _over_all(found, k)
        | rows_of(found, k, exact(h, g, variance, NOISE, LENGTHS, k))
        for k in THINNINGS
    ]
    far = far_power(a, beta, float(g.mean()), variance, NOISE)
    return {"rows": rows, "far": far, "theory": expected_power(beta), "step": a}


def _over_all(found: TimeAverages, k: int) -> dict[str, Any]:
    """Return the MSE of every k-th state over that of all states of the same chains."""
    ratio, error = jackknife(
        lambda thinned, whole: thinned.mean(1) / whole.mean(1), found.squares(k), found.squares()
    )
    return {"ratio": ratio.tolist(), "ratio_se": error.tolist()}


def adapting(alpha: float, gamma: bool, folder: Path) -> dict[str, Any]:
    """Run pSGLD with C adapting throughout, at beta = 1/3."""
    lengths = LENGTHS[:-3] if gamma else LENGTHS  # a Hessian's diagonal a step
    found, _ = gaussian(1 / 3, freeze=False, alpha=alpha, gamma=gamma, lengths=lengths)
    bias = [mean_and_error(average) for average in found.kept[1]]
    return rows_of(found, 1) | {
        "alpha": alpha,
        "gamma": gamma,
        "bias": [value for value, _ in bias],
        "bias_se": [error for _, error in bias],
    }


def natural(beta: float, folder: Path) -> dict[str, Any]:
    """Run NLD's DOP on a linear regression."""
    return rows_of(regression(beta), 1) | {
        "theory": expected_power(beta),
        "step": first("nld", beta),
    }
