"""Darcy solves on one permeability, ours beside a saddle-point `spsolve` for each, in one run.

Times are medians of repetitions, CPU seconds of one thread. The naive way, slow, is timed on a few
sources and scaled to the number of samples. Errors are relative L2 errors of the velocity, the
largest over a few sources, against a reference refined in extended precision; `div` is the largest
imbalance of a cell over the largest source.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import scipy
from numpy.typing import NDArray
from saddle_point import refined_solution, saddle_point_solution

from pde import (
    DarcySolver,
    Grid,
    channelised_permeability,
    random_source,
    three_spot_source,
    three_spot_strengths,
    three_spots,
)

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


def bench(n: int, repetitions: int) -> None:
    """Print the table of one grid."""
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
    print(f"\n{n} x {n} cells, contrast {kappa.max() / kappa.min():.1e}, {SAMPLES} samples")
    print(f"{'way':30}{'CPU s':>10}{'ratio':>9}{'error':>10}{'div':>10}")
    for name, seconds, sources, velocities in rows:
        error, imbalance = accuracy(grid, kappa, sources[few], velocities)
        ratio = slow * SAMPLES / seconds
        print(f"{name:30}{seconds:10.4f}{ratio:9.1f}{error:10.1e}{imbalance:10.1e}")
    scikit_fem(grid, kappa, arbitrary[0], slow)


def scikit_fem(grid: Grid, kappa: Array, source: Array, slow: float) -> None:
    """Print what one solve costs with scikit-fem, where it is installed."""
    try:
        import skfem  # type: ignore[import-untyped]
    except ImportError:
        print("scikit-fem is not installed")
        return
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
    print(
        f"{'arbitrary, scikit-fem each':30}{seconds * SAMPLES:10.4f}{slow / seconds:9.1f}"
        f"{abs(norm - exact) / exact:10.1e} (of the norm alone)"
    )


def main() -> None:
    """Print where it runs, then one table a grid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grid", type=int, nargs="+", default=[60, 50], help="cells a direction")
    parser.add_argument("--repetitions", type=int, default=5, help="of ours; the naive way gets 7")
    given = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, one BLAS thread; Python "
        f"{platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}"
    )
    print(f"spsolve each: median of {NAIVE} solves, scaled to {SAMPLES}")
    for n in given.grid:
        bench(n, given.repetitions)


if __name__ == "__main__":
    main()
