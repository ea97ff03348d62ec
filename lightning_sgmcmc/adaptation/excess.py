"""By how much minibatches widen a chain along one direction, under the law of the batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Places of an epoch at which the variance is computed.
_PHASES = 32
# A direction that does not return has no stationary variance; this one returns in 1e7 steps.
_SLOWEST = 1e-7


@dataclass(frozen=True)
class BatchLaw:
    """How the minibatches of a chain are drawn, as far as their noise goes.

    Attributes:
        num_data: N.
        batch_size: n.
        reshuffled: Whether a pass goes through a permutation of the data without replacement, the
            last N mod n examples of which are left out; independent draws with replacement if not.
    """

    num_data: int
    batch_size: int
    reshuffled: bool

    def of_batch(self, variance: ArrayLike) -> NDArray[np.float64]:
        """Return the variance of a minibatch's mean, from that of an example's value."""
        N, n = self.num_data, self.batch_size
        share = (N - n) / max(N - 1, 1) if self.reshuffled else 1.0
        return np.asarray(variance, dtype=np.float64) * share / n

    def gain(self, decay: ArrayLike, momentum: float = 0.0) -> NDArray[np.float64]:
        """Return the variance that unit noise in every step leaves in a chain's coordinate.

        With u = lr lambda, lambda the curvature, and mu the momentum, a coordinate x that gradient
        noise xi moves goes, beside its thermal part, as

            x' = (1 + mu - u) x - mu x_before - lr xi,

        for Langevin (mu = 0) and, exactly, for SGHMC's BAOAB (its step without the velocity). With
        h_k the response to one kick, unit independent noise leaves the variance

            G = sum_k h_k^2 = (1 + mu) / ((1 - mu) u (2 (1 + mu) - u)).

        The minibatches of one pass without replacement have the correlation rho = -n / (N - n), of
        two passes none. Where the chain has used j batches of its pass, of M a pass, that leaves

            (1 - rho) G + rho (sum over passes of (sum of h_k in the pass)^2):

        what a pass does within the time of a coordinate's return cancels. The sums are computed by
        powers of the recursion's matrix, and added over all passes by a discrete Lyapunov equation.

        Args:
            decay: u, any shape, within the stability limit 2 (1 + mu).
            momentum: mu.

        Returns:
            The variance over lr^2 and that of the noise, shaped like ``decay``; the largest over
            the places of a pass, of which a draw may be any.
        """
        u = np.clip(np.atleast_1d(np.asarray(decay, dtype=np.float64)), _SLOWEST, None)
        mu = momentum
        white: NDArray[np.float64] = (1 + mu) / ((1 - mu) * u * (2 * (1 + mu) - u))
        N, n = self.num_data, self.batch_size
        if not self.reshuffled:
            found = white
        elif n == N:
            found = np.zeros_like(white)
        else:
            rho, passes = -n / (N - n), _passes(u, mu, N // n)
            found = np.max((1 - rho) * white + rho * passes, axis=0)
        return found.reshape(np.shape(decay))


def relaxation_time(decay: float, momentum: float = 0.0) -> float:
    """Return the steps in which a coordinate forgets where it was by a factor e.

    It is -1 / log r, with r the larger modulus of the roots of z^2 - (1 + mu - u) z + mu, the
    recursion of :meth:`BatchLaw.gain`: (1 - mu) / u where friction rules, and 2 / -log mu, whatever
    the step, where the coordinate oscillates.

    Args:
        decay: u, within the stability limit.
        momentum: mu.
    """
    modulus = max(abs(np.roots([1.0, -(1 + momentum - max(decay, _SLOWEST)), momentum])))
    return float(-1 / np.log(modulus)) if modulus > 0 else 0.0


def _passes(u: NDArray[np.float64], mu: float, length: int) -> NDArray[np.float64]:
    """Return the sum over passes of the squared sum of responses, [phases, m]."""
    # The state (x, x_before, 1): its k-th power holds M^k and the sum of M^i b over i < k.
    step = np.zeros((len(u), 3, 3))
    step[:, 0] = np.stack([1 + mu - u, np.full_like(u, -mu), np.ones_like(u)], -1)
    step[:, 1, 0] = step[:, 2, 2] = 1.0
    whole = np.linalg.matrix_power(step, length)
    A, c = whole[:, :2, :2], whole[:, :2, 2]
    kron = np.einsum("mij,mkl->mikjl", A, A).reshape(-1, 4, 4)
    source = np.einsum("mi,mk->mik", c, c).reshape(-1, 4, 1)
    P = np.linalg.solve(np.eye(4) - kron, source).reshape(-1, 2, 2)
    found = []
    for phase in np.unique(np.linspace(1, length, min(length, _PHASES)).astype(int)):
        power = np.linalg.matrix_power(step, int(phase))
        row = power[:, :1, :2]
        earlier = (row @ P @ row.transpose(0, 2, 1))[:, 0, 0]
        found.append(power[:, 0, 2] ** 2 + earlier)
    return np.array(found)
