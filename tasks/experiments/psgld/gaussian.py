"""pSGLD's 2-D Gaussian (Li et al. 2016, Figures 1 and 6).

Target N(0, diag(.16, 1)); covariance error against autocorrelation time over step sizes. The
paper takes 200,000 draws; here 50 chains of 20,000, whose error is that of groups of ten. The
gradient carries noise of standard deviation .1, as in the authors' script, whose step is h on the
sum (the paper's epsilon is 2 h), with memory alpha = .9999 and lambda = 1e-4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from lightning_sgmcmc import PSGLD, SGHMC, SGLD, RMSProp, Sampler
from lightning_sgmcmc.figures import new_figure
from tasks.experiments import gaussians
from tasks.experiments.experiment import Study
from tasks.experiments.gaussians import Linear, Make
from tasks.experiments.loop import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = tuple(0.3 * 0.8**i for i in (0, 1, 2, 4, 6, 8, 11, 14))
NOISE, LAMBDA = 0.1, 1e-4
CHAINS, DRAWS, GROUPS = 50, 20_000, 5
TARGET = np.diag([0.16, 1.0])
FIRST = 600
#: (a, h) of the paths: variance of the second coordinate and step size.
PATHS = ((0.5, 0.1), (1.0, 0.3), (2.0, 0.1))


@dataclass(frozen=True)
class Method:
    """A sampler, how long it burns in, and what its chain is in closed form."""

    label: str
    make: Make
    burn_in: int
    freeze: bool
    closed: Callable[[Sampler, Array, float, float], list[Linear]] | None


def _published(params: list[Tensor], h: float) -> Sampler:
    metric = RMSProp(alpha=0.9999, eps=LAMBDA, start_at_gradient=True)
    return SGLD(params, h, preconditioner=metric)


def _fixed_point(sampler: Sampler, covariance: Array, h: float, sd: float) -> list[Linear]:
    C = gaussians.adapted(np.diag(covariance), h, LAMBDA, sd)
    return [gaussians.langevin(covariance, h, C, sd)]


METHODS = {
    "sgld": Method("SGLD", lambda p, h: SGLD(p, h), 2_000, True, gaussians.frozen),
    "psgld": Method(
        "pSGLD as in the authors' script (adapting, alpha = .9999)",
        _published,
        50_000,
        False,
        _fixed_point,
    ),
    "psgld_99": Method(
        "pSGLD as in the paper (adapting, alpha = .99)",
        lambda p, h: PSGLD(p, h, alpha=0.99, eps=LAMBDA),
        2_000,
        False,
        None,
    ),
    "psgld_frozen": Method(
        "pSGLD, frozen after burn-in (alpha = .99)",
        lambda p, h: PSGLD(p, h, alpha=0.99, eps=LAMBDA),
        2_000,
        True,
        gaussians.frozen,
    ),
    "sghmc": Method(
        "SGHMC, momentum .9",
        lambda p, h: SGHMC(p, h, momentum=0.9),
        2_000,
        True,
        gaussians.momentum_chain,
    ),
}
LABELS = {name: method.label for name, method in METHODS.items()}


def cells() -> list[Study]:
    """Return one study a sampler, and the paths."""

    def study(name: str) -> Study:
        return Study(name, lambda _: {"rows": [row(METHODS[name], h) for h in STEPS]})

    return [*(study(name) for name in METHODS), Study("paths", first_states)]


def row(method: Method, h: float, chains: int = CHAINS, draws: int = DRAWS) -> dict[str, Any]:
    """Return what a sampler reaches at one step size, beside its closed form."""
    states, sampler = gaussians.run(
        TARGET,
        method.make,
        h,
        chains=chains,
        steps=method.burn_in + draws,
        burn_in=method.burn_in,
        sd=NOISE,
        freeze=method.freeze,
        label=f"{method.label}, h = {h:.3g}",
    )
    closed = None
    if method.closed is not None:
        closed = gaussians.predicted(TARGET, method.closed(sampler, TARGET, h, NOISE))
    return {"h": h, **gaussians.measure(TARGET, states, GROUPS), "closed": closed}


def first_states(folder: Path) -> dict[str, Any]:
    """Take the first 600 states for Figures 1 (b) and 6, with their mean error over 500 chains."""
    found, stored = [], {}
    for name in ("sgld", "psgld", "psgld_99"):
        for a, h in PATHS:
            covariance = np.diag([0.16, a])
            states, _ = gaussians.run(
                covariance,
                METHODS[name].make,
                h,
                chains=500,
                steps=FIRST,
                burn_in=0,
                sd=NOISE,
                freeze=False,
            )
            errors = [gaussians.error(covariance, np.cov(chain.T)) for chain in states]
            stored[f"{name}_{a:g}_{h:g}"] = states[0]
            found.append(
                {
                    "sampler": name,
                    "a": a,
                    "h": h,
                    "median_error": float(np.median(errors)),
                    "worst_error": float(np.max(errors)),
                }
            )
    np.savez(folder / "paths.npz", **stored)
    return {"rows": found}


def render(results: dict[str, dict[str, Any] | None], chosen_from: bool) -> str:
    """Return covariance errors and autocorrelation times, and the paths' errors, as Markdown."""
    lines = [
        f"Target N(0, diag(.16, 1)), {CHAINS * DRAWS // GROUPS:,} draws an error, gradient noise "
        f"of sd {NOISE}.",
        "",
        gaussians.table(results, LABELS, STEPS),
        "",
        f"The covariance from the first {FIRST} states, 500 chains, target diag(.16, a).",
        "",
        "| sampler | a | h | median error | largest error |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {LABELS[r['sampler']]} | {r['a']:g} | {r['h']:g} | {r['median_error']:.3f} | "
        f"{r['worst_error']:.3g} |"
        for r in gaussians.rows(results, "paths")
    ]
    return "\n".join(lines)


def figures(results: dict[str, dict[str, Any] | None], out: Path) -> dict[str, Figure]:
    """Return error over autocorrelation time (Figure 1 a), and the paths (Figures 1 b and 6)."""
    drawn = {}
    if any(gaussians.rows(results, name) for name in METHODS):
        figure = new_figure(7, 5)
        gaussians.error_over_time(figure.subplots(), results, LABELS)
        drawn["psgld-gaussian"] = figure
    stored = out / "paths" / "paths.npz"
    if stored.is_file():
        with np.load(stored) as arrays:
            panels = [
                [
                    (
                        f"{title}: a = {a:g}, h = {h:g}",
                        np.diag([0.16, a]),
                        arrays[f"{name}_{a:g}_{h:g}"],
                    )
                    for a, h in PATHS
                ]
                for name, title in (("sgld", "SGLD"), ("psgld_99", "pSGLD"))
            ]
        drawn["psgld-gaussian-paths"] = gaussians.paths(panels)
    return drawn
