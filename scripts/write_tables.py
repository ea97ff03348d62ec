"""Fill the marked tables of docs from the results in docs/measured."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tasks.experiments.pages import write  # noqa: E402

if __name__ == "__main__":
    for page in write(ROOT):
        print(page.relative_to(ROOT))
