"""What a run checks of its task on a few examples, once, before the first step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lightning_sgmcmc.chain.task import Task
from lightning_sgmcmc.chain.undisturbed import undisturbed
from lightning_sgmcmc.target import Batch, Target
from lightning_sgmcmc.target.vmapped_gradients import Examples

#: Examples that a task is checked on.
EXAMPLES = 8
# Largest relative difference between values of nll that should be equal, in any precision: of
# equally large batches, for which libraries run the same kernels, and of batches of two sizes.
_SAME_SIZE, _OTHER_SIZE = 1e-3, 0.1
# What torch says of operations that several chains cannot be one computation of.
_NOT_FOLLOWED = (
    "Batching rule not implemented",
    "autograd.Function with functorch",
    "data-dependent control flow",
    ".item() on a Tensor",
)
_NO_LIKELIHOOD = "so that there is no likelihood of an example and no posterior"


class TaskProbe:
    """Checks ``nll`` and ``predictive`` of a task on a few examples.

    With n examples and, if there are several, K chains:

    - ``nll`` is [n] or [K, n] and finite, and its gradient in the sampled weights is not zero.
    - ``predictive``, if the task has it, is [n, ...] or [K, n, ...] and finite.
    - At a temperature above 0, ``nll`` of an example is the same when it is evaluated again, in
      training and in evaluation mode, with other examples beside it, and in a smaller batch.

    The task and the global random numbers are left as they are: see :func:`undisturbed`.

    Args:
        task: The task.
        evaluate: Returns what a method of the task gives for a batch, under the chains' weights.
        weights: All sampled weights by name, [...] or [K, ...].
        target: The chains' potential.
        temperature: That of the sampler; at 0 nothing is sampled.
    """

    def __init__(
        self,
        task: Task,
        evaluate: Callable[[str, Batch], Any],
        weights: Mapping[str, Tensor],
        target: Target,
        temperature: float,
    ) -> None:
        self._task, self._evaluate, self._weights = task, evaluate, weights
        self._target, self._samples = target, temperature > 0

    def check(self, batch: Batch) -> None:
        """Check the task on the first examples of a batch that all chains see alike.

        Raises:
            ValueError: If it does not hold, or a sampled weight has fewer than 32 bits.
        """
        self._check_weights()
        if not any(isinstance(leaf, Tensor) and leaf.dim() for leaf in tree_leaves(batch)):
            raise ValueError(
                "a batch must be a tensor, or a tuple, a list or a dict of tensors, with examples "
                f"along their first axis, got a {type(batch).__name__}: convert it in the loader's "
                "collate_fn"
            )
        examples = Examples(batch, 0)
        count = min(EXAMPLES, examples.count)
        few = Examples(examples.cut(0, count), 0)
        with undisturbed(self._task):
            nll = self._nll(few.batch)
            self._check_nll(nll, count)
            self._check_gradient(nll, few.batch)
            if self._samples:
                self._check_likelihood(nll.detach(), few)
            if self._task.predicts:
                self._check_predictive(few.batch, count)

    def _check_weights(self) -> None:
        for name, weight in self._weights.items():
            if weight.is_complex():
                raise ValueError(
                    f"{name} is complex: keep its real and imaginary parts as weights of their own "
                    "(torch.view_as_real), and join them in forward"
                )
            if torch.finfo(weight.dtype).bits < 32:
                raise ValueError(
                    f"{name} is {str(weight.dtype).removeprefix('torch.')}, whose rounding is "
                    "larger than a chain's steps: sample weights of 32 or 64 bits (net.float())"
                )

    def _nll(self, batch: Batch) -> Tensor:
        with torch.enable_grad():
            result: Tensor = self._returned("nll", batch)
        return result

    def _returned(self, method: str, batch: Batch) -> Any:
        try:
            return self._evaluate(method, batch)
        except RuntimeError as error:
            if any(part in str(error) for part in _NOT_FOLLOWED):
                raise ValueError(
                    f"{method} has an operation that torch.func.vmap cannot follow, and several "
                    "chains are one computation by it: use num_chains=1, or one chain a process "
                    f"(--trainer.strategy chains); {error}"
                ) from None
            if "randomness" not in str(error):  # of vmap
                raise
            if self._samples:
                raise ValueError(_random(method)) from None
            raise ValueError(
                f"{method} draws random numbers, which it cannot for several chains as one "
                "computation: use num_chains=1, one run a network"
            ) from None

    def _check_nll(self, nll: Any, count: int) -> None:
        shape = self._own_shape("nll", nll)
        if shape != [count]:
            own = type(self._task).nll is not Task.nll
            raise ValueError(
                f"{'nll(batch)' if own else 'law(x).log_density(y)'} must return one number for "
                f"each example, shape [{count}] for {count} examples, got {shape}: "
                f"{_remedy(shape, count)}"
            )
        _check_finite("nll", nll)

    def _own_shape(self, method: str, value: Any) -> list[int]:
        """Return the shape that the task's method returned, without the axis of chains."""
        if not isinstance(value, Tensor):
            raise ValueError(f"{method}(batch) must return a tensor, got {type(value).__name__}")
        return list(value.shape[self._target.chain_dims :])

    def _check_gradient(self, nll: Tensor, batch: Batch) -> None:
        """Refuse a likelihood without a gradient, here and, if it is zero here, close by."""
        if self._has_gradient(nll):
            return
        with self._target.holding([p.detach() + 0.1 for p in self._target.params]):
            if self._has_gradient(self._nll(batch)):
                return
        names = list(self._weights)
        raise ValueError(
            f"nll(batch) does not depend on the sampled weights, {', '.join(names[:3])}"
            f"{' and others' if len(names) > 3 else ''}: its gradient is zero. Compute it from "
            "self(x), without detach(), no_grad() or item()"
        )

    def _has_gradient(self, nll: Tensor) -> bool:
        if not nll.requires_grad:
            return False
        grads = torch.autograd.grad(nll.sum(), list(self._weights.values()), allow_unused=True)
        return any(bool(g.count_nonzero()) for g in grads if g is not None)

    def _check_likelihood(self, nll: Tensor, examples: Examples) -> None:
        """Refuse an ``nll`` that is not a function of one example and the weights."""
        batch, count = examples.batch, examples.count
        if not _alike(nll, self._nll(batch), _SAME_SIZE):
            raise ValueError(_random("nll"))
        training = self._task.training
        self._task.eval()
        evaluated = self._nll(batch)
        self._task.train(training)
        back = self._nll(batch)
        if not (_alike(nll, evaluated, _SAME_SIZE) and _alike(nll, back, _SAME_SIZE)):
            raise ValueError(
                "nll is not the same in training and in evaluation mode, so that predictions are "
                "of another model than the one that is sampled: use layers that do the same in both"
            )
        half = count // 2
        if half < 2:
            return
        # The same examples twice: the others are replaced, the size and so the kernels stay.
        twice = examples.take([i % half for i in range(count)])
        first, beside = nll[..., :half], self._nll(twice)[..., :half]
        alone = self._nll(examples.cut(0, half))
        if not (_alike(first, beside, _SAME_SIZE) and _alike(first, alone, _OTHER_SIZE)):
            raise ValueError(
                "nll of an example changes with the other examples of its batch, "
                f"{_NO_LIKELIHOOD}: look for statistics of the batch, for a mean over it, and for "
                "shapes [B, 1] and [B] in one expression"
            )

    def _check_predictive(self, batch: Batch, count: int) -> None:
        self._task.eval()
        with torch.no_grad():
            value = self._returned("predictive", batch)
        shape = self._own_shape("predictive", value)
        if shape[:1] != [count]:
            raise ValueError(
                f"predictive(batch) must return one row for each example, shape [{count}, ...] for "
                f"{count} examples, got {shape}"
            )
        _check_finite("predictive", value)


