"""RMSspectral: steepest descent in the Schatten-infinity norm, scaled as RMSprop does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor


class RMSspectral(torch.optim.Optimizer):
    """Stochastic spectral descent with a diagonal metric (Carlson et al. 2015).

    For each weight matrix W with gradient G, elementwise but for #,

        V <- alpha V + (1 - alpha) G^2,   D = eps + sqrt(V),
        W <- W - lr D^(-1/2) (D^(-1/2) G)^#,

    where X^# = (sum_i s_i) U U'^T for X = U diag(s) U'^T maximises <X, Y> - ||Y||^2 / 2 in the
    Schatten-infinity norm, so that <X, X^#> = ||X^#||^2 = (sum_i s_i)^2. With # the identity, the
    steepest direction of the Euclidean norm, this is RMSprop.

    Tensors [out, in, ...] are matrices of ``out`` rows. A tensor of one axis or none is a matrix of
    one column, for which X^# = X: biases take RMSprop's step. The published code makes a bias a
    column of its layer's weight instead, which an optimizer that sees tensors one by one cannot.

    Matrices with more than ``exact`` rows and columns take the leading ``rank`` singular vectors
    from a randomised range finder (Halko et al. 2011, Algorithm 4.4), drawn from a generator of its
    own that is a function of the seed, the tensor's number and the step. Directions whose singular
    value is 0 to rounding are left out: U and U' are arbitrary there.

    Args:
        params: Parameters, as for any torch optimizer.
        lr: Step size.
        alpha: Memory of V, in [0, 1).
        eps: lambda, added to sqrt(V), positive.
        rank: Singular vectors of large matrices; the published code takes 30.
        exact: Length of the shorter side up to which the decomposition is exact.
        seed: Seed of the range finder.

    Raises:
        ValueError: If a value lies outside its range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        alpha: float = 0.99,
        eps: float = 1e-5,
        rank: int = 30,
        exact: int = 64,
        seed: int = 0,
    ) -> None:
        if not lr >= 0:
            raise ValueError(f"lr must not be negative, got {lr}")
        if not 0 <= alpha < 1:
            raise ValueError(f"alpha must lie in [0, 1), got {alpha}")
        if not eps > 0:
            raise ValueError(f"eps must be positive, got {eps}")
        if rank < 1 or exact < 0 or seed < 0:
            raise ValueError(
                f"need rank >= 1, exact >= 0 and seed >= 0, got {rank}, {exact} and {seed}"
            )
        options = {"alpha": alpha, "eps": eps, "rank": rank, "exact": exact, "seed": seed}
        super().__init__(params, {"lr": lr} | options)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: Computes the loss and its gradients, and returns the loss.

        Returns:
            What the closure returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        number = 0
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._move(p, p.grad, group, number)
                number += 1
        return loss

    def _move(self, p: Tensor, grad: Tensor, group: dict[str, Any], number: int) -> None:
        state = self.state[p]
        if not state:
            state["step"], state["square"] = 0, torch.zeros_like(p)
        square = state["square"]
        square.mul_(group["alpha"]).addcmul_(grad, grad, value=1 - group["alpha"])
        root = (group["eps"] + square.sqrt()).rsqrt()
        scaled = root * grad
        if p.dim() > 1:
            matrix = scaled.flatten(1)
            if min(matrix.shape) <= max(group["exact"], group["rank"]):
                steepest = sharp(matrix)
            else:
                words = (group["seed"], number, state["step"])
                steepest = sharp(matrix, group["rank"], words)
            scaled = steepest.view_as(p)
        p.addcmul_(root, scaled, value=-group["lr"])
        state["step"] += 1


def sharp(X: Tensor, rank: int | None = None, words: tuple[int, ...] = ()) -> Tensor:
    """Return X^# = (sum_i s_i) U U'^T of a matrix X = U diag(s) U'^T.

    Args:
        X: The matrix.
        rank: Number of leading singular values taken, by a randomised range finder; None takes
            all of them, exactly.
        words: Seed of the range finder.
    """
    basis = None if rank is None else _range(X, rank, words)
    U, s, Vh = torch.linalg.svd(X if basis is None else basis.mT @ X, full_matrices=False)
    limit = s.max() * max(X.shape) * torch.finfo(X.dtype).eps
    product = (U * (s > limit)) @ Vh
    result: Tensor = s.sum() * (product if basis is None else basis @ product)
    return result


def _range(X: Tensor, rank: int, words: tuple[int, ...], iterations: int = 2) -> Tensor:
    """Return an orthonormal basis of what X does to ``rank`` random vectors after two powers."""
    generator = torch.Generator(X.device)
    word = np.random.SeedSequence(words).generate_state(1, np.uint64)[0]
    generator.manual_seed(int(word >> np.uint64(1)))
    probes = torch.randn(X.shape[1], rank, generator=generator, device=X.device, dtype=X.dtype)
    basis: Tensor = torch.linalg.qr(X @ probes).Q
    for _ in range(iterations):
        basis = torch.linalg.qr(X @ torch.linalg.qr(X.mT @ basis).Q).Q
    return basis
