"""Darcy solves of many permeabilities, ours beside a saddle-point `spsolve` and peers, in one run.

A sample is its field, assembly, factorization, solution and velocities, on an n x n grid with
pressure 1 on the left and 0 on the right, of the additive Karhunen-Loeve field. Times are processor
milliseconds a sample, one thread, medians of repetitions interleaved between the ways. `gap` is
the largest relative L2 difference of a way's velocities from the naive one's, over its samples.

    python scripts/bench/permeability.py [--grid 50 100 200] [--repetitions 5]
                                         [--record FILE]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from saddle_point import saddle_point_solution
from steps import hardware

from pde import DarcyFamily, Grid, KarhunenLoeve, PdeError, RandomPermeability
from tasks.experiments.costs import Cell, publish

Array = NDArray[np.float64]
#: From a few sample numbers to their velocities.
Way = Callable[[range], Array]

PRESSURE = {"left": 1.0, "right": 0.0}
#: Samples that one measurement takes.
BATCH = 8
#: Grids above which LAPACK's banded factorization is left out.
LARGEST_BANDED = 200


def naive(grid: Grid, fields: RandomPermeability) -> Way:
    """Assemble the saddle point and give it to `spsolve`, each time."""
    zero = np.zeros(grid.shape)
    return lambda samples: np.stack(
        [saddle_point_solution(grid, fields.sample(i), zero, PRESSURE).velocity for i in samples]
    )


def ours(grid: Grid, fields: RandomPermeability, backend: str) -> Way:
    """Take one backend of ours."""
    family = DarcyFamily(grid, PRESSURE, backend=backend)
    return lambda samples: family.solve(np.stack([fields.sample(i) for i in samples])).velocity


def scikit_fem(grid: Grid, fields: RandomPermeability) -> Way:
    """Take scikit-fem's RT0/P0 elements and its direct solver; the mesh is made once."""
    import skfem  # type: ignore[import-untyped]

    mesh = skfem.MeshQuad.init_tensor(*[np.linspace(0, 1, grid.nx + 1)] * 2)
    element = skfem.ElementQuadRT0() * skfem.ElementQuad0()
    basis = skfem.Basis(mesh, element, intorder=2)
    left = mesh.facets_satisfying(lambda x: x[0] == 0)
    walls = mesh.facets_satisfying(lambda x: (x[1] == 0) | (x[1] == 1))
    boundary = skfem.FacetBasis(mesh, element, facets=left, intorder=2)
    middle = mesh.p[:, mesh.facets].mean(axis=1)
    vertical = np.ptp(mesh.p[0, mesh.facets], axis=0) == 0
    row = np.rint(middle[1] / grid.hy - 0.5 * vertical).astype(int)
    column = np.rint(middle[0] / grid.hx - 0.5 * ~vertical).astype(int)
    edge = np.where(
        vertical, row * (grid.nx + 1) + column, grid.num_vertical + row * grid.nx + column
    )
    # A facet's unknown is the flux out of its first element.
    centre = mesh.p[:, mesh.t].mean(axis=1)[:, mesh.f2t[0]]
    sign = np.sign((middle - centre).sum(axis=0)) / np.where(vertical, grid.hy, grid.hx)

    closed = basis.dofs.facet_dofs[0][walls]

    def solve(samples: range) -> Array:
        found = np.empty((len(samples), grid.num_edges))
        for velocity, sample in zip(found, samples, strict=True):
            kappa = fields.sample(sample)

            def cell(x: Array) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
                return (x[1] // grid.hy).astype(np.intp), (x[0] // grid.hx).astype(np.intp)

            @skfem.BilinearForm
            def bilinear(u, p, v, q, w, kappa=kappa, cell=cell):  # type: ignore[no-untyped-def]
                mass = (u[0] * v[0] + u[1] * v[1]) / kappa[cell(w.x)]
                return mass - p * v.div - q * u.div

            @skfem.LinearForm
            def given(v, q, w):  # type: ignore[no-untyped-def]
                return -(v[0] * w.n[0] + v[1] * w.n[1])

            system = skfem.condense(bilinear.assemble(basis), given.assemble(boundary), D=closed)
            unknowns = np.asarray(skfem.solve(*system))
            velocity[edge] = unknowns[basis.dofs.facet_dofs[0]] * sign
        return found

    return solve


def ngsolve(grid: Grid, fields: RandomPermeability) -> Way:
    """Take NGSolve's hybridised RT0/P0 elements, condensed, and its sparse Cholesky."""
    import ngsolve as ng  # type: ignore[import-not-found]
    from ngsolve.meshes import MakeStructured2DMesh  # type: ignore[import-not-found]

    ng.SetNumThreads(1)
    mesh = MakeStructured2DMesh(quads=True, nx=grid.nx, ny=grid.ny)
    pressures = ng.L2(mesh, order=0)
    space = ng.HDiv(mesh, order=0, discontinuous=True) * pressures
    space *= ng.FacetFESpace(mesh, order=0, dirichlet="left|right")
    (u, p, m), (v, q, k) = space.TnT()
    normal, values = ng.specialcf.normal(2), ng.GridFunction(pressures)
    corners = np.array([[mesh[w].point for w in cell.vertices] for cell in mesh.Elements()])
    x, y = corners.mean(axis=1).T
    cells = (y // grid.hy).astype(int), (x // grid.hx).astype(int)
    inside = np.clip(grid.edge_midpoints(), 1e-12, 1 - 1e-12)
    places = mesh(inside[:, 0], inside[:, 1])
    vertical = np.arange(grid.num_edges) < grid.num_vertical

    def solve(samples: range) -> Array:
        found = np.empty((len(samples), grid.num_edges))
        for velocity, sample in zip(found, samples, strict=True):
            values.vec.FV().NumPy()[:] = fields.sample(sample)[cells]
            system = ng.BilinearForm(space, symmetric=True, condense=True)
            system += u * v / values * ng.dx - p * ng.div(v) * ng.dx - q * ng.div(u) * ng.dx
            system += (m * (v * normal) + k * (u * normal)) * ng.dx(element_boundary=True)
            system.Assemble()
            solution = ng.GridFunction(space)
            solution.components[2].Set(ng.CF(1.0), definedon=mesh.Boundaries("left"))
            rest = solution.vec.CreateVector()
            rest.data = -1 * system.mat * solution.vec
            rest.data += system.harmonic_extension_trans * rest
            factor = system.mat.Inverse(space.FreeDofs(True), inverse="sparsecholesky")
            solution.vec.data += factor * rest
            solution.vec.data += system.harmonic_extension * solution.vec
            solution.vec.data += system.inner_solve * rest
            both = solution.components[0](places)
            velocity[:] = np.where(vertical, both[:, 0], both[:, 1])
        return found

    return solve


def ways(grid: Grid, fields: RandomPermeability) -> dict[str, Way]:
    """Return what can be timed here, the naive way first."""
    table = {"saddle point, spsolve": naive(grid, fields)}
    if grid.nx <= LARGEST_BANDED:
        table["DarcyFamily, scipy"] = ours(grid, fields, "scipy")
    makers: dict[str, Callable[[], Way]] = {
        "DarcyFamily, compiled": lambda: ours(grid, fields, "compiled"),
        "scikit-fem": lambda: scikit_fem(grid, fields),
        "NGSolve, hybrid": lambda: ngsolve(grid, fields),
    }
    for name, make in makers.items():
        try:
            table[name] = make()
        except (ImportError, PdeError) as error:
            print(f"{name}: left out ({error})")
    return table


def bench(n: int, repetitions: int) -> list[list[Cell]]:
    """Return the rows of one grid."""
    grid = Grid(n, n)
    fields = RandomPermeability(KarhunenLoeve(grid))
    table = ways(grid, fields)
    slow = n > 100  # the naive way and the peers then take one sample a repetition
    batches = {
        name: range(1 if slow and "Family" not in name else BATCH if "Family" in name else 2)
        for name in table
    }
    velocities = {name: way(batches[name]) for name, way in table.items()}
    times: dict[str, list[float]] = {name: [] for name in table}
    for _ in range(repetitions):
        for name, way in table.items():
            began = time.process_time()
            way(batches[name])
            times[name].append((time.process_time() - began) / len(batches[name]))
    reference = velocities["saddle point, spsolve"]
    base = statistics.median(times["saddle point, spsolve"])
    rows: list[list[Cell]] = []
    for name in table:
        seconds = statistics.median(times[name])
        both = min(len(reference), len(velocities[name]))
        gap = max(
            float(np.linalg.norm(a - b) / np.linalg.norm(b))
            for a, b in zip(velocities[name][:both], reference[:both], strict=True)
        )
        rows.append([f"{n} x {n}", name, 1e3 * seconds, base / seconds, f"{gap:.1e}"])
    return rows


def versions() -> str:
    """Return the versions that matter."""
    names: dict[str, Any] = {"SciPy": scipy}
    try:
        import numba

        names["Numba"] = numba
    except ImportError:
        pass
    return ", ".join(f"{name} {module.__version__}" for name, module in names.items())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--grid", type=int, nargs="+", default=[50, 100], help="cells a direction")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--record", type=Path, help="where to keep the numbers")
    given = parser.parse_args()
    rows = [row for n in given.grid for row in bench(n, given.repetitions)]
    said = f"{hardware(torch.device('cpu'))}, {versions()}; one thread."
    publish(said, ["cells", "way", "ms a sample", "times as fast", "gap"], rows, given.record)


if __name__ == "__main__":
    main()
