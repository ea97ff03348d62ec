"""The discriminative restricted Boltzmann machine, with its hidden units summed out."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class DiscriminativeRBM(nn.Module):
    """Features x [B, D] to logits [B, C] (Larochelle and Bengio 2008).

    With binary hidden units h and the label's indicator e_y, p(y, h | x) is proportional to
    exp(-E(y, x, h)),

        E(y, x, h) = -h'W x - c'h - d_y - h'U e_y.

    The units are independent given x and y, so that their sum has a closed form:

        log p(y | x) = d_y + sum_j softplus(c_j + U_jy + W_j x) + const.

    x need not be binary: it is only conditioned on. All classes are taken at once, [B, C, H]
    numbers. Weights start uniform in +-m^(-1/2), m the larger side of their matrix, and biases at
    zero.

    With 40 features, 41 hidden units and 23 classes it has the 2,647 parameters of Ahn,
    Korattikara and Welling 2012, section 5.3.

    Args:
        features: D.
        hidden: H.
        classes: C.

    Attributes:
        W: [H, D].
        U: [H, C].
        c: [H].
        d: [C].

    Raises:
        ValueError: If a number is not positive.
    """

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        if min(features, hidden, classes) < 1:
            raise ValueError(
                "features, hidden and classes must be positive, got "
                f"{features}, {hidden} and {classes}"
            )
        self.W = nn.Parameter(torch.empty(hidden, features))
        self.U = nn.Parameter(torch.empty(hidden, classes))
        self.c = nn.Parameter(torch.empty(hidden))
        self.d = nn.Parameter(torch.empty(classes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights and set the biases to zero."""
        for weight in (self.W, self.U):
            bound = max(weight.shape) ** -0.5
            nn.init.uniform_(weight, -bound, bound)
        for bias in (self.c, self.d):
            nn.init.zeros_(bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, C].

        Raises:
            ValueError: If x is not [B, D].
        """
        if x.dim() != 2 or x.shape[1] != self.W.shape[1]:
            raise ValueError(f"the net takes features [B, {self.W.shape[1]}], got {list(x.shape)}")
        z = functional.linear(x, self.W, self.c).unsqueeze(-2) + self.U.mT
        # Torch's default threshold, 20, is wrong by 2e-9, which double precision sees.
        return self.d + functional.softplus(z, threshold=40.0).sum(-1)
