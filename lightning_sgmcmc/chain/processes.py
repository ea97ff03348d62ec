"""How processes share the work: one data-parallel chain, or chains of their own."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import lightning as L
import numpy as np
import torch.distributed
from lightning.pytorch.strategies import DDPStrategy, Strategy, StrategyRegistry
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


class ChainsStrategy(DDPStrategy):
    """Every process runs chains of its own: ``--trainer.strategy chains``.

    Nothing is synchronised but the ensembles. Process r runs the chains r K, ..., r K + K - 1 of
    ``SGMCMCModule(num_chains=K)``, each with its own start, noise and minibatches of all the data.
    The checkpoints of the other processes stand beside the first one's, by the numbers of their
    chains, so that as many chains go on in any number of processes.
    """

    strategy_name = "chains"

    def configure_ddp(self) -> None:
        """Leave gradients, parameters and buffers of the processes alone."""

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Every process sees all the data, in an order of its own where a loader shuffles."""
        seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) + self.global_rank
        return {"num_replicas": 1, "rank": 0, "seed": seed}

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Write the checkpoint of this process's chains; the first one's has the given name."""
        own = file_of(filepath, checkpoint["sgmcmc_chains"], self.global_rank)
        self.checkpoint_io.save_checkpoint(checkpoint, own, storage_options=storage_options)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Continue this process's sampler."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            optimizer.load_state_dict(state)


StrategyRegistry.register("chains", ChainsStrategy, description="chains of its own per process")


@dataclass(frozen=True)
class Processes:
    """The processes of a run, as a chain sees them; by default there is one.

    Attributes:
        rank: This process's number among those that share its chains; 0 writes what they share.
        size: How many share them.
        data_parallel: False where every process has chains of its own.
        number: This process's number among all.
        count: How many there are.
        strategy: Lightning's, which talks between them.
    """

    rank: int = 0
    size: int = 1
    data_parallel: bool = True
    number: int = 0
    count: int = 1
    strategy: Strategy | None = None

    @classmethod
    def of(cls, trainer: L.Trainer) -> Processes:
        """Return the processes of a trainer."""
        strategy = trainer.strategy
        number, count = trainer.global_rank, trainer.world_size
        if isinstance(strategy, ChainsStrategy):
            return cls(0, 1, False, number, count, strategy)
        return cls(number, count, True, number, count, strategy)

    @property
    def first(self) -> bool:
        """Whether this is the first process of all."""
        return self.number == 0

    def chains_before(self, num_chains: int) -> int:
        """Return how many chains run in the processes before this one, K in each."""
        return 0 if self.data_parallel else self.number * num_chains

    def groups(self, num_chains: int, first: int = 0) -> list[list[int]]:
        """Return the numbers of the chains of every group of processes that shares chains.

        Args:
            num_chains: K, of each group.
            first: The number of the first chain of all.
        """
        starts = range(first, first + self.all_chains(num_chains), num_chains)
        return [list(range(start, start + num_chains)) for start in starts]

    def all_chains(self, num_chains: int) -> int:
        """Return how many chains the processes run together, K in each."""
        return num_chains if self.data_parallel else num_chains * self.count

    def reduce(self, value: Tensor, how: str = "sum") -> Tensor:
        """Return the sum or mean of a tensor over all processes; it may be overwritten."""
        if self.strategy is None:
            return value
        return cast(Tensor, self.strategy.reduce(value, reduce_op=how))

    def gather(self, value: Tensor) -> Tensor:
        """Return a tensor of all processes, [count, ...]."""
        if self.count == 1:
            return value[None]
        value = value.contiguous()
        found = [torch.empty_like(value) for _ in range(self.count)]
        torch.distributed.all_gather(found, value)
        return torch.stack(found)

    def of_all_chains(self, traces: Array, device: torch.device) -> Array:
        """Return traces [K, ...] of this process's chains with those of all processes.

        Args:
            traces: On the host.
            device: Over which processes talk.
        """
        if self.data_parallel:
            return traces
        own = torch.from_numpy(traces).to(device)
        return cast(Array, self.gather(own).flatten(0, 1).cpu().numpy())

    def mean_of_chains(self, values: Tensor) -> list[float]:
        """Return the means over all chains of numbers of each, [n] or [n, K]."""
        found = values[None] if self.data_parallel else self.gather(values)
        means: list[float] = found.transpose(0, 1).flatten(1).mean(1).tolist()
        return means

    def broadcast(self, value: float) -> float:
        """Return the first process's number."""
        return value if self.strategy is None else float(self.strategy.broadcast(value))

    def average_(self, tensors: list[Tensor]) -> None:
        """Average tensors over the processes that share this one's chains, in place."""
        for tensor in tensors:
            torch.distributed.all_reduce(tensor)
            tensor /= self.size


def file_of(path: str | Path, groups: Sequence[Sequence[int]], rank: int) -> Path:
    """Return the file of a checkpoint that holds one process's chains.

    Args:
        path: Of the first process's file, which all go by.
        groups: The numbers of the chains of every process.
        rank: Which process.
    """
    first, last = groups[rank][0], groups[rank][-1]
    numbers = f"chain{first}" if first == last else f"chains{first}-{last}"
    return Path(f"{path}.{numbers}" if rank else path)


@cache
def leave_at_exit() -> None:
    """Take this process out of its group when it exits, as Lightning does for NCCL alone.

    The threads of gloo's connections end a process by abort, after all work is done, if one is
    still open then.
    """
    atexit.register(_leave)


def _leave() -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
