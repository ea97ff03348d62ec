"""What a sampler asks of a prior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor


class Prior(ABC):
    """A density p(theta) over a list of parameter tensors.

    The parameters of K chains that run as one computation carry the chains along their first axis;
    ``lead`` is then 1.
    """

    #: A flat prior is improper; runs say so.
    proper: bool = True
    #: Number of leading axes of every tensor that count chains.
    lead: int = 0

    def attach(
        self, params: Sequence[Tensor], lead: int = 0, names: Sequence[str] | None = None
    ) -> None:
        """Take in what the parameters are, before the first step.

        Args:
            params: The parameters.
            lead: Number of their leading axes that count chains.
            names: Their names, None where they are not known.

        Raises:
            ValueError: If the prior does not fit these parameters.
        """
        self.lead = lead

    @abstractmethod
    def log_density(self, params: Sequence[Tensor]) -> Tensor:
        """Return log p(theta), differentiable, [] for one chain and [K] for K."""

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
        first = params[0]
        return torch.zeros(first.shape[: self.lead], device=first.device, dtype=first.dtype)

    def add_gradient_(
        self, grads: Sequence[Tensor], params: Sequence[Tensor], scale: float
    ) -> None:
        """Add nothing."""

    def __repr__(self) -> str:
        return "FlatPrior()"
