"""Make a data set of Darcy flows; the same as ``sgmcmc generate``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sgmcmc import main

if __name__ == "__main__":
    sys.exit(main(["generate", *sys.argv[1:]]))
