"""Agreement with an independent implementation of RT0/P0, scikit-fem's."""

import numpy as np
import pytest

from pde import DarcySolver, Grid

skfem = pytest.importorskip("skfem", reason="scikit-fem is in the test extra")


def oracle(grid, permeability, pressure, source):
    """Normal velocities in this package's numbering, and cell pressures, by scikit-fem."""
    mesh = skfem.MeshQuad.init_tensor(
        np.linspace(0, grid.lx, grid.nx + 1), np.linspace(0, grid.ly, grid.ny + 1)
    )
    element = skfem.ElementQuadRT0() * skfem.ElementQuad0()
    basis = skfem.Basis(mesh, element, intorder=4)
    size = np.array([grid.hx, grid.hy])

    def cell(x):
        return np.floor(x[1] / size[1]).astype(int), np.floor(x[0] / size[0]).astype(int)

    @skfem.BilinearForm
    def bilinear(u, p, v, q, w):
        mass = (u[0] * v[0] + u[1] * v[1]) / permeability[cell(w.x)]
        return mass - p * v.div - q * u.div

    @skfem.LinearForm
    def linear(v, q, w):
        return -source[cell(w.x)] * q

    matrix, load = bilinear.assemble(basis).tocsr(), linear.assemble(basis)
    middle = mesh.p[:, mesh.facets].mean(axis=1)
    vertical = np.ptp(mesh.p[0, mesh.facets], axis=0) == 0
    row, column = (
        np.rint(middle[1] / size[1] - 0.5 * vertical),
        np.rint(middle[0] / size[0] - 0.5 * ~vertical),
    )
    edge = np.where(
        vertical, row * (grid.nx + 1) + column, grid.num_vertical + row * grid.nx + column
    ).astype(int)
    facet = np.argsort(edge)

    closed = {"left", "right", "bottom", "top"} - set(pressure)
    fixed = [facet[grid.boundary_edges(side)] for side in closed]
    for side, values in pressure.items():
        facets = facet[grid.boundary_edges(side)]
        boundary = skfem.FacetBasis(mesh, element, facets=facets, intorder=4)
        along = int(side in ("left", "right"))
        per_edge = np.broadcast_to(values, facets.shape)

        @skfem.LinearForm
        def given(v, q, w, axis=1 - along, along=along, per_edge=per_edge):
            position = np.floor(w.x[along] / size[along]).astype(int)
            return -per_edge[position] * v[axis] * w.n[axis]

        load = load + given.assemble(boundary)

    velocity_dofs, pressure_dofs = basis.split_indices()
    np.testing.assert_array_equal(velocity_dofs, basis.dofs.facet_dofs[0])
    if not pressure:
        fixed.append(pressure_dofs[:1])
    fixed_dofs = np.concatenate([*fixed, []]).astype(int)
    solution = skfem.solve(*skfem.condense(matrix, load, D=fixed_dofs))
    # A facet's unknown is the flux out of its first element.
    outward = np.sign((middle - mesh.p[:, mesh.t].mean(axis=1)[:, mesh.f2t[0]]).sum(axis=0))
    length = np.where(vertical, size[1], size[0])
    velocity = (solution[velocity_dofs] * outward / length)[facet]
    cells = np.empty(grid.shape)
    cells[cell(mesh.p[:, mesh.t].mean(axis=1))] = solution[pressure_dofs]
    return velocity, cells


@pytest.mark.parametrize(
    "sides",
    [(), ("left", "right"), ("top",), ("bottom", "left"), ("left", "right", "bottom", "top")],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_agrees_with_scikit_fem(sides, seed):
    rng = np.random.default_rng(seed)
    grid = Grid(11, 8, lx=rng.uniform(0.5, 2), ly=rng.uniform(0.5, 2))
    permeability = np.exp(2 * rng.standard_normal(grid.shape))
    pressure = {side: rng.standard_normal(grid.boundary_edges(side).size) for side in sides}
    source = rng.standard_normal(grid.shape)
    if not sides:
        source -= source.mean()
    solution = DarcySolver(grid, permeability, pressure).solve(source)
    velocity, cells = oracle(grid, permeability, pressure, source)
    if not sides:
        cells -= cells.mean()
    assert np.linalg.norm(solution.velocity - velocity) < 1e-9 * np.linalg.norm(velocity)
    assert np.linalg.norm(solution.pressure - cells) < 1e-9 * np.linalg.norm(cells)
