"""What a sampler asks of a prior."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_sgmcmc.common.arguments import shown


class Prior(ABC):
    """A density p(theta) over a list of parameter tensors.

    The parameters of K chains that run as one computation carry the chains along their first axis;
    ``chain_dims`` is then 1.

    A prior whose hyper-parameters follow the chain is ``adaptive``: the sampler calls
    :meth:`update` after each step until :meth:`freeze`, where burn-in ends. Draws from an adapting
    prior are of a target that still moves.
    """

    #: A flat prior is improper; runs say so.
    proper: bool = True
    #: Hyper-parameters follow the chain until :meth:`freeze`.
    adaptive: bool = False
    #: Whether the hyper-parameters are constants by now.
    frozen: bool = False
    #: Number of leading axes of every tensor that count chains.
    chain_dims: int = 0

    def attach(
        self, params: Sequence[Tensor], chain_dims: int = 0, names: Sequence[str] | None = None
    ) -> None:
        """Take in what the parameters are, forgetting any other; :meth:`check` judges them.

        Args:
            params: The parameters.
            chain_dims: Number of their leading axes that count chains.
            names: Their names, None where they are not known.
        """
        self.chain_dims, self.frozen = chain_dims, False

    def restricted_to(self, names: Sequence[str]) -> Prior:
        """Return a copy for some of the parameters, which the others' absence does not disturb."""
        return copy.copy(self)

    def check(self) -> None:  # noqa: B027
        """Raise ValueError if the prior does not fit the parameters; called before each step."""

    @abstractmethod
    def log_density(self, params: Sequence[Tensor]) -> Tensor:
        """Return log p(theta), differentiable, [] for one chain and [K] for K."""

    @abstractmethod
    def add_gradient_(
        self, grads: Sequence[Tensor], params: Sequence[Tensor], scale: float
    ) -> None:
        """Add ``scale`` times the gradient of -log p(theta) to ``grads``, in place."""

    def quadratic(self) -> tuple[float, float] | None:
        """Return (a, b) if grad(-log p) is a (theta - b) for every weight, otherwise None.

        Compiled steps take such a gradient in with their own pass over memory.
        """
        return None

    def max_curvature(self, params: Sequence[Tensor]) -> float:
        """Return the largest eigenvalue of the Hessian of -log p at these weights.

        At least 0, and the largest over the chains; a kink counts as none.
        """
        return 0.0

    def update(self, params: Sequence[Tensor]) -> None:  # noqa: B027
        """Let the hyper-parameters follow the chain to its new weights."""

    def freeze(self) -> None:
        """Keep the hyper-parameters as they are from now on."""
        self.frozen = True

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs, as tensors and plain values."""
        return {"frozen": self.frozen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of an equally configured and attached prior."""
        self.frozen = bool(state["frozen"])

    def __repr__(self) -> str:
        return shown(self)


class FlatPrior(Prior):
    """The improper density p(theta) = 1, whose posterior is the likelihood."""

    proper = False

    def log_density(self, params: Sequence[Tensor]) -> Tensor:
        """Return 0."""
        first = params[0]
        return torch.zeros(first.shape[: self.chain_dims], device=first.device, dtype=first.dtype)

    def add_gradient_(
        self, grads: Sequence[Tensor], params: Sequence[Tensor], scale: float
    ) -> None:
        """Add nothing."""

    def quadratic(self) -> tuple[float, float]:
        """Return (0, 0)."""
        return 0.0, 0.0


def total(tensors: Iterable[Tensor], chain_dims: int) -> Tensor:
    """Return the sum of all entries of a list of tensors, [] or [K] for K chains."""
    return torch.stack([t.reshape(*t.shape[:chain_dims], -1).sum(-1) for t in tensors]).sum(0)


def finite(value: float, what: str) -> float:
    """Return a number as a float.

    Raises:
        ValueError: If it is not finite.
    """
    if not math.isfinite(value):
        raise ValueError(f"{what} must be finite, got {value}")
    return float(value)


def positive(value: float, what: str) -> float:
    """Return a number as a float.

    Raises:
        ValueError: If it is not positive and finite.
    """
    if not 0 < value < float("inf"):
        raise ValueError(f"{what} must be positive, got {value}")
    return float(value)
