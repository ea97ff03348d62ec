"""Where a run is in its training loader, so that it continues with the batches to come."""

from __future__ import annotations

import random
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.pytorch.utilities import CombinedLoader, rank_zero_info
from torch.utils._pytree import tree_leaves

from lightning_sgmcmc.chain.batches import BatchStream


class LoaderPlace:
    """The state of the random generators where an epoch of a loader began, and its batches so far.

    A continued run begins the epoch again from that state, which gives the loader the order that it
    had, and reads on to the batch where the run was. So it sees the batches to come, as long as the
    loader depends on nothing but the global generators of torch, numpy and Python and its own. Of
    processes that share a batch all go on with those of the first. Workers that persist from one
    epoch to the next have generators of their own, which begin anew: that is said.

    A :class:`~lightning_sgmcmc.BatchStream` needs none of it, and a loader with a ``state_dict`` of
    its own is continued by Lightning.
    """

    def __init__(self) -> None:
        self._place: dict[str, Any] | None = None
        self._restored: dict[str, Any] | None = None

    def open(self, trainer: L.Trainer) -> None:
        """Open the loader anew where the run is in it, and note where each epoch begins."""
        state, self._restored, self._place = self._restored, None, None
        loop, loader = trainer.fit_loop, trainer.train_dataloader
        fetcher: Any = loop._data_fetcher  # None where no step is left
        parts = tree_leaves(loader)
        theirs = any(isinstance(p, BatchStream) or hasattr(p, "load_state_dict") for p in parts)
        if fetcher is None or theirs:
            return
        step = trainer.global_step
        if state is not None and state["ended"]:
            self._place = {"opened": step, "step": step, "generators": state["now"]}
        elif state is not None:
            self._place = state | {"opened": step}
        epoch: Any = loop.epoch_progress.current
        for part in parts:
            _set_sampler_epoch(part, epoch.processed)  # as Lightning does later
        if state is not None and any(getattr(p, "persistent_workers", False) for p in parts):
            rank_zero_info(
                "Note: the loader's workers persisted, and begin anew: random numbers that the "
                "data set draws in them are others than without the stop"
            )
        fetcher.setup(_Opened(self, trainer, fetcher.combined_loader))
        iter(fetcher)

    def iterate(self, trainer: L.Trainer, batches: CombinedLoader) -> None:
        """Open an epoch, again in the same way if no step was taken since."""
        step, loader = trainer.global_step, trainer.train_dataloader
        if self._place is None or self._place["opened"] != step:
            self._place = {"opened": step, "step": step, "generators": generators(loader)}
        place = self._place
        set_generators(loader, place["generators"])
        iter(batches)
        for _ in range(step - place["step"]):
            next(batches)
        if "now" in place:
            set_generators(loader, place["now"])

    def state_dict(self, trainer: L.Trainer) -> dict[str, Any] | None:
        """Return where the run is, as plain values and tensors."""
        if self._place is None:
            return None
        return {
            "step": self._place["step"],
            "generators": self._place["generators"],
            "ended": trainer.fit_loop.epoch_loop._num_ready_batches_reached(),
            "now": generators(trainer.train_dataloader),
        }

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Continue from there when the loader is opened."""
        self._restored = state


class _Opened:
    """A loader that Lightning fetches from, opened by a :class:`LoaderPlace`."""

    def __init__(self, place: LoaderPlace, trainer: L.Trainer, batches: CombinedLoader) -> None:
        self._place, self._trainer, self._batches = place, trainer, batches

    def __iter__(self) -> _Opened:
        self._place.iterate(self._trainer, self._batches)
        return self

    def __next__(self) -> Any:
        return next(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def reset(self) -> None:
        self._batches.reset()


def generators(loader: Any) -> dict[str, Any]:
    """Return the states of the global random generators, and of a loader's own."""
    numpy = np.random.get_state(legacy=False)  # noqa: NPY002, which loaders may use
    assert isinstance(numpy, dict)
    key = torch.from_numpy(numpy["state"]["key"].astype(np.int64))
    return {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": numpy | {"state": {"key": key, "pos": numpy["state"]["pos"]}},
        "own": [generator.get_state() for generator in _own(loader)],
    }


def set_generators(loader: Any, states: dict[str, Any]) -> None:
    """Restore what :func:`generators` returned."""
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    inner = states["numpy"]["state"]
    key = inner["key"].numpy().astype(np.uint32)
    own = {"key": key, "pos": inner["pos"]}
    np.random.set_state(states["numpy"] | {"state": own})  # noqa: NPY002
    for generator, state in zip(_own(loader), states["own"], strict=False):
        generator.set_state(state)


def _own(loader: Any) -> list[torch.Generator]:
    """Return the generators of one or more loaders and of their samplers."""
    holders: list[Any] = []
    for part in tree_leaves(loader):
        batches = getattr(part, "batch_sampler", None)
        samplers = getattr(part, "sampler", None), batches, getattr(batches, "sampler", None)
        # Lightning deals a sampler's examples out to processes.
        dealt = [getattr(getattr(s, "dataset", None), "_sampler", None) for s in samplers]
        holders += [part, *samplers, *dealt]
    found = [getattr(holder, "generator", None) for holder in holders]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())
