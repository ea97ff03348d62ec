"""How processes share the work: one data-parallel chain, or chains of their own."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch.distributed
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry


class ChainsStrategy(DDPStrategy):
    """Every process runs chains of its own: ``--trainer.strategy chains``.

    Nothing is synchronised but the ensembles. Process r runs the chains r K, ..., r K + K - 1 of
    ``SGMCMCModule(num_chains=K)``, each with its own start, noise and minibatches of all the data.
    Each process keeps a checkpoint of its own beside the first one's.
    """

    strategy_name = "chains"

    def configure_ddp(self) -> None:
        """Leave gradients, parameters and buffers of the processes alone."""

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Every process sees all the data."""
        return {"num_replicas": 1, "rank": 0}

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Write this process's checkpoint; the first one's under the given name."""
        self.checkpoint_io.save_checkpoint(
            checkpoint, self.own(filepath), storage_options=storage_options
        )

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> Any:
        """Read this process's checkpoint."""
        return super().load_checkpoint(self.own(checkpoint_path), weights_only)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Continue this process's sampler."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            optimizer.load_state_dict(state)

    def own(self, path: str | Path) -> str:
        """Return the name of this process's checkpoint."""
        rank = self.global_rank
        return str(path) if rank == 0 else f"{path}.rank{rank}"


StrategyRegistry.register("chains", ChainsStrategy, description="chains of its own per process")


class Replicas(NamedTuple):
    """The processes that share this process's chains.

    Attributes:
        rank: This process's number among them; 0 writes what they share.
        size: How many they are.
        data_parallel: False where every process has chains of its own.
    """

    rank: int
    size: int
    data_parallel: bool


def replicas(trainer: L.Trainer) -> Replicas:
    """Return with whom this process shares its chains."""
    if isinstance(trainer.strategy, ChainsStrategy):
        return Replicas(0, 1, False)
    return Replicas(trainer.global_rank, trainer.world_size, True)


def own_checkpoint(trainer: L.Trainer, path: Path) -> Path:
    """Return where this process's checkpoint goes that is asked for as ``path``."""
    strategy = trainer.strategy
    return Path(strategy.own(path)) if isinstance(strategy, ChainsStrategy) else path


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
