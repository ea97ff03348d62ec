"""Samplers on 2-D Gaussians: covariance error against autocorrelation time, and closed forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import solve_discrete_lyapunov
from torch import Tensor

from lightning_sgmcmc import SGHMC, Sampler
from lightning_sgmcmc.callbacks.report.figures import new_figure
from lightning_sgmcmc.diagnostics import autocorrelation_time
from tasks.experiments.drawing import ellipse
from tasks.experiments.labels import of_sampler
from tasks.experiments.loop import Array, sample
from tasks.experiments.tables import Column, Results, Row, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Make = Callable[[list[Tensor], float], Sampler]


class NoisyGradient:
    """A theta plus N(0, sd^2 I); a step that is evaluated twice has the same noise."""

    def __init__(self, covariance: Array, sd: float, seed: int) -> None:
        self.precision = torch.from_numpy(np.linalg.inv(covariance))
        self.sd, self._generator = sd, torch.Generator().manual_seed(seed)
        self._noise: tuple[int, Tensor] = (-1, torch.zeros(()))

    def __call__(self, theta: Tensor, step: int) -> Tensor:
        """Return the gradient at theta [..., d]."""
        if self.sd and self._noise[0] != step:
            noise = torch.randn(theta.shape, generator=self._generator, dtype=theta.dtype)
            self._noise = (step, self.sd * noise)
        exact: Tensor = theta @ self.precision
        return exact + self._noise[1] if self.sd else exact


@dataclass(frozen=True)
class Linear:
    """x <- M x + noise of covariance Q; the first coordinates of x are the weights."""

    M: Array
    Q: Array

    @property
    def stable(self) -> bool:
        """Whether every eigenvalue of M lies inside the unit circle."""
        return bool(np.abs(np.linalg.eigvals(self.M)).max() < 1)

    def law(self, d: int) -> tuple[Array, Array]:
        """Return stationary covariance [d, d] and integrated autocorrelation times [d].

        P = M P M' + Q, and 1/2 + sum over t >= 1 of (M^t P)_ii / P_ii.
        """
        P: Array = np.asarray(solve_discrete_lyapunov(self.M, self.Q), dtype=np.float64)
        total = self.M @ np.linalg.solve(np.eye(len(P)) - self.M, P)
        times: Array = 0.5 + np.diag(total)[:d] / np.diag(P)[:d]
        return P[:d, :d], times


def langevin(covariance: Array, h: float, C: Array, sd: float) -> Linear:
    """Return SGLD's chain with a constant C: M = I - h C A, Q = 2 h C + (h sd)^2 C C."""
    A = np.linalg.inv(covariance)
    return Linear(np.eye(len(A)) - h * C @ A, 2 * h * C + (h * sd) ** 2 * C @ C)


def underdamped(covariance: Array, h: float, momentum: float, sd: float) -> Linear:
    """Return the chain of ``SGHMC``, BAOAB on (theta, w), with C = I and lr = h, N = 1."""
    A, one = np.linalg.inv(covariance), np.eye(len(covariance))
    r = np.sqrt(2 * h / (1 + momentum))
    half = r * (1 + momentum) / 2
    M = np.block([[one - half * r * A, half * one], [-momentum * r * A, momentum * one]])
    n = np.vstack([half * r * one, momentum * r * one]) * sd
    z = np.vstack([r / 2 * one, one]) * np.sqrt(1 - momentum**2)
    return Linear(M, n @ n.T + z @ z.T)


def adapted(variances: Array, h: float, eps: float, sd: float) -> Array:
    """Return C where a slowly adapting RMSProp metric settles on a diagonal Gaussian.

    g = 1 / (eps + sqrt(P/variance^2 + sd^2)) with P the variance of the chain that g makes.
    """
    a = 1 / variances
    g = np.sqrt(variances)
    for _ in range(200):
        P = (2 * h * g + (h * sd * g) ** 2) / (1 - np.minimum((1 - h * g * a) ** 2, 0.999))
        g = 0.5 * g + 0.5 / (eps + np.sqrt(a * a * P + sd * sd))
    C: Array = np.diag(g)
    return C


def matrices(sampler: Sampler) -> Array:
    """Return the matrix C of every chain, [K, d, d]; K = 1 for a single one."""
    (theta,) = sampler.params
    columns = []
    for unit in torch.eye(theta.shape[-1], dtype=theta.dtype):
        (column,) = sampler.preconditioner.apply_([unit.expand_as(theta).clone()])
        columns.append(column.reshape(-1, theta.shape[-1]).numpy().copy())
    return np.stack(columns, axis=-1)


def error(covariance: Array, estimate: Array) -> float:
    """Return the mean absolute error over the entries, the papers' measure."""
    return float(np.abs(estimate - covariance).mean())


