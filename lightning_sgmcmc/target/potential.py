"""The potential whose exponential is the posterior: value, gradients and curvature."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lightning_sgmcmc.common.vectors import flatten, unflatten
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.priors import FlatPrior, Prior
from lightning_sgmcmc.target.hessian import HessianProduct
from lightning_sgmcmc.target.per_example import PerExample

Batch = Any


class Target:
    """U(theta) = N * mean NLL(theta) - log p(theta); the posterior is exp(-U / T).

    With K stacked chains (``chain_dims=1``) everything is that of each chain on its own batch.

    Args:
        nll: Maps a batch to the negative log-likelihood of each of its examples, [B] or [K, B],
            under the current values of ``params``.
        params: The weights theta.
        num_data: N, the number of training examples.
        prior: p(theta); None is a flat prior.
        reduce: Averages a list of tensors over the ranks that share this chain, in place.
        chain_dims: Number of leading axes of every parameter that count chains.
    """

    def __init__(
        self,
        nll: Callable[[Batch], Tensor],
        params: Sequence[Tensor],
        num_data: int,
        prior: Prior | None = None,
        reduce: Callable[[list[Tensor]], None] | None = None,
        chain_dims: int = 0,
    ) -> None:
        self.nll, self.params, self.num_data = nll, list(params), num_data
        self.prior = prior if prior is not None else FlatPrior()
        if self.prior.chain_dims != chain_dims:
            self.prior = copy.copy(self.prior)
            self.prior.attach(self.params, chain_dims)
        self._reduce, self.chain_dims = reduce, chain_dims
        self._hessian_product = HessianProduct(chain_dims)
        self._batch: tuple[Batch] | None = None
        #: What the chain's estimator adds to the gradient of a minibatch; None for nothing.
        self.correction: Callable[[Batch], list[Tensor] | None] = lambda batch: None
        #: Statistics of per-example gradients, for samplers that need them.
        self.per_example: PerExample | None = None
        #: Maps a batch and uniforms [B, m] to the batch with labels drawn from the model.
        self.draw_labels: Callable[[Batch, Tensor], Batch] | None = None
        #: m, the uniform numbers that one example's label takes.
        self.label_uniforms = 1
        #: The chain's own uniform numbers, which its sampler sets.
        self.uniform: Callable[..., Tensor] | None = None

    def use(self, batch: Batch) -> None:
        """Make ``batch`` the minibatch that curvature is asked for next."""
        self._batch = (batch,)

    @property
    def batch(self) -> Batch:
        """The current minibatch.

        Raises:
            RuntimeError: If :meth:`use` was never called.
        """
        if self._batch is None:
            raise RuntimeError("the target has no minibatch yet: call target.use(batch) first")
        return self._batch[0]

    def mean_nll(self, batch: Batch) -> Tensor:
        """Return the mean negative log-likelihood of a batch, differentiable, [] or [K]."""
        return self.nll(batch).mean(-1)

    def recording(self) -> AbstractContextManager[None]:
        """Return a context in which a forward and backward pass gives per-example gradients.

        It notes nothing where :attr:`per_example` is None.
        """
        if self.per_example is None:
            return nullcontext()
        return self.per_example.recording(self.batch)

    def record_drawn_labels(self) -> None:
        """Take per-example gradients on the minibatch with labels drawn from the model.

        Raises:
            RuntimeError: If nothing draws labels.
        """
        if self.draw_labels is None or self.uniform is None or self.per_example is None:
            raise RuntimeError(
                "labels from the model need a task with draw_labels(batch, uniforms), a sampler "
                "that this target is attached to, and target.per_example"
            )
        uniforms = self.uniform(self.per_example.examples.count, self.label_uniforms)
        batch = self.draw_labels(self.batch, uniforms)
        with self.per_example.recording(batch), torch.enable_grad():
            torch.autograd.grad(self.mean_nll(batch).sum(), self.params)

    def potential(self, batch: Batch) -> Tensor:
        """Return U estimated from a batch (exact if it is the whole training set), [] or [K]."""
        return self.num_data * self.mean_nll(batch) - self.prior.log_density(self.params)

    def gradient(self, batch: Batch) -> list[Tensor]:
        """Return the gradient of the mean NLL of a batch, without the prior's."""
        with torch.enable_grad():
            grads = list(torch.autograd.grad(self.mean_nll(batch).sum(), self.params))
        return self.reduced(grads)

    def estimate(self, batch: Batch) -> list[Tensor]:
        """Return the chain's estimate of the gradient of the mean NLL of the data.

        It is :meth:`gradient` of the batch with the correction of the chain's
        :class:`~lightning_sgmcmc.target.GradientEstimator`, averaged over the ranks.
        """
        correction = self.correction(batch)
        grads = self.gradient(batch)
        if correction is not None:
            torch._foreach_add_(grads, correction)
        return grads

    @contextmanager
    def holding(self, weights: Sequence[Tensor]) -> Iterator[None]:
        """Let the parameters hold other weights for a while."""
        with torch.no_grad():
            kept = [p.detach().clone() for p in self.params]
            torch._foreach_copy_(self.params, list(weights))
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.params, kept)

    def curvature(
        self, vectors: Sequence[Tensor], batches: Sequence[Batch], with_prior: bool = True
    ) -> list[Tensor]:
        """Return the Hessian of U / N, estimated from equally large batches, times a vector.

        See :class:`~lightning_sgmcmc.target.hessian.HessianProduct` for networks that have no
        second derivative.
        """
        total = [torch.zeros_like(v) for v in vectors]
        for batch in batches:
            loss = partial(self._summed_nll, batch)
            products = self._hessian_product(loss, self.params, vectors)
            torch._foreach_add_(total, products, alpha=1 / len(batches))
        total = self.reduced(total)
        if with_prior:
            self._add_prior_curvature_(total, vectors)
        return total

    def _summed_nll(self, batch: Batch) -> Tensor:
        """Return the sum over chains of the mean NLL of a batch."""
        return self.mean_nll(batch).sum()

    def _add_prior_curvature_(self, total: list[Tensor], vectors: Sequence[Tensor]) -> None:
        with torch.enable_grad():
            log_density = self.prior.log_density(self.params).sum()
            if not log_density.requires_grad:
                return
            grads = torch.autograd.grad(log_density, self.params, create_graph=True)
            inner = torch.stack([(g * v).sum() for g, v in zip(grads, vectors, strict=True)]).sum()
            products = torch.autograd.grad(inner, self.params, materialize_grads=True)
        torch._foreach_add_(total, list(products), alpha=-1 / self.num_data)

    def hessian_diagonal(self, probes: int, stream: NoiseStream) -> list[Tensor]:
        """Return the diagonal of the Hessian of the mean NLL on the current minibatch.

        Args:
            probes: 0 for the exact diagonal by one product a weight; otherwise the number of
                Rademacher probes v of Hutchinson's estimate, the mean of v * (H v).
            stream: Where probes come from, so that replicas of a chain share them.
        """
        diagonal = [torch.zeros_like(p) for p in self.params]
        if probes:
            for _ in range(probes):
                signs = [torch.where(z < 0, -1.0, 1.0).to(z.dtype) for z in stream.normal()]
                product = self.curvature(signs, [self.batch], with_prior=False)
                torch._foreach_addcmul_(diagonal, product, signs, value=1 / probes)
            return diagonal
        flat = flatten(diagonal, self.chain_dims)
        unit = torch.zeros_like(flat)
        for i in range(flat.shape[-1]):
            unit.zero_()[..., i] = 1.0
            vectors = unflatten(unit, self.params, self.chain_dims)
            product = self.curvature(vectors, [self.batch], with_prior=False)
            flat[..., i] = flatten(product, self.chain_dims)[..., i]
        return unflatten(flat, self.params, self.chain_dims)

    def reduced(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return tensors averaged, in place, over the ranks that share this chain."""
        if self._reduce is not None:
            self._reduce(tensors)
        return tensors
