"""Compare microcanonical Langevin dynamics with SGHMC and HMC at equal gradients of the whole data.

Chains start in the target's Gaussian approximation at its mode, and each sampler adapts what it
adapts in a burn-in of as many gradients. Targets: a Gaussian of 100 weights whose variances run
from 1 to 1/100, a logistic regression of 25 weights on 1,000 examples, and a network 1-8-1 with
tanh on 60 examples, of which the predictions at 20 inputs are judged. The table has, for the worst
direction or prediction, effective draws in 1,000 gradients of a chain, of the value and of its
square; and the deviation over that of the truth, or of a long run of HMC, the mean over them.
Standard errors are over four groups of eight chains, which share the step that they adapt.

    python scripts/bench/microcanonical.py [--gradients 2000] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.functional import hessian
from torch.nn import functional

from lightning_sgmcmc import HMC, MCLMC, SGHMC, Sampler
from lightning_sgmcmc.diagnostics import ess

Array = NDArray[np.float64]
GROUPS, CHAINS = 4, 8
SAMPLERS: dict[str, Callable[..., Sampler]] = {
    "MCLMC": MCLMC,
    "MCLMC, energy variance 5e-3": partial(MCLMC, target_energy_variance=5e-3),
    "SGHMC, momentum .9": partial(SGHMC, momentum=0.9),
    "SGHMC, momentum .95": partial(SGHMC, momentum=0.95),
    "HMC, 10 leapfrog steps": partial(HMC, leapfrog_steps=10),
}
#: Of the largest stable step, for what does not adapt: what ``lr: auto`` takes. As there, the step
#: is stable at all places that are looked at: the last states of the reference.
FRACTION = 0.25


@dataclass(frozen=True)
class Target:
    """A potential U of weights [K, D], its mode and Hessian there, and what is judged, [K, Q]."""

    potential: Callable[[Tensor], Tensor]
    mode: Tensor
    hessian: Tensor
    quantities: Callable[[Tensor], Tensor]


def gaussian() -> Target:
    """Return the Gaussian, whose directions are its axes."""
    precision = torch.logspace(0, 2, 100, dtype=torch.float64)
    zero = torch.zeros_like(precision)
    return Target(lambda w: (w.square() @ precision) / 2, zero, precision.diag(), lambda w: w)


def logistic() -> Target:
    """Return the logistic regression, prior N(0, I), in the axes of its Hessian at the mode."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 25, generator=generator, dtype=torch.float64)
    x = x * torch.logspace(0, -1, 25, dtype=torch.float64)
    truth = torch.randn(25, generator=generator, dtype=torch.float64)
    y = (torch.rand(1000, generator=generator) < torch.sigmoid(x @ truth)).double()

    def potential(w: Tensor) -> Tensor:
        eta = w @ x.T
        return (functional.softplus(eta) - y * eta).sum(-1) + w.square().sum(-1) / 2

    mode, curvature = minimum(potential, torch.zeros(25, dtype=torch.float64))
    axes = torch.linalg.eigh(curvature).eigenvectors
    return Target(potential, mode, curvature, lambda w: (w - mode) @ axes)


def network() -> Target:
    """Return the network, prior N(0, I), noise .3, and its predictions."""
    generator = torch.Generator().manual_seed(1)
    x = 4 * torch.rand(60, generator=generator, dtype=torch.float64) - 2
    y = torch.sin(2 * x) + 0.3 * torch.randn(60, generator=generator, dtype=torch.float64)

    def predict(w: Tensor, x: Tensor) -> Tensor:
        a, b, v, c = w[..., :8], w[..., 8:16], w[..., 16:24], w[..., 24:]
        hidden = torch.tanh(x[:, None] * a.unsqueeze(-2) + b.unsqueeze(-2))
        return (hidden @ v.unsqueeze(-1)).squeeze(-1) + c

    def potential(w: Tensor) -> Tensor:
        return (predict(w, x) - y).square().sum(-1) / 0.18 + w.square().sum(-1) / 2

    start = torch.randn(25, generator=generator, dtype=torch.float64)
    mode, curvature = minimum(potential, start)
    probes = torch.linspace(-2, 2, 20, dtype=torch.float64)
    return Target(potential, mode, curvature, lambda w: predict(w, probes))


