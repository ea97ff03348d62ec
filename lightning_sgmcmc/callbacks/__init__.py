"""What a run may add to a chain."""

from lightning_sgmcmc.callbacks.checkpoint import ChainCheckpoint
from lightning_sgmcmc.callbacks.distillation import Distillation
from lightning_sgmcmc.callbacks.draws import KeepDraws
from lightning_sgmcmc.callbacks.finish import Finish
from lightning_sgmcmc.callbacks.freed_memory import KeepFreedMemory
from lightning_sgmcmc.callbacks.guard import ChainDivergedError, ChainGuard, ReplicasDifferError
from lightning_sgmcmc.callbacks.own import own_callbacks
from lightning_sgmcmc.callbacks.progress import ChainProgress
from lightning_sgmcmc.callbacks.pruning import GradualPruning
from lightning_sgmcmc.callbacks.subnormals import FlushSubnormals

__all__ = [
    "ChainCheckpoint",
    "ChainDivergedError",
    "ChainGuard",
    "ChainProgress",
    "Distillation",
    "Finish",
    "FlushSubnormals",
    "GradualPruning",
    "KeepDraws",
    "KeepFreedMemory",
    "ReplicasDifferError",
    "own_callbacks",
]
