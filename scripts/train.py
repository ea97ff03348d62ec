"""Run a task: ``python scripts/train.py --task pde_source [overrides]``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sgmcmc import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
