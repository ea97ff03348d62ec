"""The blocks of code and the commands in README, CONTRIBUTING and docs, where they stand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
#: How a line starts that a reader would give to a shell.
COMMAND = re.compile(r"(sgmcmc|python3?|pip|mkdocs|git|docker|torchrun|srun) ")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: The page, relative to the repository.
        line: The number of its first line of code.
        language: The word after the fence.
        text: The code.
    """

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    text, name = page.read_text(), page.relative_to(ROOT).as_posix()
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M)
    return [Block(name, text.count("\n", 0, m.start(2)) + 1, m[1], m[2]) for m in found]


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the words of each command of a block."""
    for line in block.text.replace("\\\n", " ").splitlines():
        for part in line.split(" && "):
            words = shlex.split(part, comments=True)
            if words:
                yield words


def mentioned(page: Path) -> list[list[str]]:
    """Return the words of the commands that stand in a page's sentences and tables."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.S | re.M)
    spans = re.findall(r"`((?:sgmcmc |python scripts/)[^`]*)`", text)
    return [shlex.split(" ".join(span.split())) for span in spans]
