"""Where a user's data lies, and how it gets there."""

from __future__ import annotations

import hashlib
import os
import sys
import urllib.error
import urllib.request
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import BinaryIO

import rich.progress
from rich.console import Console
from rich.progress import DownloadColumn, Progress, TimeRemainingColumn

DATA_ROOT = "SGMCMC_DATA_ROOT"
_BLOCK = 1 << 16
_TIMEOUT = 30  # seconds without an answer


def data_root(given: str | Path | None = None) -> Path:
    """Return the folder of data sets: the given one, else $SGMCMC_DATA_ROOT, else ``./data``."""
    return Path(given or os.environ.get(DATA_ROOT) or "data")


def fetch(url: str, path: str | Path, checksum: str) -> Path:
    """Return a file that is known by its checksum, downloading it if it is not there.

    It is written beside ``path`` and renamed once its checksum agrees, so that a part is never
    taken for the whole. A file that is there already is checked too.

    Args:
        url: Where it is.
        path: Where it is to be.
        checksum: ``sha256:...`` or ``md5:...``, hexadecimal.

    Raises:
        FileNotFoundError: If it cannot be fetched; the message says what to put where.
        ValueError: If its checksum is another one, or of an unknown kind.
    """
    path = Path(path)
    if path.is_file():
        check_digest(digest(path, checksum), checksum, f"{path}", "delete it to fetch it anew")
        return path
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _download(url, temporary)
        found = digest(temporary, checksum)
        check_digest(found, checksum, f"what {url} sent", f"get the original and put it at {path}")
        os.replace(temporary, path)
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise FileNotFoundError(
            f"{path} is missing and {url} cannot be fetched ({reason}): fetch it on another "
            f"machine and put it at {path}"
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return path


def require(path: Path) -> None:
    """Raise FileNotFoundError if a file of a data set is missing."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: put the file there, or give another root")


def open_with_bar(path: Path) -> AbstractContextManager[BinaryIO]:
    """Open a file for reading, with a progress bar where a person looks on."""
    hidden = not sys.stderr.isatty()
    console = Console(stderr=True)
    return rich.progress.open(path, "rb", description=path.name, console=console, disable=hidden)


def digest(path: Path, checksum: str) -> str:
    """Return a file's checksum of the kind that ``checksum`` names, as that is written.

    Raises:
        ValueError: If the kind is unknown.
    """
    kind = checksum.partition(":")[0]
    if kind not in ("sha256", "md5"):
        raise ValueError(f"a checksum is sha256:... or md5:..., got {checksum!r}")
    with path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"


def check_digest(found: str, expected: str, what: str, remedy: str) -> None:
    """Raise ValueError unless a file's checksum is the one expected."""
    if found != expected:
        raise ValueError(f"{what} is not the file expected ({found}, not {expected}): {remedy}")


def _download(url: str, path: Path) -> None:
    bar = Progress(
        *Progress.get_default_columns()[:2],
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer, path.open("wb") as file, bar:
        length = answer.headers.get("Content-Length")
        task = bar.add_task(url.rsplit("/", 1)[-1], total=int(length) if length else None)
        while block := answer.read(_BLOCK):
            file.write(block)
            bar.advance(task, len(block))
        if length is not None and file.tell() != int(length):
            raise OSError(f"{file.tell()} of {length} bytes came")
