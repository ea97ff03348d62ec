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

    With a difficulty d_i > 0 of the examples, std_ij d_i stands for std_ij: bands are wide where an
    example is difficult. The guarantee is the same for any d that is a function of the inputs.
    Where d is in proportion to the errors of examples of another kind too, the bands hold these as
    well (normalised conformal prediction, Papadopoulos, Gammerman and Vovk 2008).

    Args:
        prediction: Of the calibration examples.
        y: Their targets, [n, ...].
        difficulty: d of the examples in any unit, [n]; by default all are alike.

    Attributes:
        scores: s, sorted along the first axis, [n, ...] in float64.

    Raises:
        ValueError: If targets and prediction differ in shape, or difficulties are not one positive
            number an example.
    """

    def __init__(self, prediction: Moments, y: Tensor, difficulty: Tensor | None = None) -> None:
        mean = prediction.mean
        if y.shape != mean.shape:
            raise ValueError(
                f"targets have shape {list(y.shape)}, their prediction {list(mean.shape)}: give "
                "the targets of the predicted examples"
            )
        error = (y.to(mean) - mean).abs()
        # An output that is never wrong has the score 0, also where nothing is uncertain.
        self._by_difficulty = difficulty is not None
        std = self._deviation(prediction, difficulty)
        # One that is not a number sorts last, and widens the band.
        self.scores = torch.where(error == 0, 0, error / std).sort(0).values

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

    def half_width(
        self, prediction: Moments, probability: float, difficulty: Tensor | None = None
    ) -> Tensor:
        """Return half of the bands' width of other examples, [N, ...].

        Args:
            prediction: Of the N examples.
            probability: p.
            difficulty: d of the examples, [N], if the calibration examples had one.

        Raises:
            ValueError: As :meth:`factor`; or if a difficulty is given that the calibration examples
                had not, or lacks that they had.
        """
        if (difficulty is not None) != self._by_difficulty:
            which = "had a difficulty" if self._by_difficulty else "had no difficulty"
            raise ValueError(f"the calibration examples {which}: give the bands the same")
        half = self.factor(probability).to(prediction.mean) * self._deviation(
            prediction, difficulty
        )
        return half.nan_to_num(nan=torch.inf, posinf=torch.inf)  # inf * 0: nothing is known

    def interval(
        self, prediction: Moments, probability: float, difficulty: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the ends of the bands of other examples, [N, ...].

        Takes and raises the same as :meth:`half_width`.
        """
        half = self.half_width(prediction, probability, difficulty)
        return prediction.mean - half, prediction.mean + half

    @staticmethod
    def _deviation(prediction: Moments, difficulty: Tensor | None) -> Tensor:
        std = prediction.std
        if difficulty is None:
            return std
        if difficulty.shape != std.shape[:1]:
            raise ValueError(
                f"difficulties have shape {list(difficulty.shape)}, expected one for each of the "
                f"{len(std)} examples"
            )
        if not bool(((difficulty > 0) & difficulty.isfinite()).all()):
            raise ValueError("difficulties must be positive and finite")
        return std * difficulty.to(std).reshape(-1, *[1] * (std.ndim - 1))

    def metrics(
        self,
        prediction: Moments,
        y: Tensor,
        levels: tuple[float, ...] = (0.5, 0.9, 0.95),
        difficulty: Tensor | None = None,
    ) -> dict[str, float]:
        """Measure the bands on examples with known targets.

        Args:
            prediction: Of N other examples.
            y: Their targets, [N, D].
            levels: Nominal probabilities of the bands; those that the calibration examples are too
                few for are left out.
            difficulty: As in :meth:`half_width`.

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
            lower, upper = self.interval(prediction, level, difficulty)
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
