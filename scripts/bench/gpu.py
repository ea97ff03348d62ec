"""Measure on one GPU all that docs/benchmarks.md asks of one, unattended.

Every part is a process of its own, and leaves a record ``NAME.json`` when it is done; parts that
have one are not measured again, so that the same command goes on where another ended. A part that
fails is said and left open, and the others go on.

    python scripts/bench/gpu.py [--device cuda] [--minutes 40] [--out docs/records/gpu]

It needs this repository, torch, lightning and arviz-stats, and for its tests pytest and
jsonargparse. ``--device cpu --short --out FOLDER`` goes
through all parts in seconds, to see that they run. ``--whole`` then runs pSGLD's Tables 2 and 3 as
they stand, for hours.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(Path(__file__).resolve().parent))

RECORDS = ROOT / "docs" / "records" / "gpu"


def measure(name: str, device_name: str, short: bool, path: Path) -> None:
    """Measure a part in this process and write its record."""
    import torch
    from gpu_parts import PARTS
    from steps import hardware

    device = torch.device(device_name)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    record = {"result": PARTS[name](device, short), "short": short, "hardware": hardware(device)}
    record["seconds"] = time.perf_counter() - began
    if device.type == "cuda":
        record["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(record, indent=1) + "\n")
    beside.replace(path)


def left(names: list[str], out: Path) -> list[str]:
    """Return the parts that have no record yet."""
    return [name for name in names if not (out / f"{name}.json").exists()]


def run_all(names: list[str], args: argparse.Namespace) -> list[str]:
    """Measure all parts that are left; return those that stay open."""
    ends = time.monotonic() + 60 * args.minutes
    words = [sys.executable, __file__, f"--device={args.device}", f"--out={args.out}"]
    words += ["--short"] if args.short else []
    # The repository's own modules come first in the parts' processes, as in this one.
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    for name in left(names, args.out):
        seconds = ends - time.monotonic()
        if seconds < 10:
            print(f"{name}: left open, {args.minutes} minutes are over", flush=True)
            continue
        part = subprocess.Popen([*words, f"--part={name}"], env=environment, start_new_session=True)
        try:
            status = part.wait(seconds)
            said = "measured" if status == 0 else f"failed, status {status}"
        except subprocess.TimeoutExpired:
            os.killpg(part.pid, signal.SIGKILL)  # with what it has started
            part.wait()
            said = f"left open, {args.minutes} minutes are over"
        print(f"{name}: {said}", flush=True)
    return left(names, args.out)


def main() -> int:
    """Measure what is left; return how many parts stay open."""
    names = ["steps", "chains", "graphs", "waits", "predict", "resnet_chains", "tables", "tests"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--minutes", type=float, default=40.0, help="that it may take")
    parser.add_argument("--out", type=Path, default=None, help="folder of the records")
    parser.add_argument("--short", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--whole", action="store_true", help="then run Tables 2 and 3, for hours")
    parser.add_argument("--part", default=None, choices=names, help="measure this one alone")
    args = parser.parse_args()
    if (args.short or args.device == "cpu") and args.out is None:
        parser.error("--short and --device cpu leave no records for docs: give --out FOLDER")
    args.out = (args.out or RECORDS).absolute()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.part is not None:
        measure(args.part, args.device, args.short, args.out / f"{args.part}.json")
        return 0
    still_open = run_all(names, args)
    if args.whole:
        for table in ("psgld_mnist", "psgld_cnn"):
            subprocess.run([sys.executable, str(ROOT / "scripts" / "reproduce.py"), table])
    print(f"open: {', '.join(still_open) or 'nothing'}; records are in {args.out}")
    return len(still_open)


if __name__ == "__main__":
    sys.exit(main())
