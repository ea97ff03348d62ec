"""What draws of one run have in common: their target, how they are drawn, and the data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import Subset, TensorDataset

from lightning_sgmcmc.chain import BatchStream, Chain, OnDisk, checks
from lightning_sgmcmc.common.arguments import arguments_of, default_arguments
from lightning_sgmcmc.posterior.held_out import HeldOut
from lightning_sgmcmc.samplers import ChainsInTurn, Sampler

#: By name, each as text.
Fingerprint = dict[str, str]

#: Options of a task that say what is kept of the draws, not what is drawn.
_KEPT = ("draw_budget",)
#: What has an entry of its own among a sampler's options.
_APART = ("lr", "num_data", "prior", "preconditioner", "seed", "temperature")
#: Bytes of a tensor of which the content is read; of a larger one evenly spaced examples.
_READ = 1 << 28
#: Examples that are read from a disk at once.
_AT_ONCE = 4096


def of_target(chain: Chain) -> Fingerprint:
    """Return what says which law is sampled, and how.

    Called when the sampler is built and before its state is restored, since a metric, a prior and
    a step size that adapt change what they were built with.
    """
    task, draws = chain.task, chain.draws
    own = _one_sampler(chain)
    lr = own.param_groups[0].get("initial_lr", own.lr)
    found: dict[str, Any] = {
        "task": f"{type(task).__module__}.{type(task).__qualname__}",
        **{f"task.{k}": v for k, v in arguments_of(task).items() if k not in _KEPT},
        "sampler": f"{type(own).__module__}.{type(own).__qualname__}",
        **{f"sampler.{k}": v for k, v in arguments_of(own).items() if k not in _APART},
        "lr": "auto" if own.auto_lr else lr,
        "temperature": own.temperature,
        "prior": own.prior,
        "preconditioner": own.preconditioner,
        "seed": own.seed,
        "sampled weights": ", ".join(chain.sampled),
        "burn_in": draws.burn_in,
        "thinning": draws.thinning,
        "cycle": draws.cycle,
        "steps of the burn-in optimizer": chain.optimizer_steps,
        "collapse_head": chain.head is not None,
        "freeze_preconditioner": chain.freezes,
        "number of chains": chain.processes.all_chains(chain.num_chains),
    }
    return {name: str(value) for name, value in found.items()}


def defaults(chain: Chain) -> Fingerprint:
    """Return the defaults of the options that :func:`of_target` has of the task and the sampler."""
    kinds = {"task": type(chain.task), "sampler": type(_one_sampler(chain))}
    return {
        f"{part}.{name}": str(value)
        for part, kind in kinds.items()
        for name, value in default_arguments(kind).items()
    }


def of_data(chain: Chain, loader: Any, held_out: Mapping[str, HeldOut]) -> Fingerprint:
    """Return what says which data the chain sees, and which are held out from it.

    Args:
        chain: The chain, not yet bound to the loader.
        loader: Of the training data. Of one that is no :class:`BatchStream`, tensors are read
            only where its data set is made of them.
        held_out: By name.
    """
    found = {
        "num_data": str(chain.size_of(loader)),
        "batch_size": str(checks.batch_size(loader, chain.processes.size)),
        "training data": _hash(_training(loader)),
    }
    if isinstance(loader, BatchStream):
        auto = loader.sampling == "auto"
        found["sampling"] = chain.sampler.batches if auto else loader.sampling
        if found["sampling"] == "full":
            found["batch_size"] = str(loader.num_data)
    sets = {f"{name} data": _hash(_tensors(data.examples)) for name, data in held_out.items()}
    return found | sets


def refuse_other(
    old: Mapping[str, str], new: Mapping[str, str], unstated: Mapping[str, str] | None = None
) -> None:
    """Refuse to continue draws of one target as draws of another.

    Args:
        old: Of the draws so far.
        new: Of those to come.
        unstated: Values of what the older one may lack, because the version of the package that
            wrote it did not have that option yet.

    Raises:
        ValueError: If something differs; the first that does is named.
    """
    before = dict(unstated or {}) | dict(old)
    for name in dict.fromkeys([*old, *new]):
        if before.get(name) != new.get(name):
            raise ValueError(
                f"the run cannot be continued with another {name}: {_short(before.get(name))} so "
                f"far, {_short(new.get(name))} now; give what it had, or start a run of its own"
            )


def _one_sampler(chain: Chain) -> Sampler:
    sampler = chain.sampler
    return sampler.samplers[0] if isinstance(sampler, ChainsInTurn) else sampler


def _short(text: str | None) -> str:
    if text is None:
        return "none"
    return text if len(text) <= 80 else f"{text[:60]} ... ({len(text)} characters)"


def _training(loader: Any) -> Iterator[Tensor | OnDisk]:
    """Yield the tensors behind a loader, and the indices of a subset of them."""
    data = getattr(loader, "dataset", loader)
    while isinstance(data, Subset):
        yield torch.as_tensor(np.asarray(data.indices))
        data = data.dataset
    if isinstance(data, (BatchStream, TensorDataset)):
        yield from _tensors(data.tensors)


def _tensors(batch: Any) -> Iterator[Tensor | OnDisk]:
    """Yield the tensors of a batch in a fixed order."""
    return (leaf for leaf in tree_leaves(batch) if isinstance(leaf, (Tensor, OnDisk)))


def _hash(tensors: Iterator[Tensor | OnDisk]) -> str:
    """Return shapes and a SHA-256 of tensors."""
    digest, shapes = hashlib.sha256(), []
    for tensor in tensors:
        shapes.append("x".join(map(str, tensor.shape)) or "scalar")
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        every = -(-tensor.numel() * tensor.element_size() // _READ) if tensor.dim() else 1
        for part in _parts(tensor, max(1, every)):
            content = part.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(content.numpy().data)
    return f"{' and '.join(shapes) or 'of unknown content'} ({digest.hexdigest()[:16]})"


def _parts(tensor: Tensor | OnDisk, every: int) -> Iterator[Tensor]:
    """Yield evenly spaced examples of a tensor, a part at a time of one on disk."""
    if isinstance(tensor, Tensor):
        yield tensor[::every] if tensor.dim() else tensor
        return
    for first in range(0, len(tensor), _AT_ONCE * every):
        yield tensor[first : first + _AT_ONCE * every : every]
