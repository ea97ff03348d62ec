"""What a sampler asks of a prior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor


class Prior(ABC):
    """A density p(theta) over a list of parameter tensors."""

    #: A flat prior is improper; runs say so.
    proper: bool = True

    @abstractmethod
    def log_density(self, params: Sequence[Tensor]) -> Tensor:
        """Return log p(theta), a differentiable scalar."""

    @abstractmethod
    def add_gradient_(
        self, grads: Sequence[Tensor], params: Sequence[Tensor], scale: float
    ) -> None:
        """Add ``scale`` times the gradient of -log p(theta) to ``grads``, in place."""


class FlatPrior(Prior):
    """The improper density p(theta) = 1, whose posterior is the likelihood."""

    proper = False

    def log_density(self, params: Sequence[Tensor]) -> Tensor:
        """Return 0."""
        return torch.zeros((), device=params[0].device, dtype=params[0].dtype)

    def add_gradient_(
        self, grads: Sequence[Tensor], params: Sequence[Tensor], scale: float
    ) -> None:
        """Add nothing."""

    def __repr__(self) -> str:
        return "FlatPrior()"
