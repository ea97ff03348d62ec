"""What an ensemble predicts: mean, deviations and intervals of the mixture over its draws."""

from __future__ import annotations

from torch import Tensor

from lightning_sgmcmc.metrics.laws import Law


class Moments:
    """Moments of the posterior predictive law of N examples, in float64.

    Args:
        law: The task's law of y given x and w, whose mixture over draws this is.
        mean: E y, the weighted mean over draws, [N, ...].
        epistemic_std: Deviation over draws of their means, the weights' part of ``std``, [N, ...];
            0 for a single network.
        noise: Weighted mean over draws of the law's own variance, where it has one of its own.
    """

    def __init__(
        self, law: type[Law], mean: Tensor, epistemic_std: Tensor, noise: Tensor | None = None
    ) -> None:
        self.law, self.mean, self.epistemic_std, self.noise = law, mean, epistemic_std, noise

    @property
    def std(self) -> Tensor:
        """Total predictive standard deviation of y, weights and noise together, [N, ...].

        Raises:
            TypeError: If the task states no law.
        """
        return self.law.variance(self.mean, self.epistemic_std.square(), self.noise).sqrt()

    def outputs(self, columns: Tensor | slice) -> Moments:
        """Return the moments of some of the D outputs of predictions [N, D]."""
        noise = None if self.noise is None else self.noise.expand_as(self.mean)[:, columns]
        return Moments(self.law, self.mean[:, columns], self.epistemic_std[:, columns], noise)

    def interval(self, probability: float) -> tuple[Tensor, Tensor]:
        """Return the ends of the central interval that holds y with this probability, [N, ...].

        Of a Normal law it is mean -+ z std: see :meth:`~lightning_sgmcmc.metrics.Normal.band`.

        Raises:
            ValueError: If the probability lies outside (0, 1).
            TypeError: If the task states no law, or one without intervals.
        """
        if not 0 < probability < 1:
            raise ValueError(f"probability must lie in (0, 1), got {probability}")
        return self.law.band(self.mean, self.std, probability)


class Prediction(Moments):
    """What an ensemble, or one network, predicts for N examples with known targets.

    Args:
        law: See :class:`Moments`.
        mean: See :class:`Moments`.
        epistemic_std: See :class:`Moments`.
        noise: See :class:`Moments`.
        nll: Negative log of the mixture's density at each example's target, [N].
    """

    def __init__(
        self,
        law: type[Law],
        mean: Tensor,
        epistemic_std: Tensor,
        noise: Tensor | None,
        nll: Tensor,
    ) -> None:
        super().__init__(law, mean, epistemic_std, noise)
        self.nll = nll
