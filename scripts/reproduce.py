"""Reproduce a published experiment: ``python scripts/reproduce.py table1 [--cell NAME]``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sgmcmc import main

if __name__ == "__main__":
    sys.exit(main(["reproduce", *sys.argv[1:]]))
