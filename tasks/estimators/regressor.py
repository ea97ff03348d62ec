"""Regression on a table, as an estimator of scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin  # type: ignore[import-untyped]
from sklearn.utils.validation import validate_data  # type: ignore[import-untyped]

from lightning_sgmcmc.posterior.law import PredictiveLaw
from tasks.estimators.base import Array, BayesianMLP, check_units, quiet
from tasks.nets.mlp import MLP
from tasks.regression import SAMPLED
from tasks.uci import UCIRegression


class BayesianMLPRegressor(RegressorMixin, BayesianMLP):  # type: ignore[misc]
    """Regression on a table by draws of a perceptron and of its noise.

    The law is that of :class:`~tasks.uci.UCIRegression`, y ~ N(m + s c f(x), (sigma s)^2) with
    standardised features; log sigma is N(0, 9) a priori. Where all rows go into every step and
    sigma does not depend on x, the last layer is integrated out.

    Args:
        hidden: Units of the hidden layers.
        activation: ``relu``, ``tanh``, ``silu`` or ``sigmoid``.
        noise: ``"learned"``, one sigma that is sampled with the weights; ``"input"``, sigma(x), a
            second output of the network; or a number, in deviations of the target.
        output_scale: c, how large the function is a priori, in deviations of the target.
        num_chains: K, chains that run as one computation.
        optimizer_steps: Steps of Adam at a chain's start.
        burn_in: Steps before the first draw, Adam's included.
        steps: Steps of a chain.
        thinning: Steps between draws.
        batch_size: Rows in a step; None takes all of them. With fewer no layer is integrated out,
            and the step is so short that the minibatches' noise keeps its bound: that pays only
            where a step on all rows takes too long.
        step_fraction: The step size over the largest stable one.
        device: Such as ``"cpu"``; None takes a CUDA device where there is one.
        random_state: A seed, a generator, or None for NumPy's own.

    Attributes:
        draws_: The draws by the name of the weight, [draws, ...].
        weights_: Their weights in averages, [draws], which sum to 1.
        diagnostics_: What tells whether the draws are a sample of the posterior, as in the
            ``results.json`` of a run; ``alarms`` in words, ``notes`` on the target.
        n_features_in_: D.
    """

    def __init__(
        self,
        hidden: Sequence[int] = (50,),
        activation: Literal["relu", "tanh", "silu", "sigmoid"] = "silu",
        *,
        noise: float | Literal["learned", "input"] = "learned",
        output_scale: float = 22.0,
        num_chains: int = 4,
        optimizer_steps: int = 500,
        burn_in: int = 2000,
        steps: int = 6000,
        thinning: int = 40,
        batch_size: int | None = None,
        step_fraction: float = 0.25,
        device: str | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            hidden, activation, num_chains, optimizer_steps, burn_in, steps, thinning, batch_size,
            step_fraction, device, random_state,
        )  # fmt: skip
        self.noise = noise
        self.output_scale = output_scale

    def _variances(self) -> dict[str, float]:
        return {"log_noise": 9.0} if isinstance(self.noise, str) else {}

    def _task(self, net: MLP, chain: dict[str, Any]) -> UCIRegression:
        floor = 1e-3  # of a target without noise: configs/uci_regression.yaml
        task = UCIRegression(
            net,
            noise=self.noise,
            noise_floor=floor,
            output_scale=self.output_scale,
            collapse_head="auto",
            **chain,
        )
        if self.noise != "input":  # given sigma(x), g's weights in it have no closed form
            task.head = f"net.layers.{len(net.layers) - 1}"
        return task

    def fit(self, X: Any, y: Any) -> Self:
        """Draw weights and noise given features X [N, D] and target y [N].

        Whatever is wrong with the draws is a :class:`sklearn.exceptions.ConvergenceWarning`.

        Raises:
            ValueError: If the data or a parameter are not what they should be.
        """
        x, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        if self.noise not in SAMPLED and not isinstance(self.noise, Real):
            raise ValueError(
                f"noise must be a number or one of {', '.join(SAMPLED)}, got {self.noise!r}"
            )
        y = np.asarray(y, dtype=np.float64)[:, None]
        check_units("X", x)
        check_units("y", y)
        stream = self._stream(x, y)
        with quiet():
            seed = self._seed()
            task = self._made(x.shape[1], 1 + (self.noise == "input"), seed)
            task.scale_by(*stream.tensors)
            self.scales_ = {n: getattr(task, n).numpy() for n in UCIRegression.scales}
            self._sample(task, stream)
        return self

    def _law(self, X: Any) -> PredictiveLaw:
        x = self._rows(X)
        task = self._made(x.shape[1], 1 + (self.noise == "input"), 0)
        for name, value in self.scales_.items():
            setattr(task, name, torch.tensor(value))
        return self._law_of(task, x)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the predictive mean [N] and, if asked for, the deviation of y, noise included."""
        law = self._law(X)
        mean = law.mean[:, 0].numpy()
        return (mean, law.std[:, 0].numpy()) if return_std else mean

    def predict_interval(self, X: Any, probability: float = 0.9) -> tuple[Array, Array]:
        """Return the ends [N] of the central interval that holds y with this probability.

        Raises:
            ValueError: If the probability lies outside (0, 1).
        """
        lower, upper = self._law(X).interval(probability)
        return lower[:, 0].numpy(), upper[:, 0].numpy()