def run(
    covariance: Array,
    make: Make,
    h: float,
    *,
    chains: int | None,
    steps: int,
    burn_in: int,
    sd: float = 0.0,
    freeze: bool = True,
    seed: int = 0,
    label: str = "",
) -> tuple[Array, Sampler]:
    """Start chains in the target and return their draws, [K, steps - burn_in, d].

    Args:
        covariance: Of the target N(0, covariance).
        make: Builds the sampler from its parameters and the step size on the sum (N = 1).
        h: The step size.
        chains: K stacked chains; None for a single one.
        steps: Steps in all.
        burn_in: Steps before the first draw.
        sd: Standard deviation of the gradient's noise.
        freeze: Freeze C where burn-in ends.
        seed: Of starts and noise.
        label: Of the progress bar.
    """
    generator = np.random.default_rng(seed)
    size = () if chains is None else (chains,)
    start = generator.multivariate_normal(np.zeros(len(covariance)), covariance, size)
    theta = torch.from_numpy(start).requires_grad_()
    sampler = make([theta], h)
    sampler.num_data = 1
    if chains is not None:
        sampler.stack(one_generator=True)
    else:
        sampler.set_first_chain(seed)
    draws, _ = sample(
        sampler,
        steps=steps,
        gradient=NoisyGradient(covariance, sd, seed),
        burn_in=burn_in,
        freeze=freeze,
        label=label,
    )
    return draws, sampler


def measure(covariance: Array, draws: Array, groups: int) -> dict[str, Any]:
    """Return covariance error and autocorrelation time of draws [K, draws, d].

    The error is that of the sample covariance of a group's chains together, the autocorrelation
    time (1/2 + sum of the autocorrelations) the mean over coordinates; both with the standard
    error over groups.
    """
    errors, times = [], []
    for chains in np.array_split(draws, groups):
        errors.append(error(covariance, np.cov(chains.reshape(-1, chains.shape[-1]).T)))
        times.append(float(autocorrelation_time(chains, "psgld").mean()))
    root = np.sqrt(max(groups - 1, 1))
    return {
        "error": float(np.mean(errors)),
        "error_se": float(np.std(errors) / root) if groups > 1 else None,
        "act": float(np.mean(times)),
        "act_se": float(np.std(times) / root) if groups > 1 else None,
        "covariance": np.cov(draws.reshape(-1, draws.shape[-1]).T).tolist(),
    }


def predicted(covariance: Array, chains: Sequence[Linear]) -> dict[str, Any]:
    """Return the closed forms of the same numbers, averaged over chains with different C."""
    d = len(covariance)
    if not all(chain.stable for chain in chains):
        return {"stable": False}
    laws = [chain.law(d) for chain in chains]
    mean: Array = np.mean([law[0] for law in laws], axis=0)
    return {
        "stable": True,
        "error": error(covariance, mean),
        "act": float(np.mean([law[1] for law in laws])),
        "covariance": mean.tolist(),
    }


def frozen(sampler: Sampler, covariance: Array, h: float, sd: float) -> list[Linear]:
    """Return the linear chains that a Langevin sampler with constant C is."""
    return [langevin(covariance, h, C, sd) for C in matrices(sampler)]


def momentum_chain(sampler: Sampler, covariance: Array, h: float, sd: float) -> list[Linear]:
    """Return the linear chain that an ``SGHMC`` with C = I is."""
    assert isinstance(sampler, SGHMC)
    return [underdamped(covariance, h, sampler.momentum, sd)]


@dataclass(frozen=True)
class Method:
    """A sampler, its chains, and what its chain is in closed form.

    Attributes:
        make: Builds it.
        closed: Returns its chains in closed form; None where there is none.
        chains: How many.
        burn_in: Steps before the first draw.
        freeze: Whether C is a constant from where burn-in ends.
        stacked: Whether chains are one computation; otherwise they run one after another.
        pool: Chains whose draws make one error.
        constant: Whether C = I from the start, so that an unstable step is known before the run.
    """

    make: Make
    closed: Callable[[Sampler, Array, float, float], list[Linear]] | None = None
    chains: int = 20
    burn_in: int = 500
    freeze: bool = True
    stacked: bool = True
    pool: int = 1
    constant: bool = False

    @property
    def label(self) -> str:
        """What tables call it: what it builds."""
        return of_sampler(self.make([torch.zeros(2)], 1.0), self.freeze)


UNDERDAMPED = Method(partial(SGHMC, momentum=0.9), momentum_chain)


