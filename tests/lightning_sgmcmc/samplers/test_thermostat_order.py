"""The weak order of SGNHT, without statistical error.

One weight. Every node of a quadrature over the state (theta, w, xi) and the step's normal number z
is one stacked chain, so that one step of the sampler gives its transition operator on polynomials:
P[m, n] = E[phi_m(x) phi_n(x')], with x from the target and phi orthonormal under it. The chain's
own moments c_n = E[phi_n] solve c'P = c' with c_0 = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch

from lightning_sgmcmc import SGNHT
from tests.harness import BOUND

#: Largest degree of the polynomials; from 12 to 14 a bias changes by half a percent.
DEGREE = 12


class Axis:
    """Nodes and weights of a quadrature, and the polynomials orthonormal under it."""

    def __init__(self, nodes: np.ndarray, weights: np.ndarray, degree: int = 0) -> None:
        self.nodes, self.weights, self.degree = nodes, weights / weights.sum(), degree
        self.scale = np.abs(nodes).max()
        R = np.linalg.qr(self._basis(nodes) * np.sqrt(self.weights)[:, None], mode="r")
        self.R = R * np.sign(np.diag(R))[:, None]  # so that phi_0 = 1

    def _basis(self, t: np.ndarray) -> np.ndarray:
        return np.polynomial.chebyshev.chebvander(t / self.scale, self.degree)

    def __call__(self, t: np.ndarray) -> np.ndarray:
        """Return phi_0(t) to phi_degree(t), [len(t), degree + 1]."""
        return np.linalg.solve(self.R.T, self._basis(t).T).T


@dataclass(frozen=True)
class Thermostat:
    """SGNHT on U = theta^2 / 2 + quartic theta^4 / 4, with the time step h = sqrt(eta)."""

    h: float
    momentum: float
    thermostat: float
    quartic: float = 1.0
    kind: type[SGNHT] = SGNHT

    def sampler(self, theta: np.ndarray, w: np.ndarray, xi: np.ndarray) -> SGNHT:
        """Return chains in given states, xi in its standard deviations about its mean."""
        weight = torch.from_numpy(theta.copy())[:, None].requires_grad_()
        sampler = self.kind(
            [weight],
            self.h**2 * (1 + self.momentum) / 2,
            momentum=self.momentum,
            thermostat=self.thermostat,
            num_data=1,
        )
        sampler.stack(one_generator=True)
        state = sampler.state_dict()
        state["chain"]["velocity"] = [torch.from_numpy(w.copy())[:, None]]
        state["chain"]["friction"] = torch.from_numpy(xi / self.thermostat) + self.friction
        sampler.load_state_dict(state)
        return sampler

    @property
    def friction(self) -> float:
        """The mean of xi."""
        return -float(np.log(self.momentum))

    def move(self, sampler: SGNHT) -> np.ndarray:
        """Take a step and return theta."""
        (weight,) = sampler.params
        weight.grad = (weight + self.quartic * weight**3).detach()
        sampler.step()
        return weight.detach().numpy()[:, 0]

    def bias(self) -> float:
        """Return the relative error of E[theta^2] under the chain's own stationary law."""
        nodes = np.linspace(-1, 1, 28) * (3 if self.quartic else 7)
        theta = Axis(nodes, np.exp(-(nodes**2) / 2 - self.quartic * nodes**4 / 4), DEGREE)
        w, xi, z = normal(14, DEGREE), normal(10, DEGREE // 2), normal(8)
        grid = np.meshgrid(*(a.nodes for a in (theta, w, xi, z)), indexing="ij")
        *start, noise = (g.ravel() for g in grid)
        sampler = self.sampler(*start)
        sampler.noise = lambda: [torch.from_numpy(noise)[:, None]]  # type: ignore[method-assign]
        new_theta, state = self.move(sampler), sampler.state_dict()["chain"]
        new_w = state["velocity"][0].numpy()[:, 0]
        new_xi = (state["friction"].numpy() - self.friction) * self.thermostat

        # (theta, w) -> -(theta, w) leaves the law as it is; xi moves with w^2, so counts double.
        n = DEGREE + 1
        i, j, k = np.mgrid[:n, :n, : DEGREE // 2 + 1].reshape(3, -1)
        kept = (i + j + 2 * k <= DEGREE) & ((i + j) % 2 == 0)
        i, j, k = i[kept], j[kept], k[kept]
        after = theta(new_theta)[:, i] * w(new_w)[:, j] * xi(new_xi)[:, k]
        after = np.tensordot(z.weights, after.reshape(-1, len(z.nodes), len(i)), (0, 1))
        now = [a(a.nodes) * a.weights[:, None] for a in (theta, w, xi)]
        before = np.einsum("ai,bi,ci->abci", now[0][:, i], now[1][:, j], now[2][:, k])
        P = before.reshape(-1, len(i)).T @ after

        c = np.ones(len(i))  # the first is the constant's
        c[1:] = np.linalg.solve(np.eye(len(i) - 1) - P[1:, 1:].T, P[0, 1:])
        square = now[0].T @ theta.nodes**2  # theta^2 = square[0] + square[2] phi_2(theta)
        return float(square[2] * c[(i == 2) & (j + k == 0)].item() / square[0])


def normal(nodes: int, degree: int = 0) -> Axis:
    """Return the Gauss-Hermite rule."""
    return Axis(*np.polynomial.hermite_e.hermegauss(nodes), degree)


def orders(kind: type[SGNHT]) -> list[float]:
    """Return log2 of the ratios of biases where lr halves.

    Friction and thermal mass stay what they are in units of time: -log mu = h and s = 2 / h.
    """
    biases = [Thermostat(h, np.exp(-h), 2 / h, kind=kind).bias() for h in (0.2, 0.1, 0.05)]
    return [float(np.log2(a / b)) / 2 for a, b in pairwise(biases)]


class Lopsided(SGNHT):
    """D whole, then O: a splitting of order 1 in h, half of it in lr."""

    def _follow(self, w: list[torch.Tensor]) -> None:
        self.first = not getattr(self, "first", False)
        if self.first:
            super()._follow(w)
            super()._follow(w)


def test_the_bias_is_of_first_order_in_lr() -> None:
    """The splitting is of order 2 in h, hence of order 1 in lr; what is left is the next term's."""
    assert orders(SGNHT) == pytest.approx([1, 1], abs=0.05)


def test_a_splitting_of_half_the_order_is_caught() -> None:
    assert orders(Lopsided)[-1] == pytest.approx(0.5, abs=0.1)


def test_at_fixed_options_a_floor_of_fourth_order_remains() -> None:
    """However small lr is, a single weight keeps a bias of -.24 % at the defaults; 1/s^4 of it."""

    def floor(momentum: float, thermostat: float) -> float:
        return Thermostat(0.005, momentum, thermostat, quartic=0.0).bias()

    assert floor(0.95, 10.0) == pytest.approx(-0.0024, abs=1e-4)
    assert floor(0.5, 20.0) / floor(0.5, 40.0) == pytest.approx(16, abs=1)


def test_a_simulation_has_the_bias_of_the_operator() -> None:
    """20,000 chains, 1,500 steps: the standard error is .001 of -.009; false alarms: 1e-6."""
    case = Thermostat(0.1, 0.9, 5.0, quartic=0.0)
    sampler = case.sampler(*np.random.default_rng(0).standard_normal((3, 20_000)))
    for _ in range(300):
        case.move(sampler)
    steps = 1500
    squares = sum(case.move(sampler) ** 2 for _ in range(steps)) / steps
    error = squares.std() / np.sqrt(len(squares))
    assert error < 0.0015
    assert squares.mean() - 1 == pytest.approx(case.bias(), abs=BOUND * error)
    assert squares.mean() - 1 < -BOUND * error
