"""What a sampler asks of its preconditioner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_sgmcmc.common.arguments import shown
from lightning_sgmcmc.common.vectors import flatten, unflatten
from lightning_sgmcmc.noise import NoiseStream

if TYPE_CHECKING:
    from lightning_sgmcmc.target import Target


class Preconditioner(ABC):
    """A symmetric positive definite matrix C, and noise with that covariance.

    All vectors are lists of tensors shaped like the parameters. Of K chains that run as one
    computation each has a C of its own, along the first axis of everything. C sees the gradient
    of the mean likelihood loss only, never the prior's.
    """

    #: C follows the chain until :meth:`freeze`; a constant C has nothing to freeze.
    adaptive: bool = False
    #: C learns from the gradient on the same batch after the move, through :meth:`observe`.
    needs_second_gradient: bool = False
    #: C asks the :class:`~lightning_sgmcmc.target.Target` for curvature.
    needs_target: bool = False
    #: C learns from per-example gradients, ``target.per_example``.
    needs_per_example: bool = False
    #: Why many chains cannot share one computation, None where they can.
    unstackable: str | None = None
    #: Number of leading axes of every tensor that count chains.
    chain_dims: int = 0
    #: N, which the sampler sets: some constants are stated on the scale of the sum over data.
    num_data: int = 1

    def __init__(self) -> None:
        self.frozen = not self.adaptive
        self.target: Target | None = None

    def attach(self, params: Sequence[Tensor], chain_dims: int = 0) -> None:
        """Allocate the state for these parameters, forgetting any other.

        Args:
            params: The parameters.
            chain_dims: Number of their leading axes that count chains.
        """
        self.frozen = not self.adaptive
        self.chain_dims = chain_dims
        self.target = None

    def bind(self, target: Target) -> None:
        """Take in the target, for what is learned from more than a gradient."""
        self.target = target

    @property
    def horizon(self) -> int:
        """Gradients without which C depends on where it was started, or on single ones.

        A chain whose step size goes by C shows it so many before the first step.
        """
        return int(self.adaptive)

    @property
    def expected_eigenvalue(self) -> float:
        """The least lambda_max(C H) to count on at the next steps, while C adapts; 0 for none."""
        return 0.0

    def update(self, grads: Sequence[Tensor]) -> None:  # noqa: B027
        """Take in the mean likelihood gradient at the current weights."""

    def observe(  # noqa: B027
        self, moved: Sequence[Tensor], change: Sequence[Tensor], noise: NoiseStream
    ) -> None:
        """Take in a move and the change of the mean likelihood gradient along it."""

    def observe_from_(
        self,
        start: tuple[list[Tensor], list[Tensor]],
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        noise: NoiseStream,
    ) -> None:
        """Take in the move that ends here, as :meth:`observe` does.

        Args:
            start: Minus the weights and minus the gradient before it; overwritten.
            params: The weights.
            grads: The mean likelihood gradient there.
            noise: The chain's stream.
        """
        moved, change = start
        torch._foreach_add_(moved, list(params))
        torch._foreach_add_(change, list(grads))
        self.observe(moved, change, noise)

    @abstractmethod
    def apply_(self, vectors: list[Tensor]) -> list[Tensor]:
        """Return C times ``vectors``, in place where that is cheaper."""

    def apply_joined(self, vector: Tensor, params: Sequence[Tensor]) -> Tensor:
        """Return C times a vector over all weights as one, [d] or [K, d], which is left as it is.

        Args:
            vector: As :func:`~lightning_sgmcmc.common.vectors.flatten` joins it.
            params: The parameters, for their shapes.
        """
        parts = [p.clone() for p in unflatten(vector, params, self.chain_dims)]
        return flatten(self.apply_(parts), self.chain_dims)

    @abstractmethod
    def noise(self, stream: NoiseStream) -> list[Tensor]:
        """Draw from N(0, C). The result is a buffer that the next draw may overwrite."""

    def inverse_norm(self, vectors: Sequence[Tensor]) -> Tensor | None:
        """Return v' C^-1 v, [] or [K], or None where C^-1 is not at hand."""
        return None

    def gamma(
        self, target: Target, grads: Sequence[Tensor], stream: NoiseStream
    ) -> list[Tensor] | None:
        """Return Gamma_i = sum_j dC_ij/dtheta_j at the current weights, None where it is 0."""
        return None

    def freeze(self) -> None:
        """Keep C as it is from now on."""
        self.frozen = True

    def check(self, lr: float, num_data: int, prior_precision: float) -> None:  # noqa: B027
        """Raise ValueError when C makes the prior's own drift unstable."""

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs, as tensors and plain values."""
        return {"frozen": self.frozen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of an equally configured and attached preconditioner."""
        self.frozen = bool(state["frozen"])

    def __repr__(self) -> str:
        return shown(self)
