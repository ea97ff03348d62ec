"""Held-out examples that every draw predicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lightning_sgmcmc.chain import Chain, MethodOf, Task
from lightning_sgmcmc.common.functional import FunctionalCall
from lightning_sgmcmc.metrics import Law, PosteriorEnsemble
from lightning_sgmcmc.posterior.predict import joined, num_examples

#: Predictions of a held-out set that every draw leaves for the diagnostics.
PROBES = 128
# Examples that share them where an example has more outputs than that.
_SHARING = 8
#: The held-out sets on which runs are measured; a datamodule's ``extra_dataloaders()`` may name
#: others, such as examples of another kind, which every draw predicts too.
MEASURED = ("val", "test")
#: Name of an extra set of training examples; other extra sets are of another kind.
TRAINING = "train"


def probed_outputs(outputs: int) -> slice:
    """Return which of an example's outputs are probes: all, or some spread evenly over them.

    Args:
        outputs: Their number, D.
    """
    if outputs <= PROBES:
        return slice(None)
    count = PROBES // _SHARING
    return slice(0, count * (outputs // count), outputs // count)


def probed(predictions: Tensor) -> Tensor:
    """Return the probes among predictions [K, B, ...], at most ``PROBES`` a chain, [K, P].

    They are of the first examples.
    """
    flat = predictions.reshape(*predictions.shape[:2], -1)
    return flat[..., probed_outputs(flat.shape[-1])].flatten(1)[:, :PROBES]


@torch.no_grad()
def undisturbed_law(task: Task, batch: Any) -> Law:
    """Return the law of a batch's targets under the task's own weights, and leave it as it was."""
    buffers = {f"module.{name}": value.clone() for name, value in task.named_buffers()}
    with evaluating(task):  # with buffers of its own: some count dropout's masks
        law: Law = FunctionalCall(MethodOf(task, "law_of"))(buffers, batch)
    return law


class HeldOut:
    """A held-out set on the device, in batches whose order is fixed.

    Args:
        batches: Tensors, or tuples, lists or dicts of them, with examples along the first axis.

    Raises:
        ValueError: If there are none, or the tensors of a batch differ in length.
    """

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = list(batches)
        if not self._batches:
            raise ValueError("a held-out set is empty")
        self._sizes = [num_examples(batch) for batch in self._batches]
        self.examples = joined(self._batches)

    @property
    def first(self) -> Any:
        """The first batch."""
        return self._batches[0]

    @property
    def size(self) -> int:
        """Number of examples."""
        return sum(self._sizes)

    def batches(self, rank: int, world_size: int) -> Iterator[tuple[Any, torch.Tensor]]:
        """Yield this process's share of the batches, with the indices of their examples."""
        first = 0
        for i, (batch, size) in enumerate(zip(self._batches, self._sizes, strict=True)):
            last = first + size
            if i % world_size == rank:
                yield batch, torch.arange(first, last)
            first = last

    @torch.no_grad()
    def new_ensemble(self, chain: Chain, alone: bool = False) -> PosteriorEnsemble:
        """Return an empty ensemble for this set's examples, and leave the task as it was.

        Args:
            chain: The chain.
            alone: Whether this process has an ensemble of its own.
        """
        law = undisturbed_law(chain.task, self._batches[0])
        origin = _mean_target(self.examples, tuple(law.mean.shape[1:]))
        return PosteriorEnsemble.of(law, self.size, alone, origin).to(chain.device)

    @torch.no_grad()
    def add_draw(
        self,
        chain: Chain,
        ensemble: PosteriorEnsemble,
        weight: float,
        totals: Tensor | None = None,
    ) -> Tensor | None:
        """Add the predictions of the chains' current weights to an ensemble.

        Args:
            chain: The chain; its processes share the examples.
            ensemble: Of this set, as :meth:`new_ensemble` gives it.
            weight: Weight of the draw.
            totals: Each chain's own weighted sum, [K, N, ...], to which its predictions are added.

        Returns:
            The probes among the predictions of this process's first examples, [K, P]; see
            :func:`probed`. None where there are fewer batches than processes and this one has none.
        """
        probes = None
        with evaluating(chain.task):
            shares = self.batches(chain.processes.rank, chain.processes.size)
            for i, (batch, index) in enumerate(shares):
                predictions, *noise, nll = chain.evaluate("moments_and_nll", batch)
                if nll.dim() == 1:
                    predictions, nll, noise = predictions[None], nll[None], [v[None] for v in noise]
                if i == 0:
                    probes = probed(predictions).double().cpu()
                places = index.to(chain.device)
                for k, own in enumerate(nll):
                    own_noise = noise[0][k] if noise else None
                    ensemble.update(predictions[k], own, places, weight, own_noise)
                if totals is not None:
                    totals[:, places] += weight * predictions.to(totals.dtype)
        if probes is None:  # the joint answer changes without an update here
            ensemble._computed = None
        return probes


def _mean_target(examples: Any, shape: tuple[int, ...]) -> torch.Tensor | None:
    """Return the mean target of examples (x, y) where y is of the predictions' shape."""
    y = examples[1] if isinstance(examples, (tuple, list)) and len(examples) == 2 else None
    if not isinstance(y, torch.Tensor) or y.shape[1:] != shape or not y.is_floating_point():
        return None
    return y.double().mean(0)


@contextmanager
def evaluating(task: Task) -> Iterator[None]:
    """Put a task in evaluation mode for a while."""
    training = task.training
    task.eval()
    try:
        yield
    finally:
        task.train(training)
