"""Bands with a guaranteed coverage, from the errors of a prediction on examples set aside."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_sgmcmc.metrics.prediction import Moments


class Conformal:
    """Split conformal bands around an ensemble's mean, in units of its own deviation.

    On n calibration examples, which nothing was fitted to, the scores of output j are
    s_ij = |y_ij - mean_ij| / std_ij. With q_j(p) the ceil((n + 1) p)-th smallest of them, the band

        mean_j -+ q_j(p) std_j

    holds a new example's y_j with a probability of at least p and, where scores are continuous, of
    at most p + 1 / (n + 1), whatever the model, as long as the new example and those of the
    calibration are exchangeable (Vovk, Gammerman and Shafer 2005; Lei et al. 2018, section 5.2).
    The probability is over calibration sets and examples together, each output by itself. It is
    no statement about a posterior: the law's own interval is
    :meth:`~lightning_sgmcmc.metrics.Moments.interval`.

    Args:
        prediction: Of the calibration examples.
        y: Their targets, [n, ...].

    Attributes:
        scores: s, sorted along the first axis, [n, ...] in float64.

    Raises:
        ValueError: If targets and prediction differ in shape.
    """

    def __init__(self, prediction: Moments, y: Tensor) -> None:
        mean, std = prediction.mean, prediction.std
        if y.shape != mean.shape:
            raise ValueError(
                f"targets have shape {list(y.shape)}, their prediction {list(mean.shape)}: give "
                "the targets of the predicted examples"
            )
        error = (y.to(mean) - mean).abs()
        # An output that is never wrong has the score 0, also where nothing is uncertain.
        self.scores = torch.where(error > 0, error / std, 0).sort(0).values

    def factor(self, probability: float) -> Tensor:
        """Return q(p), the band's half width in units of std, [...].

        Raises:
            ValueError: If the probability lies outside (0, 1), or the calibration examples are too
                few for it: n must be at least p / (1 - p).
        """
        if not 0 < probability < 1:
            raise ValueError(f"probability must lie in (0, 1), got {probability}")
        count = len(self.scores)
        rank = math.ceil((count + 1) * probability - 1e-9)  # (n + 1) p may round above a whole
        if rank > count:
            needed = math.ceil(probability / (1 - probability) - 1e-9)
            raise ValueError(
                f"{count} calibration examples are too few for bands of {probability:g}: at least "
                f"{needed} are needed"
            )
        return self.scores[rank - 1]

    def interval(self, prediction: Moments, probability: float) -> tuple[Tensor, Tensor]:
        """Return the ends of the bands of other examples, [N, ...].

        Raises:
            ValueError: As :meth:`factor`.
        """
        half = self.factor(probability).to(prediction.mean) * prediction.std
        return prediction.mean - half, prediction.mean + half

    def metrics(
        self, prediction: Moments, y: Tensor, levels: tuple[float, ...] = (0.5, 0.9, 0.95)
    ) -> dict[str, float]:
        """Measure the bands on examples with known targets.

        Args:
            prediction: Of N other examples.
            y: Their targets, [N, D].
            levels: Nominal probabilities of the bands; those that the calibration examples are too
                few for are left out.

        Returns:
            ``coverage_<percent>``, and its 5 % and 95 % quantiles over outputs, as
            :func:`~lightning_sgmcmc.metrics.band_metrics`; ``outputs_90_held_85_to_95``, the share
            of outputs whose 90 % band holds 85 to 95 % of the examples; ``width_90``, the 90 %
            band's mean width in the units of y.
        """
        found: dict[str, float] = {}
        truth = y.to(prediction.mean)
        for level in levels:
            if level > len(self.scores) / (len(self.scores) + 1):
                continue
            lower, upper = self.interval(prediction, level)
            inside = ((truth >= lower) & (truth <= upper)).double()
            name = f"coverage_{100 * level:g}"
            found[name] = float(inside.mean())
            shares = inside.mean(0)
            found[f"{name}_output_p05"] = float(shares.quantile(0.05))
            found[f"{name}_output_p95"] = float(shares.quantile(0.95))
            if level == 0.9:
                held = (shares >= 0.85) & (shares <= 0.95)
                found["outputs_90_held_85_to_95"] = float(held.double().mean())
                found["width_90"] = float((upper - lower).mean())
        return found
