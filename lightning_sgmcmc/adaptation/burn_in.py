"""What is due between the steps of a chain until its first draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lightning_sgmcmc.adaptation.heating import EXAMPLES
from lightning_sgmcmc.adaptation.step_size import StepSize
from lightning_sgmcmc.chain import Chain
from lightning_sgmcmc.target import Batch


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
        """Do what is due after so many steps, before the first one included."""
        chain, burn_in = self.chain, self.chain.draws.burn_in
        if chain.steps == burn_in:
            self._end()
        elif chain.sampler.auto_lr and chain.steps < burn_in:
            # C, and the curvature where an optimizer stopped, change by orders of magnitude in the
            # chain's first steps.
            taken = chain.steps - chain.optimizer_steps
            if taken == 0 or _power_of_four(taken):
                self._settle()

    def _end(self) -> None:
        chain, sampler = self.chain, self.chain.sampler
        chain.task.on_burn_in_end()
        if chain.freezes:
            sampler.freeze()
        if sampler.auto_lr or sampler.preconditioner.frozen:
            self._settle()
        assert sampler.num_data is not None
        curvature = sampler.prior.max_curvature(sampler.params)
        sampler.preconditioner.check(sampler.lr, sampler.num_data, curvature)

    def _settle(self) -> None:
        count, stream = self._count(), self.chain.stream
        if stream is not None:
            batches: Sequence[Batch] = [stream.at(i) for i in range(count)]
        elif self._sample is not None:
            batches = self._sample(count)
        else:
            batches = []
        self.stability = self._step_size.settle(self.chain, batches)

    def _count(self) -> int:
        """Return how many minibatches show curvature and noise."""
        count, size = self._step_size.curvature_batches, self.chain.sampler.batch_size
        return (
            max(count, -(-EXAMPLES // size)) if size and self.chain.batch_law != "full" else count
        )


def _power_of_four(step: int) -> bool:
    return step > 0 and step & (step - 1) == 0 and step.bit_length() % 2 == 1