def _random(method: str) -> str:
    return (
        f"{method} of the same examples at the same weights changes from one evaluation to the "
        f"next, {_NO_LIKELIHOOD}: take dropout and other random numbers out of it"
    )


def _remedy(shape: list[int], count: int) -> str:
    """Return what to do to an ``nll`` of a wrong shape."""
    if not shape:
        return 'return the loss before its mean over the batch (reduction="none")'
    if shape[0] != count:
        return "its first axis must be that of the batch's tensors"
    if shape[1:] == [1]:
        return "add .squeeze(-1)"
    sums = ".sum(-1)" if len(shape) == 2 else ".flatten(1).sum(-1)"
    if shape[1:] == [count]:
        return (
            f"[{count}, 1] and [{count}] in one expression give this; give both the same shape, or "
            f"add {sums} if the second axis is that of the outputs"
        )
    return f"add {sums} over the outputs"


def _check_finite(method: str, value: Tensor) -> None:
    wrong = int((~torch.isfinite(value)).sum())
    if wrong:
        raise ValueError(
            f"{method}(batch) is not finite at the weights that the chain starts from: {wrong} of "
            f"{value.numel()} numbers on the first examples are NaN or infinite; labels that the "
            "law does not know, such as -1 for Bernoulli's 0 and 1, are a cause"
        )


def _alike(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Return whether two tensors differ by at most a share of the largest value."""
    if a.shape != b.shape:
        return False
    a, b = a.detach().double(), b.detach().double()
    return bool((a - b).abs().max() <= tolerance * torch.maximum(a.abs().max(), b.abs().max()))