def minimum(potential: Callable[[Tensor], Tensor], start: Tensor) -> tuple[Tensor, Tensor]:
    """Return a minimum of U and the Hessian there."""
    w = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([w], max_iter=2000, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = potential(w)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return w.detach(), hessian(potential, w.detach())  # type: ignore[no-untyped-call]


def largest_curvature(target: Target, states: Tensor) -> float:
    """Return the largest eigenvalue of U's Hessians at the states [K, D]."""
    hessians = [hessian(target.potential, w) for w in states]  # type: ignore[no-untyped-call]
    return float(torch.linalg.eigvalsh(torch.stack(hessians)).max())


def draw(
    target: Target, make: Callable[..., Sampler], gradients: int, seed: int, states: Tensor
) -> tuple[Array, Tensor]:
    """Return the quantities after every step, [groups * chains, steps, Q], and the last states.

    The chains burn in first. A sampler that does not adapt has a step that is stable at the states.
    """
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(GROUPS * CHAINS, len(target.mode), generator=generator, dtype=torch.float64)
    root = torch.linalg.cholesky(target.hessian)
    spread = torch.linalg.solve_triangular(root.mT, z.mT, upper=True).mT
    w = (target.mode + spread).requires_grad_()
    sampler = make([w], lr=1.0, num_data=1, seed=seed)
    sampler.set_lr(FRACTION * sampler.max_stable_lr(largest_curvature(target, states)))
    sampler.stack()

    def closure() -> Tensor:
        sampler.zero_grad()
        values = target.potential(w)
        values.sum().backward()  # type: ignore[no-untyped-call]
        return values.detach()

    while sampler.gradients < gradients:
        sampler.step(closure)
    sampler.freeze()
    found = []
    while sampler.gradients < 2 * gradients:
        sampler.step(closure)
        found.append(target.quantities(w.detach()).clone())
    return torch.stack(found, 1).numpy(), w.detach()


def judged(draws: Array, mean: Array, deviation: Array, gradients: int) -> dict[str, float]:
    """Return the worst effective draws in 1,000 gradients, and the mean ratio of deviations."""
    scale = 1000 / (gradients * len(draws))
    return {
        "value": scale * float(ess(draws, "mean").min()),
        "square": scale * float(ess((draws - mean) ** 2, "mean").min()),
        "ratio": float((draws.std((0, 1)) / deviation).mean()),
    }


def main() -> None:
    """Measure every sampler on every target, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--gradients", type=int, default=2000, help="of a chain, and of its burn-in"
    )
    parser.add_argument("--out", type=Path, help="file for the record")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name, make_target in (("gaussian", gaussian), ("logistic", logistic), ("network", network)):
        target = make_target()
        states = target.mode[None]
        if name == "gaussian":
            mean, deviation = np.zeros(100), target.hessian.diagonal().rsqrt().numpy()
        else:
            reference = SAMPLERS["HMC, 10 leapfrog steps"]
            truth, states = draw(target, reference, 10 * args.gradients, 1000, states)
            mean, deviation = truth.mean((0, 1)), truth.std((0, 1))
        for label, make in SAMPLERS.items():
            draws, _ = draw(target, make, args.gradients, 0, states)
            groups = np.split(draws, GROUPS)
            found = [judged(group, mean, deviation, args.gradients) for group in groups]
            rows.append({"target": name, "sampler": label, "groups": found})
            means = {k: round(float(np.mean([f[k] for f in found])), 3) for k in found[0]}
            print(f"{name:<10} {label:<30} {means}", flush=True)
    if args.out is not None:
        args.out.write_text(json.dumps({"gradients": args.gradients, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
