"""Time one step of each sampler against torch.optim.SGD's, in interleaved rounds.

A step is zero_grad, forward, backward and the sampler's own step on one fixed minibatch of 100 of
the network 784-400-400-10 (478,410 weights). Every round times a block of steps of each method
in a random order; the table gives the median over the rounds of the ratio to that round's SGD,
and the quartiles. On a CPU with Numba, samplers are timed with the compiled loops of
``lightning_sgmcmc.kernels`` and without.

    python scripts/bench/steps.py [--rounds 40] [--block 20] [--threads N] [--device cpu]
                                  [--only SUBSTRING] [--record FILE]

On a busy machine, ``--threads 1 --cpu-time`` counts the process's own time instead of the clock's.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module, metadata
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from lightning_sgmcmc import (
    HAMCMC,
    HASGLD,
    HMC,
    PSGLD,
    SGFS,
    SGHMC,
    SGLD,
    SGNHT,
    DiagonalFisher,
    GaussianPrior,
    NaturalLangevin,
    RMSProp,
    Sampler,
    Target,
    kernels,
)
from lightning_sgmcmc.target import PerExample
from tasks.experiments.costs import Cell, publish, spread

N = 60_000
BATCH = 100
PRIOR = 1.0
LR = 1e-4
SGD = "torch SGD", "torch"
#: The most that a step may cost on the CPU, of SGD's.
TARGETS = {
    "SGLD": 1.8,
    "SGLD, moment-matched": 1.25,
    "PSGLD, adapting": 2.0,
    "PSGLD, frozen": 2.0,
    "DiagonalFisher, adapting": 2.5,
    "NaturalLangevin, adapting": 2.5,
    "SGHMC": 2.0,
    "SGHMC, RMSProp adapting": 1.9,
    "SGHMC, RMSProp frozen": 1.6,
    "HASGLD, adapting": 3.5,
}

Maker = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Step = Callable[[], None]


def network(device: torch.device) -> nn.Sequential:
    """Return the MLP 784-400-400-10, the same at each call."""
    torch.manual_seed(0)
    widths = (784, 400, 400, 10)
    layers: list[nn.Module] = []
    for i, (m, n) in enumerate(pairwise(widths)):
        layers += [nn.Linear(m, n)] + ([nn.ReLU()] if i < 2 else [])
    return nn.Sequential(*layers).to(device)


def step_of(make: Maker, device: torch.device, freeze_after: int | None = None) -> Step:
    """Return a function that steps a network of its own."""
    net = network(device)
    optimizer = make(list(net.parameters()))
    x = torch.rand(BATCH, 784, device=device)
    y = torch.randint(0, 10, (BATCH,), device=device)

    recording: Callable[[], AbstractContextManager[None]] = nullcontext
    if isinstance(optimizer, Sampler) and "per_example" in optimizer.needs:

        def nll(batch: Any) -> torch.Tensor:
            return functional.cross_entropy(net(batch[0]), batch[1], reduction="none")

        target = Target(nll, optimizer.params, N, optimizer.prior)
        names = [name for name, _ in net.named_parameters()]
        target.per_example = PerExample(net, names, optimizer.params, nll)
        target.use((x, y))
        optimizer.attach(target)
        recording = target.recording

    def closure() -> Any:
        optimizer.zero_grad()
        with recording():
            loss = functional.cross_entropy(net(x), y)
            torch.autograd.backward(loss)
        return loss

    def step() -> None:
        optimizer.step(closure)

    if freeze_after is not None:
        for _ in range(freeze_after):
            step()
        assert isinstance(optimizer, Sampler)
        optimizer.freeze()
    return step


def peers(device: torch.device) -> dict[str, Step]:
    """Return what the samplers are compared with, SGD first."""
    table = {
        "torch SGD": step_of(lambda p: torch.optim.SGD(p, LR), device),
        "torch SGD, momentum": step_of(lambda p: torch.optim.SGD(p, LR, momentum=0.9), device),
        "torch RMSprop": step_of(lambda p: torch.optim.RMSprop(p, LR), device),
    }
    if find_spec("torch_sgld") is not None:
        peer = import_module("torch_sgld")
        table["torch-sgld SGLD (peer)"] = step_of(
            lambda p: peer.SGLD(p, lr=LR, temperature=1 / N), device
        )
    return table


def samplers(device: torch.device) -> dict[str, Step]:
    """Return every sampler to time."""
    ours: dict[str, Any] = {"num_data": N, "prior": GaussianPrior(PRIOR), "seed": 0}
    return {
        "SGLD": step_of(lambda p: SGLD(p, LR, **ours), device),
        "SGLD, moment-matched": step_of(
            lambda p: SGLD(p, LR, increments="moment-matched", **ours), device
        ),
        "PSGLD, adapting": step_of(lambda p: PSGLD(p, LR, eps=1e-3, **ours), device),
        "PSGLD, frozen": step_of(lambda p: PSGLD(p, LR, eps=1e-3, **ours), device, 5),
        "DiagonalFisher, adapting": step_of(
            lambda p: SGLD(p, LR, preconditioner=DiagonalFisher(), **ours), device
        ),
        "NaturalLangevin, adapting": step_of(lambda p: NaturalLangevin(p, LR, **ours), device),
        "NaturalLangevin, frozen": step_of(lambda p: NaturalLangevin(p, LR, **ours), device, 5),
        "SGFS diagonal, adapting": step_of(
            lambda p: SGFS(p, LR, variant="diagonal", **ours), device
        ),
        "SGHMC": step_of(lambda p: SGHMC(p, LR, momentum=0.9, **ours), device),
        "SGHMC, RMSProp adapting": step_of(
            lambda p: SGHMC(p, LR, preconditioner=RMSProp(eps=1e-3), **ours), device
        ),
        "SGHMC, RMSProp frozen": step_of(
            lambda p: SGHMC(p, LR, preconditioner=RMSProp(eps=1e-3), **ours), device, 5
        ),
        "SGHMC, floor, adapting": step_of(
            lambda p: SGHMC(p, LR, preconditioner=RMSProp(floor=0.5), **ours), device
        ),
        "SGNHT": step_of(lambda p: SGNHT(p, LR, momentum=0.9, **ours), device),
        "HAMCMC, adapting": step_of(lambda p: HAMCMC(p, LR, memory=3, **ours), device),
        "HAMCMC, frozen": step_of(lambda p: HAMCMC(p, LR, memory=3, **ours), device, 5),
        "HMC, a leapfrog step": step_of(lambda p: HMC(p, 1e-9, leapfrog_steps=1, **ours), device),
        "HASGLD, adapting": step_of(lambda p: HASGLD(p, LR, memory=2, slots=1, **ours), device),
        "HASGLD, frozen": step_of(lambda p: HASGLD(p, LR, memory=2, slots=1, **ours), device, 5),
    }


def methods(device: torch.device, only: str) -> dict[tuple[str, str], Step]:
    """Return what to time by name and backend, warmed up, SGD first."""
    table = {(name, "torch"): step for name, step in peers(device).items()}
    for wish in ("off", "auto"):
        os.environ[kernels.VARIABLE] = wish
        backend = kernels.chosen(device, torch.float32)
        if wish == "off" or backend != "torch":
            made = {name: step for name, step in samplers(device).items() if only in name}
            table |= {(name, backend): step for name, step in made.items()}
            for step in made.values():  # the first one decides on the backend
                step()
    for step in table.values():
        for _ in range(5):
            step()
    return table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--block", type=int, default=20, help="steps of one method in a round")
    parser.add_argument("--threads", type=int, default=None, help="torch threads")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="samplers whose name in the table has this")
    parser.add_argument("--cpu-time", action="store_true", help="count processor time")
    parser.add_argument("--record", type=Path, help="where to keep the numbers")
    args = parser.parse_args()
    clock = time.process_time if args.cpu_time else time.perf_counter
    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    table = methods(device, args.only)
    rank = [name for name, _ in table]
    names = sorted(table, key=lambda row: rank.index(row[0]))
    order = np.random.default_rng(0)
    seconds: dict[tuple[str, str], list[float]] = {name: [] for name in names}
    for _ in range(args.rounds):
        for i in order.permutation(len(names)):
            step = table[names[i]]
            step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = clock()
            for _ in range(args.block):
                step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds[names[i]].append((clock() - start) / args.block)

    rows: list[list[Cell]] = []
    for name in dict(names):
        ours = [spread(seconds[key], seconds[SGD]) for key in names if key[0] == name]
        alone, compiled = ours if len(ours) == 2 else (ours[0], None)
        rows.append([name, compiled, alone, TARGETS.get(name)])
    said = (
        f"{hardware(device)}; {args.rounds} rounds of {args.block} steps, {clock.__name__}; "
        f"a step of SGD takes {1e3 * statistics.median(seconds[SGD]):.1f} ms."
    )
    publish(said, ["method", "compiled loops", "torch alone", "target"], rows, args.record)


def hardware(device: torch.device) -> str:
    """Say what the numbers are measured on."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        model = next((s.split(":")[1].strip() for s in lines if s.startswith("model name")), model)
    if device.type == "cuda":
        model = f"{torch.cuda.get_device_name(device)} beside {model}"
    return (
        f"{model}, {torch.get_num_threads()} threads, Python {platform.python_version()}, "
        f"torch {torch.__version__}, numpy {metadata.version('numpy')}"
    )


if __name__ == "__main__":
    main()
