"""What a run refuses or announces before it starts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
)

from lightning_sgmcmc.chain.batches import BatchStream
from lightning_sgmcmc.chain.processes import Processes
from lightning_sgmcmc.chain.schedules import DrawSchedule
from lightning_sgmcmc.samplers import Sampler
from lightning_sgmcmc.target import GradientEstimator
from lightning_sgmcmc.target.vmapped_gradients import mixing_layers


def check_counts(draw_budget: int, num_data: int | None, num_chains: int) -> None:
    """Raise ValueError if a number of a module's lies outside its range."""
    if draw_budget < 0:
        raise ValueError(f"draw_budget must not be negative, got {draw_budget}")
    if num_data is not None and num_data < 1:
        raise ValueError(f"num_data must be positive, got {num_data}")
    if num_chains < 1:
        raise ValueError(f"num_chains must be at least 1, got {num_chains}")


def tried(sampler: Callable[[Iterable[Any]], Sampler]) -> Sampler:
    """Return a sampler of a stand-in, so that a wrong argument is an error here, not mid-run.

    Raises:
        TypeError: If ``sampler`` cannot be called, or what it returns is no sampler.
    """
    if not callable(sampler):  # jsonargparse leaves as it is what has no type
        raise TypeError(
            f"sampler must be a class or function of the parameters, got {sampler!r}; a task of "
            "your own annotates it sampler: Callable[[Iterable], Sampler]"
        )
    built = sampler([nn.Parameter(torch.zeros(1))])
    if not isinstance(built, Sampler):
        raise TypeError(
            f"sampler must build a lightning_sgmcmc Sampler, got {type(built).__name__}"
        )
    return built


def refuse_batch_statistics(module: nn.Module) -> None:
    """Raise ValueError if an example's likelihood would depend on the rest of its minibatch."""
    layers = mixing_layers(module)
    if layers:
        raise ValueError(
            f"{_first_three(layers)} would normalise by the statistics of each minibatch, "
            "so that there is no likelihood of an example and no posterior: freeze running "
            "statistics with eval(), or use GroupNorm, LayerNorm or filter response normalisation"
        )


def refuse_dropout(module: nn.Module) -> None:
    """Raise ValueError if a layer would draw masks while the chain samples."""
    layers = [
        f"{name} ({type(layer).__name__})"
        for name, layer in module.named_modules()
        if layer.training and _drop_probability(layer) > 0
    ]
    if layers:
        raise ValueError(
            f"{_first_three(layers)} would draw new masks at every evaluation, so that there is no "
            "likelihood of an example and no posterior: switch dropout off with eval() or p = 0"
        )


def refuse_embeddings(module: nn.Module, sampled: Collection[str]) -> None:
    """Raise ValueError if a layer's gradient is not that of the likelihood, or sparse.

    Args:
        module: The task.
        sampled: Names of the weights that are sampled.
    """
    chosen = {id(p) for name, p in module.named_parameters() if name in sampled}
    for name, layer in module.named_modules():
        if not isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) or id(layer.weight) not in chosen:
            continue
        for option in ("padding_idx", "max_norm"):
            if getattr(layer, option) is not None:
                raise ValueError(
                    f"{name} ({type(layer).__name__}) has {option}, with which its gradient is not "
                    "that of the likelihood: leave it out, and mask the padding in forward"
                )
        if layer.sparse:
            raise ValueError(
                f"{name} ({type(layer).__name__}) has sparse gradients, and noise moves every "
                "weight at every step: use sparse=False"
            )


def _drop_probability(layer: nn.Module) -> float:
    if isinstance(layer, _DropoutNd):
        return layer.p
    if isinstance(layer, (nn.MultiheadAttention, nn.RNNBase)):
        return layer.dropout
    return 0.0


def _first_three(layers: list[str]) -> str:
    more = f" and {len(layers) - 3} others" if len(layers) > 3 else ""
    return ", ".join(layers[:3]) + more


def evaluation_layers(module: nn.Module) -> list[nn.Module]:
    """Return the layers that are in evaluation mode, such as frozen batch normalisations."""
    return [layer for layer in module.modules() if not layer.training]


def check_length(max_steps: int, schedule: DrawSchedule) -> None:
    """Raise ValueError if no draw would be kept within ``max_steps`` (-1: unknown)."""
    if max_steps == -1:
        return
    if schedule.burn_in >= max_steps:
        raise ValueError(
            f"burn_in = {schedule.burn_in} is not shorter than the run of max_steps = {max_steps}: "
            "raise trainer.max_steps or lower burn_in"
        )
    if schedule.count(max_steps) == 0:
        raise ValueError(
            f"no draw is due in {max_steps} steps with burn_in = {schedule.burn_in} and thinning = "
            f"{schedule.thinning}: raise trainer.max_steps or lower one of them"
        )


def check_schedule(sampler: Sampler, scheduler: LRScheduler) -> None:
    """Raise ValueError if a schedule does not say the step size from the number of the step."""
    kind = type(scheduler).__name__
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ValueError(
            f"{kind} follows a loss, and the law of a chain whose steps go by its past is not "
            "known: choose a schedule that is a function of the step"
        )
    if sampler.auto_lr and not isinstance(scheduler, LambdaLR):
        raise ValueError(
            f'lr: "auto" changes the step size that a schedule starts from, which {kind} does not '
            "take in: use a schedule of lightning_sgmcmc.chain.schedules or a LambdaLR, or give lr"
        )


