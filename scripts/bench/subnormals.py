"""Time a step near a mode with subnormal numbers computed and taken for zero, interleaved.

A minibatch of 100 whose labels the network 784-400-400-10 is sure of, as trained networks are:
logits of deviation 30. A step is that of steps.py; the table gives the median over the rounds of
the ratio of its times, computed to taken for zero.

    python scripts/bench/subnormals.py [--rounds 8] [--block 5] [--threads N] [--record FILE]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from steps import BATCH, PRIOR, N, hardware, network
from torch import Tensor
from torch.nn import functional

from lightning_sgmcmc import (
    PSGLD,
    SGFS,
    SGLD,
    DiagonalFisher,
    GaussianPrior,
    NaturalLangevin,
    Sampler,
    Target,
)
from lightning_sgmcmc.callbacks.subnormals import flush
from lightning_sgmcmc.target import PerExample
from tasks.experiments.costs import Cell, publish, spread

#: Small enough that the network stays sure.
LR = 1e-9


def step_of(make: Callable[..., Sampler]) -> Callable[[], None]:
    """Return a function that takes one whole step of a sampler on a network of its own."""
    net = network(torch.device("cpu"))
    x = torch.rand(BATCH, 784)
    with torch.no_grad():
        net[-1].weight *= 30 / net(x).std()
        y = net(x).argmax(1)
    params, names = list(net.parameters()), [name for name, _ in net.named_parameters()]
    sampler = make(params, lr=LR, num_data=N, prior=GaussianPrior(PRIOR), seed=0)

    def nll(batch: Any) -> Tensor:
        return functional.cross_entropy(net(batch[0]), batch[1], reduction="none")

    target = Target(nll, params, N, sampler.prior)
    if "per_example" in sampler.needs:
        target.per_example = PerExample(net, names, params, nll)
    target.use((x, y))
    sampler.attach(target)

    def closure() -> Tensor:
        sampler.zero_grad()
        if target.per_example is None:
            loss = nll((x, y)).mean()
            torch.autograd.backward(loss)
            return loss
        with target.recording():
            loss = nll((x, y)).mean()
            torch.autograd.backward(loss)
        return loss

    return lambda: sampler.step(closure)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--block", type=int, default=5, help="steps of one kind in a round")
    parser.add_argument("--threads", type=int, default=None, help="torch threads")
    parser.add_argument("--record", type=Path, help="where to keep the numbers")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    makers: dict[str, Callable[..., Sampler]] = {
        "SGLD": SGLD,
        "PSGLD": PSGLD,
        "DiagonalFisher": lambda p, **k: SGLD(p, preconditioner=DiagonalFisher(), **k),
        "NaturalLangevin": NaturalLangevin,
        "SGFS, diagonal": lambda p, **k: SGFS(p, variant="diagonal", **k),
    }
    rows: list[list[Cell]] = []
    for name, make in makers.items():
        seconds: dict[bool, list[float]] = {False: [], True: []}
        step = step_of(make)
        for _ in range(args.rounds):
            for zero in (False, True):
                flush(zero)
                step()
                start = time.perf_counter()
                for _ in range(args.block):
                    step()
                seconds[zero].append((time.perf_counter() - start) / args.block)
        both = [1e3 * statistics.median(seconds[zero]) for zero in (False, True)]
        rows.append([name, spread(seconds[False], seconds[True]), *both])
    said = f"{hardware(torch.device('cpu'))}; {args.rounds} rounds of {args.block} steps."
    heading = ["sampler, adapting", "time computed / as zeros", "ms, computed", "ms, as zeros"]
    publish(said, heading, rows, args.record)


if __name__ == "__main__":
    main()
