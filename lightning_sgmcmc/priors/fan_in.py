"""Gaussian prior whose variances shrink with the width of a layer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lightning_sgmcmc.priors.base import positive
from lightning_sgmcmc.priors.tensorwise import TensorwiseGaussianPrior, fan_in


class FanInGaussianPrior(TensorwiseGaussianPrior):
    """Weights are N(0, variance / fan_in), biases N(0, bias_variance).

    The outputs of a layer then have a prior variance that does not depend on its width, so that
    the limit of wide networks is a Gaussian process (Neal 1996, section 2.1). Tensors of two or
    more axes, the chains' not counted, are weights [out, in, ...] whose fan-in is the product of
    all axes but the first, as for ``Linear`` and ``Conv``; transposed convolutions, which put the
    inputs first, need ``LayerwiseGaussianPrior``. Tensors of one axis or none are biases.

    Args:
        variance: Prior variance of a weight times its fan-in, positive.
        bias_variance: Prior variance of a bias, positive.

    Raises:
        ValueError: If a variance is not positive.
    """

    def __init__(self, variance: float = 1.0, bias_variance: float = 1.0) -> None:
        self.variance = positive(variance, "the prior's variance")
        self.bias_variance = positive(bias_variance, "the prior's bias_variance")

    def variances(self, params: Sequence[Tensor]) -> list[float]:
        """Return the variance of each tensor."""
        return [
            self.variance / fan_in(p, self.chain_dims)
            if p.dim() > self.chain_dims + 1
            else self.bias_variance
            for p in params
        ]
