"""Run the Python of docs/gallery.md from top to bottom, which draws its figures.

python scripts/figures/gallery.py [--out docs/figures]
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "gallery.md"


def run(out: Path) -> dict[str, Any]:
    """Run the page's blocks in a folder, where their figures go, and return their names."""
    names: dict[str, Any] = {}
    blocks = re.finditer(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    before = Path.cwd()
    os.chdir(out)
    try:
        for block in blocks:
            exec(compile(block[1], str(PAGE), "exec"), names)
            plt.close("all")
    finally:
        os.chdir(before)
    return names


def main() -> None:
    """Read the command line and run the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    run(out)
    (out / "flow.vti").unlink()


if __name__ == "__main__":
    main()
