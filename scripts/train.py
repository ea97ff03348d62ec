"""Run a task: ``python scripts/train.py --task pde_source [overrides]``."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.append(os.getcwd())  # where a user's own module lies

from lightning_sgmcmc.run.cli import main  # noqa: E402

if __name__ == "__main__":
    main(configs=ROOT / "configs")
