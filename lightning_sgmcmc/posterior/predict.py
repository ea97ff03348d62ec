"""Predicting with many draws at once, in bounded memory."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_sgmcmc.chain import ChainStack, MethodOf, OnDisk, Task
from lightning_sgmcmc.common.functional import FunctionalCall
from lightning_sgmcmc.kernels import chosen
from lightning_sgmcmc.posterior.fused import fused
from lightning_sgmcmc.posterior.layout import ExamplesLast
from lightning_sgmcmc.preconditioners.blocks import free_bytes

#: Gives the sampled weights of a draw by name when it is called.
Load = Callable[[], Mapping[str, Tensor]]

#: Working memory unless another is given: see :func:`working_memory`.
MEMORY = "auto"

_CPU_MEMORY = 2**29
# On the CPU, activations of one pass: large enough that the cost of calling torch is small, small
# enough that they stay in a core's caches.
_CACHE = 8 * 2**20
# Products of a weight and an input, over all draws and examples, below which compiled loops save
# less than it takes to see whether they apply, some 2 ms.
_FUSE_FROM = 5 * 10**7
# Examples of one pass whatever the caches hold: with fewer, calls and narrow products cost more
# than the caches save. All that a deep network allocates is far more than it holds at once.
_FEWEST = 32
# Examples of one pass before draws are stacked: matrices with fewer rows multiply slowly.
_ROWS = 512
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


class Block(NamedTuple):
    """What some draws say of some examples.

    Attributes:
        draws: Which draws.
        examples: Which examples.
        outputs: [draws, examples, ...], one for each tensor that the method returns.
    """

    draws: slice
    examples: slice
    outputs: tuple[Tensor, ...]


class Plan:
    """How many draws and examples to take at a time in evaluating a method of a module.

    As many draws as the memory allows are loaded and stacked, and batches are cut, so that

        k (2 W + c + a b) <= memory

    for k draws, b examples, W bytes of weights a draw and c + a b bytes of activations, measured
    as all that one pass over a few examples allocates, freed or not. On the CPU the activations
    are kept to a few MiB besides, or to those of 32 examples. Narrow perceptrons go through
    compiled loops where these apply (:func:`~lightning_sgmcmc.posterior.fused.fused`). Where
    ``torch.func.vmap`` cannot follow the method the draws are taken one by one, and a warning says
    why.

    Args:
        module: The module; its own weights are left as they are.
        draws: The draws.
        method: A method that takes a batch and returns a tensor, or a tuple of them, with one row
            per example.
        batch: Tensors, or tuples, lists or dicts of them, with examples along the first axis, on
            the module's device.
        memory: Working memory, without what is returned, as for :func:`working_memory`.

    Attributes:
        draws: k.
        examples: b; halved once where a GPU has less memory left than it said.

    Raises:
        ValueError: If one draw and one example need more memory.
    """

    def __init__(
        self,
        module: Task,
        draws: Sequence[Load],
        method: str,
        batch: Any,
        memory: int | str = MEMORY,
    ) -> None:
        self._module, self._method = module, method
        self._call = FunctionalCall(MethodOf(module, method))
        self._device = next(iter(module.parameters())).device
        budget, size = working_memory(memory, self._device), num_examples(batch)
        first = {name: tensor.to(self._device) for name, tensor in draws[0]().items()}
        weights = 2 * sum(tensor.numel() * tensor.element_size() for tensor in first.values())
        work = len(draws) * size * sum(tensor.numel() for tensor in first.values())
        self._fused = fused(module, method, first, batch) if work >= _FUSE_FROM else None
        if self._fused is not None and self._fused.working > budget // 2:
            self._fused = None
        # Loops that do all of a method need no trial; what follows them under vmap does.
        known = self._fused.each if self._fused is not None else None
        if self._fused is not None and known is None and self._failure(first, batch) is not None:
            self._fused = None
        budget -= self._fused.working if self._fused is not None else 0
        constant, each = (0, known) if known else self._activations(first, batch, size)
        cpu = self._device.type == "cpu"
        tile = _tile(budget, weights, constant, each, size, len(draws), cpu)
        if tile[0] > 1 and not known and not self._follows(first, batch):
            tile = _tile(budget, weights, constant, each, size, 1, cpu)
        self.draws, self.examples = tile
        self._halved = False
        if self._fused is not None:
            self.examples = self._fused.whole(self.examples)

    def stack(self, states: Sequence[Mapping[str, Tensor]]) -> ChainStack:
        """Return draws, at most k, as stacked weights on the module's device."""
        return ChainStack(self._module, states).to(self._device)

    def outputs(self, stack: ChainStack, batch: Any) -> Iterator[tuple[slice, tuple[Tensor, ...]]]:
        """Yield which examples, and the method's outputs [k, b, ...] under stacked draws.

        Raises:
            OutOfMemoryError: If a GPU has too little memory for half as many examples, too.
            ValueError: If the method does not return one row per example.
        """
        size, end = num_examples(batch), 0
        while end < size:
            part = slice(end, min(end + self.examples, size))
            try:
                outputs = self._pass(stack, cut(batch, part) if self.examples < size else batch)
            except torch.OutOfMemoryError:
                if self._halved or self.examples == 1:
                    raise
                self.examples, self._halved = self.examples // 2, True
                continue
            end = part.stop
            for output in outputs:
                if output.dim() < 2 or output.shape[1] != part.stop - part.start:
                    raise ValueError(
                        f"{self._method} must return one row for each of {part.stop - part.start} "
                        f"examples, got shape {list(output.shape[1:])}"
                    )
            yield part, outputs

    def _pass(self, stack: ChainStack, batch: Any) -> tuple[Tensor, ...]:
        with torch.no_grad(), ExamplesLast(stacked=len(stack) > 1 or self._fused is not None):
            if self._fused is not None:
                return _tuple(self._fused(stack, batch))
            if len(stack) > 1:
                return _tuple(stack.evaluate(self._method, batch, False))
            return tuple(output[None] for output in self._one(stack.state_of(0), batch))

    def _one(self, weights: Mapping[str, Tensor], batch: Any) -> tuple[Tensor, ...]:
        named = {f"module.{name}": tensor for name, tensor in weights.items()}
        return _tuple(self._call(named, batch))

    def _follows(self, weights: Mapping[str, Tensor], batch: Any) -> bool:
        """Return whether vmap follows the method, found out on two examples."""
        reason = self._failure(weights, batch)
        if reason is not None:
            warnings.warn(
                "draws are evaluated one by one, because vmap cannot follow "
                f"{type(self._module).__name__}: {reason}",
                stacklevel=2,
            )
        return reason is None

    def _failure(self, weights: Mapping[str, Tensor], batch: Any) -> str | None:
        """Return what goes wrong with two examples and draws, None if nothing does."""
        try:
            self._pass(ChainStack(self._module, [weights, weights]), cut(batch, slice(0, 2)))
        except Exception as error:  # whatever a user's method raises under vmap only
            return str(error).strip().split("\n")[0]
        return None

    @torch.no_grad()
    def _activations(self, weights: Mapping[str, Tensor], batch: Any, size: int) -> tuple[int, int]:
        """Return c and a: one draw on b examples allocates about c + a b bytes."""
        stack = ChainStack(self._module, [weights])
        besides = self._fused.working if self._fused is not None else 0

        def allocated(count: int) -> int:
            with _Allocated() as seen:
                self._pass(stack, cut(batch, slice(0, count)))
            return int(seen.bytes) - besides

        few = min(4, size)
        total = allocated(few)
        if few < 4:
            return 0, -(-total // few)
        each = max(0, total - allocated(2)) // 2
        return max(0, total - 4 * each), each


def evaluate(
    module: Task,
    draws: Sequence[Load],
    method: str,
    batch: Any,
    memory: int | str = MEMORY,
) -> Iterator[Block]:
    """Evaluate a method of a module under many draws, each of which is loaded once.

    Args:
        module: See :class:`Plan`.
        draws: See :class:`Plan`.
        method: See :class:`Plan`.
        batch: See :class:`Plan`.
        memory: See :class:`Plan`.

    Yields:
        Blocks: every example of some draws before the next draws.

    Raises:
        ValueError: If one draw and one example need more memory, or the method does not return
            one row per example.
    """
    plan = Plan(module, draws, method, batch, memory)
    for start in range(0, len(draws), plan.draws):
        some = slice(start, min(start + plan.draws, len(draws)))
        stack = plan.stack([load() for load in draws[some]])
        for part, outputs in plan.outputs(stack, batch):
            yield Block(some, part, outputs)
            del outputs
        del stack  # before the next draws are read


class Averages(NamedTuple):
    """Weighted averages over draws of outputs f, v and log p, in float64.

    Attributes:
        mean: sum_k w_k f_k, [B, ...].
        std: Root of sum_k w_k (f_k - mean)^2, [B, ...].
        noise: sum_k w_k v_k, None where the method returns no v.
        nll: -log(sum_k w_k p_k), [B], None where the method returns no -log p.
    """

    mean: Tensor
    std: Tensor
    noise: Tensor | None
    nll: Tensor | None


def ensemble(
    module: Task,
    draws: Sequence[Load],
    weights: Tensor,
    method: str,
    batch: Any,
    memory: int | str = MEMORY,
    has_nll: bool = False,
) -> Averages:
    """Return the weighted averages over draws, as PosteriorEnsemble does one draw at a time.

    Args:
        module: See :class:`Plan`.
        draws: See :class:`Plan`.
        weights: Their weights, which sum to one, [number of draws], in float64.
        method: Returns f, or a tuple of f, v if there is one, and -log p if ``has_nll``.
        batch: See :class:`Plan`.
        memory: See :class:`Plan`.
        has_nll: Whether the last of the method's outputs is -log p of each example.

    Raises:
        ValueError: See :func:`evaluate`.
    """
    size = num_examples(batch)
    mean = squares = torch.empty(0)
    noise = log_density = None
    for block in evaluate(module, draws, method, batch, memory):
        f, *others = block.outputs
        f = f.float() if f.dtype.itemsize < 4 else f
        nll = others.pop() if has_nll else None
        if not mean.numel():
            mean = f.new_zeros(size, *f.shape[2:], dtype=torch.float64)
            squares, weights = torch.zeros_like(mean), weights.to(f.device)
            if nll is not None:
                log_density = mean.new_full((size,), -torch.inf)
            if others:
                noise = mean.new_zeros(size, *others[0].shape[2:])
        w, part = weights[block.draws], block.examples
        # The draws' own mean and squared deviations in their own type, joined in float64 with
        # those before (Chan, Golub, LeVeque 1983): nothing cancels, and little memory moves.
        share, before = float(w.sum()), float(weights[: block.draws.start].sum())
        if not share:  # a schedule has ended at 0: draws without weight have no mean of their own
            continue
        own, deviations = _moments(w.to(f.dtype), f)
        if not before:
            mean[part], squares[part] = own, deviations
        else:
            step = own - mean[part]
            mean[part] += step * (share / (before + share))
            squares[part] += deviations + step.square_() * (before * share / (before + share))
        if noise is not None:
            noise[part] += _mean(w, others[0])
        if nll is not None and log_density is not None:
            terms = torch.logsumexp(w.log()[:, None] - nll.double(), 0)
            log_density[part] = torch.logaddexp(log_density[part], terms)
    return Averages(mean, squares.sqrt(), noise, None if log_density is None else -log_density)


def _mean(weights: Tensor, values: Tensor) -> Tensor:
    """Return sum_k w_k v_k, without going through draws that share one value."""
    if values.stride(0) == 0:
        shared: Tensor = values[0]
        return shared * weights.sum()
    mean: Tensor = torch.tensordot(weights.to(values.dtype), values, 1)
    return mean


def _moments(weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and sums of squared deviations over k of w_k f_k, values f [k, ...]."""
    # In the order in which values lie in memory, which is the one to go through them.
    order = sorted(range(1, values.dim()), key=values.stride, reverse=True)
    flat = values.permute(0, *order)
    if flat.is_contiguous() and chosen(values.device, values.dtype) == "numba":
        from lightning_sgmcmc.kernels import networks

        shape = flat.shape[1:]
        own, deviations = networks.moments(weights, flat.reshape(len(flat), -1))
        own, deviations = own.view(shape), deviations.view(shape)
    else:
        # About the first draw, so that probabilities of 1 do not average to more.
        own = flat[0] + torch.tensordot(weights, flat - flat[0], 1) / weights.sum()
        deviations = torch.tensordot(weights, (flat - own).square_(), 1)
    back = [order.index(axis) for axis in range(1, values.dim())]
    return own.permute(back), deviations.permute(back)


class _Allocated(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all that is computed, freed or not."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        outputs = result if isinstance(result, (tuple, list)) else [result]
        for output, returned in zip(outputs, func._schema.returns, strict=False):
            if isinstance(output, Tensor) and returned.alias_info is None:  # not a view
                self.bytes += output.numel() * output.element_size()
        return result


def _tile(
    budget: int, weights: int, constant: int, each: int, size: int, draws: int, cpu: bool
) -> tuple[int, int]:
    """Return how many draws and how many examples to take at a time."""
    needed = weights + constant + each
    if needed > budget:
        raise ValueError(
            f"one draw and one example take {needed / 2**20:.3g} MiB, more than memory = "
            f"{budget / 2**20:.3g} MiB: raise it"
        )

    def examples(k: int) -> int:
        room = budget // k - weights
        if cpu:
            room = min(room, max(_CACHE // k, constant + _FEWEST * each))
        return max(1, min(size, (room - constant) // max(each, 1)))

    rows = min(size, _ROWS)
    k = min(draws, budget // (weights + constant + each * rows))
    if cpu:
        k = min(k, _CACHE // (constant + each * rows + 1))
    k = max(1, k)
    return k, examples(k)


def parse_memory(memory: int | str) -> int:
    """Return a number of bytes, given as such or as text such as ``"512 MiB"`` or ``"2GB"``.

    Raises:
        ValueError: If it is not a positive amount.
    """
    found = re.fullmatch(r"\s*([0-9.]+)\s*([KMG]i?B)?\s*", str(memory), re.IGNORECASE)
    try:
        amount = int(float(found[1]) * _UNITS[(found[2] or "").upper()]) if found else 0
    except ValueError:
        amount = 0
    if amount < 1:
        raise ValueError(f'memory must be "auto", bytes or text such as "512 MiB", got {memory!r}')
    return amount


def working_memory(memory: int | str, device: torch.device) -> int:
    """Return a number of bytes: as given, or half of what is free on a GPU.

    Args:
        memory: Bytes, text such as ``"512 MiB"``, or ``"auto"``: 512 MiB on the CPU, where more
            is no faster, and half of the free memory on a GPU.
        device: Where the work is done.

    Raises:
        ValueError: If it is none of these.
    """
    if memory != "auto":
        return parse_memory(memory)
    free = None if device.type == "cpu" else free_bytes(device)
    return _CPU_MEMORY if free is None else free // 2


def num_examples(batch: Any) -> int:
    """Return the number of examples in a batch, the length of its tensors' first axes.

    Raises:
        ValueError: If there is no tensor, or the lengths differ.
    """
    lengths = {len(tensor) if tensor.dim() else 0 for tensor in _tensors(batch)}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            "a batch needs tensors with the same examples along their first axis, got lengths "
            f"{sorted(lengths)}"
        )
    return lengths.pop()


def cut(batch: Any, part: slice | Tensor) -> Any:
    """Return some examples of a batch."""
    if isinstance(batch, (Tensor, OnDisk)):
        return batch[part]
    if isinstance(batch, Mapping):
        return {key: cut(value, part) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        values = [cut(value, part) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    return batch


def joined(batches: Sequence[Any]) -> Any:
    """Return all examples of batches of one kind, in order, as one batch.

    Raises:
        ValueError: If examples of different batches have different shapes.
    """
    first = batches[0]
    if isinstance(first, Tensor):
        shapes = {tuple(batch.shape[1:]) for batch in batches}
        if len(shapes) > 1:
            raise ValueError(
                f"examples of different held-out batches have the shapes {sorted(shapes)}: pad all "
                "to one length"
            )
        return torch.cat(list(batches))
    if isinstance(first, Mapping):
        return {key: joined([batch[key] for batch in batches]) for key in first}
    if isinstance(first, (tuple, list)):
        values = tuple(joined(parts) for parts in zip(*batches, strict=True))
        return type(first)(*values) if hasattr(first, "_fields") else values
    return first


def _tensors(batch: Any) -> Iterator[Tensor | OnDisk]:
    if isinstance(batch, (Tensor, OnDisk)):
        yield batch
    elif isinstance(batch, (Mapping, tuple, list)):
        for value in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(value)


def _tuple(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)
