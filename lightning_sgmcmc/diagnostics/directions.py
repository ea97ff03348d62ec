"""Temperatures of single directions and of predictions, from two numbers a draw each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t as student_t

from lightning_sgmcmc.diagnostics.mixing import MIN_DRAWS, Array, as_traces, ess
from lightning_sgmcmc.diagnostics.temperature import Temperature, block_virials


@dataclass(frozen=True)
class PredictiveTemperature:
    """How far a chain's predictions are from those of its target, to first order in the weights.

    Attributes:
        temperature: The temperature of the predictions, T in expectation under exp(-U/T).
        deviation: The predictive deviation over the true one that it implies, sqrt(value / T).
        deviation_error: Its standard error.
        mean_error: Root mean square error of the predictive mean in predictive deviations.
        mean_error_significance: P-value of that error: the probability of one as large by chance.
        degrees: Degrees of freedom of the standard errors.
        ess: Median number of independent draws of the predictions' coordinates.
    """

    temperature: Temperature
    deviation: float
    deviation_error: float
    mean_error: float
    mean_error_significance: float
    degrees: int
    ess: float

    def significance(self, stated: float) -> float:
        """Return the p-value of the temperature's difference from the stated one."""
        return significance(self.temperature, stated, self.degrees)


def significance(measured: Temperature, stated: float, degrees: int) -> float:
    """Return the two-sided p-value of a temperature's difference from the stated one."""
    if not measured.standard_error > 0:
        return 1.0
    score = abs(measured.value - stated) / measured.standard_error
    return float(2 * student_t.sf(score, max(degrees, 1)))


def directional_temperatures(coordinates: ArrayLike, forces: ArrayLike) -> list[Temperature]:
    """Return T_i = <(a_i' theta - c_i) v_i' grad U> of directions v_i with covectors a_i.

    Integration by parts gives <(a' theta - c) v' grad U> = T a' v under exp(-U/T) for constant a,
    v and c; here a_i' v_i = 1. Each is the configurational temperature of one direction, where
    :func:`~lightning_sgmcmc.diagnostics.configurational_temperature` is the mean over all. On a
    Gaussian, with v_i an eigenvector of C times the Hessian, T_i / T is the chain's variance along
    v_i over the true one. c is chosen as there.

    Args:
        coordinates: a_i' theta, [C, D, m].
        forces: v_i' grad U, [C, D, m], exact or from minibatches that did not move the chain.
    """
    virial = block_virials(*_traces(coordinates, forces))
    return [_temperature(virial[..., i]) for i in range(virial.shape[-1])]


def predictive_temperature(
    coordinates: ArrayLike,
    forces: ArrayLike,
    variances: ArrayLike,
    stated: float = 1.0,
) -> PredictiveTemperature:
    """Return the temperature of predictions f and the error of their mean.

    For random combinations u_j of predictions, with a_j = J' u_j, J the Jacobian of f, and any
    constant v_j,

        T_f = sum_j <a_j' (theta - c) v_j' grad U> / sum_j a_j' v_j

    is T under exp(-U/T). With v_j = (grad^2 U)^-1 a_j, on a linear model with Gaussian noise, U is
    quadratic and v_j' grad U = a_j' (theta - mu): T_f is then T times the chain's variance of the
    u_j' f over the true one, and

        <v_j' grad U> / sqrt(T a_j' v_j)

    the error of the mean of u_j' f in its true deviations. Elsewhere the first is an identity that
    a right chain fulfils, whatever v_j, and the second is 0 for it.

    Args:
        coordinates: a_j' theta, [C, D, q].
        forces: v_j' grad U, [C, D, q].
        variances: a_j' v_j, the variances of u_j' f at T = 1, [C, q].
        stated: T.
    """
    theta, force = _traces(coordinates, forces)
    scale = np.asarray(variances, dtype=np.float64)
    shares = scale / scale.sum(-1, keepdims=True)
    unit = np.sqrt(stated * scale)[:, None]
    theta, force = theta / unit, force / unit
    virial = stated * (block_virials(theta, force) * shares[:, None]).sum(-1)
    measured = _temperature(virial)
    deviation = float(np.sqrt(max(measured.value, 0.0) / stated))
    spread = measured.standard_error / (2 * stated * max(deviation, 0.5))
    error, chance = _mean_error(force)
    sizes = ess(theta)
    known = sizes[np.isfinite(sizes)]
    return PredictiveTemperature(
        measured,
        deviation,
        float(spread),
        error,
        chance,
        max(virial.size - 1, 0),
        float(np.median(known)) if known.size else float("nan"),
    )


def _traces(coordinates: ArrayLike, forces: ArrayLike) -> tuple[Array, Array]:
    theta, force = as_traces(coordinates), as_traces(forces)
    if theta.ndim != 3 or theta.shape != force.shape:
        raise ValueError(
            f"coordinates and forces are [chains, draws, directions], got shapes {theta.shape} and "
            f"{force.shape}"
        )
    return theta, force


def _temperature(virial: Array) -> Temperature:
    """Return mean and standard error over blocks [C, blocks], the chains' own spread included.

    Where blocks are shorter than the chain's memory the spread of the chains' means shows it.
    """
    if not virial.shape[1]:
        return Temperature(float("nan"), float("nan"), 1)
    error = virial.std(ddof=1) / np.sqrt(virial.size)
    if len(virial) >= 4:
        error = max(error, virial.mean(1).std(ddof=1) / np.sqrt(len(virial)))
    return Temperature(float(virial.mean()), float(error), 1)


def _mean_error(force: Array) -> tuple[float, float]:
    """Return the root mean square of the mean scaled force [C, D, q], and its p-value.

    The part that chance gives, the mean squared standard error, is subtracted. The p-value is that
    of the largest of the q means, each with Student's law, times q.
    """
    chains, draws, count = force.shape
    if draws < MIN_DRAWS:
        return float("nan"), 1.0
    blocks = 8
    length = draws // blocks
    means = force[:, draws - blocks * length :].reshape(chains, blocks, length, count).mean(2)
    units = means.reshape(-1, count)
    centre = units.mean(0)
    error = units.std(0, ddof=1) / np.sqrt(len(units))
    if chains >= 4:
        error = np.maximum(error, means.mean(1).std(0, ddof=1) / np.sqrt(chains))
    square = float((centre**2 - error**2).mean())
    scores = np.abs(centre) / np.maximum(error, np.finfo(float).tiny)
    chance = count * 2 * student_t.sf(scores.max(), len(units) - 1)
    return float(np.sqrt(max(square, 0.0))), float(min(1.0, chance))
