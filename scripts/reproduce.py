"""Reproduce a published experiment: ``python scripts/reproduce.py table1 [--cell NAME]``."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tasks.experiments.reproduce import main  # noqa: E402

if __name__ == "__main__":
    main(ROOT)
