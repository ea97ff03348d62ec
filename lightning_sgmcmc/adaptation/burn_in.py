"""What is due between the steps of a chain until its first draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from lightning_sgmcmc.adaptation.heating import EXAMPLES
from lightning_sgmcmc.adaptation.step_size import StepSize
from lightning_sgmcmc.chain import Chain
from lightning_sgmcmc.target import Batch

#: Largest factor by which lr is raised from one measurement of the burn-in to the next.
_GROWTH = 2.0
#: Eighths of the chain's burn-in after which its curvature is noted, for the step where it ends.
_LATE = (5, 6, 7)


class Adaptation:
    """Choose a chain's step size while it burns in, and freeze C where burn-in ends.

    Args:
        chain: The chain, which may not be built yet.
        step_size: How ``lr="auto"`` is chosen.
        sample: Returns so many minibatches, for a loader that is no
            :class:`~lightning_sgmcmc.BatchStream`.

    Attributes:
        stability: Where the step size stands: see :meth:`StepSize.settle`.
    """

    def __init__(
        self,
        chain: Chain,
        step_size: StepSize,
        sample: Callable[[int], Sequence[Batch]] | None = None,
    ) -> None:
        self.chain, self._step_size, self._sample = chain, step_size, sample
        self.stability: dict[str, float] = {}

    def after_step(self) -> None:
        """Do what is due after so many steps, before the first one included.

        Raises:
            NonFiniteGradientError: If something is due, and the chain has diverged before it.
        """
        chain, burn_in = self.chain, self.chain.draws.burn_in
        auto, taken = chain.sampler.auto_lr, chain.steps - chain.optimizer_steps
        if auto and taken == 0:
            self._show_gradients()
        if chain.steps == burn_in:
            self._end()
        elif auto and chain.steps < burn_in and taken & (taken - 1) == 0 and taken >= 0:
            # C, and the curvature where an optimizer stopped, change by orders of magnitude in the
            # chain's first steps, the curvature both ways: a low one may not last.
            base = float(chain.schedule.base_lrs[0])  # without the schedule's factor
            self._settle(largest=_GROWTH * base if taken else math.inf)
            if chain.sampler.preconditioner.frozen:
                # A start far above the typical potential turns it into velocity. Under a C that
                # still adapts a velocity drawn anew may be far too large a little later.
                chain.sampler.refresh()
        elif auto and taken in [(burn_in - chain.optimizer_steps) * n // 8 for n in _LATE]:
            chain.sampler.look_back()
            curvature = self._step_size.curvature(chain, self._batches(self._count()))
            self.stability["late_curvature"] = max(self._known, curvature)

    def _end(self) -> None:
        chain, sampler = self.chain, self.chain.sampler
        sampler.look_back()
        chain.task.on_burn_in_end()
        if chain.freezes:
            sampler.freeze()
        if sampler.auto_lr or sampler.preconditioner.frozen:
            self._settle()
        assert sampler.num_data is not None
        curvature = sampler.prior.max_curvature(sampler.params)
        sampler.preconditioner.check(sampler.lr, sampler.num_data, curvature)

    def _show_gradients(self) -> None:
        """Show C the gradients of minibatches, as far as the optimizer has not, without a step.

        A C that has seen none, or a single one, is orders of magnitude away from what it is a step
        later, and the largest stable step with it. Whole data are one minibatch.
        """
        chain, sampler = self.chain, self.chain.sampler
        if sampler.preconditioner.frozen:
            return
        horizon = 1 if chain.batch_law == "full" else sampler.preconditioner.horizon
        assert chain.target is not None
        for batch in self._batches(max(0, horizon - chain.optimizer_steps)):
            chain.target.use(batch)
            with chain.target.recording():
                grads = chain.target.gradient(batch)
            with torch.no_grad():
                sampler.show(grads)

    @property
    def _known(self) -> float:
        """The largest curvature that was noted late in burn-in, 0 before."""
        return self.stability.get("late_curvature", 0.0)

    def _settle(self, largest: float = math.inf) -> None:
        self.chain.sampler.look_back()
        known, batches = self._known, self._batches(self._count())
        self.stability = self._step_size.settle(self.chain, batches, largest, known)
        if known:
            self.stability["late_curvature"] = known

    def _batches(self, count: int) -> Sequence[Batch]:
        """Return the first minibatches of the data, once where each is all of them."""
        stream = self.chain.stream
        if stream is not None:
            return [stream.at(i) for i in range(1 if stream.sampling == "full" else count)]
        return self._sample(count) if self._sample is not None else []

    def _count(self) -> int:
        """Return how many minibatches show curvature and noise."""
        count, size = self._step_size.curvature_batches, self.chain.sampler.batch_size
        return max(count, -(-EXAMPLES // size)) if size else count
