"""The step size of a chain beside the largest stable one, and choosing it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lightning_sgmcmc import checks
from lightning_sgmcmc.stability import largest_eigenvalue

if TYPE_CHECKING:
    from lightning_sgmcmc.module import SGMCMCModule


def settle(module: SGMCMCModule) -> dict[str, float]:
    """Measure the stability limit at a module's weights; set lr to a part of it if that is "auto".

    The limit is where lr lambda_max(C^(1/2) H C^(1/2)) reaches what the sampler's integrator can
    bear, H the Hessian of U/N (:mod:`lightning_sgmcmc.stability`). A fraction f of it inflates the
    variance along the stiffest direction by f / (1 - f) for Euler-Maruyama, and less along others.

    Returns:
        ``lr``, ``largest_stable_lr``, ``fraction`` and ``variance_bias``; empty for a sampler that
        has no such limit, and where the limit cannot be measured and lr is given.

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
    if sampler.auto_lr:
        _set(module, module.step_fraction * limit)
    fraction = sampler.lr / limit
    result = {"lr": sampler.lr, "largest_stable_lr": limit, "fraction": fraction}
    if fraction < 1:
        result["variance_bias"] = sampler.variance_bias(fraction)
    if sampler.auto_lr:
        rank_zero_info(
            f"lr: {sampler.lr:.3g}, {fraction:.2g} of the largest stable step {limit:.3g} "
            f"(lambda_max of C H is {eigenvalue:.3g}); {_bias(result['variance_bias'])}"
        )
    elif fraction >= 1:
        rank_zero_warn(
            f"lr = {sampler.lr:.3g} exceeds the largest stable step {limit:.3g} at these weights "
            f"(lambda_max of C H is {eigenvalue:.3g}): the chain will leave them or diverge. Lower "
            "lr, or let lr: auto choose it"
        )
    return result


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
