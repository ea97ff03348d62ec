"""Gaussian random fields by Karhunen-Loeve expansion, and permeabilities made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import eigh
from scipy.sparse.linalg import LinearOperator, eigsh

from ..errors import PdeError, check_choice, check_count, check_positive
from ..grid import Array, Grid
from .streams import PERMEABILITY, check_draw, generator

#: One factor of a separable correlation, of the distance over the correlation length.
SEPARABLE: dict[str, Callable[[Array], Array]] = {
    "gaussian": lambda d: np.asarray(np.exp(-(d**2))),
    "exponential": lambda d: np.asarray(np.exp(-np.abs(d))),
}
#: The kinds of permeability, and the kappa_0 that their data sets have unless told.
MEANS = {"additive": 6.0, "lognormal": 0.0}
#: How often a field with a cell that is not positive is drawn again.
TRIES = 1000


@dataclass(frozen=True, eq=False)
class KarhunenLoeve:
    r"""The `terms` largest modes of a Gaussian field's covariance on a grid.

    With cells of area `a` and covariance `C(x, y)`, the modes solve the eigenproblem of the
    integral operator by the midpoint rule at the cell centres,

        sum_j C(x_i, x_j) phi_k(x_j) a = lambda_k phi_k(x_i),   sum_i phi_k(x_i) phi_l(x_i) a = d_kl

    and the field is `sum_k sqrt(lambda_k) xi_k phi_k` with independent standard normal `xi`. The
    kernel of Wang, Deng and Lin (2020, section 5.3), `variance exp(-dx^2/lx^2 - dy^2/ly^2)`, and
    the exponential one, `variance exp(-|dx|/lx - |dy|/ly)`, are products of one-dimensional
    kernels, and so are their modes: two dense eigenproblems of the size of a side give them
    exactly. Any other kernel goes through Lanczos iterations.

    Args:
        grid: The grid.
        variance: The field's variance, positive; where the paper says "sigma = 2".
        lengths: Correlation lengths in x and y, in the units of the grid, positive.
        terms: Number of modes p.
        kernel: `gaussian`, `exponential`, or a function of the scaled distances
            `(dx / lx, dy / ly)` that gives the correlation, 1 at zero.

    Raises:
        PdeError: An unknown kernel; a variance or length that is not positive and finite; more
            terms than cells; a function that is no correlation.
    """

    grid: Grid
    variance: float = 2.0
    lengths: tuple[float, float] = (0.2, 0.3)
    terms: int = 64
    kernel: str | Callable[[Array, Array], Array] = "gaussian"

    def __post_init__(self) -> None:
        if not callable(self.kernel) and self.kernel not in SEPARABLE:
            raise PdeError(
                f"kernel={self.kernel!r}, expected {', '.join(SEPARABLE)} or a function of (dx/lx, "
                "dy/ly)"
            )
        lx, ly = self.lengths
        for name, value in (("variance", self.variance), ("lx", lx), ("ly", ly)):
            check_positive(name, value)
        if not 1 <= check_count(f"terms={self.terms!r}", self.terms, 0) <= self.grid.num_cells:
            raise PdeError(
                f"{self.terms} terms, expected 1 to {self.grid.num_cells}, the number of cells"
            )

    @property
    def eigenvalues(self) -> Array:
        """The largest eigenvalues `lambda_k`, falling, `[terms]`."""
        return self._modes[0]

    @property
    def modes(self) -> Array:
        """The modes `phi_k` at the cell centres, `[terms, ny, nx]`."""
        return self._modes[1]

    @property
    def captured(self) -> float:
        """The share of the variance, averaged over the domain, that the modes hold."""
        return float(self.eigenvalues.sum() / (self.variance * self.grid.lx * self.grid.ly))

    @cached_property
    def _modes(self) -> tuple[Array, Array]:
        values, modes = self._general() if callable(self.kernel) else self._separable()
        # An eigenvector's sign is the library's choice; ours is a positive sum, or first entry.
        flat = modes.reshape(self.terms, -1)
        sums = flat.sum(axis=1)
        first = flat[np.arange(self.terms), np.argmax(np.abs(flat) > 1e-3, axis=1)]
        small = np.abs(sums) <= 1e-6 * np.abs(flat).sum(axis=1)
        signs = np.where(np.where(small, first, sums) < 0, -1.0, 1.0)
        return values, np.ascontiguousarray(modes * signs[:, None, None])

    @cached_property
    def _scaled(self) -> Array:
        """The modes times `sqrt(lambda_k)`, `[num_cells, terms]`."""
        scaled = np.sqrt(self.eigenvalues)[:, None, None] * self.modes
        return np.ascontiguousarray(scaled.reshape(self.terms, -1).T)

    def _separable(self) -> tuple[Array, Array]:
        assert isinstance(self.kernel, str)
        factor = SEPARABLE[self.kernel]
        sides = []
        for count, width, length in (
            (self.grid.nx, self.grid.hx, self.lengths[0]),
            (self.grid.ny, self.grid.hy, self.lengths[1]),
        ):
            x = (np.arange(count) + 0.5) * width / length
            values, vectors = eigh(factor(x[:, None] - x[None, :]) * width)
            sides.append((np.maximum(values, 0.0), vectors / np.sqrt(width)))
        (values_x, vectors_x), (values_y, vectors_y) = sides
        products = self.variance * values_y[:, None] * values_x[None, :]
        # A stable order, so that equal products (a square, equal lengths) always come alike.
        largest = np.argsort(-products, axis=None, kind="stable")[: self.terms]
        j, i = np.unravel_index(largest, products.shape)
        modes = vectors_y.T[j][:, :, None] * vectors_x.T[i][:, None, :]
        return products[j, i], modes

    def _general(self) -> tuple[Array, Array]:
        assert callable(self.kernel)
        grid = self.grid
        x, y = np.arange(grid.nx) * grid.hx, np.arange(grid.ny) * grid.hy
        # A stationary kernel: its matrix is block Toeplitz, and a product with it a convolution.
        dx = np.concatenate([x, -x[:0:-1]]) / self.lengths[0]
        dy = np.concatenate([y, -y[:0:-1]]) / self.lengths[1]
        correlation = np.asarray(self.kernel(*np.meshgrid(dx, dy)), dtype=np.float64)
        if correlation.shape != (dy.size, dx.size) or not np.isfinite(correlation).all():
            raise PdeError("the kernel must give one finite value for each pair of distances")
        if abs(correlation[0, 0] - 1) > 1e-12 or np.abs(correlation).max() > 1 + 1e-12:
            raise PdeError("the kernel must be a correlation: 1 at distance zero, never above")
        transform = np.fft.rfft2(correlation)

        def product(vector: Array) -> Array:
            padded = np.fft.rfft2(vector.reshape(grid.shape), s=correlation.shape)
            full = np.fft.irfft2(padded * transform, s=correlation.shape)
            return np.asarray(full[: grid.ny, : grid.nx].ravel())

        n = grid.num_cells
        if self.terms > n // 2:
            matrix = np.stack([product(row) for row in np.eye(n)])
            values, vectors = eigh((matrix + matrix.T) / 2)
        else:
            start = np.random.default_rng(0).standard_normal(n)
            operator = LinearOperator((n, n), matvec=product, dtype=np.float64)
            values, vectors = eigsh(operator, k=self.terms, which="LA", v0=start)
        order = np.argsort(-values)[: self.terms]
        if values[order[-1]] < -1e-10 * n:
            raise PdeError("the kernel is not positive definite, so it is no correlation")
        values = np.maximum(values[order], 0.0) * self.variance * grid.cell_area
        modes = vectors.T[order].reshape(self.terms, *grid.shape) / np.sqrt(grid.cell_area)
        return values, modes

    def field(self, coefficients: Any) -> Array:
        """The field of given coefficients `xi` `[..., terms]`, `[..., ny, nx]`.

        A sample's bits do not depend on the others.
        """
        xi = np.asarray(coefficients, dtype=np.float64)
        if xi.shape[-1:] != (self.terms,):
            raise PdeError(f"coefficients of shape {xi.shape}, expected (..., {self.terms})")
        flat = xi.reshape(-1, self.terms)
        fields = np.empty((len(flat), self.grid.num_cells))
        for row, one in zip(fields, flat, strict=True):
            np.dot(self._scaled, one, out=row)
        return fields.reshape(*xi.shape[:-1], *self.grid.shape)


@dataclass(frozen=True, eq=False)
class RandomPermeability:
    """Permeabilities that depend on `(seed, index)` alone.

    `additive` is `mean + field`, and a field with a cell that is not positive is drawn again;
    `lognormal` is `exp(mean + field)`.

    Args:
        expansion: The Gaussian field.
        kind: `additive` or `lognormal`.
        mean: kappa_0.
        seed: Seed of all samples.

    Raises:
        PdeError: An unknown kind, a mean that is not finite, a negative seed.

    Example:
        >>> fields = RandomPermeability(KarhunenLoeve(Grid(8, 8), terms=4), mean=6.0)
        >>> fields.sample(3).shape
        (8, 8)
    """

    expansion: KarhunenLoeve
    kind: str = "additive"
    mean: float = 6.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, MEANS)
        if not (isinstance(self.mean, int | float | np.number) and np.isfinite(self.mean)):
            raise PdeError(f"mean={self.mean!r}, expected a finite number")
        check_draw(self.seed, 0)

    def draw(self, index: int) -> tuple[Array, Array]:
        """The coefficients `[terms]` and the permeability `[ny, nx]` of a sample.

        Raises:
            PdeError: A negative index; a thousand additive fields in a row with a cell that is not
                positive: the mean is too low for the variance.
        """
        check_draw(self.seed, index)
        rng = generator(self.seed, PERMEABILITY, index)
        for _ in range(TRIES):
            xi = rng.standard_normal(self.expansion.terms)
            field = self.expansion.field(xi) + self.mean
            if self.kind == "lognormal":
                return xi, np.asarray(np.exp(field))
            if field.min() > 0:
                return xi, field
        raise PdeError(
            f"{TRIES} fields in a row had cells that are not positive: raise the mean above "
            f"{self.mean:g}, lower the variance, or take lognormal fields"
        )

    def sample(self, index: int) -> Array:
        """The permeability of a sample, `[ny, nx]`."""
        return self.draw(index)[1]

    def coefficients(self, index: int) -> Array:
        """The coefficients of a sample, `[terms]`."""
        return self.draw(index)[0]
