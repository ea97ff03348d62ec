"""Agreement with an independent implementation of RT0/P0, scikit-fem's."""

import numpy as np
import pytest

from pde import DarcySolver, Grid, Well
from pde.darcy.well_index import well_index

skfem = pytest.importorskip("skfem", reason="scikit-fem is in the test extra")

SIDES = ("left", "right", "bottom", "top")


def oracle(grid, permeability, pressure, source, flux=None, wells=(), active=None):
    """Normal velocities in this package's numbering, and cell pressures, by scikit-fem.

    Cells that are not active are left out of the mesh; closed sides have essential conditions.
    """
    flux, tensor = flux or {}, permeability.reshape(*grid.shape, -1)
    whole = skfem.MeshQuad.init_tensor(grid.x_lines, grid.y_lines)
    middles = whole.p[:, whole.t].mean(axis=1)

    def cell(x):
        return np.searchsorted(grid.y_lines, x[1]) - 1, np.searchsorted(grid.x_lines, x[0]) - 1

    keep = np.ones(grid.shape, dtype=bool) if active is None else active
    mesh = whole.restrict(np.flatnonzero(keep[cell(middles)]))
    element = skfem.ElementQuadRT0() * skfem.ElementQuad0()
    basis = skfem.Basis(mesh, element, intorder=4)
    index, given = np.zeros(grid.shape), np.zeros(grid.shape)
    for well in wells:
        i, j = cell((well.x, well.y))
        area = grid.widths[j] * grid.heights[i]
        if well.pressure is None:
            given[i, j] += well.rate / area
        else:
            size = float(grid.widths[j]), float(grid.heights[i])
            index[i, j] = well_index(well, (tensor[i, j, 0], tensor[i, j, -1]), size) / area
            given[i, j] += index[i, j] * well.pressure

    @skfem.BilinearForm
    def bilinear(u, p, v, q, w):
        at = cell(w.x)
        mass = u[0] * v[0] / tensor[..., 0][at] + u[1] * v[1] / tensor[..., -1][at]
        return mass - p * v.div - q * u.div - index[at] * p * q

    @skfem.LinearForm
    def linear(v, q, w):
        return -(source + given)[cell(w.x)] * q

    matrix, load = bilinear.assemble(basis).tocsr(), linear.assemble(basis)
    middle = mesh.p[:, mesh.facets].mean(axis=1)
    distance = np.abs(middle.T[:, None] - grid.edge_midpoints()[None]).sum(axis=-1)
    edge = distance.argmin(axis=1)
    assert distance.min(axis=1).max() < 1e-9
    facet = np.full(grid.num_edges, -1)
    facet[edge] = np.arange(edge.size)
    velocity_dofs, pressure_dofs = basis.split_indices()
    np.testing.assert_array_equal(velocity_dofs, basis.dofs.facet_dofs[0])
    # A facet's unknown is the flux out of its first element.
    outward = np.sign((middle - mesh.p[:, mesh.t].mean(axis=1)[:, mesh.f2t[0]]).sum(axis=0))
    length = np.abs(np.diff(mesh.p[:, mesh.facets], axis=1)).sum(axis=(0, 1))

    fixed, x = set(velocity_dofs[mesh.boundary_facets()]), np.zeros(matrix.shape[0])
    for side, values in flux.items():
        facets = facet[grid.boundary_edges(side)]
        x[velocity_dofs[facets[facets >= 0]]] = (values * length[facets])[facets >= 0]
    for side, values in pressure.items():
        edges = grid.boundary_edges(side)
        inside = facet[edges] >= 0
        facets, per_edge = facet[edges][inside], np.broadcast_to(values, edges.shape)[inside]
        fixed -= set(velocity_dofs[facets])
        boundary = skfem.FacetBasis(mesh, element, facets=facets, intorder=4)
        axis = int(side.split(":")[0] in ("bottom", "top"))

        @skfem.LinearForm
        def work(v, q, w, axis=axis, per_edge=per_edge):
            return -per_edge[:, None] * v[axis] * w.n[axis]

        load = load + work.assemble(boundary)
    if not pressure and not index.any():
        fixed.add(pressure_dofs[0])
    fixed_dofs = np.array(sorted(fixed), dtype=int)
    solution = skfem.solve(*skfem.condense(matrix, load, x=x, D=fixed_dofs))
    velocity = np.zeros(grid.num_edges)
    velocity[edge] = solution[velocity_dofs] * outward / length
    cells = np.full(grid.shape, np.nan)
    cells[cell(mesh.p[:, mesh.t].mean(axis=1))] = solution[pressure_dofs]
    return velocity, cells