def row(
    method: Method, covariance: Array, h: float, draws: int, sd: float = 0.0
) -> tuple[dict[str, Any], Array | None]:
    """Return what a sampler reaches at one step size and its draws, none where it is unstable.

    Args:
        method: The sampler.
        covariance: Of the target.
        h: The step size.
        draws: Draws of each chain.
        sd: Standard deviation of the gradient's noise.
    """
    closed: list[Linear] = []
    parts = []
    if method.constant and method.closed is not None:
        probe = method.make([Tensor(len(covariance)).double()], h)
        closed = method.closed(probe, covariance, h, sd)
        if not all(chain.stable for chain in closed):
            return {"h": h, "closed": {"stable": False}}, None
    for seed in range(1 if method.stacked else method.chains):
        states, sampler = run(
            covariance,
            method.make,
            h,
            chains=method.chains if method.stacked else None,
            steps=method.burn_in + draws,
            burn_in=method.burn_in,
            sd=sd,
            freeze=method.freeze,
            seed=seed,
            label=f"{method.label}, h = {h:.3g}, chain {seed}",
        )
        parts.append(states)
        if method.closed is not None and not method.constant:
            closed += method.closed(sampler, covariance, h, sd)
    found = np.concatenate(parts)
    measured = measure(covariance, found, len(found) // method.pool)
    return {"h": h, **measured, "closed": predicted(covariance, closed) if closed else None}, found


def rows(results: Results, name: str) -> list[dict[str, Any]]:
    """Return the rows of a finished study, none if it is not finished."""
    found: list[dict[str, Any]] = (results.get(name) or {}).get("rows", [])
    return found


def tables(results: Results, labels: Mapping[str, str], steps: Sequence[float]) -> list[Table]:
    """Return errors and autocorrelation times of each sampler over the step sizes."""
    found = {label: {row["h"]: row for row in rows(results, n)} for n, label in labels.items()}
    return [
        Table(
            [f"{title} (closed form) at h ="],
            [Column(f"{h:.3g}", _entry(h, key, digits)) for h in steps],
            [Row([label], record=record) for label, record in found.items()],
        )
        for key, title, digits in (("error", "covariance error", 4), ("act", "ACT", 2))
    ]


def _entry(h: float, key: str, digits: int) -> Callable[[dict[float, Any]], str]:
    def read(record: dict[float, Any]) -> str:
        row = record.get(h)
        if row is None:
            return "-"
        closed = row.get("closed") or {}
        if closed.get("stable") is False:
            return "diverges"
        text = f"{row[key]:.{digits}f}" if row[key] < 1000 else f"{row[key]:.1e}"
        if row[f"{key}_se"] is not None:
            text += f" ± {row[f'{key}_se']:.{digits}f}"
        return f"{text} ({closed[key]:.{digits}f})" if closed else text

    return read


#: Line, marker and grey of each sampler in turn.
STYLES = (
    ("o-", "0.0"),
    ("s--", "0.0"),
    ("^:", "0.45"),
    ("D-", "0.45"),
    ("v--", "0.65"),
    ("P-.", "0.25"),
    ("X:", "0.75"),
    ("*-", "0.5"),
)


#: A covariance error in closed form below which a sampler is exact up to rounding.
EXACT = 1e-9


def error_over_time(axes: Axes, results: Results, labels: Mapping[str, str]) -> None:
    """Draw covariance error over autocorrelation time, a line each; closed forms as crosses."""
    cross: dict[str, Any] = {"ms": 11, "mew": 0.8}
    for (name, label), (style, shade) in zip(labels.items(), STYLES, strict=False):
        found = [row for row in rows(results, name) if "error" in row]
        if not found:
            continue
        act = [row["act"] for row in found]
        axes.loglog(act, [row["error"] for row in found], style, color=shade, label=label, ms=4)
        closed = [row["closed"] for row in found if row.get("closed")]
        exact = [e for e in closed if e["error"] > EXACT]  # 0 has no place on a logarithmic axis
        if exact:
            times, errors = [e["act"] for e in exact], [e["error"] for e in exact]
            axes.plot(times, errors, "+", color=shade, **cross)
    axes.set_xlabel("integrated autocorrelation time (steps)")
    axes.set_ylabel("mean absolute error of the covariance")
    axes.plot([], [], "k+", label="closed form, infinitely many draws", **cross)
    axes.grid(which="both", color="0.92")


def paths(panels: list[list[tuple[str, Array, NDArray[np.float64]]]], share: bool = True) -> Figure:
    """Draw paths over their targets' contours.

    Args:
        panels: Rows of panels, each a title, the target's covariance and the states [n, 2].
        share: Draw all panels to one scale.
    """
    figure = new_figure(2.9 * len(panels[0]), 2.9 * len(panels))
    grid = figure.subplots(len(panels), len(panels[0]), squeeze=False, sharex=share, sharey=share)
    for line, row in zip(grid, panels, strict=True):
        for axes, (title, covariance, states) in zip(line, row, strict=True):
            axes.plot(states[:, 0], states[:, 1], ".-", color="0.6", lw=0.3, ms=2)
            for size in (1, 2, 3):
                axes.plot(*ellipse(covariance, size), color="k", lw=0.9)
            axes.set_title(fill(title, 38), fontsize="small")
        line[0].set_ylabel(r"$\theta_2$")
    for axes in grid[-1]:
        axes.set_xlabel(r"$\theta_1$")
    return figure
