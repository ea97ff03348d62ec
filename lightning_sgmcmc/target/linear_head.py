"""A linear layer under a Gaussian likelihood and prior: integrated out, and drawn exactly.

Targets t_i in R^D of N examples, features phi_i in R^p and a head W [D, p],

    t_i ~ N(W phi_i, sigma^2 I),    W_dk ~ N(0, 1 / lambda_k) independently.

Given the features, the D rows of W are independent and share one p x p matrix,
A = Phi' Phi + sigma^2 Lambda, with Phi [N, p] and Lambda = diag(lambda):

    W_d ~ N(A^-1 Phi' t_d, sigma^2 A^-1)                    (Bishop 2006, eq. 3.49 to 3.51)
    -log p(T | Phi, sigma) = (D/2) (log det A - log det Lambda + 2 (N - p) log sigma + N log 2 pi)
        + sum_d (||t_d - Phi m_d||^2 / sigma^2 + m_d' Lambda m_d) / 2,    m_d = A^-1 Phi' t_d

(eq. 3.86). The sum over d depends on T through T T' alone: :func:`reduced` gives fewer columns with
the same T T'. Where every example has a sigma_i of its own, phi_i / sigma_i and t_i / sigma_i have
noise 1, and D sum_i log sigma_i is added. The matrices are factorised in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Targets(NamedTuple):
    """Columns R [N, r] with T T' = R R' + S for targets T [N, D], in float64.

    Attributes:
        columns: R.
        rest: Trace of S, which no larger than the rounding of T is left out; [].
        outputs: D.
    """

    columns: Tensor
    rest: Tensor
    outputs: int


def reduced(targets: Tensor, eps: float) -> Targets:
    """Return as few columns as hold the targets' second moments.

    Args:
        targets: T, [N, D] in float64.
        eps: Relative precision that T was given in; parts below eps ||T|| are left out.
    """
    count, outputs = targets.shape
    if outputs <= count:
        return Targets(targets, targets.new_zeros(()), outputs)
    triangle = torch.linalg.qr(targets.mT, mode="r").R  # T T' = R' R, without squaring T
    vectors, values, _ = torch.linalg.svd(triangle.mT)
    rest = values.square().flip(0).cumsum(0).flip(0)  # from each column on
    kept = int((rest > eps**2 * rest[0]).sum())
    return Targets(vectors[:, :kept] * values[:kept], values[kept:].square().sum(), outputs)


def collapsed_nll(
    features: Tensor, log_sigma: Tensor, targets: Targets, precision: Tensor
) -> Tensor:
    """Return -log p(T | Phi, sigma), the head integrated out, [...] in float64.

    Args:
        features: Phi, [..., N, p].
        log_sigma: [...], or [..., N] where examples differ.
        targets: What :func:`reduced` made of T.
        precision: lambda, [p].

    Returns:
        NaN where A cannot be factorised, which a sampler takes for a potential of infinity.
    """
    phi, log_sigma, scale = _of_one_noise(features, log_sigma)
    columns, rest = targets[:2]
    if scale is not None:  # S is rounding, and spread evenly
        columns, rest = columns * scale, rest * scale.square().mean((-2, -1))
    result = _CollapsedNLL.apply(phi, log_sigma, columns, rest, precision, targets.outputs)
    value: Tensor = result[0]
    return value if scale is None else value - targets.outputs * scale.log().sum((-2, -1))


def _of_one_noise(features: Tensor, log_sigma: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return features and log sigma [...] in float64, and what each example was multiplied by.

    Returns:
        Features, log sigma, and 1 / sigma_i [..., N, 1] or None for 1.
    """
    phi, log_sigma = features.double(), log_sigma.double()
    if log_sigma.dim() < phi.dim() - 1:
        return phi, log_sigma, None
    scale = torch.exp(-log_sigma)[..., None]
    return phi * scale, torch.zeros_like(log_sigma[..., 0]), scale


