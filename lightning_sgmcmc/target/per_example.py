"""Sums over per-example gradients that the Fisher family learns from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lightning_sgmcmc.target.layers import LayerPass, accumulate_outer_
from lightning_sgmcmc.target.taps import Records, tapped
from lightning_sgmcmc.target.vmapped_gradients import (
    Examples,
    SingleExamples,
    mixing_layers,
    refused,
    same,
)

# Largest number of per-example gradient entries held at once.
_CHUNK = 2**22
# Examples on which a layer's taps are checked against torch.func before they are relied on.
_CHECKED = 3


class PerExample:
    """Per-example gradients of a network's loss, from the backward pass that computes the gradient.

    ``Linear`` and ``Conv2d`` layers are tapped: their input a and their output's gradient g give
    every sum over examples, sum_b g_b^2 (a_b^2)' for instance, without a gradient of a single
    example in memory (in chunks of examples for convolutions and sequence inputs). When first
    used, the taps are compared with ``torch.func`` on three examples; layers for which they
    differ (shared weights, weights used outside the layer, examples not along the first axis)
    fall back to ``torch.func`` per-example gradients, as do all other layers.

    Args:
        module: The network, or any module that holds it; the template if chains are stacked.
        names: Names that ``module`` gives to the sampled weights.
        params: Their values, in the same order; [K, ...] for stacked chains.
        nll: Maps a batch to the negative log-likelihood of each example, [B], of one chain under
            the weights that ``module`` holds.
        chain_dims: Number of leading axes of ``params`` that count chains.
        shared_batch: Whether stacked chains see one batch, [B, ...], not [K, B, ...].
        reduce: Averages a list of tensors over the ranks that share the chain, in place.
        world_size: Number of these ranks.
    """

    def __init__(
        self,
        module: nn.Module,
        names: Sequence[str],
        params: Sequence[Tensor],
        nll: Callable[[Any], Tensor],
        *,
        chain_dims: int = 0,
        shared_batch: bool = False,
        reduce: Callable[[list[Tensor]], None] | None = None,
        world_size: int = 1,
    ) -> None:
        self.module, self.names, self.params = module, list(names), list(params)
        self.chain_dims, self.shared_batch = chain_dims, shared_batch
        self._reduce, self._world_size = reduce, world_size
        self._single = SingleExamples(module, nll)
        self._records = Records()
        self._passes: dict[int, LayerPass] = {}
        self._examples: Examples | None = None
        self._verified = False
        self._layers: dict[int, nn.Linear | nn.Conv2d] = {}
        #: Layer, by number, of each tapped weight.
        self._layer_of: dict[int, int] = {}
        self._is_bias: set[int] = set()
        #: Index of a weight and of its layer's bias, None where that is not sampled.
        self.units: list[tuple[int, int | None]] = []
        self._find_layers()

    def _find_layers(self) -> None:
        own = dict(self.module.named_parameters(remove_duplicate=False))
        uses: dict[int, int] = {}
        for p in own.values():
            uses[id(p)] = uses.get(id(p), 0) + 1
        index = {name: i for i, name in enumerate(self.names)}
        for number, (path, layer) in enumerate(self.module.named_modules()):
            prefix = f"{path}." if path else ""
            weight, bias = index.get(f"{prefix}weight"), index.get(f"{prefix}bias")
            if type(layer) not in (nn.Linear, nn.Conv2d):
                continue
            assert isinstance(layer, nn.Linear | nn.Conv2d)
            if weight is not None:
                self.units.append((weight, bias))
            for i in (weight, bias):
                if i is not None and uses[id(own[self.names[i]])] == 1:
                    self._layers[number] = layer
                    self._layer_of[i] = number
            if bias is not None:
                self._is_bias.add(bias)

    @contextmanager
    def recording(self, batch: Any) -> Iterator[None]:
        """Take note of a forward and backward pass of the mean of ``nll`` on a batch."""
        mixing = mixing_layers(self.module)
        if mixing:
            raise RuntimeError(
                f"no per-example gradients: {', '.join(mixing)} in training mode ties the examples "
                "of a batch together; use its eval mode, another normalisation, or a metric "
                "without per-example gradients"
            )
        self.clear()
        with tapped(self._layers, self._records):
            yield
        self._examples = Examples(batch, self._axis)

    def clear(self) -> None:
        """Forget what was recorded."""
        self._records.pairs.clear()
        self._passes.clear()
        self._examples = None

    @property
    def recorded(self) -> bool:
        """Whether a pass was recorded since :meth:`clear`."""
        return self._examples is not None

    @property
    def examples(self) -> Examples:
        """The batch of the recorded pass.

        Raises:
            RuntimeError: If there is none.
        """
        if self._examples is None:
            raise RuntimeError(
                "no per-example gradients were recorded: run the forward and the backward pass "
                "inside target.recording()"
            )
        return self._examples

    @property
    def count(self) -> int:
        """n, the examples of the recorded batch over all ranks."""
        return self.examples.count * self._world_size

    @property
    def shared_by_ranks(self) -> bool:
        """Whether other ranks hold further examples of the same minibatch."""
        return self._reduce is not None

    @property
    def _axis(self) -> int:
        return int(bool(self.chain_dims) and not self.shared_batch)

    # Sums.

    @torch.no_grad()
    def accumulate_squares_(self, averages: Sequence[Tensor], keep: float, rate: float) -> None:
        """Set averages to keep averages + rate * (mean over examples of g^2)."""
        self._check_taps()
        self._accumulate(averages, keep, rate, self._add_squares_)

    @torch.no_grad()
    def accumulate_bias_products_(
        self, averages: Sequence[Tensor], keep: float, rate: float
    ) -> None:
        """Set averages to keep averages + rate * (mean over examples of g_weight g_bias).

        Args:
            averages: One tensor, shaped like the weight, for each of :attr:`units` with a bias.
            keep: Weight of what they hold.
            rate: Weight of this batch.
        """
        self._check_taps()
        self._accumulate(averages, keep, rate, self._add_products_)

    def squares(self) -> list[Tensor]:
        """Return the mean over examples of g^2, shaped like the parameters."""
        result = [torch.zeros_like(p) for p in self.params]
        self.accumulate_squares_(result, 0.0, 1.0)
        return result

    def bias_products(self) -> list[Tensor]:
        """Return the mean over examples of g_weight g_bias for :attr:`units` with a bias."""
        result = [torch.zeros_like(self.params[w]) for w, b in self.units if b is not None]
        self.accumulate_bias_products_(result, 0.0, 1.0)
        return result

    @torch.no_grad()
    def gradients(self, indices: Sequence[int]) -> Iterator[list[Tensor]]:
        """Yield, chunk by chunk, this rank's per-example gradients of some weights, [K, c, ...].

        Without stacked chains K is 1.
        """
        self._check_taps()
        yield from self._chunks(indices)

    def matrix(self) -> Tensor:
        """Return this rank's per-example gradients as rows, [n, d] or [K, n, d]."""
        rows = [
            torch.cat([g.flatten(2) for g in chunk], dim=-1)
            for chunk in self.gradients(range(len(self.params)))
        ]
        result = torch.cat(rows, dim=1)
        return result if self.chain_dims else result[0]

    def reduce_(self, tensors: list[Tensor]) -> None:
        """Average over the ranks, in place."""
        if self._reduce is not None:
            self._reduce(tensors)

    def _accumulate(
        self,
        averages: Sequence[Tensor],
        keep: float,
        rate: float,
        add_: Callable[[list[Tensor], float, float], None],
    ) -> None:
        if not averages:
            return
        chained = [a if self.chain_dims else a.unsqueeze(0) for a in averages]
        if self._reduce is None:
            add_(chained, keep, rate)
            return
        fresh = [torch.zeros_like(a) for a in chained]
        add_(fresh, 0.0, 1.0)
        self._reduce(fresh)
        torch._foreach_mul_(chained, keep)
        torch._foreach_add_(chained, fresh, alpha=rate)

    def _add_squares_(self, averages: list[Tensor], keep: float, rate: float) -> None:
        """Set averages to keep averages + rate * (this rank's means of squares)."""
        rest = []
        for i, average in enumerate(averages):
            tap = self._pass(i)
            if tap is None or not tap.single:
                rest.append(i)
            else:
                a_squared, g_squared = tap.squares()
                scale = rate * tap.examples
                if i in self._is_bias:
                    average.mul_(keep).add_(g_squared.sum(1).to(average.dtype), alpha=scale)
                else:
                    accumulate_outer_(average.flatten(2), g_squared, a_squared, keep, scale)
        self._add_from_chunks_([averages[i] for i in rest], rest, rest, keep, rate)

    def _add_products_(self, averages: list[Tensor], keep: float, rate: float) -> None:
        rest = []
        pairs = [(w, b) for w, b in self.units if b is not None]
        for place, (w, b) in enumerate(pairs):
            tap = self._pass(w)
            if tap is None or self._pass(b) is None or not tap.single:
                rest.append(place)
                continue
            (a, _), (_, g_squared) = tap.factors(), tap.squares()
            average = averages[place].flatten(2)
            accumulate_outer_(average, g_squared, a, keep, rate * tap.examples)
        weights, biases = [pairs[i][0] for i in rest], [pairs[i][1] for i in rest]
        self._add_from_chunks_([averages[i] for i in rest], weights, biases, keep, rate)

    def _add_from_chunks_(
        self,
        averages: list[Tensor],
        firsts: Sequence[int],
        seconds: Sequence[int],
        keep: float,
        rate: float,
    ) -> None:
        """Set averages to keep averages + rate * (mean over examples of g_first g_second)."""
        if not averages:
            return
        torch._foreach_mul_(averages, keep)
        scale = rate / self.examples.count
        wanted = [*firsts, *(() if firsts is seconds else seconds)]
        for chunk in self._chunks(wanted):
            for place, average in enumerate(averages):
                g = chunk[place]
                h = g if firsts is seconds else chunk[len(firsts) + place]
                h = h.view(*h.shape, *[1] * (g.dim() - h.dim()))
                average.add_((g * h).sum(1), alpha=scale)

    # Where gradients come from.

    def _pass(self, index: int) -> LayerPass | None:
        """Return the recorded pass that gives this weight's gradients, None if there is none."""
        number = self._layer_of.get(index)
        if number is None:
            return None
        if number in self._passes:
            return self._passes[number]
        passes = self._records.pairs.get(number, [])
        if len(passes) != 1:
            return None
        a, g = passes[0]
        if not self.chain_dims:
            a, g = a.unsqueeze(0), g.unsqueeze(0)
        if g.shape[1] != self.examples.count or a.shape[1] != self.examples.count:
            return None
        self._passes[number] = LayerPass(self._layers[number], a, g)
        return self._passes[number]

    def _chunks(self, indices: Sequence[int]) -> Iterator[list[Tensor]]:
        passes = {i: self._pass(i) for i in indices}
        missing = [i for i, tap in passes.items() if tap is None]
        sizes = [self.params[i].numel() for i in set(indices)]
        n, step = self.examples.count, max(1, _CHUNK // max(1, sum(sizes)))
        for start in range(0, n, step):
            stop = min(n, start + step)
            found = dict(zip(missing, self._by_func(missing, start, stop), strict=True))
            both: dict[int, tuple[Tensor, Tensor]] = {}
            for i, tap in passes.items():
                if tap is not None:
                    number = self._layer_of[i]
                    if number not in both:
                        both[number] = tap.gradients(start, stop)
                    g = both[number][i in self._is_bias]
                    found[i] = g.to(self.params[i].dtype)
            yield [found[i] for i in indices]

    def _weights(self, indices: Sequence[int]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return some weights and the others by name, [K, ...]."""
        others = {
            name: p if self.chain_dims else p.unsqueeze(0)
            for name, p in zip(self.names, self.params, strict=True)
        }
        return {self.names[i]: others.pop(self.names[i]) for i in indices}, others

    def _by_func(self, indices: Sequence[int], start: int, stop: int) -> list[Tensor]:
        """Return gradients of some examples by ``torch.func``, [K, stop - start, ...]."""
        if not indices:
            return []
        wanted, others = self._weights(indices)
        try:
            found = self._single.gradients(wanted, others, self.examples, start, stop)
        except Exception as error:
            raise refused(self.module, list(wanted), error) from error
        return [found[self.names[i]] for i in indices]

    def _check_taps(self) -> None:
        """Give up taps that do not yield the gradients of a few examples taken one by one."""
        if self._verified:
            return
        indices = sorted(self._layer_of)
        wrong = {self._layer_of[i] for i in indices if self._pass(i) is None}
        kept = [i for i in indices if self._layer_of[i] not in wrong]
        wanted, others = self._weights(kept)
        for example in range(min(_CHECKED, self.examples.count) if kept else 0):
            alone = self._single.one(wanted, others, self.examples, example)
            for i in kept:
                tap = self._pass(i)
                assert tap is not None
                found = tap.gradients(example, example + 1)[i in self._is_bias].squeeze(1)
                if not same(found, alone[self.names[i]]):
                    wrong.add(self._layer_of[i])
        self._layer_of = {i: n for i, n in self._layer_of.items() if n not in wrong}
        self._layers = {n: layer for n, layer in self._layers.items() if n not in wrong}
        self._verified = True
