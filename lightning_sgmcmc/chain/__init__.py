"""A chain: weights, sampler, minibatches, target and schedule; it calls nothing above it."""

from lightning_sgmcmc.chain.batches import BatchStream, Sampling
from lightning_sgmcmc.chain.burn_in import OptimizerBurnIn
from lightning_sgmcmc.chain.chain import Chain
from lightning_sgmcmc.chain.on_disk import OnDisk
from lightning_sgmcmc.chain.stack import ChainStack, MethodOf, holding
from lightning_sgmcmc.chain.starts import Starts, starts
from lightning_sgmcmc.chain.task import Report, Task

__all__ = [
    "BatchStream",
    "Chain",
    "ChainStack",
    "MethodOf",
    "OnDisk",
    "OptimizerBurnIn",
    "Report",
    "Sampling",
    "Starts",
    "Task",
    "holding",
    "starts",
]
