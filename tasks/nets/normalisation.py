"""Normalisations for sampled networks: no output depends on the other examples of its batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional


class FilterResponseNorm2d(nn.Module):
    """Filter response normalisation (Singh and Krishnan 2020, section 3).

    For each example and channel, with the mean over the pixels,

        nu^2 = mean(x^2),   y = gamma x / sqrt(nu^2 + eps) + beta.

    No mean is subtracted and no other example is looked at. For eps much smaller than nu^2 the
    output does not depend on the input's scale.

    Args:
        channels: Channels of x [..., channels, height, width].
        eps: Added to nu^2, in its units.

    Attributes:
        weight: gamma [channels], at first 1.
        bias: beta [channels], at first 0.

    Raises:
        ValueError: If a number is not positive.
    """

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        if channels < 1 or eps <= 0:
            raise ValueError(f"channels and eps must be positive, got {channels} and {eps}")
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set gamma to one and beta to zero."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return y, of the shape of x."""
        # The sum, whose gradient is expanded and not divided pixel by pixel as the mean's.
        square = x.square().sum((-2, -1), keepdim=True) / (x.shape[-2] * x.shape[-1])
        scale = (square + self.eps).rsqrt()
        return self.weight[:, None, None] * scale * x + self.bias[:, None, None]


class ThresholdedLinear(nn.Module):
    """max(x, tau) with one tau a channel (Singh and Krishnan 2020, section 3).

    Filter response normalisation leaves activations off centre; a sampled threshold makes up for
    it. At first tau is 0 and the unit a ReLU.

    Args:
        channels: Channels of x [..., channels, height, width].
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.threshold = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set tau to zero."""
        nn.init.zeros_(self.threshold)

    def forward(self, x: Tensor) -> Tensor:
        """Return the larger of x and tau, of the shape of x."""
        tau = self.threshold[:, None, None]
        return functional.relu(x - tau) + tau  # a cheaper gradient than torch.maximum's


class FrozenBatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation by fixed statistics: an affine map, whose scale and shift are sampled.

    :func:`calibrate` sets the statistics once. Neither :meth:`train` nor
    :meth:`reset_parameters`, with which chains start anew, changes them: all chains share them.

    Args:
        channels: Channels of x [B, channels, height, width].
        eps: Added to the variance.

    Attributes:
        calibrated: Whether the statistics are those of data.
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__(channels, eps, momentum=None)
        self.calibrated = False
        self.eval()

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode."""
        return super().train(False)

    def reset_parameters(self) -> None:
        """Set the scale to one and the shift to zero."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised input.

        Raises:
            RuntimeError: If there are no statistics yet.
        """
        if not (self.calibrated or self.training):
            raise RuntimeError(
                "frozen normalisation has no statistics yet: call calibrate(batches) with "
                "training examples, or load weights"
            )
        return super().forward(input)

    def _load_from_state_dict(self, state: Mapping[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state, prefix, *args)
        self.calibrated = bool(self.num_batches_tracked)


def needs_calibration(net: nn.Module) -> bool:
    """Return whether a network has frozen normalisation without statistics."""
    return any(not layer.calibrated for layer in _frozen(net))


@torch.no_grad()
def calibrate(net: nn.Module, batches: Iterable[Tensor]) -> None:
    """Set the statistics of every frozen normalisation of a network, at its present weights.

    They are the means over batches of each batch's mean and (unbiased) variance, with every batch
    normalised by its own in all layers before: what ``torch.optim.swa_utils.update_bn`` does for
    ordinary batch normalisation.

    Args:
        net: The network.
        batches: Inputs of the network; batches of more than one example, best of equal size.

    Raises:
        ValueError: If the network has no such layer, or there is no batch.
    """
    layers = _frozen(net)
    if not layers:
        raise ValueError("the net has no frozen normalisation to calibrate")
    for layer in layers:
        layer.reset_running_stats()
        layer.training, layer.calibrated = True, False
    try:
        for x in batches:
            net(x)
    finally:
        for layer in layers:
            layer.training = False
    if not layers[0].num_batches_tracked:
        raise ValueError("calibration needs one batch at least, got none")
    for layer in layers:
        layer.calibrated = True


def _frozen(net: nn.Module) -> list[FrozenBatchNorm2d]:
    return [layer for layer in net.modules() if isinstance(layer, FrozenBatchNorm2d)]
