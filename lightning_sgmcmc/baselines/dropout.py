"""Dropout whose masks a resumed run draws again, and prediction with masks: MC dropout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightning_sgmcmc.chain import Task
from lightning_sgmcmc.metrics import PosteriorEnsemble, Prediction

#: What masks are drawn for: of each the layer counts its calls.
_TRAINING, _EVALUATION, _PREDICTION = 0, 1, 2


class Dropout(nn.Module):
    """Set entries to zero with probability p and divide the others by 1 - p, while training.

    y = m x / (1 - p), m ~ Bernoulli(1 - p): inverted dropout, as ``torch.nn.Dropout``. The masks
    are a function of the layer's key and of the number of calls so far, which are buffers: they
    lie in checkpoints, so that a run that resumes goes on as it would have. Masks of evaluation are
    counted by themselves and leave those of training as they are.

    With ``monte_carlo`` masks are also drawn under ``eval()``: every draw that a run keeps then
    predicts with masks of its own. :func:`mc_dropout_predictions` predicts with one trained network
    many times. Minimising U/N with dropout is not sampling; Gal and Ghahramani (2016) read it as a
    variational approximation.

    Masks cannot be drawn under ``torch.func.vmap``: train an ensemble by one run a network.
    Processes that share a minibatch (DDP) draw the same masks for their parts of it.

    Args:
        p: Probability of a zero, in [0, 1).
        seed: Key of the layer's masks; None draws one from torch's global generator, as the
            initial weights of layers are. Layers with one seed and one shape have the same masks.
        monte_carlo: Draw masks under ``eval()`` too.

    Raises:
        ValueError: If p lies outside [0, 1) or the seed is negative.
    """

    key: Tensor
    calls: Tensor

    def __init__(self, p: float = 0.5, seed: int | None = None, monte_carlo: bool = False) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p must lie in [0, 1), got {p}")
        if seed is not None and seed < 0:
            raise ValueError(f"seed must not be negative, got {seed}")
        self.p, self.monte_carlo = float(p), monte_carlo
        key = int(torch.randint(2**62, ())) if seed is None else seed
        self.register_buffer("key", torch.tensor(key))
        #: Masks drawn so far in training and in evaluation.
        self.register_buffer("calls", torch.zeros(2, dtype=torch.int64))
        self._prediction: list[int] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return x with some entries zero and the others larger, shaped like x.

        Raises:
            RuntimeError: Under ``torch.func.vmap``.
        """
        predicting = self._prediction is not None
        if not self.p or not (self.training or self.monte_carlo or predicting):
            return x
        words = self._next()
        generator = torch.Generator(x.device)
        word = np.random.SeedSequence([int(self.key), *words]).generate_state(1, np.uint64)[0]
        generator.manual_seed(int(word >> np.uint64(1)))
        try:
            kept = torch.rand(x.shape, generator=generator, device=x.device) >= self.p
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
            raise RuntimeError(
                "Dropout draws no masks for several chains as one computation: use num_chains=1, "
                "one run a network"
            ) from None
        return x * kept / (1 - self.p)

    def _next(self) -> Sequence[int]:
        """Return what the next mask is a function of beside the key, and count it."""
        if self._prediction is not None:
            self._prediction[-1] += 1
            return (_PREDICTION, *self._prediction)
        kind = _TRAINING if self.training else _EVALUATION
        count = int(self.calls[kind])
        self.calls[kind] += 1
        return kind, count

    @contextmanager
    def predicting(self, seed: int, number: int) -> Iterator[None]:
        """Draw the masks of one numbered prediction for a while, the same whenever it is asked for.

        Args:
            seed: Which series of predictions.
            number: Which of them.
        """
        self._prediction = [seed, number, 0]
        try:
            yield
        finally:
            self._prediction = None

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"p={self.p:g}, monte_carlo={self.monte_carlo}"


@torch.no_grad()
def mc_dropout_predictions(module: Task, batch: Any, num: int, seed: int = 0) -> Prediction:
    """Return the average over predictions of one network under ``num`` draws of its masks.

    The batch's law and ``nll`` see the same masks. Nothing in the module changes.

    Args:
        module: The module, with :class:`Dropout` in its network.
        batch: The examples.
        num: Number of draws, positive.
        seed: Seed of the masks.

    Raises:
        ValueError: If ``num`` is not positive or the module has no :class:`Dropout`.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, Dropout)]
    if num < 1:
        raise ValueError(f"num must be positive, got {num}")
    if not layers:
        raise ValueError(
            f"{type(module).__name__} has no lightning_sgmcmc.baselines.Dropout, whose masks these "
            "predictions are averages over"
        )
    training, ensemble = {part: part.training for part in module.modules()}, None
    module.eval()
    try:
        for number in range(num):
            nll = _under_masks(module, layers, "nll", batch, seed, number)
            law = _under_masks(module, layers, "law_of", batch, seed, number)
            if ensemble is None:
                ensemble = PosteriorEnsemble.of(law, len(nll)).to(nll.device)
            index = torch.arange(len(nll), device=nll.device)
            ensemble.update(law.mean, nll, index, noise=law.noise)
    finally:
        for part, mode in training.items():
            part.training = mode
    assert ensemble is not None
    prediction: Prediction = ensemble.compute()
    return prediction


def _under_masks(
    module: Task, layers: list[Dropout], method: str, batch: Any, seed: int, number: int
) -> Any:
    """Return what a method gives under the masks of one numbered prediction."""
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(layer.predicting(seed, number))
        return getattr(module, method)(batch)
