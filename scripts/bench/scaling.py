"""How many chain-steps a second ``--trainer.strategy chains`` takes on 1, 2 and 4 processes.

Every process has one core and one chain of ``sgmcmc train --task class_table``'s kind: a Trainer
with networks 784-W-W-10 of two widths and minibatches of 100, SGHMC. The processes live from the
first round to the last, as one group for each number of them, and in a round each group takes a
block of steps in turn, while the others wait: what a machine does beside meets all of them alike.
Counted are wall time and processor time of all threads; what follows is (chain-steps a second on P
processes) / (P times those on one), as the median over rounds, and the processor time of a
chain-step on one process over that on P, which shows what being several costs where the machine's
cores are busy. Processes ``apart``, as many runs at once that know nothing of each other, show the
machine's part.

    python scripts/bench/scaling.py [--rounds 12] [--processes 1 2 4] [--widths 100 400]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import lightning as L  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from lightning_sgmcmc import (  # noqa: E402
    SGHMC,
    BatchStream,
    Categorical,
    GaussianPrior,
    RMSProp,
    SGMCMCModule,
)
from lightning_sgmcmc.callbacks import ChainCheckpoint  # noqa: E402

WARM_UP = 20


class Digits(SGMCMCModule):
    """A classifier of random images, which nothing is held out for."""

    def law(self, x: Tensor) -> Categorical:
        """Return the law of the classes."""
        return Categorical(self(x))


class Blocks(L.Callback):
    """Times blocks of steps, each when a line of the standard input asks for it.

    Args:
        block: Steps in one.
    """

    def __init__(self, block: int) -> None:
        self._block = block
        self._began = (0.0, 0.0)

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        """Wait for the word to go on, which the first process passes to all."""
        if (trainer.global_step - WARM_UP) % self._block or trainer.global_step < WARM_UP:
            return
        if trainer.global_step > WARM_UP:
            spent = [time.perf_counter() - self._began[0], time.process_time() - self._began[1]]
            print(json.dumps(spent), flush=True)
        sys.stdin.readline()
        trainer.strategy.barrier()
        self._began = (time.perf_counter(), time.process_time())


def work(folder: Path, args: argparse.Namespace) -> None:
    """Be one process of a group."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[args.core % len(cores)]})
    (width,), (processes,) = args.widths, args.processes
    net = nn.Sequential(
        nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    sampler = partial(SGHMC, lr=1e-6, prior=GaussianPrior(), preconditioner=RMSProp())
    steps = WARM_UP + args.rounds * args.block + 1
    task = Digits(net, sampler, burn_in=steps - 1, thinning=1)
    data = [torch.randn(5000, 784), torch.randint(10, (5000,))]
    L.Trainer(
        accelerator="cpu",
        devices=processes,
        strategy="auto" if processes == 1 else "chains",
        max_steps=steps,
        default_root_dir=folder,
        logger=False,
        callbacks=[Blocks(args.block), ChainCheckpoint(every=steps)],
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(task, BatchStream(data, 100, "independent"))


class Group:
    """The processes of one run, which torchrun's variables bring together.

    Args:
        width: Of the network's hidden layers.
        processes: Their number.
        args: The command line.
        folder: Where they may write.
        apart: Whether each is a run of its own, which shares the machine with the others alone.
    """

    def __init__(
        self, width: int, processes: int, apart: bool, args: argparse.Namespace, folder: Path
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        common = {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        world = 1 if apart else processes
        command = [sys.executable, __file__, "--processes", str(world)]
        command += ["--rounds", str(args.rounds), "--block", str(args.block)]
        command += ["--widths", str(width)]
        self._members = []
        for rank in range(processes):
            number = str(0 if apart else rank)
            own = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": str(world)}
            own |= {"GROUP_RANK": "0", "LOCAL_WORLD_SIZE": str(world)}
            own |= {"TORCHELASTIC_RUN_ID": "scaling"}
            own_folder = folder / f"{width}-{processes}-{apart}-{number}"
            place = ["--work", str(own_folder), "--core", str(rank)]
            self._members.append(
                subprocess.Popen(
                    [*command, *place],
                    env=os.environ | common | own,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )

    def block(self) -> tuple[float, float]:
        """Take a block of steps; return the slowest one's seconds and all processor seconds."""
        for member in self._members:
            assert member.stdin is not None
            member.stdin.write("\n")
            member.stdin.flush()
        spent = [self._read(member) for member in self._members]
        return max(wall for wall, _ in spent), sum(processor for _, processor in spent)

    @staticmethod
    def _read(member: subprocess.Popen[str]) -> list[float]:
        assert member.stdout is not None
        for line in member.stdout:
            if line.startswith("["):
                found: list[float] = json.loads(line)
                return found
        raise RuntimeError(f"a process ended with status {member.wait()}")

    def end(self) -> None:
        """End its processes."""
        for member in self._members:
            member.kill()
            member.wait()


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return wall and processor seconds of a chain-step in each round, by width and processes."""
    kinds = [
        (width, number, apart)
        for width in args.widths
        for number in args.processes
        for apart in (False, True)
        if number > 1 or not apart
    ]
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        groups = {kind: Group(*kind, args, Path(folder)) for kind in kinds}
        try:
            for _ in range(args.rounds):
                for (width, number, apart), group in groups.items():
                    steps = number * args.block
                    name = f"{number} apart" if apart else str(number)
                    of_width = found.setdefault(str(width), {})
                    own = of_width.setdefault(name, {"wall": [], "processor": []})
                    for clock, seconds in zip(own, group.block(), strict=True):
                        own[clock].append(seconds / steps)
        finally:
            for group in groups.values():
                group.end()
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "rounds": args.rounds,
        "block": args.block,
        "seconds": found,
    }


def main() -> None:
    """Print and record the ratios."""
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--block", type=int, default=100, help="steps in a round")
    default = [n for n in (1, 2, 4) if n <= max(cores, 2)]
    parser.add_argument("--processes", type=int, nargs="+", default=default)
    parser.add_argument("--widths", type=int, nargs="+", default=[100, 400], help="of layers")
    parser.add_argument("--record", type=Path, default=ROOT / "docs" / "records" / "scaling.json")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work is not None:
        work(args.work, args)
        return
    record = measure(args)
    for width, by_number in record["seconds"].items():
        for number, seconds in by_number.items():
            step = {kind: 1e3 * statistics.median(of) for kind, of in seconds.items()}
            said = f"{step['wall']:.3f} ms wall, {step['processor']:.3f} ms each"
            print(f"width {width}, {number} processes: {said}")
    args.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
