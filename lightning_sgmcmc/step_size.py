"""The step size of a chain beside the largest stable one, and choosing it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lightning_sgmcmc import checks
from lightning_sgmcmc.stability import largest_eigenvalue

if TYPE_CHECKING:
    from lightning_sgmcmc.diagnostics import GradientNoise
    from lightning_sgmcmc.module import SGMCMCModule

# Minibatches that their noise is measured from.
_NOISE_BATCHES = 8


def settle(module: SGMCMCModule) -> dict[str, float]:
    """Measure the stability limit at a module's weights; set lr to a part of it if that is "auto".

    The limit is where lr lambda_max(C^(1/2) H C^(1/2)) reaches what the sampler's integrator can
    bear, H the Hessian of U/N (:mod:`lightning_sgmcmc.stability`). A fraction f of it inflates the
    variance along the stiffest direction by f / (1 - f) for Euler-Maruyama, and less along others.
    An "auto" step is smaller where minibatches would else add more than ``max_gradient_noise`` to
    the injected noise, to which that share is proportional.

    Returns:
        ``lr``, ``largest_stable_lr``, ``fraction``, ``variance_bias`` and, where it bounds lr,
        ``gradient_noise``; empty for a sampler that has no such limit, and where the limit cannot
        be measured and lr is given.

    Raises:
        ValueError: If lr is "auto" and the limit cannot be measured.
    """
    sampler = module.sampler
    if math.isinf(sampler.max_stable_lr(1.0)):
        return {}
    assert module.target is not None
    try:
        eigenvalue = largest_eigenvalue(
            module.target,
            sampler.preconditioner,
            module.curvature_sample(),
            masks=sampler.masks,
        )
    except (RuntimeError, ValueError) as error:
        if sampler.auto_lr:
            raise ValueError(
                f'lr="auto" needs the curvature of the potential, which failed: {error}'
            ) from error
        rank_zero_info(f"Note: the largest stable step could not be measured: {error}")
        return {}
    limit = float(module.trainer.strategy.broadcast(sampler.max_stable_lr(eigenvalue)))
    noise = None
    if sampler.auto_lr:
        lr, noise = _bounded(module, module.step_fraction * limit)
        _set(module, lr)
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
            f"lr = {sampler.lr:.3g} exceeds the largest stable step {limit:.3g} at these weights "
            f"(lambda_max of C H is {eigenvalue:.3g}): the chain will leave them or diverge. Lower "
            "lr, or let lr: auto choose it"
        )
    return result


def minibatch_noise(module: SGMCMCModule, lr: float) -> GradientNoise | None:
    """Measure the minibatches' part in the temperature at a module's weights.

    Args:
        module: The module, with a target.
        lr: Step size on the mean loss.

    Returns:
        None where gradients are of all the data, nothing is sampled (T = 0), or the minibatches are
        not those of a :class:`~lightning_sgmcmc.BatchStream`.
    """
    from lightning_sgmcmc.diagnostics import gradient_noise  # ArviZ takes a while to import

    sampler, stream, target = module.sampler, module.stream, module.target
    if stream is None or target is None or stream.sampling == "full" or not sampler.temperature:
        return None
    first = module.global_step
    return gradient_noise(
        target,
        [stream.at(step) for step in range(first, first + _NOISE_BATCHES)],
        sampler.preconditioner,
        lr,
        temperature=sampler.temperature,
        momentum=getattr(sampler, "momentum", 0.0),
        masks=sampler.masks,
        names=module.sampled,
    )


def _bounded(module: SGMCMCModule, lr: float) -> tuple[float, float | None]:
    """Return a step size lowered as far as the minibatches' noise asks, and that bound if it was.

    Far from a mode gradients differ most, and a chain that starts there without an optimizer has
    the way still to go: its step is bounded from where burn-in ends.
    """
    bound = module.max_gradient_noise
    if bound is None or module.sampler.absorbs_gradient_noise:
        return lr, None
    if not module.optimizer_steps and module.global_step < module.draw_schedule.burn_in:
        return lr, None
    noise = minibatch_noise(module, lr)
    if noise is None:
        return lr, None
    ratio = float(module.trainer.strategy.broadcast(noise.total.ratio))
    return (lr * bound / ratio, bound) if ratio > bound else (lr, None)


def _set(module: SGMCMCModule, lr: float) -> None:
    module.sampler.set_lr(lr)
    scheduler = module.lr_schedulers()
    first = scheduler[0] if isinstance(scheduler, list) else scheduler
    assert first is not None
    first.base_lrs = [lr]
    module.sampler.param_groups[0]["lr"] = lr * checks.schedule_factor(first)


def _bias(value: float) -> str:
    if value == 0:
        return "exact variances on a Gaussian"
    return f"variances at most {100 * value:.2g} % too large on a Gaussian"
