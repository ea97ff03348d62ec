"""The step size of a chain beside the largest stable one, and choosing it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lightning_sgmcmc.adaptation.noise import minibatch_noise
from lightning_sgmcmc.adaptation.stability import largest_eigenvalue
from lightning_sgmcmc.chain import Chain
from lightning_sgmcmc.target import Batch


@dataclass(frozen=True)
class StepSize:
    """How ``lr="auto"`` is chosen.

    Args:
        fraction: The step size as a fraction of the largest stable one, in (0, 1).
        curvature_batches: Minibatches from which that one is estimated.
        max_gradient_noise: The largest ratio of the minibatches' noise to the injected noise
            (:func:`~lightning_sgmcmc.adaptation`), for which the step is made
            smaller than ``fraction`` says, in burn-in only after an optimizer; None sets no bound.

    Raises:
        ValueError: If a value lies outside its range.
    """

    fraction: float = 0.1
    curvature_batches: int = 4
    max_gradient_noise: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 1:
            raise ValueError(f"step_fraction must lie in (0, 1), got {self.fraction}")
        if self.curvature_batches < 1:
            raise ValueError(f"curvature_batches must be at least 1, got {self.curvature_batches}")
        bound = self.max_gradient_noise
        if bound is not None and not bound > 0:
            raise ValueError(f"max_gradient_noise must be positive, got {bound}")

    def settle(self, chain: Chain, batches: Sequence[Batch]) -> dict[str, float]:
        """Measure the stability limit at a chain's weights; if lr is "auto", take a part of it.

        The limit is where lr lambda_max(C^(1/2) H C^(1/2)) reaches what the sampler's integrator
        can bear, H the Hessian of U/N (:func:`~lightning_sgmcmc.adaptation.largest_eigenvalue`). A
        fraction f of it inflates the variance along the stiffest direction by f / (1 - f) for
        Euler-Maruyama, and less along others. An "auto" step is smaller where minibatches would
        else add more than ``max_gradient_noise`` to the injected noise, to which that share is
        proportional.

        Args:
            chain: The chain, bound to its data.
            batches: Equally large minibatches that stand for the data.

        Returns:
            ``lr``, ``largest_stable_lr``, ``fraction``, ``variance_bias`` and, where it bounds lr,
            ``gradient_noise``; empty for a sampler that has no such limit, and where the limit
            cannot be measured and lr is given.

        Raises:
            ValueError: If lr is "auto" and the limit cannot be measured.
        """
        sampler = chain.sampler
        if math.isinf(sampler.max_stable_lr(1.0)):
            return {}
        assert chain.target is not None
        try:
            eigenvalue = largest_eigenvalue(
                chain.target, sampler.preconditioner, batches, masks=sampler.masks
            )
        except (RuntimeError, ValueError) as error:
            if sampler.auto_lr:
                raise ValueError(
                    f'lr="auto" needs the curvature of the potential, which failed: {error}'
                ) from error
            rank_zero_info(f"Note: the largest stable step could not be measured: {error}")
            return {}
        eigenvalue = max(eigenvalue, sampler.preconditioner.expected_eigenvalue)
        limit = chain.processes.broadcast(sampler.max_stable_lr(eigenvalue))
        noise = None
        if sampler.auto_lr:
            lr, noise = self._bounded(chain, self.fraction * limit)
            chain.set_lr(lr)
        fraction = sampler.lr / limit
        result = {"lr": sampler.lr, "largest_stable_lr": limit, "fraction": fraction}
        if fraction < 1:
            result["variance_bias"] = sampler.variance_bias(fraction)
        why = ""
        if noise is not None:
            result["gradient_noise"] = noise
            why = f", where minibatches add {noise:.2g} to the injected noise"
        if sampler.auto_lr:
            rank_zero_info(
                f"lr: {sampler.lr:.3g}, {fraction:.2g} of the largest stable step {limit:.3g} "
                f"(lambda_max of C H is {eigenvalue:.3g}){why}; {_bias(result['variance_bias'])}"
            )
        elif fraction >= 1:
            rank_zero_warn(
                f"lr = {sampler.lr:.3g} exceeds the largest stable step {limit:.3g} at these "
                f"weights (lambda_max of C H is {eigenvalue:.3g}): the chain will leave them or "
                "diverge. Lower lr, or let lr: auto choose it"
            )
        return result

    def _bounded(self, chain: Chain, lr: float) -> tuple[float, float | None]:
        """Return a step lowered as far as the minibatches' noise asks, and the bound if it was.

        Far from a mode gradients differ most, and a chain that starts there without an optimizer
        has the way still to go: its step is bounded from where burn-in ends.
        """
        bound = self.max_gradient_noise
        if bound is None or chain.sampler.absorbs_gradient_noise:
            return lr, None
        if not chain.optimizer_steps and chain.steps < chain.draws.burn_in:
            return lr, None
        noise = minibatch_noise(chain, lr)
        if noise is None:
            return lr, None
        ratio = chain.processes.broadcast(noise.total.ratio)
        return (lr * bound / ratio, bound) if ratio > bound else (lr, None)


def _bias(value: float) -> str:
    if value == 0:
        return "exact variances on a Gaussian"
    return f"variances at most {100 * value:.2g} % too large on a Gaussian"
