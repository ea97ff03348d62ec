"""Stacked discriminative RBMs in closed form: gradients, Fisher matrix, modes and their images."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.nn import functional

Array = NDArray[np.float64]
_BLOCK = 5000


class Machines:
    """K machines with weights theta [K, d]: W, U, c, d of each, one after the other.

    The model is that of :class:`~tasks.nets.drbm.DiscriminativeRBM`. With
    z_jy = c_j + U_jy + W_j x, s = sigma(z) and r = p(. | x) - e_y,

        g_d = r,   g_U = s_j r_y,   g_c = sum_y s_jy r_y,   g_W = g_c x'.

    Args:
        features: D.
        hidden: H.
        classes: C.
    """

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        self.features, self.hidden, self.classes = features, hidden, classes
        self._sizes = [hidden * features, hidden * classes, hidden, classes]
        #: d, the number of weights of one machine.
        self.size = sum(self._sizes)

    def split(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return W [K, H, D], U [K, H, C], c [K, H] and d [K, C]."""
        W, U, c, d = torch.split(theta, self._sizes, dim=-1)
        shape = (*theta.shape[:-1], self.hidden, -1)
        return W.reshape(shape), U.reshape(shape), c, d

    def _forward(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return z [K, H, C, n] and logits [K, C, n] for x [n, D] or [K, n, D].

        Examples are last, so that sums over the few units and classes go along long rows.
        """
        W, U, c, d = self.split(theta)
        z = (W @ x.mT + c[..., None])[..., None, :] + U[..., None]
        return z, d[..., None] + functional.softplus(z, threshold=40.0).sum(-3)

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return the logits [K, n, C] for x [n, D] or [K, n, D]."""
        return self._forward(theta, x)[1].mT

    def nll(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return -log p(y | x) of each example, [K, n]; y is [n] or [K, n]."""
        log_p = self._forward(theta, x)[1].log_softmax(-2)
        label = y.expand(*log_p.shape[:-2], -1)[..., None, :]
        return -log_p.gather(-2, label)[..., 0, :]

    def _residuals(self, theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z, logits = self._forward(theta, x)
        return torch.sigmoid(z), logits.softmax(-2) - functional.one_hot(y, self.classes).mT

    def gradient(
        self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """Return the gradient of the mean NLL, or of sum_i weights_i NLL_i, [K, d]."""
        s, r = self._residuals(theta, x, y)
        r = r / r.shape[-1] if weights is None else r * weights
        t = s * r[..., None, :, :]
        g_c = t.sum(-2)
        g_W = g_c @ x
        parts = [g_W.flatten(-2), t.sum(-1).flatten(-2), g_c.sum(-1), r.sum(-1)]
        return torch.cat(parts, dim=-1)

    def scores(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradients of single examples of one machine, theta [d], [n, d]."""
        s, r = self._residuals(theta, x, y)
        t = s * r
        g_c = t.sum(1).mT
        g_W = g_c[:, :, None] * x[:, None]
        return torch.cat([g_W.flatten(1), t.flatten(0, 1).mT, g_c, r.mT], dim=1)

    def fisher(self, theta: Tensor, x: Tensor, counts: Tensor) -> Tensor:
        """Return sum_i counts_i E_y[g g'] with y drawn from the machine theta [d], [d, d]."""
        total = theta.new_zeros(self.size, self.size)
        for block, count in zip(torch.split(x, _BLOCK), torch.split(counts, _BLOCK), strict=True):
            p = self.logits(theta, block).softmax(-1)
            for label in range(self.classes):
                y = torch.full((len(block),), label)
                g = self.scores(theta, block, y)
                total += g.mT @ (g * (count * p[:, label])[:, None])
        return total

    def mode(
        self, x: Tensor, y: Tensor, counts: Tensor, precision: float, starts: int = 10
    ) -> Tensor:
        """Return the highest of the modes found from some random weights, [d].

        Args:
            x: Features [n, D].
            y: Labels [n].
            counts: How often each example counts, [n].
            precision: Of the prior N(0, 1 / precision).
            starts: Random weights that a search starts from.
        """
        number = float(counts.sum())
        penalty = precision / number

        def value(theta: Array) -> tuple[float, Array]:
            w = torch.from_numpy(theta).to(x.dtype)
            nll = float((self.nll(w, x, y).double() * counts).sum()) / number
            gradient = self.gradient(w, x, y, counts / number).double().numpy()
            return nll + penalty * float(theta @ theta) / 2, gradient + penalty * theta

        generator = np.random.default_rng(0)
        found = [
            minimize(
                value,
                0.1 * generator.standard_normal(self.size),
                jac=True,
                method="L-BFGS-B",
                options={"maxiter": 5000, "ftol": 1e-14, "gtol": 1e-9},
            )
            for _ in range(starts)
        ]
        return torch.from_numpy(min(found, key=lambda result: float(result.fun)).x)

    def images(self, theta: Tensor) -> Tensor:
        """Return all weights of the same p(y | x) that units alone make, [2^H H!, d], itself first.

        Units may change places; and since softplus(z) = z + softplus(-z), the signs of a unit's
        W, U and c may change if its U is added to d.
        """
        W, U, c, d = self.split(theta)
        found = []
        for order in permutations(range(self.hidden)):
            for signs in product((1.0, -1.0), repeat=self.hidden):
                e = torch.tensor(signs, dtype=theta.dtype)
                turned = (e[:, None] < 0) * U
                parts = [(e[:, None] * W)[list(order)], (e[:, None] * U)[list(order)]]
                parts += [(e * c)[list(order)], d + turned.sum(0)]
                found.append(torch.cat([part.flatten() for part in parts]))
        return torch.stack(found)


class FlatMachine(nn.Module):
    """One of :class:`Machines` as a module whose only parameter is theta [d]."""

    def __init__(self, machines: Machines) -> None:
        super().__init__()
        self.machines = machines
        self.theta = nn.Parameter(torch.zeros(machines.size))

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return -log p(y | x) of each example, [n]."""
        return self.machines.nll(self.theta, *batch)


def merged(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return different examples and how often each occurs."""
    rows = np.concatenate([x.numpy(), y.numpy()[:, None].astype(np.float32)], axis=1)
    unique, counts = np.unique(rows, axis=0, return_counts=True)
    labels = torch.from_numpy(unique[:, -1]).long()
    return torch.from_numpy(unique[:, :-1].copy()), labels, torch.from_numpy(counts)
