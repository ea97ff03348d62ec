"""Darcy solves on one permeability, ours beside a saddle-point `spsolve` for each, in one run.

Times are medians of repetitions, CPU seconds of one thread. The naive way, slow, is timed on a few
sources and scaled to the number of samples. Errors are relative L2 errors of the velocity, the
largest over a few sources, against a reference refined in extended precision, beside the largest
imbalance of a cell over the largest source.

    python scripts/bench/darcy.py [--grid 60 50] [--repetitions 5] [--record FILE]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from saddle_point import refined_solution, saddle_point_solution
from steps import hardware

from pde import (
    DarcySolver,
    Grid,
    channelised_permeability,
    random_source,
    three_spot_source,
    three_spot_strengths,
    three_spots,
)
from tasks.experiments.costs import Cell, publish

Array = NDArray[np.float64]
NAIVE = 7
SAMPLES = 1500


def median_seconds(action: Callable[[], object], repetitions: int) -> float:
    """Median CPU time of an action, after one run that is not counted."""
    action()
    times = []
    for _ in range(repetitions):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return statistics.median(times)


def accuracy(grid: Grid, kappa: Array, sources: Array, velocities: Array) -> tuple[float, float]:
    """Largest velocity error and largest imbalance over some sources."""
    errors, imbalances = [], []
    for source, velocity in zip(sources, velocities, strict=True):
        exact = refined_solution(grid, kappa, source).velocity
        errors.append(np.linalg.norm(velocity - exact) / np.linalg.norm(exact))
        imbalances.append(np.abs(grid.divergence(velocity) - source).max() / np.abs(source).max())
    return float(max(errors)), float(max(imbalances))


def bench(n: int, repetitions: int) -> list[list[Cell]]:
    """Return the rows of one grid."""
    grid = Grid(n, n)
    kappa = channelised_permeability(grid, seed=0)
    strengths = three_spot_strengths(0, SAMPLES)
    spots = three_spot_source(grid, strengths)
    arbitrary = np.stack([random_source(grid, 0, i) for i in range(SAMPLES)])

    def superpose() -> Array:
        basis = DarcySolver(grid, kappa).solve(three_spots(grid)).velocity
        return strengths @ basis

    def many() -> Array:
        return DarcySolver(grid, kappa).solve(arbitrary).velocity

    def naive(sources: Array) -> Array:
        return np.stack([saddle_point_solution(grid, kappa, f).velocity for f in sources])

    few = slice(0, NAIVE)
    slow = median_seconds(lambda: naive(spots[:1]), NAIVE)
    rows = [
        ("three spots, spsolve each", slow * SAMPLES, spots, naive(spots[few])),
        (
            "three spots, superposition",
            median_seconds(superpose, repetitions),
            spots,
            superpose()[few],
        ),
        ("arbitrary, spsolve each", slow * SAMPLES, arbitrary, naive(arbitrary[few])),
        ("arbitrary, DarcySolver", median_seconds(many, repetitions), arbitrary, many()[few]),
    ]
    found: list[list[Cell]] = []
    for name, seconds, sources, velocities in rows:
        errors = [f"{e:.1e}" for e in accuracy(grid, kappa, sources[few], velocities)]
        found.append([f"{n} x {n}", name, seconds, slow * SAMPLES / seconds, *errors])
    return found + scikit_fem(grid, kappa, arbitrary[0], slow)


def scikit_fem(grid: Grid, kappa: Array, source: Array, slow: float) -> list[list[Cell]]:
    """Return what its solves cost, where it is installed; the error is that of the norm alone."""
    try:
        import skfem  # type: ignore[import-untyped]
    except ImportError:
        return []
    mesh = skfem.MeshQuad.init_tensor(*[np.linspace(0, 1, grid.nx + 1)] * 2)

    def solve() -> Array:
        element = skfem.ElementQuadRT0() * skfem.ElementQuad0()
        basis = skfem.Basis(mesh, element, intorder=2)
        size = np.array([grid.hx, grid.hy])

        def cell(x: Array) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
            return (x[1] // size[1]).astype(np.intp), (x[0] // size[0]).astype(np.intp)

        @skfem.BilinearForm
        def bilinear(u, p, v, q, w):  # type: ignore[no-untyped-def]
            mass = (u[0] * v[0] + u[1] * v[1]) / kappa[cell(w.x)]
            return mass - p * v.div - q * u.div

        @skfem.LinearForm
        def linear(v, q, w):  # type: ignore[no-untyped-def]
            return -source[cell(w.x)] * q

        _, pressures = basis.split_indices()
        row, column = cell(mesh.p[:, mesh.t].mean(axis=1))
        pinned = pressures[np.argmax(kappa[row, column])]
        fixed = np.append(basis.get_dofs().all(), pinned)
        system = skfem.condense(bilinear.assemble(basis), linear.assemble(basis), D=fixed)
        return np.asarray(skfem.solve(*system))

    seconds = median_seconds(solve, NAIVE)
    exact = np.linalg.norm(refined_solution(grid, kappa, source).velocity) * grid.hx
    norm = np.linalg.norm(solve()[: grid.num_edges])
    error = f"{abs(norm - exact) / exact:.1e}"
    size, ratio = f"{grid.nx} x {grid.ny}", slow / seconds
    return [[size, "arbitrary, scikit-fem each", seconds * SAMPLES, ratio, error, None]]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--grid", type=int, nargs="+", default=[60, 50], help="cells a direction")
    parser.add_argument("--repetitions", type=int, default=5, help="of ours; the naive way gets 7")
    parser.add_argument("--record", type=Path, help="where to keep the numbers")
    given = parser.parse_args()
    rows = [row for n in given.grid for row in bench(n, given.repetitions)]
    said = (
        f"{hardware(torch.device('cpu'))}, SciPy {scipy.__version__}, one BLAS thread; {SAMPLES:,} "
        f"samples, `spsolve` scaled from the median of {NAIVE} solves."
    )
    heading = ["cells", "way", "seconds", "times as fast", "velocity error", "imbalance"]
    publish(said, heading, rows, given.record)


if __name__ == "__main__":
    main()
