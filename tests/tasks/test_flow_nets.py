"""Networks of Darcy flow: what holds for any weights."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pde import DarcyFamily, Grid
from tasks.nets.conservation import _eigenvectors, join_edges, project_flow, split_edges
from tasks.nets.flow import FlowNet
from tasks.nets.unet import UNet

GRIDS = [(8, 8), (5, 9), (9, 4), (1, 4), (4, 1)]


class Given(nn.Module):
    """Returns one thing for every field, and keeps what it saw."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, field: Tensor) -> Tensor:
        self.seen = field
        return self.value.expand(len(field), *self.value.shape)


class Mixing(nn.Module):
    """Any smooth map without symmetries."""

    def __init__(self, nx: int, ny: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(nx * ny, ny * (nx + 1) + (ny + 1) * nx).double()

    def forward(self, field: Tensor) -> Tensor:
        return torch.tanh(self.layer(field.flatten(1)))


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(("nx", "ny"), GRIDS)
def test_projection_is_the_nearest_flow_that_balances(nx: int, ny: int) -> None:
    """Against dense least squares with the divergence and the walls as constraints."""
    grid, source = Grid(nx, ny), -2.5
    velocity = random(3, grid.num_edges)
    projected = project_flow(velocity, nx, ny, source).numpy()
    np.testing.assert_allclose(grid.divergence(projected), source, atol=1e-12)
    walls = np.concatenate([grid.boundary_edges("bottom"), grid.boundary_edges("top")])
    assert not projected[:, walls].any()
    constraints = np.concatenate(
        [
            np.stack([grid.divergence(row).ravel() for row in np.eye(grid.num_edges)], axis=1),
            np.eye(grid.num_edges)[walls],
        ]
    )
    wanted = np.concatenate([np.full(nx * ny, source), np.zeros(len(walls))])
    moved = np.linalg.lstsq(constraints, (wanted - velocity.numpy() @ constraints.T).T)[0].T
    np.testing.assert_allclose(projected, velocity.numpy() + moved, atol=1e-11)


def test_projection_keeps_the_exact_flow() -> None:
    grid = Grid(8, 6)
    kappa = np.random.default_rng(0).lognormal(size=(4, *grid.shape))
    family = DarcyFamily(grid, {"left": 1.0, "right": 0.0}, 1.0)
    exact = torch.from_numpy(np.stack([family.solve(k).velocity for k in kappa]))
    torch.testing.assert_close(project_flow(exact, 8, 6, 1.0), exact, atol=1e-12, rtol=0)
    wrong = exact + random(*exact.shape)
    error, before = project_flow(wrong, 8, 6, 1.0) - exact, wrong - exact
    assert (error.norm(dim=1) < before.norm(dim=1)).all()


def test_edges_are_numbered_as_by_the_grid() -> None:
    grid = Grid(3, 2)
    velocity = random(5, grid.num_edges)
    vertical, horizontal = split_edges(velocity, 3, 2)
    for ours, theirs in zip((vertical, horizontal), grid.split(velocity.numpy()), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)
    assert torch.equal(join_edges(vertical, horizontal), velocity)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_the_base_flow_is_that_of_layers_in_series(power: float) -> None:
    """q = 0: u = g (kappa_e / g)^a along x; the exact flow where kappa is constant."""
    grid = Grid(6, 4)
    net = FlowNet(Given(torch.zeros(grid.num_edges)), power)
    constant = torch.full((1, 4, 6), 3.0, dtype=torch.float64)
    exact = DarcyFamily(grid, {"left": 1.0, "right": 0.0}, 0.0).solve(constant[0].numpy())
    np.testing.assert_allclose(net(constant)[0].numpy(), exact.velocity, atol=1e-12)
    kappa = random(2, 4, 6).exp()
    vertical, horizontal = split_edges(net(kappa), 6, 4)
    g = kappa.log().mean((1, 2)).exp()
    local = 2 / (1 / kappa[:, 1, 2] + 1 / kappa[:, 1, 3])
    torch.testing.assert_close(vertical[:, 1, 3], g * (local / g) ** power)
    torch.testing.assert_close(vertical[:, 3, 6], g * (kappa[:, 3, 5] / g) ** power)
    assert not horizontal.any()


def test_darcys_law_holds_with_the_exact_gradient() -> None:
    """a = 1 and q from the exact flow give it back: nothing is out of reach."""
    grid = Grid(6, 4)
    kappa = np.random.default_rng(2).lognormal(size=grid.shape)
    exact = DarcyFamily(grid, {"left": 1.0, "right": 0.0}, 1.0).solve(kappa).velocity
    ones = FlowNet(Given(torch.ones(grid.num_edges).double()), 1.0)(torch.from_numpy(kappa)[None])
    vertical, horizontal = grid.split(exact / ones[0].numpy())
    q = join_edges(torch.from_numpy(2 * vertical - 1), torch.from_numpy(horizontal))
    given = FlowNet(Given(q), 1.0, conservative=True)
    given.source.fill_(1.0)
    np.testing.assert_allclose(given(torch.from_numpy(kappa)[None])[0].numpy(), exact, atol=1e-12)


@pytest.mark.parametrize("ny", [6, 7])
@pytest.mark.parametrize("conservative", [False, True])
def test_reflection_commutes_with_the_map(ny: int, conservative: bool) -> None:
    nx = 5
    net = FlowNet(Mixing(nx, ny), 0.5, conservative, symmetric=True).double()
    kappa = random(6, ny, nx).exp()
    vertical, horizontal = split_edges(net(kappa), nx, ny)
    expected = join_edges(vertical.flip(-2), -horizontal.flip(-2))
    torch.testing.assert_close(net(kappa.flip(-2)), expected)
    plain = FlowNet(net.net, 0.5, conservative).double()
    assert not torch.allclose(plain(kappa.flip(-2)), join_edges(*split_edges(expected, nx, ny)))
    exact = DarcyFamily(Grid(nx, ny), {"left": 1.0, "right": 0.0}, 1.0)
    flow, mirrored = (exact.solve(k.numpy()).velocity for k in (kappa[0], kappa[0].flip(0)))
    vertical, horizontal = split_edges(torch.from_numpy(flow), nx, ny)
    np.testing.assert_allclose(
        mirrored, join_edges(vertical.flip(0), -horizontal.flip(0)).numpy(), atol=1e-12
    )


def test_a_field_times_a_number_gives_its_flow_times_that_number() -> None:
    net = FlowNet(Mixing(5, 6), 0.5, conservative=True).double()
    kappa = random(4, 6, 5).exp()
    before = net(kappa)
    net.log_mean.add_(np.log(3))
    torch.testing.assert_close(net(3 * kappa), 3 * before)


def test_chains_see_the_same_map() -> None:
    """Under vmap over weights, as K chains as one computation run."""
    net = FlowNet(Mixing(5, 6), 0.5, conservative=True, symmetric=True).double()
    kappa = random(4, 6, 5).exp()
    weights = {k: torch.stack([v, 2 * v]) for k, v in net.named_parameters()}
    stacked = torch.func.vmap(lambda w: torch.func.functional_call(net, w, (kappa,)))(weights)
    for row, factor in zip(stacked, (1, 2), strict=True):
        state = {k: factor * v for k, v in net.named_parameters()}
        torch.testing.assert_close(row, torch.func.functional_call(net, state, (kappa,)))


def small_unet() -> UNet:
    torch.manual_seed(0)
    return UNet(features=(4, 4, 4, 4, 4, 4), groups=2).double()


def test_the_unet_gives_edges_the_mean_of_their_cells() -> None:
    net = small_unet()
    cells = random(4, 17, 18)
    net.net = Given(cells)
    edges = net(torch.zeros(2, 1, 17, 18, dtype=torch.float64))
    vertical, horizontal = split_edges(edges[1], 18, 17)
    left, right, below, above = cells
    torch.testing.assert_close(vertical[3, 5], (right[3, 4] + left[3, 5]) / 2)
    torch.testing.assert_close(horizontal[3, 5], (above[2, 5] + below[3, 5]) / 2)
    assert torch.equal(vertical[..., 0], left[..., 0])
    assert torch.equal(vertical[..., -1], right[..., -1])
    assert torch.equal(horizontal[0], below[0])
    assert torch.equal(horizontal[-1], above[-1])
    x, y = net.net.seen[0, 1], net.net.seen[0, 2]
    assert torch.equal(x[0], torch.linspace(-1, 1, 18).double())
    assert torch.equal(y[:, 0], torch.linspace(-1, 1, 17).double())


def test_the_unet_has_no_statistics_of_a_batch() -> None:
    net = small_unet()
    field = random(3, 1, 20, 18)
    torch.testing.assert_close(net(field)[1:2], net(field[1:2]))
    weights = {k: torch.stack([v, v]) for k, v in net.named_parameters()}
    rows = torch.func.vmap(lambda w: torch.func.functional_call(net, w, (field,)))(weights)
    torch.testing.assert_close(rows[1], net(field))


def test_networks_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"power must lie in \[0, 1\], got 1.5"):
        FlowNet(nn.Identity(), 1.5)
    with pytest.raises(ValueError, match="six multiples of groups = 8"):
        UNet(features=(16, 32, 64, 128, 128, 12))
    with pytest.raises(ValueError, match="need a grid of 16x16 cells, got 18x15"):
        small_unet()(torch.zeros(1, 1, 15, 18, dtype=torch.float64))
    monkeypatch.setitem(sys.modules, "monai.networks.nets", None)
    with pytest.raises(ImportError, match=r"pip install 'lightning-sgmcmc\[unet\]'"):
        UNet()


def test_a_projection_that_was_validated_first_has_gradients() -> None:
    """Lightning validates in inference mode, whose tensors no backward pass takes."""
    _eigenvectors.cache_clear()
    flow = torch.randn(2, 5 * 3 + 4 * 4, requires_grad=True)
    with torch.inference_mode():
        project_flow(flow, 4, 3, 1.0)
    project_flow(flow, 4, 3, 1.0).square().sum().backward()
    assert flow.grad is not None
    assert float(flow.grad.abs().max()) > 0
