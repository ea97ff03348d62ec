"""What L-BFGS pairs make: the eigenvalues of HASGLD-SA's Lemma 2, and the memory of C.

Lemma 2 (Wang, Deng, Lin 2020): eigenvalues of B lie in [a~, A~], where those of the Hessian lie in
[a, A].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_sgmcmc import HAMCMC, HASGLD
from tasks.experiments.experiment import Study
from tasks.experiments.loop import walk
from tasks.experiments.theory.hessian import EXAMPLES, NEWEST, WEIGHTS, Setting, data, matrix_of
from tasks.experiments.theory.regression import posterior

#: Whose C is made of one operator's pairs.
SAMPLERS: dict[str, Callable[..., HASGLD | HAMCMC]] = {
    "HASGLD": partial(HASGLD, slots=1),
    "HAMCMC": HAMCMC,
}
#: M and r of Lemma 2's cells.
LEMMA2 = tuple(product((1, 2, 5), (0.25, 0.001)))


def lemma2(memory: int, r: float, folder: Path, steps: int = 300) -> dict[str, Any]:
    """Find the extreme eigenvalues of B along chains, beside the lemma's bounds."""
    sampler, problem = Setting(memory=memory, omega=NEWEST).start(20)
    metric = sampler.preconditioner
    metric.r = r
    smallest, largest = math.inf, 0.0

    def each(step: int, theta: Tensor) -> None:
        nonlocal smallest, largest
        if step > memory:
            values = 1 / torch.linalg.eigvalsh(matrix_of(sampler))
            smallest = min(smallest, float(values.min()))
            largest = max(largest, float(values.max()))

    walk(sampler, steps=steps, gradient=problem.gradient, each=each)
    curvatures = np.linalg.eigvalsh(posterior(*data())[1] / EXAMPLES)
    lower, upper = bounds(float(curvatures[-1]), metric.delta / EXAMPLES, memory, r)
    return {
        "M": memory,
        "r": r,
        "a": float(curvatures[0]),
        "A": float(curvatures[-1]),
        "smallest": smallest,
        "largest": largest,
        "lower": lower,
        "upper": upper,
    }


def bounds(A: float, delta: float, memory: int, r: float) -> tuple[float, float]:
    """Return Lemma 2's a~ and A~.

    A~ = D (delta + A) + M/r (A^2/delta + delta + 3 A),
    a~ = A~^(1 - D) (r / A~)^M delta^(D + M).
    """
    upper = WEIGHTS * (delta + A) + memory / r * (A**2 / delta + delta + 3 * A)
    lower = upper ** (1 - WEIGHTS) * (r / upper) ** memory * delta ** (WEIGHTS + memory)
    return lower, upper


def states_of_metric(make: Callable[..., HASGLD | HAMCMC], memory: int) -> dict[str, int]:
    """Run a chain, and count the states that its C is made of and the vectors it holds."""
    size = 50
    theta = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    sampler = make([theta], 0.1, memory=memory, num_data=1)
    states = [theta.detach().clone()]

    def closure() -> Tensor:
        theta.grad = theta.detach() * torch.arange(1, size + 1)
        return torch.zeros(())

    for _ in range(4 * memory):
        sampler.step(closure)
        states.append(theta.detach().clone())
    moves = torch.stack(
        [s for op in sampler.preconditioner.weighted_operators() for s in op[1].steps]
    )
    used = {
        k
        for move in moves
        for i, j in combinations(range(len(states)), 2)
        if torch.allclose(states[j] - states[i], move, atol=1e-10)
        for k in (i, j)
    }
    others = getattr(sampler, "_others", [])
    return {"states": len(used), "pairs": len(moves), "vectors": 2 * len(moves) + len(others)}


def memory(folder: Path) -> dict[str, Any]:
    """Count what HASGLD and HAMCMC of the same M hold."""
    return {
        "rows": [
            {"sampler": name, "M": m} | states_of_metric(make, m)
            for m in (2, 3, 5, 10)
            for name, make in SAMPLERS.items()
        ]
    }


def cells() -> list[Study]:
    """Return one study a pair of M and r, and the count of states."""
    return [
        *(Study(f"eigenvalues-{m}-{r:g}", partial(lemma2, m, r)) for m, r in LEMMA2),
        Study("memory", memory),
    ]
