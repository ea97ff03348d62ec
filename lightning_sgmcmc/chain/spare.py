"""Minibatches of a DataLoader that no step takes, for what is measured beside the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from lightning_sgmcmc.chain import checks
from lightning_sgmcmc.chain.batches import BatchStream
from lightning_sgmcmc.target import Batch


class SpareMinibatches:
    """Minibatches of the examples of a ``DataLoader``, each a function of the seed and a number.

    They have the size and the law of the loader's own, and are read and collated as it does, in
    this process. The loader's order and torch's global generator are left alone.

    Args:
        loader: The loader.
        received: Puts a batch where the chain takes it.
        seed: Seed of the run.
        chain: Number of the (first) chain.
        rank: Number of this process among those that share a batch.
        world_size: Number of these processes.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        received: Callable[[Any], Batch],
        seed: int = 0,
        chain: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        plain = checks.plain_loader(loader)
        self._examples, self._collate = plain.dataset, plain.collate_fn
        self._received = received
        numbers = torch.arange(len(self._examples))
        size = min(checks.batch_size(loader, world_size), len(numbers) // world_size * world_size)
        independent = checks.sampling_of(loader) == "independent"
        self._numbers = BatchStream(numbers, size, "independent" if independent else "reshuffled")
        self._numbers.bind(numbers.device, seed, chain, rank, world_size)
        self.sampling = self._numbers.sampling

    @classmethod
    def of(
        cls, loader: Any, received: Callable[[Any], Batch], *place: int
    ) -> SpareMinibatches | None:
        """Return those of a loader, None where it does not tell which examples it goes through."""
        if not isinstance(loader, DataLoader) or not checks.batch_size(loader, 1):
            return None
        try:
            plain = checks.plain_loader(loader)
        except ValueError:  # a sampler of one's own
            return None
        iterable = isinstance(plain.dataset, IterableDataset)
        return None if iterable else cls(loader, received, *place)

    def __len__(self) -> int:
        return len(self._numbers)

    def at(self, number: int) -> Batch:
        """Return this process's share of a minibatch, as :meth:`BatchStream.at` does."""
        return self._read(self._numbers.at(number).tolist())

    def spread(self, count: int) -> Batch:
        """Return examples spread evenly over the data, [count, ...] or fewer."""
        return self._read(self._numbers.spread(count).tolist())

    def _read(self, numbers: Sequence[int]) -> Batch:
        loader = DataLoader(
            self._examples,
            batch_sampler=[list(numbers)],
            collate_fn=self._collate,
            generator=torch.Generator(),  # which the iterator draws a seed from
        )
        return self._received(next(iter(loader)))