def check_freezing(sampler: Sampler, schedule: DrawSchedule, freeze: bool) -> None:
    """Raise ValueError if an adaptive C would freeze before it has seen a gradient."""
    if freeze and sampler.preconditioner.adaptive and schedule.burn_in == 0:
        raise ValueError(
            f"{sampler.preconditioner!r} freezes at the end of burn-in, but burn_in is 0: give it "
            "some steps to adapt in, or set freeze_preconditioner to false"
        )
    if freeze and sampler.prior.adaptive and schedule.burn_in == 0:
        raise ValueError(
            f"{sampler.prior!r} learns during burn-in, but burn_in is 0: give it some steps to "
            "learn in, or set freeze_preconditioner to false"
        )
    if freeze:
        sampler.check_burn_in(schedule.burn_in - schedule.optimizer_steps)


def check_batches(sampler: Sampler, loader: Any) -> None:
    """Raise ValueError for minibatches under which the sampler's law does not hold at all."""
    stream = loader if isinstance(loader, BatchStream) else None
    if sampler.batches == "full" and (stream is None or stream.sampling != "full"):
        raise ValueError(
            f"{sampler.name} needs the gradient of the whole data: train on a BatchStream with "
            'sampling="full"'
        )
    given = sampler.num_data or 1
    if stream is not None and given < stream.batch_size:
        raise ValueError(
            f"num_data = {given} is smaller than the batch of {stream.batch_size}: N is the number "
            "of training examples"
        )
    if stream is None and sampler.temperature:
        _refuse_uneven(loader, sampler.batch_size)


def _refuse_uneven(loader: Any, size: int) -> None:
    """Raise ValueError if the same examples of every pass count more than others, or not at all."""
    if not size or sampling_of(loader) != "the same in every pass":
        return
    try:
        num = training_set_size(loader)
    except ValueError:
        return  # of a data set without a length
    if num > size and num % size:
        raise ValueError(
            f"minibatches of {size} of {num} examples are the same in every pass of the dataloader "
            f"and leave {num % size} over, which count more than the others or not at all: give "
            "the loader shuffle=True, or train on a BatchStream"
        )


def check_gradients(
    sampler: Sampler, gradients: GradientEstimator, stream: BatchStream | None
) -> None:
    """Raise ValueError where a gradient estimator has no use or breaks the sampler's law."""
    if not gradients.needs_whole_data:
        return
    if stream is None:
        raise ValueError(
            f"{gradients!r} needs the gradient of the whole data: train on a BatchStream"
        )
    if stream.sampling == "full":
        raise ValueError(
            f"{gradients!r} has no noise to take away from gradients of the whole data: leave it "
            'out, or choose another sampling than "full"'
        )
    if sampler.batches == "independent":
        raise ValueError(
            f"{sampler.name} counts the noise of plain minibatches in its law, which {gradients!r} "
            "would take away: leave it out, or choose another sampler"
        )


def check_collapsed(
    sampler: Sampler, stream: BatchStream | None, processes: Processes, starts: str | None
) -> None:
    """Raise ValueError where a head cannot be integrated out."""
    if starts == "randomised_map":
        raise ValueError(
            'collapse_head has one set of labels for all chains, which starts "randomised_map" '
            "move for each: choose other starts"
        )
    sampling = None if stream is None else stream.sampling
    if (sampler.batches if sampling == "auto" else sampling) != "full":
        raise ValueError(
            "collapse_head needs the whole data at every step: train on a BatchStream with "
            'sampling="full"'
        )
    if processes.size > 1:
        raise ValueError(
            "collapse_head has no data-parallel form: use --trainer.strategy chains instead of ddp"
        )
    if sampler.temperature != 1:
        raise ValueError(
            f"collapse_head needs temperature 1, got {sampler.temperature:g}: at another one the "
            "other weights do not follow the collapsed potential"
        )
    if "per_example" in sampler.needs:
        raise ValueError(
            f"collapse_head couples all examples, so that {sampler.preconditioner!r} has no "
            "gradients of single ones: choose another preconditioner"
        )


def check_randomised(
    sampler: Sampler, stream: BatchStream | None, optimizer_steps: int
) -> BatchStream:
    """Return the stream that starts ``"randomised_map"`` perturb.

    Raises:
        ValueError: If no optimizer or no stream is there to find them with.
    """
    if not optimizer_steps:
        raise ValueError(
            'starts "randomised_map" are found by an optimizer: give burn_in_optimizer'
        )
    if stream is None:
        raise ValueError('starts "randomised_map" perturb labels by example: use a BatchStream')
    if stream.on_disk:
        raise ValueError(
            'starts "randomised_map" hold each chain\'s labels in memory, and data are on disk: '
            "choose other starts"
        )
    if stream.sampling == "full" and sampler.num_chains and "per_example" in sampler.needs:
        raise ValueError(
            'starts "randomised_map" give each chain labels of its own, but per-example gradients '
            'of full batches are of common ones: use "reshuffled" minibatches'
        )
    return stream


