"""Bayesian logistic regression."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_sgmcmc import GaussianPrior, Sampler
from lightning_sgmcmc.metrics import Bernoulli, Prediction
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.posterior import KeptDraws
from tasks.laplace import laplace
from tasks.networks import training_set

Batch = tuple[Tensor, Tensor]
#: Of the errors of single draws.
QUANTILES = (0.0, 0.025, 0.25, 0.5, 0.75, 0.975, 1.0)


class LogisticRegression(SGMCMCModule):
    """p(y = 1 | x, w, b) = 1 / (1 + exp(-(w'x + b))), with batches x [B, D] and y [B] in {0, 1}.

    With N(0, s^2) priors -log posterior is convex, with Hessian X' diag(p (1 - p)) X + I / s^2
    (x extended by 1 for the intercept, whose prior is the same). So a run can say what the
    Laplace approximation of the same posterior predicts, and how far from that its ensemble is.

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
        self.num_features, self.intercept = num_features, intercept

    def setup(self, stage: str) -> None:
        """Refuse data of another width, before any work.

        Raises:
            ValueError: If the training examples do not have D features each.
        """
        super().setup(stage)
        examples = training_set(self) if stage == "fit" else None
        if examples is not None:
            shape = tuple(examples[0].shape)
            if len(shape) != 2 or shape[1] != self.num_features:
                raise ValueError(
                    f"the training inputs are {list(shape)}, not [N, {self.num_features}]: set "
                    "num_features to their second length"
                )

    def forward(self, x: Tensor) -> Tensor:
        """Return w'x + b, [B]."""
        logits: Tensor = self.net(x).squeeze(-1)
        return logits

    def law(self, x: Tensor) -> Bernoulli:
        """Return the law of the labels."""
        return Bernoulli(self(x))

    def draw_labels(self, batch_and_uniforms: tuple[Batch, Tensor]) -> Batch:
        """Return the batch with y drawn from the model."""
        (x, y), uniforms = batch_and_uniforms
        return x, (uniforms[:, 0] < self(x).sigmoid()).to(y.dtype)

    def metrics(self, prediction: Prediction, batch: Batch) -> dict[str, float]:
        """Return the error in percent, the mean NLL and the Brier score, mean (p - y)^2."""
        y = batch[1].double()
        wrong = (prediction.mean >= 0.5) != (y > 0.5)
        return {
            "error_percent": 100 * float(wrong.double().mean()),
            "nll": float(prediction.nll.mean()),
            "brier": float((prediction.mean - y).square().mean()),
        }

    def describe(self, kept: KeptDraws) -> dict[str, Any]:
        """Return the errors of single draws and chains, and the Laplace approximation's.

        Over the stored draws: ``draw_error_percent`` has the quantiles of single draws' test
        errors, ``chain_error_percent`` the test error of each chain's own ensemble. ``laplace`` has
        the metrics of the Laplace approximation's predictive probabilities on each held-out set,
        and ``gap``, the mean over its examples of |p - p_laplace| with p the ensemble's; it is
        there for zero-mean Gaussian priors at T = 1.
        """
        weights = sum(p.numel() for p in self.net.parameters())
        if not kept.num_draws or self.chain.sampler.num_parameters != weights:
            return {}
        return self._errors_of_draws(kept) | self._beside_laplace(kept)

    def _errors_of_draws(self, kept: KeptDraws) -> dict[str, Any]:
        if "test" not in kept.held_out or not self.draw_budget:
            return {}
        names, traces = kept.weight_traces(self.chain.sampler.num_parameters)
        assert len(names) == self.chain.sampler.num_parameters
        x, y = (t.double().cpu() for t in kept.held_out["test"].examples)
        means = kept.chain_means("test")
        if means is None:  # a single chain
            means = kept.ensemble("test").mean[None]
        wrong = (means.cpu() >= 0.5) != (y > 0.5)
        theta = torch.from_numpy(traces).flatten(0, 1)
        singly = (logits(theta, self._extended(x)).sigmoid_() >= 0.5) != (y > 0.5)
        together = 100 * singly.double().mean(1)
        return {
            "draw_error_percent": {
                "mean": float(together.mean()),
                "sd": float(together.std()),
                "quantiles": {f"{q:g}": float(together.quantile(q)) for q in QUANTILES},
            },
            "chain_error_percent": (100 * wrong.double().mean(1)).tolist(),
        }

    def _beside_laplace(self, kept: KeptDraws) -> dict[str, Any]:
        prior = self.chain.sampler.prior
        plain = isinstance(prior, GaussianPrior) and prior.mean == 0
        stream = self.chain.stream
        if not plain or self.chain.sampler.temperature != 1 or stream is None or stream.on_disk:
            return {}
        assert isinstance(prior, GaussianPrior)
        x, y = (t.double().cpu() for t in stream.tensors)
        if self.chain.sampler.num_data != len(y):  # the chain's posterior is another
            return {}
        approximation = laplace(self._extended(x).numpy(), y.numpy(), prior.variance)
        result = {}
        for name, held in kept.held_out.items():
            x, y = (t.double().cpu() for t in held.examples)
            p = torch.from_numpy(approximation.predict(self._extended(x).numpy()))
            nll = functional.binary_cross_entropy(p, y, reduction="none")
            gap = (kept.ensemble(name).mean.cpu() - p).abs().mean()
            values = self.metrics(Prediction(Bernoulli, p, torch.zeros_like(p), None, nll), (x, y))
            result[name] = values | {"gap": float(gap)}
        return {"laplace": result}

    def _extended(self, x: Tensor) -> Tensor:
        """Return x with a column of ones if there is an intercept."""
        if not self.intercept:
            return x
        return torch.cat([x, torch.ones_like(x[:, :1])], dim=1)

    def summary(self, results: dict[str, Any]) -> list[tuple[str, str]]:
        """Return rows of the table that a run prints last."""
        rows = super().summary(results)
        laplace_metrics = results["task_details"].get("laplace", {}).get("test")
        if laplace_metrics is not None:
            error, gap = laplace_metrics["error_percent"], laplace_metrics["gap"]
            rows.append(("Laplace approximation", f"{error:.4g} % error, {gap:.2g} away in p"))
        return rows

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
