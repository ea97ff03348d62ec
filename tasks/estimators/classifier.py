"""Classification of a table's rows, as an estimator of scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import ClassifierMixin  # type: ignore[import-untyped]
from sklearn.utils.multiclass import check_classification_targets  # type: ignore[import-untyped]
from sklearn.utils.validation import validate_data  # type: ignore[import-untyped]

from tasks.classification import Classification
from tasks.estimators.base import Array, BayesianMLP, check_units, quiet
from tasks.nets.mlp import MLP


class BayesianMLPClassifier(ClassifierMixin, BayesianMLP):  # type: ignore[misc]
    """Classification of a table's rows by draws of a perceptron.

    The law is that of :class:`~tasks.classification.Classification`, with standardised features.

    Args:
        hidden: This and the others as in :class:`BayesianMLPRegressor`.
        activation: As there.
        num_chains: As there.
        optimizer_steps: As there.
        burn_in: As there.
        steps: As there.
        thinning: As there.
        batch_size: As there.
        step_fraction: As there.
        device: As there.
        random_state: As there.

    Attributes:
        classes_: The classes, sorted.
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

    def _task(self, net: MLP, chain: dict[str, Any]) -> Classification:
        return Classification(net, **chain)

    def fit(self, X: Any, y: Any) -> Self:
        """Draw weights given features X [N, D] and classes y [N].

        Whatever is wrong with the draws is a :class:`sklearn.exceptions.ConvergenceWarning`.

        Raises:
            ValueError: If the data or a parameter are not what they should be.
        """
        x, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2 <= len(x):
            raise ValueError(
                f"y has 1 class, {self.classes_[0]!r}: give rows of at least 2 classes"
            )
        check_units("X", x)
        self.mean_, self.scale_ = x.mean(0), x.std(0)
        self.scale_[np.ptp(x, axis=0) == 0] = 1.0
        stream = self._stream(((x - self.mean_) / self.scale_).astype(np.float32), codes)
        with quiet():
            task = self._made(x.shape[1], len(self.classes_), self._seed())
            self._sample(task, stream)
        return self

    def predict_proba(self, X: Any) -> Array:
        """Return the predictive probabilities of ``classes_``, [N, C]."""
        x = self._rows(X)
        task = self._made(x.shape[1], len(self.classes_), 0)
        probabilities: Array = self._law_of(task, (x - self.mean_) / self.scale_).mean.numpy()
        return probabilities

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row, [N]."""
        best = self.predict_proba(X).argmax(1)  # first: it refuses what is not fitted
        classes: Array = self.classes_[best]
        return classes
