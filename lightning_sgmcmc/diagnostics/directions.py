"""Temperatures of single directions and of predictions, from two numbers a draw each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t as student_t

from lightning_sgmcmc.diagnostics.mixing import MIN_DRAWS, Array, as_traces, ess
from lightning_sgmcmc.diagnostics.temperature import BLOCKS, Temperature, block_virials, in_blocks

#: Chains whose means give a centre and a standard error.
FEWEST_CHAINS = 4
# A ratio of variances below which a chain hardly moves.
_STILL = 0.1


@dataclass(frozen=True)
class PredictiveTemperature:
    """How far a chain's predictions are from those of its target, to first order in the weights.

    Attributes:
        temperature: The temperature of the predictions, T in expectation under exp(-U/T).
        deviation: The predictive deviation over the true one that it implies, sqrt(value / T) where
            no part of the predictions is drawn exactly.
        deviation_error: Its standard error.
        mean_error: Root mean square error of the predictive mean in predictive deviations.
        mean_error_significance: P-value of that error: the probability of one as large by chance.
        degrees: Degrees of freedom of the standard errors.
        ess: Median number of independent draws of the predictions' coordinates.
        exact_share: Share of the chain's predictive variance that is drawn exactly given the
            weights that move.
    """

    temperature: Temperature
    deviation: float
    deviation_error: float
    mean_error: float
    mean_error_significance: float
    degrees: int
    ess: float
    exact_share: float

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
    values: ArrayLike,
    forces: ArrayLike,
    spreads: ArrayLike,
    bends: ArrayLike | None = None,
    stated: float = 1.0,
    exact: ArrayLike | None = None,
    sums: ArrayLike | None = None,
) -> PredictiveTemperature:
    """Return the temperature of predictions and the error of their mean.

    For combinations g_j = u_j' f of predictions and any vector fields v_j(theta) integration by
    parts gives

        <(g_j - c_j) v_j' grad U> = T <v_j' grad g_j + (g_j - c_j) div v_j>,
        <v_j' grad U> = T <div v_j>

    under exp(-U/T). The temperature is the ratio of the sums over j of

        <(g_j - c_j) (v_j' grad U - T div v_j)>   and   <v_j' grad g_j>

    at the stated T, which it is in a right chain whatever v_j is. Where f is linear in the weights
    and U quadratic, v_j = (grad^2 U)^-1 grad g_j makes v_j' grad U the distance of g_j from its
    true mean: the ratio is then T times the chain's variance of the g_j over the true one, and
    <v_j' grad U> / sqrt(T v_j' grad g_j) the error of the mean of g_j in true deviations. Where f
    is not linear its variance follows that of the weights more or less. So does this ratio: T div
    v_j takes away what is left of the first product where f saturates. Solving the identity for T
    instead would divide by what is left.

    Where a part of the predictions is drawn exactly given the weights that the chain moves, f above
    is their mean given those weights. The whole variance is V + S, V the mean of the exact part's
    and S that of f. The true S is S / tau, tau = temperature / T, and where tau is below a tenth,
    since the chain hardly moves, at least T <v_j' grad g_j>. So the deviation is
    sqrt((V + S) / (V + true S)) times the true one, as far as V does not depend on tau, and the
    error of the mean weighs as the root of the share of the true S in V + true S.

    c_j is the mean over the other chains if there are four, over the other blocks of draws
    otherwise. Where the two averages are given for all predictions at once, about a constant
    centre, they take the place of those over the g_j, which are few: the ratio knows more then. The
    error of the mean is that of the g_j still. The standard error is the larger one of those with
    which the first identity fails at the measured and at the stated temperature.

    Args:
        values: g_j, [C, D, q].
        forces: v_j' grad U, [C, D, q], exact or from minibatches that did not move the chain.
        spreads: v_j' grad g_j, [C, D, q].
        bends: div v_j, [C, D, q]; None where v_j is constant.
        stated: T.
        exact: Variances of the exact part of the g_j at every draw, [C, D, q]; None where there is
            none.
        sums: V' grad U, and the parts of div V with second and with first derivatives of the
            predictions, [C, D, 3]: see
            :class:`~lightning_sgmcmc.posterior.directions.FollowedDirections`.
    """
    value, force = _traces(values, forces)
    spread = np.broadcast_to(np.asarray(spreads, dtype=np.float64), value.shape)
    bend = np.zeros_like(value) if bends is None else as_traces(bends)
    chains, draws, _ = value.shape
    if draws < MIN_DRAWS:
        nan = float("nan")
        return PredictiveTemperature(Temperature(nan, nan, 0), nan, nan, nan, 1.0, 0, nan, nan)
    g, x, y, w = (in_blocks(trace) for trace in (value, force, spread, bend))
    means = g.mean(2)
    if chains >= FEWEST_CHAINS:
        own = means.mean(1, keepdims=True)
        centre = (own.sum(0, keepdims=True) - own) / (chains - 1)
    else:
        centre = (means.sum((0, 1)) - means) / (chains * BLOCKS - 1)
    away, pull = g - centre[:, :, None], x - stated * w
    work, expected = (away * pull).mean(2).sum(-1), y.mean(2).sum(-1)
    if sums is not None:
        worked, bent, expected = np.moveaxis(in_blocks(as_traces(sums)).mean(2), -1, 0)
        work = worked - stated * bent
    ratio = work.sum() / expected.sum()
    # Where one block has most of both sums its own ratio is theirs, and leaves nothing over there.
    measured = max(
        (_temperature(t + (work - t * expected) / expected.mean()) for t in (ratio, stated)),
        key=lambda found: found.standard_error,
    )
    scale = np.sqrt(stated * np.maximum(y.mean((0, 1, 2)), np.finfo(float).tiny))
    error, chance = _mean_error(pull.mean(2) / scale)
    drawn = Temperature(0.0, 0.0, 1)
    if exact is not None:
        drawn = _temperature(in_blocks(as_traces(exact)).mean(2).sum(-1))
    moved = float(value.var((0, 1)).sum())
    tau = Temperature(measured.value / stated, measured.standard_error / stated, 1)
    least = stated * float(y.mean((0, 1, 2)).sum())
    deviation, deviation_error, share = _of_all(tau, moved, least, drawn)
    sizes = np.array([ess(chain[None]) for chain in value]).sum(0)
    known = sizes[np.isfinite(sizes)]
    return PredictiveTemperature(
        measured,
        deviation,
        deviation_error,
        error * share**0.5,
        chance,
        work.size - 1,
        float(np.median(known)) if known.size else float("nan"),
        drawn.value / (moved + drawn.value) if drawn.value else 0.0,
    )


def _of_all(
    tau: Temperature, moved: float, least: float, drawn: Temperature
) -> tuple[float, float, float]:
    """Return the whole deviation over the true one, its standard error, and a share.

    Args:
        tau: The chain's variance of what its weights move over the true one.
        moved: That variance, S.
        least: What the true one is at least where the chain hardly moves.
        drawn: That of what is drawn exactly, V, with the chain's own error of it.

    Returns:
        Last the share of the true S in the true variance.
    """
    if not drawn.value:
        root = max(tau.value, 0.0) ** 0.5
        return root, tau.standard_error / (2 * max(root, 0.5)), 1.0

    def true(ratio: float) -> float:
        expected = moved / max(ratio, float(np.finfo(float).tiny))
        return drawn.value + (max(expected, least) if ratio < _STILL else expected)

    low, middle, high = (
        float(np.sqrt((moved + drawn.value) / true(tau.value + sign * tau.standard_error)))
        for sign in (-1, 0, 1)
    )
    own = middle * drawn.standard_error / (2 * true(tau.value))
    return middle, float(np.hypot((high - low) / 2, own)), 1 - drawn.value / true(tau.value)


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
    if len(virial) >= FEWEST_CHAINS:
        error = max(error, virial.mean(1).std(ddof=1) / np.sqrt(len(virial)))
    return Temperature(float(virial.mean()), float(error), 1)


def _mean_error(means: Array) -> tuple[float, float]:
    """Return the root mean square over q of the mean of scaled forces, and its p-value.

    The part that chance gives, the mean squared standard error, is subtracted. The p-value is that
    of the largest of the q means, each with Student's law, times q.

    Args:
        means: Of each block, [C, blocks, q].
    """
    units = means.reshape(-1, means.shape[-1])
    centre = units.mean(0)
    error = units.std(0, ddof=1) / np.sqrt(len(units))
    if len(means) >= FEWEST_CHAINS:
        error = np.maximum(error, means.mean(1).std(0, ddof=1) / np.sqrt(len(means)))
    square = float((centre**2 - error**2).mean())
    scores = np.abs(centre) / np.maximum(error, np.finfo(float).tiny)
    chance = len(centre) * 2 * student_t.sf(scores.max(), len(units) - 1)
    return float(np.sqrt(max(square, 0.0))), float(min(1.0, chance))
