"""Bayesian logistic regression, and the Laplace approximation of its posterior."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit
from torch import Tensor, nn
from torch.nn import functional

from lightning_sgmcmc import BatchStream, Sampler
from lightning_sgmcmc.metrics import Prediction
from lightning_sgmcmc.module import SGMCMCModule

Batch = tuple[Tensor, Tensor]
Array = NDArray[np.float64]


class LogisticRegression(SGMCMCModule):
    """p(y = 1 | x, w, b) = 1 / (1 + exp(-(w'x + b))), with batches x [B, D] and y [B] in {0, 1}.

    With N(0, s^2) priors -log posterior is convex, with Hessian X' diag(p (1 - p)) X + I / s^2
    (x extended by 1 for the intercept, whose prior is the same).

    Args:
        sampler: Called with the parameters.
        num_features: D.
        intercept: Whether there is a b.
        **chain: Arguments of :class:`~lightning_sgmcmc.module.SGMCMCModule`.

    Raises:
        ValueError: If a value lies outside its range.
    """

    def __init__(
        self,
        sampler: Callable[[Iterable[nn.Parameter]], Sampler],
        *,
        num_features: int,
        intercept: bool = True,
        **chain: Any,
    ) -> None:
        if num_features < 1:
            raise ValueError(f"num_features must be positive, got {num_features}")
        net = nn.Linear(num_features, 1, bias=intercept)
        for p in net.parameters():
            nn.init.zeros_(p)
        super().__init__(net, sampler, **chain)
        self.num_features = num_features

    def setup(self, stage: str) -> None:
        """Refuse data of another width, before any work.

        Raises:
            ValueError: If the training examples do not have D features each.
        """
        super().setup(stage)
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        loader = data.train_dataloader() if data is not None and stage == "fit" else None
        if isinstance(loader, BatchStream):
            shape = tuple(loader.tensors[0].shape)
            if len(shape) != 2 or shape[1] != self.num_features:
                raise ValueError(
                    f"the training inputs are {list(shape)}, not [N, {self.num_features}]: set "
                    "num_features to their second length"
                )

    def forward(self, x: Tensor) -> Tensor:
        """Return w'x + b, [B]."""
        logits: Tensor = self.net(x).squeeze(-1)
        return logits

    def nll(self, batch: Batch) -> Tensor:
        """Return -log p(y | x, w, b) of each example, [B]."""
        x, y = batch
        return functional.binary_cross_entropy_with_logits(self(x), y, reduction="none")

    def predictive(self, batch: Batch) -> Tensor:
        """Return p(y = 1 | x, w, b), [B]."""
        logits: Tensor = self(batch[0])
        return logits.sigmoid()

    def metrics(self, prediction: Prediction, batch: Batch) -> dict[str, float]:
        """Return the error in percent, the mean NLL and the Brier score, mean (p - y)^2."""
        y = batch[1].double()
        wrong = (prediction.mean >= 0.5) != (y > 0.5)
        return {
            "error_percent": 100 * float(wrong.double().mean()),
            "nll": float(prediction.nll.mean()),
            "brier": float((prediction.mean - y).square().mean()),
        }

    def paper(self) -> dict[str, Any] | None:
        """Return what is published on the data set."""
        return getattr(self.trainer.datamodule, "paper", None)  # type: ignore[attr-defined]


def logits(theta: Tensor, x: Tensor) -> Tensor:
    """Return x'theta for stacked weights, [K, n].

    Args:
        theta: Weights [K, D]; an intercept goes with a feature that is one.
        x: Features [n, D], the same for all, or [K, n, D].
    """
    if x.dim() == 2:
        return theta @ x.T
    return (x @ theta.unsqueeze(-1)).squeeze(-1)


def mean_gradient(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of the mean NLL in closed form, mean_i (p_i - y_i) x_i, [K, D].

    Args:
        theta: Weights [K, D].
        x: Features [n, D] or [K, n, D].
        y: Labels [n] or [K, n], 0 or 1.
    """
    residual = (logits(theta, x).sigmoid_() - y) / x.shape[-2]
    if x.dim() == 2:
        return residual @ x
    return (residual.unsqueeze(-2) @ x).squeeze(-2)


class Laplace(NamedTuple):
    """A Gaussian approximation of a posterior.

    Attributes:
        mean: The mode, [D].
        covariance: The inverse of the Hessian of -log posterior there, [D, D].
    """

    mean: Array
    covariance: Array


def laplace(x: Array, y: Array, prior_variance: float, tolerance: float = 1e-10) -> Laplace:
    """Find the mode by Newton's method with the exact Hessian, halving steps that go uphill.

    Args:
        x: Features [N, D]; an intercept is a column of ones.
        y: Labels [N], 0 or 1.
        prior_variance: s^2 of the independent N(0, s^2) priors.
        tolerance: Newton decrement squared at which to stop: twice the gap in -log posterior.

    Raises:
        ValueError: If the prior variance is not positive, or Newton's method does not converge.
    """
    if not prior_variance > 0:
        raise ValueError(f"the prior's variance must be positive, got {prior_variance}")

    def potential(w: Array) -> float:
        signs = 2 * y - 1
        return float(-log_expit(signs * (x @ w)).sum() + 0.5 * w @ w / prior_variance)

    w: Array = np.zeros(x.shape[1])
    prior = np.eye(x.shape[1]) / prior_variance
    for _ in range(100):
        p = expit(x @ w)
        gradient = x.T @ (p - y) + w / prior_variance
        hessian = (x * (p * (1 - p))[:, None]).T @ x + prior
        step = np.linalg.solve(hessian, gradient)
        decrement = float(gradient @ step)
        if decrement < tolerance:
            return Laplace(w, np.asarray(np.linalg.inv(hessian), dtype=np.float64))
        fraction, start = 1.0, potential(w)
        while potential(w - fraction * step) > start - 0.25 * fraction * decrement:
            fraction /= 2
        w = w - fraction * step
    raise ValueError("Newton's method has not converged in 100 steps: are the data finite?")
