"""Minibatches as a function of (seed, step), of data on the device or on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from lightning_sgmcmc.chain.on_disk import OnDisk
from lightning_sgmcmc.chain.permutation import LARGEST_TABLE, Permutation
from lightning_sgmcmc.target import Batch

# Spawn keys of SeedSequence(seed): a chain's noise is (chain,), its batches (chain, this).
_BATCHES = 0xBA7C4
_FULL_EPOCH = 100
_BLOCK = 64  # steps whose batches are drawn at once, where a pass is not drawn as a whole

Sampling = Literal["auto", "independent", "reshuffled", "full"]


class BatchStream:
    """Minibatches of tensors, each a function of the seed and the step alone.

    A run that resumes at any step sees the batches that it would have seen, and one rank sees the
    same global batch as many ranks together. Iterating yields step numbers within an epoch; the
    module asks for the batch itself by :meth:`at`.

    - ``independent``: each batch draws n examples with replacement, the case in which the closed
      forms for gradient noise hold.
    - ``reshuffled``: every pass goes through a new permutation, the last N mod n examples of which
      are left out; less gradient noise.
    - ``full``: the whole data at every step, so that the gradient is exact; 100 steps count as an
      epoch, which costs a Trainer time of its own.
    - ``auto``: what the sampler asks for, reshuffled unless its law counts gradient noise.

    For K stacked chains a batch is [K, n, ...], chain k's being what it would be alone; full
    batches are the same for all and stay [N, ...].

    Data that memory does not hold are given as :class:`~lightning_sgmcmc.OnDisk`, or as
    arrays mapped by ``numpy.load(FILE, mmap_mode="r")``: their minibatches are the same to the bit,
    and the next one is read while a step is taken. Above N = 2^23 a permutation is computed where
    it is needed (:class:`~lightning_sgmcmc.chain.permutation.Permutation`) and not held.

    Args:
        tensors: The training set: tensors, each [N, ...], in a tuple, a list or a dict, which a
            batch then is too. Tuples, lists and dicts may hold further ones.
        batch_size: Examples in a global batch, shared among the ranks.
        sampling: One of the four above.

    Raises:
        TypeError: If something is no tensor.
        ValueError: If lengths differ, the batch is larger than the data, a name is unknown, or
            full batches are asked for of data on disk.
    """

    def __init__(
        self,
        tensors: Tensor | Sequence[Any] | Mapping[str, Any],
        batch_size: int,
        sampling: Sampling = "auto",
    ) -> None:
        self.tensors: Any = tree_map(
            lambda leaf: OnDisk(leaf) if isinstance(leaf, np.memmap) else leaf,
            tuple(tensors) if isinstance(tensors, list) else tensors,
        )
        leaves = tree_leaves(self.tensors)
        kinds = (Tensor, OnDisk)
        others = sorted({type(leaf).__name__ for leaf in leaves if not isinstance(leaf, kinds)})
        if others:
            raise TypeError(
                "a BatchStream takes tensors in tuples, lists and dicts, got "
                f"{' and '.join(others)} among them: convert it, or give OnDisk"
            )
        lengths = {len(t) if t.dim() else 0 for t in leaves}
        if len(lengths) != 1:
            raise ValueError(f"all tensors need the same first dimension, got {sorted(lengths)}")
        if sampling not in ("auto", "independent", "reshuffled", "full"):
            raise ValueError(
                f"sampling must be auto, independent, reshuffled or full, got {sampling!r}"
            )
        self.num_data = lengths.pop()
        self.batch_size = self.num_data if sampling == "full" else batch_size
        if not 1 <= self.batch_size <= self.num_data:
            raise ValueError(
                f"batch_size must lie between 1 and the {self.num_data} examples, got {batch_size}"
            )
        self.sampling = sampling
        self._auto = self.batch_size if sampling == "auto" else 0
        self.seed, self.chain, self.rank, self.world_size = 0, 0, 0, 1
        self.num_chains: int | None = None
        self._cached: tuple[tuple[int, int], Tensor] | None = None
        if sampling == "full":
            self._refuse_full()

    def bind(
        self,
        device: torch.device,
        seed: int,
        chain: int = 0,
        rank: int = 0,
        world_size: int = 1,
        kind: Literal["reshuffled", "independent", "full"] = "reshuffled",
        num_chains: int | None = None,
    ) -> None:
        """Move the data to a device and fix the stream's seed, chains, shard and kind.

        Args:
            device: Where the batches are to be.
            seed: Seed of the run.
            chain: Number of the (first) chain.
            rank: Number of this process among those that share a batch.
            world_size: Number of these processes.
            kind: What ``auto`` stands for.
            num_chains: K stacked chains, None for a single one.

        Raises:
            ValueError: If the batch does not divide among the ranks, or full batches are asked for
                of data on disk.
        """
        if self._auto:
            self.sampling, self.batch_size = kind, self._auto
            if kind == "full":
                self._refuse_full()
                self.batch_size = self.num_data
        if self.batch_size % world_size:
            raise ValueError(
                f"a batch of {self.batch_size} does not divide among {world_size} processes: "
                + (
                    "drop rows, or give each process chains of its own (--trainer.strategy=chains)"
                    if self.sampling == "full"
                    else f"choose a multiple of {world_size}"
                )
            )
        self.tensors = tree_map(lambda t: t.to(device), self.tensors)
        self.seed, self.chain, self.rank, self.world_size = seed, chain, rank, world_size
        self.num_chains = num_chains
        self._cached = None

    def convert(self, function: Callable[[Tensor], Tensor]) -> None:
        """Put a function of every tensor in its place, of one on disk as its rows are read."""
        self.tensors = tree_map(
            lambda t: t.map(function) if isinstance(t, OnDisk) else function(t), self.tensors
        )

    @property
    def on_disk(self) -> list[OnDisk]:
        """What of the data is on disk."""
        return [leaf for leaf in tree_leaves(self.tensors) if isinstance(leaf, OnDisk)]

    def _refuse_full(self) -> None:
        if self.on_disk:
            raise ValueError(
                "full batches put all data into every step, and these are on disk: give tensors "
                "that hold them, data.x[:] of an OnDisk for instance, or choose another sampling"
            )

    def __len__(self) -> int:
        return _FULL_EPOCH if self.sampling == "full" else self.num_data // self.batch_size

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    @property
    def stacked(self) -> bool:
        """Whether a batch carries the chains along its first axis."""
        return self.num_chains is not None and self.sampling != "full"

    @property
    def _device(self) -> torch.device:
        """Where indices are of use: with the data, or on the host, which reads those on disk."""
        first = tree_leaves(self.tensors)[0]
        return torch.device("cpu") if self.on_disk else first.device

    def indices(self, step: int) -> Tensor:
        """Return the indices of this rank's share of the global batch of a step, [n] or [K, n].

        They lie on the data's device, on the host if some of the data are on disk.
        """
        n, share = self.batch_size, self.batch_size // self.world_size
        if self.sampling == "full":
            chosen = torch.arange(self.num_data, device=self._device)
        elif self.sampling == "independent":
            block, place = divmod(step, _BLOCK)
            chosen = self._drawn(block)[..., place, :]
        elif self.num_data <= LARGEST_TABLE:
            epoch, place = divmod(step, len(self))
            chosen = self._drawn(epoch)[..., place * n : (place + 1) * n]
        else:
            epoch, place = divmod(step, len(self))
            block, place = divmod(place, _BLOCK)
            chosen = self._drawn(epoch, block)[..., place * n : (place + 1) * n]
        return chosen[..., self.rank * share : (self.rank + 1) * share]

    def at(self, step: int) -> Batch:
        """Return this rank's share of the global batch of a step, on the device."""
        if self.sampling == "full" and self.world_size == 1:
            return self.tensors
        indices = self.indices(step)
        chosen = self._rows(indices.reshape(-1))
        for leaf in self.on_disk:
            leaf.read_ahead(self.indices(step + 1).reshape(-1))
        return tree_map(lambda t: t.view(*indices.shape, *t.shape[1:]), chosen)

    def spread(self, count: int) -> Batch:
        """Return examples spread evenly over the data, [count, ...] or fewer."""
        count = min(count, self.num_data)
        return self._rows(torch.arange(count, device=self._device) * self.num_data // count)

    def _rows(self, indices: Tensor) -> Batch:
        """Return the examples with these numbers."""
        held = [leaf for leaf in tree_leaves(self.tensors) if isinstance(leaf, Tensor)]
        placed = indices.to(held[0].device) if held else indices
        return tree_map(
            lambda t: t.index_select(0, indices if isinstance(t, OnDisk) else placed), self.tensors
        )

    def whole(self) -> Iterator[Batch]:
        """Yield this rank's share of the whole data, in batches of its share of a minibatch.

        Each is like a minibatch in shape, [K, n, ...] for K stacked chains, and without a copy.
        """
        base, more = divmod(self.num_data, self.world_size)
        start = self.rank * base + min(self.rank, more)
        stop = start + base + (self.rank < more)
        size = self.batch_size // self.world_size
        for first in range(start, stop, size):
            yield tree_map(partial(self._part, slice(first, min(first + size, stop))), self.tensors)

    def _part(self, part: slice, tensor: Tensor) -> Tensor:
        rows = tensor[part]
        if self.num_chains is None or not self.stacked:
            return rows
        return rows.expand(self.num_chains, *rows.shape)

    @property
    def batches_a_pass(self) -> int:
        """Minibatches that hold the whole data, the last one in part: ceil(N / n)."""
        return -(-self.num_data // self.batch_size)

    def _drawn(self, counter: int, part: int = 0) -> Tensor:
        """Return the permutations, or a part, of an epoch or a block's indices, of every chain."""
        if self._cached is None or self._cached[0] != (counter, part):
            rows = [self._draw(self.chain + k, counter, part) for k in range(self.num_chains or 1)]
            chosen = torch.from_numpy(rows[0] if self.num_chains is None else np.stack(rows))
            # All of them at once, so that no step waits for a copy of its own.
            chosen = chosen.to(self._device, non_blocking=True)
            self._cached = ((counter, part), chosen)
        return self._cached[1]

    def _draw(self, chain: int, counter: int, part: int) -> NDArray[np.int64]:
        sequence = np.random.SeedSequence(self.seed, spawn_key=(chain, _BATCHES, counter))
        generator = np.random.Generator(np.random.Philox(sequence))
        if self.sampling == "independent":
            return generator.integers(0, self.num_data, (_BLOCK, self.batch_size))
        if self.num_data <= LARGEST_TABLE:
            return generator.permutation(self.num_data)
        size = _BLOCK * self.batch_size
        places = np.arange(part * size, min((part + 1) * size, self.num_data))
        return Permutation(self.num_data, generator).at(places)
