"""Time prediction with stacked draws against a loop over draws, in interleaved rounds.

The mean class probabilities of 100 draws on 10,000 inputs, all draws in memory, for 20-30-10 and
784-400-400-10 networks, beside loops over draws: ``load_state_dict`` and a forward pass,
``functional_call``, and ``load_state_dict`` with the metric by which a run averages as draws come,
which gives deviations over draws too, as the stacked way does. Also the same of the networks'
outputs alone, without softmax, and the most memory that a process takes over what it held before.

    python scripts/bench/predict.py [--draws 100] [--inputs 10000] [--rounds 7] [--threads 2]
                                    [--record FILE]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from steps import hardware
from torch import Tensor, nn
from torch.func import functional_call

from lightning_sgmcmc import SGLD
from lightning_sgmcmc.metrics import PosteriorEnsemble
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.posterior.predict import Load, ensemble
from tasks.experiments.costs import Cell, publish

NETWORKS = {"20-30-10": [20, 30, 10], "784-400-400-10": [784, 400, 400, 10]}
#: Draws of a network that takes long.
FEWER = {"784-400-400-10": 20}
#: The first two add up predictions; the others give their standard deviation too.
KINDS = ("load_state_dict", "functional_call", "metric", "stacked")


class Network(SGMCMCModule):
    """A ReLU network with its outputs and their softmax."""

    def __init__(self, widths: list[int]) -> None:
        layers: list[nn.Module] = []
        for i, (m, n) in enumerate(pairwise(widths)):
            layers += [nn.Linear(m, n)] + ([nn.ReLU()] if i < len(widths) - 2 else [])
        super().__init__(nn.Sequential(*layers), partial(SGLD, lr=1e-3))
        self.classes = widths[-1]

    def predictive(self, batch: Any) -> Tensor:
        """Return class probabilities, [B, C]."""
        return torch.softmax(self.net(batch), -1)


class _Predictive(nn.Module):
    def __init__(self, module: Network, method: str) -> None:
        super().__init__()
        self.module, self.method = module, method

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = getattr(self.module, self.method)(x)
        return result


class Bench:
    """A network, draws of it in memory, and inputs."""

    def __init__(self, widths: list[int], draws: int, inputs: int) -> None:
        torch.manual_seed(0)
        self.module = Network(widths).eval()
        state = self.module.state_dict()
        self.draws = [
            {n: p + 0.1 * torch.randn_like(p) for n, p in state.items()} for _ in range(draws)
        ]
        self.x = torch.randn(inputs, widths[0])
        self.weights = torch.full((draws,), 1 / draws, dtype=torch.float64)

    @torch.no_grad()
    def run(self, kind: str, method: str) -> Tensor:
        """Return the mean over draws of a method's outputs, [B, C]."""
        if kind == "stacked":
            loads: list[Load] = [partial(dict, draw) for draw in self.draws]
            return ensemble(self.module, loads, self.weights, method, self.x).mean.float()
        total = torch.zeros(())
        call = _Predictive(self.module, method)
        metric = PosteriorEnsemble(len(self.x), (self.module.classes,))
        index, nll = torch.arange(len(self.x)), torch.zeros(len(self.x))
        for draw in self.draws:
            if kind == "functional_call":
                named = {f"module.{name}": value for name, value in draw.items()}
                output = functional_call(call, named, (self.x,))
            else:
                self.module.load_state_dict(draw)
                output = call(self.x)
            if kind == "metric":
                metric.update(output, nll, index)
            else:
                total = total + output
        if kind == "metric":
            mean: Tensor = metric.compute().mean.float()
            return mean
        return total / len(self.draws)


def seconds(run: Callable[[], Any]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def peak(arguments: list[str], kind: str, name: str) -> float:
    """Return the MiB that a process of its own takes at most beyond draws and inputs."""
    command = [sys.executable, __file__, *arguments, "--peak", kind, name]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _peak_resident() -> float:
    """Return the most MiB resident since the last call to :func:`_forget_peak`; Linux only."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def draws(args: argparse.Namespace, network: str) -> int:
    """Return how many draws of a network predict."""
    count: int = args.draws
    return min(count, FEWER.get(network, count))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=None, help="torch threads")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--record", type=Path, help="where to keep the numbers")
    parser.add_argument("--peak", nargs=2, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.peak:
        bench = Bench(NETWORKS[args.peak[1]], draws(args, args.peak[1]), args.inputs)
        Bench(NETWORKS["20-30-10"], 2, 2).run("stacked", "predictive")  # what it imports
        _forget_peak()
        before = _peak_resident()
        bench.run(args.peak[0], "predictive")
        print(_peak_resident() - before)
        return
    rows: list[list[Cell]] = []
    given = [f"--draws={args.draws}", f"--inputs={args.inputs}"]
    given += [f"--threads={args.threads}"] if args.threads else []
    for name in args.networks:
        bench = Bench(NETWORKS[name], draws(args, name), args.inputs)
        for method in ("predictive", "forward"):
            answers = [bench.run(kind, method) for kind in KINDS]
            torch.testing.assert_close(answers[-1], answers[0], rtol=1e-5, atol=1e-5)
            times: dict[str, list[float]] = {kind: [] for kind in KINDS}
            for _ in range(args.rounds):
                for kind in KINDS:
                    times[kind].append(seconds(partial(bench.run, kind, method)))
            least = {kind: 1e3 * min(values) for kind, values in times.items()}
            loop = min(least["load_state_dict"], least["functional_call"]) / least["stacked"]
            same = least["metric"] / least["stacked"]
            memory: list[Cell] = [None, None]
            if method == "predictive":
                memory = [peak(given, kind, name) for kind in ("stacked", "functional_call")]
            outputs = "outputs" if method == "forward" else "probabilities"
            rows.append(
                [name, str(draws(args, name)), outputs, least["stacked"], loop, same, *memory]
            )
    said = (
        f"{hardware(torch.device('cpu'))}; {args.inputs:,} inputs; least of {args.rounds} rounds."
    )
    heading = ["network", "draws", "answer", "stacked, ms", "faster loop", "loop with deviations"]
    publish(said, [*heading, "stacked, MiB", "loop, MiB"], rows, args.record)


if __name__ == "__main__":
    main()