def training_set_size(loader: Any) -> int:
    """Return the number of training examples behind a loader.

    Raises:
        ValueError: If the loader does not tell.
    """
    if isinstance(loader, BatchStream):
        return loader.num_data
    examples: Any = getattr(loader, "dataset", None)
    if isinstance(loader, DataLoader):  # without batch_size its data set holds batches
        examples = None if loader.batch_sampler is None else _examples(loader)
    try:
        return len(examples)
    except TypeError:
        raise ValueError(
            "the number of training examples cannot be read from the train dataloader: give "
            "num_data to the module"
        ) from None


def batch_size(loader: Any, world_size: int) -> int:
    """Return the number of examples in a minibatch of all processes, 0 where it is not known."""
    if isinstance(loader, BatchStream):
        return loader.batch_size
    return (_batch_size(loader) or 0) * world_size


def _batch_size(loader: Any) -> int | None:
    own = getattr(loader, "batch_size", None)
    size: int | None = getattr(getattr(loader, "batch_sampler", None), "batch_size", own)
    return size


def plain_loader(loader: Any) -> Any:
    """Return a loader of the same examples in the data set's order, on every rank alike.

    Args:
        loader: Of which a sampler may choose the examples.

    Raises:
        ValueError: If it has a sampler that is none of torch's usual ones.
    """
    if not isinstance(loader, DataLoader):
        return loader
    examples = _examples(loader)
    if examples is None:
        raise ValueError(
            f"which examples {_chosen_by(loader)} of a dataloader goes through is not known: let "
            "the loader go through a torch.utils.data.Subset of the data set without it"
        )
    return DataLoader(examples, batch_size=_batch_size(loader), collate_fn=loader.collate_fn)


def _chosen_by(loader: DataLoader[Any]) -> str:
    chosen = loader.sampler if loader.batch_size is not None else loader.batch_sampler
    return type(chosen).__name__


def _order(loader: DataLoader[Any]) -> Any:
    """Return what chooses a loader's examples, a sampler of torch's kind or None."""
    order: Any = loader.sampler
    if loader.batch_sampler is not None:
        order = getattr(loader.batch_sampler, "sampler", None)
    if isinstance(order, DistributedSampler):  # Lightning's own may hold another one's indices
        order = getattr(order.dataset, "_sampler", order)
    return order


def _examples(loader: DataLoader[Any]) -> Dataset[Any] | None:
    """Return what a loader goes through, each example once; None where that is not known."""
    order = _order(loader)
    if isinstance(order, SubsetRandomSampler):
        return Subset(loader.dataset, sorted(order.indices))
    usual = (SequentialSampler, RandomSampler, DistributedSampler)
    if isinstance(order, usual) or isinstance(loader.dataset, IterableDataset):
        return loader.dataset
    return None


def sampling_of(loader: Any) -> str:
    """Return how a loader other than a BatchStream draws minibatches; empty if that is not known.

    It is ``reshuffled``, ``independent`` (with replacement), or ``the same in every pass``.
    """
    order = _order(loader) if isinstance(loader, DataLoader) else None
    if isinstance(order, RandomSampler):
        return "independent" if order.replacement else "reshuffled"
    shuffles = isinstance(order, SubsetRandomSampler) or getattr(order, "shuffle", False)
    if shuffles or isinstance(order, (SequentialSampler, DistributedSampler)):
        return "reshuffled" if shuffles else "the same in every pass"
    return ""


def target_notes(sampler: Sampler, freeze: bool, sampling: str) -> list[str]:
    """Return, in words, where a chain's law is not the posterior at temperature 1.

    Args:
        sampler: The chain's.
        freeze: Whether what adapts freezes where burn-in ends.
        sampling: How minibatches are drawn, empty if that is not known.
    """
    notes = sampler.caveats(freeze)
    if not notes and sampler.temperature != 1:
        notes.append(
            f"temperature is {sampler.temperature:g}: the draws are of the posterior to the power "
            f"{'infinity' if sampler.temperature == 0 else format(1 / sampler.temperature, 'g')}, "
            "not of the posterior"
        )
    if not sampler.prior.proper:
        notes.append("the prior is flat: the posterior may be improper in some directions")
    if sampler.preconditioner.adaptive and not freeze:
        notes.append("draws are kept while the preconditioner adapts, which changes the target")
    if sampler.prior.adaptive and not freeze:
        notes.append("draws are kept while the prior adapts, so that the target still moves")
    if getattr(sampler, "adapting", False) and not freeze:
        notes.append("draws are kept while the step adapts, which changes the target")
    if sampling and sampler.batches == "independent" != sampling:
        notes.append(
            f"minibatches are {sampling}, but {sampler.name} counts on independent ones "
            "for its noise: its variances will be off"
        )
    return notes


def parameters_finite(sampler: Sampler) -> bool:
    """Return whether every sampled weight is finite."""
    return bool(torch.stack([torch.isfinite(p).all() for p in sampler.params]).all())
