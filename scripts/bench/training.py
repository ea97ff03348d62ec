"""Time training steps under the Trainer against a bare torch loop with ``torch.optim.RMSprop``.

Data of MNIST's size, 60,000 x 784, minibatches of 100, the network 784-400-400-10. The bare loop
gathers its minibatch from a shuffled tensor, as short as such a loop can be; ours is a run of
``tasks.classification`` under a Trainer with the logger, checkpoints and draw keeping that
``scripts/train.py`` gives it, before the first draw. Blocks of steps of all of them alternate: a
run is held inside its callback while the others take theirs. The table gives the median over the
rounds of (bare loop's time) / (ours), and the quartiles: 1 is as fast, .5 half as fast.

    python scripts/bench/training.py [--rounds 20] [--block 100] [--threads N]
                                     [--record FILE]
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import lightning as L
import torch
from steps import hardware
from torch import nn
from torch.nn import functional

from lightning_sgmcmc import PSGLD, SGHMC, SGLD, BatchStream, GaussianPrior, RMSProp, Sampler
from lightning_sgmcmc.callbacks import ChainCheckpoint, Finish
from lightning_sgmcmc.callbacks.log import CSVLog
from tasks.classification import Classification
from tasks.experiments.costs import Cell, publish, spread
from tasks.nets.mlp import MLP

N, BATCH = 60_000, 100
PRIOR = GaussianPrior(variance=1.0)
OURS: dict[str, Callable[..., Sampler]] = {
    "PSGLD, adapting": partial(PSGLD, lr=1e-5, prior=PRIOR),
    "SGLD": partial(SGLD, lr=1e-3, prior=PRIOR),
    "SGLD, moment-matched": partial(SGLD, lr=1e-3, prior=PRIOR, increments="moment-matched"),
    "SGHMC, RMSProp adapting": partial(SGHMC, lr=1e-6, prior=PRIOR, preconditioner=RMSProp()),
}
#: The least speed, of the bare loop's.
TARGETS = {"PSGLD, adapting": 0.5, "SGLD, moment-matched": 0.8}


class Data(L.LightningDataModule):
    """Random images and labels."""

    num_classes = 10

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        super().__init__()
        self.x, self.y = x, y

    def train_dataloader(self) -> BatchStream:
        """Return the minibatch stream."""
        return BatchStream((self.x, self.y), BATCH)


class Turns(L.Callback):
    """Hands control back after every block of steps, and notes how long the block took."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.go, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.seconds, self._began = 0.0, 0.0

    def on_train_batch_start(self, *args: Any) -> None:
        """Wait for the turn where a block begins."""
        if args[-1] % self.block == 0:
            self.done.release()
            self.go.acquire()
            self._began = time.perf_counter()

    def on_train_batch_end(self, *args: Any) -> None:
        """Note the time where a block ends."""
        if (args[-1] + 1) % self.block == 0:
            self.seconds = time.perf_counter() - self._began


def network() -> nn.Module:
    """Return the network."""
    return MLP((400, 400), inputs=784, outputs=10)


def bare(x: torch.Tensor, y: torch.Tensor, block: int) -> Iterator[float]:
    """Yield the seconds of block after block of a bare loop."""
    net = network()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-5)
    order = torch.randperm(N)
    place = 0
    while True:
        began = time.perf_counter()
        for _ in range(block):
            chosen = order[place : place + BATCH]
            place = (place + BATCH) % N
            loss = functional.cross_entropy(net(x[chosen]), y[chosen])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        yield time.perf_counter() - began


class NotSummedUp(Finish):
    """Leaves a run without results, whose table would stand between those of the bench."""

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""


def ours(
    make: Callable[..., Sampler], data: Data, block: int, rounds: int, folder: Path
) -> Iterator[float]:
    """Yield the seconds of block after block of a run, which waits in between."""
    turns = Turns(block)
    steps = block * (rounds + 2)
    module = Classification(network(), make, burn_in=steps - 1)
    trainer = L.Trainer(
        max_steps=steps,
        accelerator="cpu",
        devices=1,
        logger=[CSVLog(folder)],
        callbacks=[turns, ChainCheckpoint(10 * steps), NotSummedUp()],
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=100,
        limit_val_batches=0,
    )
    thread = threading.Thread(target=trainer.fit, args=(module,), kwargs={"datamodule": data})
    thread.start()
    turns.done.acquire()
    for _ in range(rounds + 1):
        turns.go.release()
        turns.done.acquire()
        yield turns.seconds
    turns.go.release()
    thread.join()


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--block", type=int, default=100, help="steps in a block")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--record", type=Path, help="where to keep the numbers")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    x, y = torch.rand(N, 784), torch.randint(0, 10, (N,))
    data = Data(x, y)
    with tempfile.TemporaryDirectory() as folder:
        loops = {"bare": bare(x, y, options.block)} | {
            name: ours(make, data, options.block, options.rounds, Path(folder) / str(i))
            for i, (name, make) in enumerate(OURS.items())
        }
        for loop in loops.values():  # the first block compiles and fills caches
            next(loop)
        times: dict[str, list[float]] = {name: [] for name in loops}
        for _ in range(options.rounds):
            for name, loop in loops.items():
                times[name].append(next(loop))
        for name in OURS:
            next(loops[name], None)
    each = 1e3 / options.block
    rows: list[list[Cell]] = [
        [name, spread(times["bare"], own), each * statistics.median(own), TARGETS.get(name)]
        for name, own in times.items()
        if name in OURS
    ]
    said = (
        f"{hardware(torch.device('cpu'))}; {options.rounds} rounds of {options.block} steps; a "
        f"step of the bare loop takes {each * statistics.median(times['bare']):.1f} ms."
    )
    heading = ["sampler", "speed of the bare loop", "ms a step", "target"]
    publish(said, heading, rows, options.record)


if __name__ == "__main__":
    main()
