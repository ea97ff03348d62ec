"""The gradients that a step starts from, or a sentence about what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class NonFiniteGradientError(RuntimeError):
    """A gradient holds a number that is not finite; nothing has moved."""


def present_gradients(params: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of all parameters.

    Raises:
        RuntimeError: If one is missing or sparse.
    """
    grads = [p.grad for p in params]
    missing = sum(g is None for g in grads)
    if missing:
        raise RuntimeError(
            f"{missing} of {len(grads)} parameters have no gradient: leave unused parameters "
            "out of the sampler (requires_grad=False)"
        )
    present = [g for g in grads if g is not None]
    sparse = sum(g.layout != torch.strided for g in present)
    if sparse:
        raise RuntimeError(
            f"{sparse} of {len(grads)} parameters have sparse gradients: noise moves every "
            "weight at every step, so use sparse=False"
        )
    return present


def refuse_non_finite(grads: Sequence[Tensor], names: Sequence[str] | None, where: str) -> None:
    """Raise if a gradient holds a number that is not finite; their sum may also overflow.

    Args:
        grads: The gradients.
        names: Of the parameters, None where they are not known.
        where: Step and step size, for the message.

    Raises:
        NonFiniteGradientError: As :func:`refuse_not_finite`.
    """
    refuse_not_finite([not bool(torch.isfinite(g).all()) for g in grads], names, where)


def refuse_not_finite(not_finite: Sequence[bool], names: Sequence[str] | None, where: str) -> None:
    """Raise if one of the gradients is not finite.

    Args:
        not_finite: Whether each gradient holds a number that is not finite.
        names: Of the parameters, None where they are not known.
        where: Step and step size, for the message.

    Raises:
        NonFiniteGradientError: With the number of these gradients and the first one's name.
    """
    wrong = [i for i, is_wrong in enumerate(not_finite) if is_wrong]
    if not wrong:
        return
    first = names[wrong[0]] if names else f"number {wrong[0]}"
    raise NonFiniteGradientError(
        f"the gradient of {len(wrong)} of {len(not_finite)} parameters is not finite (first: "
        f"{first}) {where}: the chain diverges, lower lr; or the data hold a value that is not "
        "finite"
    )
