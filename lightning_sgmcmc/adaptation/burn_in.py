"""What is due between the steps of a chain until its first draw."""

from __future__ import annotations

import math
from typing import Any

import torch

from lightning_sgmcmc.adaptation.heating import EXAMPLES
from lightning_sgmcmc.adaptation.step_size import StepSize
from lightning_sgmcmc.chain import Chain
from lightning_sgmcmc.common.waiting import said_if_long

#: Largest factor by which lr is raised from one measurement of the burn-in to the next.
_GROWTH = 2.0
#: Parts of each doubling of the steps taken after which the curvature is looked at as well, and
#: the steps from which on it is.
_PARTS, _PARTS_FROM = 4, 16


class Adaptation:
    """Choose a chain's step size while it burns in, and freeze C where burn-in ends.

    Args:
        chain: The chain, which may not be built yet.
        step_size: How ``lr="auto"`` is chosen.

    Attributes:
        stability: Where the step size stands: see :meth:`StepSize.settle`.
        curvatures: The largest curvature by the steps of the sampler after which it was measured,
            in the last half of them.
    """

    def __init__(self, chain: Chain, step_size: StepSize) -> None:
        self.chain, self._step_size = chain, step_size
        self.stability: dict[str, float] = {}
        self.curvatures: dict[int, float] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return what was measured so far."""
        return {"stability": self.stability, "curvatures": self.curvatures}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what was measured before; an empty ``state_dict`` forgets all."""
        self.stability = state_dict.get("stability", {})
        self.curvatures = state_dict.get("curvatures", {})

    def after_step(self) -> None:
        """Do what is due after so many steps, before the first one included.

        Raises:
            NonFiniteGradientError: If something is due, and the chain has diverged before it.
        """
        chain, burn_in = self.chain, self.chain.draws.burn_in
        auto, taken = chain.sampler.auto_lr, self._taken
        if auto and taken == 0:
            self._show_gradients()
        if chain.steps == burn_in:
            self._end()
        elif auto and chain.steps < burn_in and taken >= 0:
            doubling = 1 << max(taken.bit_length() - 1, 0)
            if taken in (0, doubling):
                # C, and the curvature where an optimizer stopped, change by orders of magnitude in
                # the chain's first steps, the curvature both ways: a low one may not last.
                self._settle(largest=_GROWTH * chain.base_lr if taken else math.inf)
                self._refresh()
            elif doubling >= _PARTS_FROM and taken % (doubling // _PARTS) == 0:
                self._watch()

    def _end(self) -> None:
        chain, sampler = self.chain, self.chain.sampler
        sampler.look_back()
        chain.task.on_burn_in_end()
        if chain.freezes:
            sampler.freeze()
        elif sampler.corrected:
            sampler.refresh()  # it knows the potential, whose constants may be others now
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
        for batch in chain.first_minibatches(max(0, horizon - chain.optimizer_steps)):
            chain.target.use(batch)
            with chain.target.recording():
                grads = chain.target.gradient(batch)
            with torch.no_grad():
                sampler.show(grads)

    def _settle(self, largest: float = math.inf) -> None:
        self.chain.sampler.look_back()
        batches = self.chain.first_minibatches(self._count())
        with said_if_long(self._measuring("the curvature and the minibatches' noise")):
            self.stability = self._step_size.settle(self.chain, batches, largest, self._known)
        if self.stability:
            self._note(self.stability["curvature"])

    def _watch(self) -> None:
        """Lower lr where the curvature has risen since lr was set."""
        chain = self.chain
        chain.sampler.look_back()
        with said_if_long(self._measuring("the curvature")):
            batches = chain.first_minibatches(self._count())
            self._note(self._step_size.curvature(chain, batches))
        if self._step_size.lower(chain, self._known):
            self._refresh()

    def _measuring(self, what: str) -> str:
        return f"measuring {what} after {self.chain.steps} steps, for the step size ..."

    @property
    def _taken(self) -> int:
        """The steps that the sampler has taken, negative before it takes over."""
        return self.chain.steps - self.chain.optimizer_steps

    @property
    def _known(self) -> float:
        """The largest curvature of the last half of the sampler's steps, 0 if none was measured."""
        return max(self._last_half.values(), default=0.0)

    @property
    def _last_half(self) -> dict[int, float]:
        return {at: c for at, c in self.curvatures.items() if at >= self._taken / 2}

    def _note(self, curvature: float) -> None:
        self.curvatures = self._last_half | {self._taken: curvature}

    def _refresh(self) -> None:
        """Draw the velocity anew, to which a start far above the typical potential turns.

        Under a C that still adapts one drawn anew may be far too large a little later.
        """
        if self.chain.sampler.preconditioner.frozen:
            self.chain.sampler.refresh()

    def _count(self) -> int:
        """Return how many minibatches show curvature and noise."""
        count, size = self._step_size.curvature_batches, self.chain.sampler.batch_size
        return max(count, -(-EXAMPLES // size)) if size else count
