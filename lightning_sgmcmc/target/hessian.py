"""Products with the Hessian of a loss, also of networks that differentiate only once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lightning_sgmcmc.common.vectors import inner, per_chain

# What torch says of an operation whose gradient has no derivative, or none that it noted.
_ONCE_ONLY = ("is not implemented", "differentiate twice", "does not require grad")


class HessianProduct:
    """H v of a loss summed over chains, H the Hessian of each chain's loss.

    The product is that of automatic differentiation, with attention by the math kernel, since
    fused attention has no second derivative. Where another operation has none, it is the central
    difference (g(theta + s v) - g(theta - s v)) / (2 s) of gradients g, with
    s = u^(1/3) (1 + |theta|) / |v| of each chain, u the rounding unit. Its error is
    s^2 |D^3 loss| |v|^3 / 6 from truncation and about u |g| / s from rounding, both of the order
    u^(2/3): 2e-5 of the gradient's scale in float32, 4e-11 in float64.
    """

    def __init__(self, chain_dims: int = 0) -> None:
        self.chain_dims = chain_dims
        #: Whether a second derivative was found missing; differences are taken from then on.
        self.differences = False
        self._looked = False

    def __call__(
        self, loss: Callable[[], Tensor], params: Sequence[Tensor], vectors: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return H v at the current values of ``params``.

        Args:
            loss: Computes the loss, summed over chains.
            params: The weights; left as they are.
            vectors: v, shaped like the weights.
        """
        with torch.enable_grad(), math_attention():
            if not self.differences:
                try:
                    grads = torch.autograd.grad(loss(), params, create_graph=True)
                    if not self._looked:
                        refuse_once_only(grads)
                        self._looked = True
                    return _along(grads, params, vectors)
                except RuntimeError as error:
                    if not once_only(error):
                        raise
                    self.differences = True
            return self._difference(loss, params, vectors)

    def _difference(
        self, loss: Callable[[], Tensor], params: Sequence[Tensor], vectors: Sequence[Tensor]
    ) -> list[Tensor]:
        start = [p.detach().clone() for p in params]
        step = difference_step(start, vectors, self.chain_dims)
        moves = [v * per_chain(step, v).to(v.dtype) for v in vectors]
        total = [torch.zeros_like(p) for p in start]
        try:
            for sign in (1.0, -1.0):
                with torch.no_grad():
                    torch._foreach_copy_(list(params), torch._foreach_add(start, moves, alpha=sign))
                grads = torch.autograd.grad(loss(), params, materialize_grads=True)
                torch._foreach_add_(total, list(grads), alpha=sign)
        finally:
            with torch.no_grad():
                torch._foreach_copy_(list(params), start)
        return [t / per_chain(2 * step, t).to(t.dtype) for t in total]


def difference_step(theta: Sequence[Tensor], vectors: Sequence[Tensor], chain_dims: int) -> Tensor:
    """Return s = u^(1/3) (1 + |theta|) / |v| of each chain for central differences, [] or [K]."""
    info = torch.finfo(theta[0].dtype)
    at, along = (inner(x, x, chain_dims).sqrt() for x in (theta, vectors))
    step: Tensor = (info.eps / 2) ** (1 / 3) * (1 + at) / along.clamp_min(info.tiny)
    return step


def once_only(error: RuntimeError) -> bool:
    """Return whether torch says that an operation has no second derivative."""
    return any(text in str(error) for text in _ONCE_ONLY)


def refuse_once_only(grads: Sequence[Tensor]) -> None:
    """Raise RuntimeError if gradients went through an operation that differentiates only once.

    Inside a network torch raises nothing there: its node of the error hangs on copies without a
    history, so that a second derivative lacks the terms that go through the operation.
    """
    if not differentiate_again(grads):
        raise RuntimeError("an operation of the network does not differentiate twice")


def differentiate_again(grads: Sequence[Tensor]) -> bool:
    """Return whether no operation that differentiates only once lies behind gradients."""
    nodes = [g.grad_fn for g in grads if g.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if node.name().endswith("::Error"):
            return False
        following = {n for n, _ in node.next_functions if n is not None} - seen
        seen |= following
        nodes += following
    return True


def _along(
    grads: Sequence[Tensor], params: Sequence[Tensor], vectors: Sequence[Tensor]
) -> list[Tensor]:
    along = torch.stack([(g * v).sum() for g, v in zip(grads, vectors, strict=True)]).sum()
    return list(torch.autograd.grad(along, params, materialize_grads=True))


@contextmanager
def math_attention() -> Iterator[None]:
    """Let attention run by plain operations, which have a second derivative and batching rules.

    The math kernel takes the place of the fused ones, within :func:`no_fused_encoder`.
    """
    with no_fused_encoder(), sdpa_kernel(SDPBackend.MATH):
        yield


@contextmanager
def no_fused_encoder() -> Iterator[None]:
    """Let ``nn.TransformerEncoder`` and ``nn.MultiheadAttention`` leave their path for inference.

    It packs sequences by their padding masks, which has no batching rule.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
