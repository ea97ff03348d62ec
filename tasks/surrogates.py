"""Surrogates without a network: baselines of any network for ``pde_perm``; and errors of any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import pde
from tasks.nets.conservation import project_flow

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Regression:
    """Velocities by least squares on the Karhunen-Loeve coefficients of a field.

    u = W phi(xi) with phi = (1, xi_1, ..., xi_p, xi_i xi_j for i <= j <= ``quadratic``), and the
    residuals' standard deviation on each edge, N - m in place of N for m features.

    Attributes:
        quadratic: The number of leading coefficients whose products enter; 0 is the linear map.
        weights: W transposed, [m, edges].
        std: The residuals' standard deviation, [edges].
    """

    quadratic: int
    weights: Array
    std: Array

    @classmethod
    def fit(cls, coefficients: Array, velocity: Array, quadratic: int = 0) -> Regression:
        """Fit coefficients [N, p] and velocities [N, edges].

        Raises:
            ValueError: If there are not more samples than features, or fewer coefficients than
                ``quadratic``.
        """
        if not 0 <= quadratic <= coefficients.shape[1]:
            raise ValueError(
                f"quadratic must lie between 0 and {coefficients.shape[1]}, the number of "
                f"coefficients, got {quadratic}"
            )
        features = _features(coefficients, quadratic)
        count, m = features.shape
        if count <= m:
            raise ValueError(
                f"{m} features need more than {m} samples, got {count}: lower quadratic"
            )
        weights = np.asarray(np.linalg.lstsq(features, velocity, rcond=None)[0], dtype=np.float64)
        residual = velocity - features @ weights
        std: Array = np.sqrt((residual**2).sum(0) / (count - m))
        return cls(quadratic, weights, std)

    def predict(self, coefficients: Array) -> Array:
        """Return velocities [n, edges] for coefficients [n, p]."""
        predicted: Array = _features(coefficients, self.quadratic) @ self.weights
        return predicted


def num_features(terms: int, quadratic: int) -> int:
    """Return m, the number of features of ``terms`` coefficients."""
    return 1 + terms + quadratic * (quadratic + 1) // 2


def _features(coefficients: Array, quadratic: int) -> Array:
    i, j = np.triu_indices(quadratic)
    ones = np.ones((len(coefficients), 1))
    return np.concatenate([ones, coefficients, coefficients[:, i] * coefficients[:, j]], axis=1)


def relative_errors(predicted: Array, velocity: Array) -> Array:
    """Return ||predicted - velocity|| / ||velocity|| of each sample, [n]."""
    error: Array = np.linalg.norm(predicted - velocity, axis=-1)
    size: Array = np.linalg.norm(velocity, axis=-1)
    return error / size


class EnergyErrors(NamedTuple):
    """Errors of flows in the energy norm ||kappa^(-1/2) u||, relative to the true flow's, [n].

    Attributes:
        error: The distance to the true flow, the RT0 solution on the grid.
        grid_bound: A bound of it that needs no solution, the lesser of :func:`pde.discrete_bound`
            and of ``bound``.
        bound: A bound of the distance to the exact flow (:func:`pde.energy_bound`), likewise.
    """

    error: Array
    grid_bound: Array
    bound: Array


def energy_errors(
    grid: pde.Grid,
    permeability: Array,
    pressure: Mapping[str, float],
    predicted: Array,
    velocity: Array,
    source: float,
) -> EnergyErrors:
    """Return the errors of predicted flows, and their bounds.

    The predictions are balanced in double precision first, as the identity of Prager and Synge
    needs it; the pressure of ``bound`` is fitted to them (:func:`pde.fitted_pressure`).

    Args:
        grid: Of equal cells, on the unit square.
        permeability: Of each sample, [n, ny, nx].
        pressure: Pressures of the left and the right side.
        predicted: Velocities that balance in single precision, [n, edges].
        velocity: The true ones, [n, edges].
        source: f, the same everywhere.
    """
    flow = balanced(grid, predicted, source)
    size = pde.energy_norm(grid, permeability, velocity)
    nodes = pde.fitted_pressure(grid, permeability, pressure, flow)
    error = pde.energy_norm(grid, permeability, flow - velocity)
    bound = pde.energy_bound(grid, permeability, pressure, flow, source, nodes)
    grid_bound = pde.discrete_bound(grid, permeability, pressure, flow, source)
    return EnergyErrors(error / size, np.minimum(grid_bound, bound) / size, bound / size)


def balanced(grid: pde.Grid, predicted: Array, source: float) -> Array:
    """Return flows [n, edges] from left to right that balance in double precision."""
    exact = torch.from_numpy(predicted).double()
    flow: Array = project_flow(exact, grid.nx, grid.ny, source).numpy()
    return flow
