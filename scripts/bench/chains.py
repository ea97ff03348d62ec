"""Time a step of K chains as one computation against a step of one chain, in interleaved rounds.

A step is drawing the minibatch, forward, backward and the sampler's own step, without a Trainer,
whose cost per step is the same for one chain and for many. On the CPU a 13-50-50-1 network with
minibatches of 32, on a GPU 784-100-100-10 with minibatches of 100, unless given.

    python scripts/bench/chains.py [--chains 32] [--rounds 40] [--block 20] [--device cpu]
                                   [--record FILE]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from steps import hardware
from torch import Tensor, nn
from torch.nn import functional

from lightning_sgmcmc import PSGLD, SGHMC, SGLD, BatchStream, GaussianPrior, NaturalLangevin
from lightning_sgmcmc.chain import ChainStack, starts
from lightning_sgmcmc.samplers import Sampler, Stacked
from lightning_sgmcmc.target import PerExample, Target
from tasks.experiments.costs import Cell, publish, spread

N = 10_000
SAMPLERS: dict[str, Callable[[Any], Sampler]] = {
    "SGLD": lambda p: SGLD(p, 1e-4, num_data=N, prior=GaussianPrior()),
    "PSGLD": lambda p: PSGLD(p, 1e-5, num_data=N, prior=GaussianPrior()),
    "NaturalLangevin": lambda p: NaturalLangevin(p, 1e-5, num_data=N, prior=GaussianPrior()),
    "SGHMC": lambda p: SGHMC(p, 1e-4, num_data=N, prior=GaussianPrior()),
}


class Network(nn.Module):
    """A ReLU network with the likelihood of its last width: one output is regression."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, (m, n) in enumerate(pairwise(widths)):
            layers += [nn.Linear(m, n)] + ([nn.ReLU()] if i < len(widths) - 2 else [])
        self.net = nn.Sequential(*layers)

    def nll(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the negative log-likelihood of each example, [B]."""
        output: Tensor = self.net(batch[0])
        if output.shape[-1] == 1:
            return (output.squeeze(-1) - batch[1]).square() / 2
        return functional.cross_entropy(output, batch[1], reduction="none")


def step_of(
    make: Callable[[Any], Sampler], widths: list[int], batch_size: int, chains: int, device: str
) -> Callable[[], None]:
    """Return a function that takes one whole step of one chain (``chains=0``) or of several."""
    torch.manual_seed(0)
    network = Network(widths).to(device)
    x = torch.randn(N, widths[0])
    y = torch.randn(N) if widths[-1] == 1 else torch.randint(widths[-1], (N,))
    stream = BatchStream([x, y], batch_size, "independent")
    stream.bind(torch.device(device), 0, num_chains=chains or None)
    names = [name for name, _ in network.named_parameters()]
    stack: ChainStack | None = None
    if chains:
        first = starts(network, names, "reinitialise", 0, range(chains), GaussianPrior())
        stack = ChainStack(network, first).to(device)
        sampler = make(Stacked(zip(names, stack.weights, strict=True)))
    else:
        sampler = make(list(network.named_parameters()))

    def nll(batch: Any) -> Tensor:
        return network.nll(batch) if stack is None else stack.evaluate("nll", batch, True)

    target = Target(nll, sampler.params, N, sampler.prior, chain_dims=sampler.chain_dims)
    if "per_example" in sampler.needs:
        target.per_example = PerExample(
            network, names, sampler.params, network.nll, chain_dims=sampler.chain_dims
        )
    sampler.attach(target)
    count = 0

    def step() -> None:
        nonlocal count
        batch = stream.at(count)
        count += 1
        target.use(batch)

        def closure() -> Tensor:
            sampler.zero_grad()
            with target.recording():
                loss = nll(batch).mean(-1)
                torch.autograd.backward(loss.sum())
            return loss

        sampler.step(closure)

    return step


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--chains", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--block", type=int, default=20, help="steps in a round")
    parser.add_argument("--threads", type=int, default=None, help="torch threads")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--widths", type=int, nargs="+", default=None)
    parser.add_argument("--batch", type=int, default=None)
    parser.add_argument("--record", type=Path, help="where to keep the numbers")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    cuda = args.device != "cpu"
    widths = args.widths or ([784, 100, 100, 10] if cuda else [13, 50, 50, 1])
    batch = args.batch or (100 if cuda else 32)
    rows: list[list[Cell]] = []
    for name, make in SAMPLERS.items():
        steps = [step_of(make, widths, batch, k, args.device) for k in (0, args.chains)]
        seconds: list[list[float]] = [[], []]
        for step in steps:
            for _ in range(5):
                step()
        for _ in range(args.rounds):
            for kind, step in enumerate(steps):
                if cuda:
                    torch.cuda.synchronize()
                began = time.perf_counter()
                for _ in range(args.block):
                    step()
                if cuda:
                    torch.cuda.synchronize()
                seconds[kind].append((time.perf_counter() - began) / args.block)
        both = [1e3 * statistics.median(own) for own in seconds]
        rows.append([name, spread(seconds[1], seconds[0]), *both])
    said = (
        f"{hardware(torch.device(args.device))}; {'-'.join(map(str, widths))}, batch {batch}, "
        f"{args.chains} chains over one, {args.rounds} rounds of {args.block} steps."
    )
    publish(said, ["sampler", "ratio", "one chain, ms", "all chains, ms"], rows, args.record)


if __name__ == "__main__":
    main()
