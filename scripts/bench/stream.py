"""Read minibatches of a file larger than a bound on memory, beside the same stream in memory.

A file of random float32 rows [N, 784] is written to a folder, read and deleted. The process's peak
of resident memory is taken over minibatches of random rows and one pass over the whole file. Then
minibatches of the file and of a tensor of ``--memory`` GB are timed in turn, in processor time:
after the pass, so that the system's cache holds of the file what it wants to. ``cold`` is the
wall clock's rate of the first minibatches, after the system was asked to forget the file.

    python scripts/bench/stream.py [--gigabytes 5] [--memory 0.5] [--folder DIR] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import torch
from steps import hardware, network

from lightning_sgmcmc import BatchStream, OnDisk

ROOT = Path(__file__).resolve().parents[2]
FEATURES, BATCH, BLOCK = 784, 100, 20_000
CPU = torch.device("cpu")
NET = network(CPU)


def main() -> None:
    """Write, measure, print and delete."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=5.0, help="size of the file")
    parser.add_argument("--memory", type=float, default=0.5, help="GB of the tensor beside it")
    parser.add_argument("--steps", type=int, default=500, help="minibatches of a measurement")
    parser.add_argument("--folder", type=Path, help="where the file is written")
    parser.add_argument("--out", type=Path, help="file that the record is written to")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="stream") as folder:
        path = Path(folder) / "rows.npy"
        rows = written(path, options.gigabytes)
        record = measured(path, options.steps, round(options.memory * 1e9 / FEATURES / 4))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    record |= {"gigabytes": options.gigabytes, "rows": rows, "batch": BATCH}
    record |= {"memory": options.memory, "machine": hardware(CPU), "commit": commit}
    text = json.dumps(record, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


def written(path: Path, gigabytes: float) -> int:
    """Write random rows to a file, and return their number."""
    count = round(gigabytes * 1e9 / FEATURES / 4)
    block = np.random.default_rng(0).random((min(BLOCK, count), FEATURES), np.float32)
    with path.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (count, FEATURES)}
        np.lib.format.write_array_header_1_0(file, header)
        for first in range(0, count, len(block)):
            block[:, 0] = np.arange(first, first + len(block))  # so that no two blocks are alike
            file.write(block[: count - first].data)
        file.flush()
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return count


def measured(path: Path, steps: int, in_memory: int) -> dict[str, Any]:
    """Return rates and resident memory."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = resident("VmRSS")
    disk = stream(OnDisk(path))
    start = time.perf_counter()
    for step in range(steps):
        disk.at(step)
    cold = steps * BATCH / (time.perf_counter() - start)
    for _ in disk.whole():
        pass
    for step in range(20 * steps):
        disk.at(step)
    peak = resident("VmHWM")
    tensor = OnDisk(path)[:in_memory]
    times: dict[str, dict[str, float]] = {}
    for chains in (None, 16):
        each = steps // (chains or 1) + 1
        pair = {"disk": stream(OnDisk(path), chains), "memory": stream(tensor, chains)}
        rounds: dict[str, list[float]] = {name: [] for name in pair}
        for turn in range(10):
            for name, batches in pair.items():
                rounds[name].append(seconds(batches.at, range(turn * each, (turn + 1) * each)))
        rows = each * BATCH * (chains or 1)
        stepped: dict[str, list[float]] = {name: [] for name in pair}
        for _ in range(10):
            for name, batches in pair.items():
                stepped[name].append(seconds(partial(learn, batches), range(max(1, each // 25))))
        times[str(chains or 1)] = {
            "rows_a_second": rows / statistics.median(rounds["disk"]),
            "over_memory": ratio(rounds),
            "step_over_memory": ratio(stepped),
        }
    return {
        "resident_before_mb": before / 1e6,
        "resident_peak_mb": peak / 1e6,
        "cold_rows_a_second": cold,
        "chains": times,
    }


def stream(rows: Any, chains: int | None = None) -> BatchStream:
    """Return independent minibatches of rows."""
    batches = BatchStream(rows, BATCH, "independent")
    batches.bind(CPU, 0, num_chains=chains)
    return batches


def seconds(read: Callable[[int], Any], steps: range) -> float:
    """Return the processor time of reading the minibatches of some steps."""
    start = time.process_time()
    for step in steps:
        read(step)
    return time.process_time() - start


def ratio(rounds: dict[str, list[float]]) -> float:
    """Return the median over rounds of the time on disk over that in memory."""
    return statistics.median(
        disk / memory for disk, memory in zip(rounds["disk"], rounds["memory"], strict=True)
    )


def learn(batches: BatchStream, step: int) -> None:
    """Take the gradient of a network's outputs on the rows of a step."""
    x = batches.at(step).flatten(0, -2)
    for part in x.split(BATCH):
        NET(part).square().mean().backward()


def resident(name: str) -> float:
    """Return a size in bytes that the system tells of this process."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024.0 * int(found[1])


if __name__ == "__main__":
    main()
