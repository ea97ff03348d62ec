"""Minibatches of a DataLoader that no step takes, for what is measured beside the steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.seed import pl_worker_init_function
from lightning.pytorch.utilities.seed import isolate_rng
from torch.utils.data import DataLoader, IterableDataset

from lightning_sgmcmc.chain import checks
from lightning_sgmcmc.chain.batches import BatchStream
from lightning_sgmcmc.target import Batch


class SpareMinibatches:
    """Minibatches of the examples of a ``DataLoader``, each a function of the seed and a number.

    They have the size and the law of the loader's own, and are read and collated as it does, in
    this process, or in one worker where the loader prepares its workers by a function. The loader's
    order and the global random generators are left alone.

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
        self._received, self._seed = received, (seed, chain)
        prepare = loader.worker_init_fn
        lightnings = isinstance(prepare, partial) and prepare.func is pl_worker_init_function
        own = bool(loader.num_workers) and prepare is not None and not lightnings
        self._workers: dict[str, Any] = {"num_workers": 1, "worker_init_fn": prepare} if own else {}
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
        world_size = place[3] if place else 1
        if isinstance(plain.dataset, IterableDataset) or len(plain.dataset) < world_size:
            return None
        return cls(loader, received, *place)

    def __len__(self) -> int:
        return len(self._numbers)

    def at(self, number: int) -> Batch:
        """Return this process's share of a minibatch, as :meth:`BatchStream.at` does."""
        return self._read(self._numbers.at(number).tolist(), number)

    def spread(self, count: int) -> Batch:
        """Return examples spread evenly over the data, [count, ...] or fewer."""
        return self._read(self._numbers.spread(count).tolist(), 0)

    def _read(self, numbers: Sequence[int], number: int) -> Batch:
        loader: DataLoader[Any] = DataLoader(
            self._examples,
            batch_sampler=[list(numbers)],
            collate_fn=self._collate,
            **self._workers,
        )
        with isolated(*self._seed, number):
            return self._received(next(iter(loader)))


@contextmanager
def isolated(*seed: int) -> Iterator[None]:
    """Give data sets random numbers of their own, and leave the global generators as they were.

    Args:
        seed: Numbers that determine them.
    """
    (state,) = np.random.SeedSequence(seed).generate_state(1)
    with isolate_rng():
        torch.manual_seed(int(state))
        np.random.seed(state)  # noqa: NPY002, which data sets may use
        random.seed(int(state))
        yield
