"""The posterior-ensemble metric: predictions averaged over draws, as they come."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

from lightning_sgmcmc.metrics.laws import Law, Unstated
from lightning_sgmcmc.metrics.prediction import Prediction


def _log_sum(stacked: Tensor) -> Tensor:
    return torch.logsumexp(stacked, dim=0)


class PosteriorEnsemble(Metric):
    """Streaming weighted averages over draws of predictions f, noise v and likelihoods p.

    mean = sum_k w_k f_k / sum_k w_k,   epistemic_std^2 = sum_k w_k f_k^2 / sum_k w_k - mean^2,
    noise = sum_k w_k v_k / sum_k w_k,  nll = -log(sum_k w_k p_k / sum_k w_k),
    for each example, in float64. Weights are the step
    sizes where these decay (Li et al. 2016, before Theorem 1). States are keyed by example and
    reduced over processes by sums, so that one data-parallel chain, whose processes share the
    examples, and independent chains, which share none of the draws, both give the average over
    everything; an example that is seen twice for a draw counts in sum and weight alike.

    Args:
        num_examples: N.
        event_shape: Shape of one example's prediction.
        law: The law of the targets given inputs and weights.
        noise_shape: Shape of one example's noise, None where the law has none.
        alone: Whether each process has an ensemble of its own, which is not reduced.
        origin: About which sums are taken, of ``event_shape``; 0 if None. Squares about 0 lose
            a deviation below 1e-8 of the mean.
    """

    full_state_update = False
    weight: Tensor
    total: Tensor
    squares: Tensor
    log_likelihood: Tensor
    noise: Tensor
    origin: Tensor

    def __init__(
        self,
        num_examples: int,
        event_shape: tuple[int, ...] = (),
        law: type[Law] = Unstated,
        noise_shape: tuple[int, ...] | None = None,
        alone: bool = False,
        origin: Tensor | None = None,
    ) -> None:
        super().__init__(sync_on_compute=not alone)
        self.law, self.has_noise = law, noise_shape is not None
        zeros = torch.zeros(num_examples, *event_shape, dtype=torch.float64)
        flat = torch.zeros(num_examples, dtype=torch.float64)
        # The same on all processes, and not reset: sums are about it.
        start = torch.zeros(event_shape, dtype=torch.float64) if origin is None else origin
        self.add_state("origin", start.double(), dist_reduce_fx="max")
        self.add_state("weight", flat, dist_reduce_fx="sum")
        self.add_state("total", zeros, dist_reduce_fx="sum")
        self.add_state("squares", zeros.clone(), dist_reduce_fx="sum")
        self.add_state("log_likelihood", flat - torch.inf, dist_reduce_fx=_log_sum)
        if noise_shape is not None:
            noise = torch.zeros(num_examples, *noise_shape, dtype=torch.float64)
            self.add_state("noise", noise, dist_reduce_fx="sum")

    @classmethod
    def of(
        cls, law: Law, num_examples: int, alone: bool = False, origin: Tensor | None = None
    ) -> PosteriorEnsemble:
        """Return an empty ensemble for ``num_examples`` such as those of a law."""
        noise = None if law.noise is None else tuple(law.noise.shape[1:])
        return cls(num_examples, tuple(law.mean.shape[1:]), type(law), noise, alone, origin)

    def update(
        self,
        predictions: Tensor,
        nll: Tensor,
        index: Tensor,
        weight: float = 1.0,
        noise: Tensor | None = None,
    ) -> None:
        """Add one draw's predictions for some examples.

        Args:
            predictions: f for each example, [B, ...].
            nll: Negative log-likelihood of each example, [B].
            index: Which examples these are, [B], each at most once.
            weight: Weight of the draw, positive.
            noise: v for each example, [B, ...], where the law has one.

        Raises:
            ValueError: If the weight is not positive.
        """
        if not weight > 0:
            raise ValueError(f"a draw's weight must be positive, got {weight}")
        f = predictions.detach().to(torch.float64) - self.origin
        self.weight[index] += weight
        self.total[index] += weight * f
        self.squares[index] += weight * f * f
        if noise is not None:
            self.noise[index] += weight * noise.detach().to(torch.float64)
        term = torch.log(torch.as_tensor(weight, dtype=torch.float64)) - nll.detach().double()
        self.log_likelihood[index] = torch.logaddexp(self.log_likelihood[index], term)

    def compute(self) -> Prediction:
        """Return the ensemble's prediction.

        Raises:
            RuntimeError: If an example has no draw yet.
        """
        if not bool((self.weight > 0).all()):
            raise RuntimeError("the ensemble has no draw for some examples yet")
        weight = self.weight.reshape(-1, *[1] * (self.total.dim() - 1))
        mean = self.total / weight
        variance = (self.squares / weight - mean**2).clamp_min(0)
        noise = None
        if self.has_noise:
            noise = self.noise / self.weight.reshape(-1, *[1] * (self.noise.dim() - 1))
        nll = self.weight.log() - self.log_likelihood
        return Prediction(self.law, self.origin + mean, variance.sqrt(), noise, nll)
