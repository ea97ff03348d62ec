"""Bind a module's data, N and target to its sampler where training starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_sgmcmc import checks
from lightning_sgmcmc.batches import BatchStream
from lightning_sgmcmc.statistics import PerExample
from lightning_sgmcmc.strategies import replicas
from lightning_sgmcmc.target import Batch, Target

if TYPE_CHECKING:
    from lightning_sgmcmc.module import SGMCMCModule


def bind_data(module: SGMCMCModule) -> BatchStream | None:
    """Give the sampler N, and the minibatch stream the chains' seeds and shards.

    Returns:
        The stream, None where a loader of another kind is used.

    Raises:
        ValueError: If N is unknown, or the sampler's law does not hold under these minibatches.
    """
    sampler, trainer = module.sampler, module.trainer
    loader = trainer.train_dataloader
    stream = loader if isinstance(loader, BatchStream) else None
    if stream is not None:
        # As Lightning converts batches that it fetches itself, for precision "64-true".
        stream.tensors = trainer.precision_plugin.convert_input(stream.tensors)
        rank, share, _ = replicas(trainer)
        stream.bind(
            module.device,
            sampler.seed,
            sampler.chain,
            rank,
            share,
            sampler.batches,
            sampler.num_chains,
        )
    sampler.num_data = module.given_num_data or checks.training_set_size(loader)
    checks.check_batches(sampler, stream)
    return stream


def bind_target(module: SGMCMCModule) -> Target:
    """Make the target of a module's chains, with all that the sampler needs, and attach it."""
    sampler, trainer = module.sampler, module.trainer
    share, own = replicas(trainer).size, module.own_batches

    def average(tensors: list[Tensor]) -> None:
        for tensor in tensors:
            torch.distributed.all_reduce(tensor)
            tensor /= share

    reduce = average if share > 1 else None
    assert sampler.num_data is not None
    target = Target(
        lambda batch: module.evaluate("nll", batch, own),
        sampler.params,
        sampler.num_data,
        sampler.prior,
        reduce,
        sampler.lead,
    )
    if "per_example" in sampler.needs:
        target.per_example = PerExample(
            module,
            module.sampled,
            sampler.params,
            module.nll,
            lead=sampler.lead,
            shared_batch=not own,
            reduce=reduce,
            world_size=share,
        )
        target.draw_labels, target.label_uniforms = _labels(module, own), module.label_uniforms
    sampler.attach(target)
    return target


def _labels(module: SGMCMCModule, own: bool) -> Callable[[Batch, Tensor], Batch] | None:
    """Return how a batch gets labels drawn from the model, None where the task does not say."""
    from lightning_sgmcmc.module import SGMCMCModule

    if type(module).draw_labels is SGMCMCModule.draw_labels:
        return None
    if module.chains is not None and not own:
        raise ValueError(
            "labels drawn from the model need minibatches of each chain's own: train on a "
            'BatchStream that is not "full"'
        )

    def draw(batch: Batch, uniforms: Tensor) -> Batch:
        if module.chains is None:
            return module.draw_labels((batch, uniforms))
        return module.chains.evaluate("draw_labels", (batch, uniforms), True)

    return draw