class _CollapsedNLL(torch.autograd.Function):
    """:func:`collapsed_nll` with its gradient in closed form, which needs no second factor.

    With E = T - Phi m and P = Phi A^-1,

        d / dPhi       = D P - E m' / sigma^2
        d / dlog sigma = D (N - tr(P' Phi)) - (||E||^2 + tr S) / sigma^2
        d / dT         = E / sigma^2

    since m makes the quadratic part stationary. All are differentiable again. A has a condition
    number of 1e14 where features span few dimensions; P from triangular solves keeps the second
    derivative right there, A^-1 as a matrix does not.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        phi: Tensor,
        log_sigma: Tensor,
        columns: Tensor,
        rest: Tensor,
        precision: Tensor,
        outputs: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        count, width = phi.shape[-2:]
        root, mean = _conditional(phi, log_sigma, columns, precision)
        misfit = (columns - phi @ mean).square().sum((-2, -1)) + rest
        penalty = (precision[:, None] * mean.square()).sum((-2, -1))
        log_det = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1) - precision.log().sum()
        constant = 2 * (count - width) * log_sigma + count * math.log(2 * math.pi)
        quadratic = misfit * torch.exp(-2 * log_sigma) + penalty
        return 0.5 * (outputs * (log_det + constant) + quadratic), root, mean

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.outputs = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*tensors, *output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        phi, log_sigma, columns, rest, precision, root, mean = ctx.saved_tensors
        if torch.is_grad_enabled():  # of a second derivative
            root, mean = _conditional(phi, log_sigma, columns, precision)
        half = torch.linalg.solve_triangular(root, phi.mT, upper=False)
        residual = columns - phi @ mean
        outputs, weight = grad * ctx.outputs, grad * torch.exp(-2 * log_sigma)
        # Both terms of d / dPhi are L^-T times vectors, A = L L'.
        fitted = (weight[..., None, None] * (root.mT @ mean)) @ residual.mT
        both = outputs[..., None, None] * half - fitted
        of_phi = torch.linalg.solve_triangular(root.mT, both, upper=True).mT
        found: list[Tensor | None] = [of_phi, None, None, None, None, None]
        if ctx.needs_input_grad[1]:
            freedom = phi.shape[-2] - half.square().sum((-2, -1))
            misfit = residual.square().sum((-2, -1)) + rest
            found[1] = outputs * freedom - weight * misfit
        if ctx.needs_input_grad[2]:
            found[2:4] = weight[..., None, None] * residual, 0.5 * weight
        return tuple(found)


def conditional_mean(
    features: Tensor, log_sigma: Tensor, targets: Tensor, precision: Tensor
) -> Tensor:
    """Return E[W' | T, Phi, sigma] = A^-1 Phi' T, [..., p, D] in float64.

    Args:
        features: Phi, [..., N, p].
        log_sigma: [...] or [..., N].
        targets: T, [N, D] in float64.
        precision: lambda, [p].
    """
    return _of_targets(features, log_sigma, targets, precision)[1]


def draw_head(
    features: Tensor, log_sigma: Tensor, targets: Tensor, precision: Tensor, normal: Tensor
) -> Tensor:
    """Return W ~ p(W | T, Phi, sigma), [..., D, p] in float64.

    Args:
        features: Phi, [..., N, p].
        log_sigma: [...] or [..., N].
        targets: T, [N, D] in float64.
        precision: lambda, [p].
        normal: Standard normal numbers [..., D, p].
    """
    root, mean, sigma = _of_targets(features, log_sigma, targets, precision)
    spread = torch.linalg.solve_triangular(root.mT, normal.double().mT, upper=True)
    head: Tensor = (mean + sigma[..., None, None] * spread).mT
    return head


def conditional_variance(
    features: Tensor, log_sigma: Tensor, precision: Tensor, covectors: Tensor
) -> Tensor:
    """Return Var(sum_d x_d' W_d | T, Phi, sigma) = sigma^2 sum_d x_d' A^-1 x_d, [..., q].

    Args:
        features: Phi, [..., N, p].
        log_sigma: [...] or [..., N].
        precision: lambda, [p].
        covectors: x of q combinations of D outputs, [..., q, p, D].
    """
    phi, log_sigma, _ = _of_one_noise(features, log_sigma)
    root = _factor(phi, log_sigma, precision)[..., None, :, :]
    half = torch.linalg.solve_triangular(root, covectors.double(), upper=False)
    variance: Tensor = torch.exp(2 * log_sigma)[..., None] * half.square().sum((-2, -1))
    return variance


def _of_targets(
    features: Tensor, log_sigma: Tensor, targets: Tensor, precision: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what :func:`_conditional` does, and sigma, 1 where every example has its own."""
    phi, log_sigma, scale = _of_one_noise(features, log_sigma)
    scaled = targets if scale is None else targets * scale
    return *_conditional(phi, log_sigma, scaled, precision), log_sigma.exp()


def _factor(phi: Tensor, log_sigma: Tensor, precision: Tensor) -> Tensor:
    """Return the Cholesky factor of A, [..., p, p], NaN where there is none."""
    ridge = torch.exp(2 * log_sigma)[..., None, None] * torch.diag(precision)
    root, failed = torch.linalg.cholesky_ex(phi.mT @ phi + ridge)
    return torch.where((failed == 0)[..., None, None], root, math.nan)


def _conditional(
    phi: Tensor, log_sigma: Tensor, targets: Tensor, precision: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the Cholesky factor of A, [..., p, p], and the means m, [..., p, D]."""
    root = _factor(phi, log_sigma, precision)
    half = torch.linalg.solve_triangular(root, phi.mT @ targets, upper=False)
    return root, torch.linalg.solve_triangular(root.mT, half, upper=True)


def output_layer(net: nn.Module, x: Tensor) -> str | None:
    """Return the name in ``net`` of the linear layer whose output the net returns as it is.

    Args:
        net: Any network; itself the layer if the name is empty.
        x: Inputs that it takes.

    Returns:
        None if there is no such layer, or its weights serve elsewhere in the net too.
    """
    calls: list[tuple[str, Tensor, int]] = []  # the version tells a change in place afterwards

    def note(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda layer, inputs, output: calls.append((name, output, output._version))

    layers = [(name, part) for name, part in net.named_modules() if type(part) is nn.Linear]
    handles = [layer.register_forward_hook(note(name)) for name, layer in layers]
    try:
        with torch.no_grad():
            result = net(x)
    finally:
        for handle in handles:
            handle.remove()
    name = next((n for n, out, version in calls if out is result and out._version == version), None)
    if name is None:
        return None
    used = [id(p) for _, p in net.named_parameters(remove_duplicate=False)]
    shared = any(used.count(id(p)) > 1 for p in net.get_submodule(name).parameters())
    return None if shared or [n for n, *_ in calls].count(name) > 1 else name


def features_of(layer: nn.Module, run: Callable[[], Tensor]) -> Tensor:
    """Return the inputs of the linear layer whose output ``run`` returns, without its cost.

    A column of ones follows where the layer has a bias, so that its outputs are features times the
    head [weight, bias].

    Args:
        layer: The layer.
        run: Evaluates the network on a batch.
    """
    layer.forward = lambda x: x
    try:
        features = run()
    finally:
        del layer.forward
    if layer.bias is None:
        return features
    return torch.cat([features, torch.ones_like(features[..., :1])], dim=-1)
