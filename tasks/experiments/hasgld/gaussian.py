"""HASGLD-SA's 2-D Gaussian (Wang, Deng, Lin 2020, section 5.1 and Figure 1).

Target N(0, [[s^2, -.95 s], [-.95 s, 1]]) with the paper's s = .12. SGLD is unstable then at every
step size that the paper lists (largest precision 721.5, limit h < .0028); with s^2 = .12 its limit
is .0211, just above the largest step listed. So both readings are run: "variance" (s^2 = .12) and
"printed" (s = .12). The gradient is exact; h is the step on the sum, T = 1/tau = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from lightning_sgmcmc import HAMCMC, HASGLD, SGHMC, SGLD, Sampler
from lightning_sgmcmc.figures import new_figure
from tasks.experiments import gaussians
from tasks.experiments.experiment import Study
from tasks.experiments.gaussians import Linear, Make
from tasks.experiments.loop import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = tuple(0.02 * 0.8**i for i in (0, 1, 2, 4))
BURN_IN, DRAWS, FIRST = 500, 30_000, 2_500
READINGS = {"variance": 0.12, "printed": 0.12**2}


def target(reading: str) -> Array:
    """Return the covariance under a reading of "sigma_x = .12"."""
    variance = READINGS[reading]
    return np.array([[variance, -0.95 * variance**0.5], [-0.95 * variance**0.5, 1.0]])


@dataclass(frozen=True)
class Method:
    """A sampler, how many chains, and what its chain is in closed form.

    ``stacked`` chains are one computation; otherwise they run one after another. ``freeze`` makes
    C a constant where burn-in ends. The draws of one error are those of ``pool`` chains together.
    """

    label: str
    make: Make
    chains: int
    stacked: bool
    closed: Callable[[Sampler, Array, float, float], list[Linear]] | None
    freeze: bool = True
    pool: int = 1


METHODS = {
    "sgld": Method("SGLD", lambda p, h: SGLD(p, h), 20, True, gaussians.frozen),
    "hasgld_printed": Method(
        "HASGLD-SA as printed (normalised)",
        lambda p, h: HASGLD(p, h, memory=2, paper_mode=True),
        1,
        False,
        None,
    ),
    "hasgld": Method(
        "HASGLD, frozen after burn-in (r = .25)",
        lambda p, h: HASGLD(p, h, memory=2),
        2,
        False,
        gaussians.frozen,
    ),
    "hasgld_r001": Method(
        "HASGLD, frozen after burn-in (r = .001)",
        lambda p, h: HASGLD(p, h, memory=5, r=1e-3),
        2,
        False,
        gaussians.frozen,
    ),
    "hamcmc": Method(
        "HAMCMC (adapting, M = 3)",
        lambda p, h: HAMCMC(p, h, memory=3),
        50,
        True,
        None,
        freeze=False,
        pool=5,
    ),
    "sghmc": Method(
        "SGHMC, momentum .9",
        lambda p, h: SGHMC(p, h, momentum=0.9),
        20,
        True,
        gaussians.momentum_chain,
    ),
}
LABELS = {name: method.label for name, method in METHODS.items()}


def cells() -> list[Study]:
    """Return one study a sampler and reading."""

    def study(name: str, reading: str) -> Study:
        return Study(f"{name}-{reading}", lambda folder: compute(name, reading, folder))

    return [study(name, reading) for reading in READINGS for name in METHODS]


def compute(name: str, reading: str, folder: Path) -> dict[str, Any]:
    """Run a sampler at every step size and keep its first states at the largest stable one."""
    rows, kept = [], None
    for h in STEPS:
        found, states = row(METHODS[name], target(reading), h)
        rows.append(found)
        if kept is None and states is not None:
            kept = states[0, :FIRST]
            np.savez(folder / "path.npz", states=kept, h=h)
    return {"rows": rows}


def row(
    method: Method, covariance: Array, h: float, draws: int = DRAWS
) -> tuple[dict[str, Any], Array | None]:
    """Return what a sampler reaches at one step size and its draws, none where it is unstable."""
    closed, parts = [], []
    if method.stacked and method.closed is not None:  # C = I: known to be unstable unrun
        probe = method.make([Tensor(len(covariance)).double()], h)
        closed = method.closed(probe, covariance, h, 0.0)
        if not all(chain.stable for chain in closed):
            return {"h": h, "closed": {"stable": False}}, None
    for seed in range(1 if method.stacked else method.chains):
        states, sampler = gaussians.run(
            covariance,
            method.make,
            h,
            chains=method.chains if method.stacked else None,
            steps=BURN_IN + draws // method.pool,
            burn_in=BURN_IN,
            freeze=method.freeze,
            seed=seed,
            label=f"{method.label}, h = {h:.3g}, chain {seed}",
        )
        parts.append(states)
        if method.closed is not None and not method.stacked:
            closed += method.closed(sampler, covariance, h, 0.0)
    draws_found = np.concatenate(parts)
    measured = gaussians.measure(covariance, draws_found, len(draws_found) // method.pool)
    exact = gaussians.predicted(covariance, closed) if closed else None
    return {"h": h, **measured, "closed": exact}, draws_found


def render(results: dict[str, dict[str, Any] | None], chosen_from: bool) -> str:
    """Return covariance errors and autocorrelation times of both readings as Markdown."""
    lines = [f"Correlation -.95, sigma_y = 1, {DRAWS:,} draws an error, exact gradients."]
    for reading, variance in READINGS.items():
        labels = {f"{name}-{reading}": label for name, label in LABELS.items()}
        lines += ["", f"sigma_x^2 = {variance:g}", "", gaussians.table(results, labels, STEPS)]
    return "\n".join(lines)


def figures(results: dict[str, dict[str, Any] | None], out: Path) -> dict[str, Figure]:
    """Return error over autocorrelation time (Figure 1 b) and the paths (Figure 1 a)."""
    drawn = {}
    names = {
        reading: {f"{name}-{reading}": label for name, label in LABELS.items()}
        for reading in READINGS
    }
    found = [
        reading
        for reading in READINGS
        if any("error" in row for name in names[reading] for row in gaussians.rows(results, name))
    ]
    if found:
        figure = new_figure(5 * len(found) + 1, 4.6)
        panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
        for axes, reading in zip(panels, found, strict=True):
            gaussians.error_over_time(axes, results, names[reading])
            axes.set_title(rf"$\sigma_x^2 = {READINGS[reading]:g}$")
        drawn["hasgld-gaussian"] = figure
    states = []
    for name in ("sgld", "hasgld_printed", "hasgld"):
        path = out / f"{name}-variance" / "path.npz"
        if path.is_file():
            with np.load(path) as stored:
                states.append((LABELS[name], target("variance"), stored["states"]))
    if states:
        drawn["hasgld-gaussian-paths"] = gaussians.paths([states], share=False)
    return drawn
