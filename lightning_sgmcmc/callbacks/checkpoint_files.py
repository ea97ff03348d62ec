"""Checkpoints as files: whole, verified when they are read, and the last two of them."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
from pathlib import Path
from typing import Any, BinaryIO

import lightning as L
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.utilities import rank_zero_only

from lightning_sgmcmc.common.files import DamagedFileError, written_whole

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
_CHUNK = 1 << 20


class WholeCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint as a whole, and compares it with its checksum when it is read.

    The SHA-256 stands behind what ``torch.save`` writes, a zip file, of which readers find the end.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a checkpoint.

        Raises:
            OSError: If the disk is full, or the folder is read-only or gone.
        """
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(target) as temporary, temporary.open("w+b") as file:
            torch.save(checkpoint, file)
            file.seek(0)
            checksum = _checksum(file)
            file.seek(0, os.SEEK_END)
            file.write(checksum)

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Read a checkpoint.

        Raises:
            DamagedFileError: If it is not what was written.
        """
        verify_checkpoint(Path(path))
        return super().load_checkpoint(path, *args, **kwargs)


def write_whole_checkpoints(trainer: L.Trainer) -> None:
    """Let a trainer write and read checkpoints by :class:`WholeCheckpoints`.

    A plugin that was chosen for it stays.
    """
    if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
        trainer.strategy.checkpoint_io = WholeCheckpoints()


def verify_checkpoint(path: Path) -> None:
    """Compare a checkpoint with its checksum.

    Raises:
        FileNotFoundError: If there is no such file.
        DamagedFileError: If it is not what was written.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing")
    with path.open("rb") as file:
        size = max(0, path.stat().st_size - len(_checksum(io.BytesIO())))
        if _checksum(file, size) == file.read():
            return
    other = path.with_name(PREVIOUS) if path.name.startswith(LAST) else "another"
    raise DamagedFileError(
        f"{path} is damaged, or not a checkpoint of this version of lightning-sgmcmc: continue "
        f"from {other}, or run the chain anew; load_posterior still reads the draws"
    )


def _checksum(file: BinaryIO, size: int | None = None) -> bytes:
    """Return the line that stands behind the next ``size`` bytes of a file, or all of them."""
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK if size is None else min(_CHUNK, size)):
        digest.update(chunk)
        size = None if size is None else size - len(chunk)
    return f"\nsha256 {digest.hexdigest()}".encode()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint, whose tensors stay on the disk until they are used.

    Raises:
        FileNotFoundError: If there is no such file.
        DamagedFileError: If it is not what was written.
    """
    verify_checkpoint(path)
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return content


def verify_set(path: Path) -> None:
    """Verify a checkpoint with those of the other processes, each of which keeps its own chains.

    Raises:
        FileNotFoundError: If one is missing.
        DamagedFileError: If one is not what was written, or they are of different steps.
    """
    first = read_checkpoint(path)
    for rank in range(1, first["sgmcmc_files"]):
        own = Path(f"{path}.rank{rank}")
        if read_checkpoint(own)["global_step"] != first["global_step"]:
            raise DamagedFileError(f"{own} is of another step than {path}")


def newest(folder: Path) -> Path:
    """Return the last checkpoint of a folder, or the one before if the last is not whole.

    The older one is taken with a word on stderr. What was drawn after it is drawn again, and
    comes out equal.

    Raises:
        FileNotFoundError: If there is none.
        DamagedFileError: If none is whole, with the reason of the last one.
    """
    last, previous = folder / LAST, folder / PREVIOUS
    try:
        verify_set(last)
        return last
    except (FileNotFoundError, DamagedFileError) as error:
        try:
            verify_set(previous)
        except (FileNotFoundError, DamagedFileError):
            raise error from None
        _say(f"warning: {error}; taking {previous.name}, the one before")
        return previous


@rank_zero_only
def _say(text: str) -> None:
    print(text, file=sys.stderr)


def keep_previous(path: Path) -> None:
    """Give a checkpoint the name of the one before it, and keep it under its own as well."""
    previous = path.with_name(path.name.replace(LAST, PREVIOUS))
    with written_whole(previous) as temporary:
        try:
            os.link(path, temporary)
        except OSError:  # a file system without hard links
            shutil.copyfile(path, temporary)