def agrees(grid, permeability, source, pressure, **problem):
    """Compare velocities and pressures, the latter up to a constant where nothing sets it."""
    solution = DarcySolver(grid, permeability, pressure, **problem).solve(source)
    velocity, cells = oracle(grid, permeability, pressure, source, **problem)
    ours, there = solution.pressure, np.isfinite(cells)
    np.testing.assert_array_equal(np.isfinite(ours), there)
    if not pressure and not any(well.pressure for well in problem.get("wells", ())):
        areas = grid.cell_areas[there]
        cells -= np.average(cells[there], weights=areas)
    assert np.linalg.norm(solution.velocity - velocity) < 1e-9 * np.linalg.norm(velocity)
    assert np.linalg.norm((ours - cells)[there]) < 1e-9 * np.linalg.norm(cells[there])


def uneven(rng, nx=9, ny=7):
    return Grid.of_spacing(rng.uniform(0.2, 2, nx), rng.uniform(0.1, 3, ny))


@pytest.mark.parametrize("sides", [(), ("left", "right"), ("top",), ("bottom", "left"), SIDES])
@pytest.mark.parametrize("seed", [0, 1])
def test_agrees_with_scikit_fem(sides, seed):
    rng = np.random.default_rng(seed)
    grid = Grid(11, 8, lx=rng.uniform(0.5, 2), ly=rng.uniform(0.5, 2))
    permeability = np.exp(2 * rng.standard_normal(grid.shape))
    pressure = {side: rng.standard_normal(grid.boundary_edges(side).size) for side in sides}
    source = rng.standard_normal(grid.shape)
    if not sides:
        source -= source.mean()
    agrees(grid, permeability, source, pressure)


@pytest.mark.parametrize("seed", [0, 1])
def test_unlike_cells_and_a_diagonal_tensor(seed):
    rng = np.random.default_rng(seed)
    grid = uneven(rng)
    tensor = np.exp(2 * rng.standard_normal((*grid.shape, 2)))
    source = rng.standard_normal(grid.shape)
    agrees(grid, tensor, source, {"left": rng.standard_normal(grid.ny), "top": 0.3})
    agrees(grid, tensor[..., 0], source, {"right": 1.0})
    source -= np.average(source, weights=grid.cell_areas)
    agrees(grid, tensor, source, {})


@pytest.mark.parametrize("seed", [0, 1])
def test_flux_and_parts_of_sides(seed):
    rng = np.random.default_rng(seed)
    for grid in (Grid(8, 10, lx=4.0, ly=5.0), uneven(rng, 8, 10)):
        kappa = np.exp(rng.standard_normal(grid.shape))
        middle = grid.ly / 2
        low, high = f"left:0:{middle}", f"left:{middle}:{grid.ly}"
        flux = {low: -1.5, "top": rng.standard_normal(grid.nx)}
        source = rng.standard_normal(grid.shape)
        agrees(grid, kappa, source, {high: 2.0, f"right:0:{middle}": 0.0}, flux=flux)
        out = sum(
            np.sum(values * grid.edge_lengths()[grid.boundary_edges(side)])
            for side, values in flux.items()
        )
        source += (out - np.sum(source * grid.cell_areas)) / (grid.lx * grid.ly)
        agrees(grid, kappa, source, {}, flux=flux)


@pytest.mark.parametrize("seed", [0, 1])
def test_wells_by_rate_and_by_pressure(seed):
    rng = np.random.default_rng(seed)
    grid = uneven(rng)
    tensor = np.exp(rng.standard_normal((*grid.shape, 2)))
    centres = grid.cell_centres()
    rate = Well(*centres[1, 2], rate=3.0)
    held = Well(*centres[5, 7], pressure=-2.0, radius=1e-3)
    other = Well(*centres[3, 4], pressure=1.0, radius=1e-2)
    nothing = np.zeros(grid.shape)
    agrees(grid, tensor, nothing, {}, wells=(rate, held, other))
    agrees(grid, tensor, nothing, {"left": 0.5}, wells=(rate, other), flux={"top": 0.1})


@pytest.mark.parametrize("seed", [0, 1])
def test_cells_that_are_not_active(seed):
    rng = np.random.default_rng(seed)
    grid = uneven(rng, 12, 9)
    kappa = np.exp(rng.standard_normal(grid.shape))
    active = np.ones(grid.shape, dtype=bool)
    active[3:6, 4:8] = active[0, :3] = active[7:, 11] = active[2:5, 0] = False
    kappa[~active] = np.nan
    source = rng.standard_normal(grid.shape) * active
    agrees(grid, kappa, source, {"left": 1.0, "right": 0.0}, active=active, flux={"top": 0.4})
    source -= active * np.sum(source * grid.cell_areas) / np.sum(grid.cell_areas[active])
    agrees(grid, kappa, source, {}, active=active)
