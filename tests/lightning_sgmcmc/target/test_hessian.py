"""Hessian products of MLP, CNN and transformer against dense float64 Hessians."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from lightning_sgmcmc import SGLD, BatchStream, Target
from lightning_sgmcmc.adaptation.heating import scores_of
from lightning_sgmcmc.chain import Chain
from lightning_sgmcmc.chain.schedules import DrawSchedule
from lightning_sgmcmc.common.vectors import flatten, unflatten
from lightning_sgmcmc.target.hessian import HessianProduct, math_attention
from tests.lightning_sgmcmc.networks import KINDS, Classifier, images, network

N = 60


def chain_of(kind: str, count: int) -> Chain:
    x, y = images(N)
    chain = Chain(
        Classifier(network(kind).double()),
        partial(SGLD, lr=1e-3),
        DrawSchedule(0, 1),
        num_chains=count,
    )
    chain.select()
    chain.place()
    chain.build()
    chain.bind(BatchStream((x.double(), y), 10))
    return chain


def dense(chain: Chain, weights: dict[str, Tensor], batch: Any) -> Tensor:
    like = list(weights.values())

    def loss(vector: Tensor) -> Tensor:
        parts = dict(zip(weights, unflatten(vector, like), strict=True))
        logits = functional_call(
            chain.task.net, {n[len("net.") :]: p for n, p in parts.items()}, (batch[0],)
        )
        return nn.functional.cross_entropy(logits, batch[1])

    with math_attention():
        return torch.autograd.functional.hessian(loss, flatten(like))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_against_a_dense_hessian(kind: str, count: int) -> None:
    """Automatic differentiation to rounding, differences within a few u^(2/3) = 2e-11."""
    chain = chain_of(kind, count)
    target = chain.target
    assert target is not None
    batch = chain.minibatch()
    generator = torch.Generator().manual_seed(2)
    v = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in target.params]
    expected = []
    for k in range(count):
        own = [t[k] for t in batch] if count > 1 else batch
        direction = flatten([x[k] for x in v]) if count > 1 else flatten(v)
        expected.append(dense(chain, chain.state(k), own) @ direction)
    exact = torch.stack(expected).reshape(count, -1)
    before = [p.detach().clone() for p in target.params]
    for differences, error in ((False, 1e-12), (True, 1e-8)):
        target._hessian_product.differences = differences
        found = flatten(target.curvature(v, [batch]), chain_dims=int(count > 1))
        assert torch.allclose(
            found.reshape(count, -1), exact, rtol=0, atol=error * exact.abs().max()
        )
        assert target._hessian_product.differences is differences
    assert all(torch.equal(p, q) for p, q in zip(target.params, before, strict=True))
    assert torch.backends.mha.get_fastpath_enabled()


def test_fused_attention_itself_has_no_second_derivative() -> None:
    """Otherwise the math kernel would not be needed."""
    chain = chain_of("transformer", 1)
    target = chain.target
    assert target is not None
    loss = target.mean_nll(chain.minibatch())
    grads = torch.autograd.grad(loss, target.params, create_graph=True)
    with pytest.raises(RuntimeError, match="is not implemented"):
        torch.autograd.grad(sum(g.sum() for g in grads), target.params)


class _Cube(torch.autograd.Function):
    """x^3 with a gradient that cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-9), (torch.float32, 3e-4)])
def test_what_differentiates_once_takes_differences(dtype: torch.dtype, error: float) -> None:
    """The Hessian of sum x^3 is diag(6 x)."""
    x = torch.tensor([0.5, -1.0, 2.0], dtype=dtype, requires_grad=True)
    target = Target(lambda batch: _Cube.apply(x).sum().expand(1), [x], 10)
    v = torch.tensor([1.0, 2.0, -3.0], dtype=dtype)
    (found,) = target.curvature([v], [None])
    assert torch.allclose(found, 6 * x.detach() * v, rtol=error, atol=0)


def test_differences_are_taken_as_far_as_large_weights_ask_for() -> None:
    """A move of u^(1/3) = .004 alone would be four roundings of weights near 1e4 in float32."""
    x = torch.tensor([1e4, -7e3, 9e3], requires_grad=True)
    target = Target(lambda batch: _Cube.apply(x).sum().expand(1), [x], 10)
    v = torch.tensor([1.0, 2.0, -3.0])
    (found,) = target.curvature([v], [None])
    assert torch.allclose(found, 6 * x.detach() * v, rtol=3e-4, atol=0)


def test_inside_a_network_too() -> None:
    """There torch raises nothing, and leaves out what goes through the operation."""
    torch.manual_seed(0)
    before, after = nn.Linear(2, 3).double(), nn.Linear(3, 1).double()
    x, y = torch.randn(5, 2, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    params = [*before.parameters(), *after.parameters()]

    def target(cube: Any) -> Target:
        def nll(batch: Any) -> Tensor:
            return (after(cube(before(x))).squeeze(-1) - y).square()

        return Target(nll, params, 5)

    v = [torch.randn_like(p) for p in params]
    rows = torch.stack([flatten(v), flatten([x.roll(1) for x in v])])
    once, twice = target(_Cube.apply), target(lambda h: h**3)
    found, expected = (flatten(t.curvature(v, [None])) for t in (once, twice))
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)
    assert once._hessian_product.differences
    scores, exact = (scores_of(t)(rows, None) for t in (once, twice))
    torch.testing.assert_close(scores, exact, rtol=1e-7, atol=1e-7)


def test_other_errors_are_not_hidden() -> None:
    x = torch.ones(2, requires_grad=True)

    def loss() -> Tensor:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        HessianProduct()(loss, [x], [torch.ones(2)])
