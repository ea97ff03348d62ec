"""Checkpoints as files: whole, verified when they are read, and the last two of them."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import lightning as L
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.utilities import rank_zero_only

from lightning_sgmcmc.chain.processes import file_of
from lightning_sgmcmc.common.files import DamagedFileError, written_whole

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
Read = Callable[[Path], dict[str, Any]]
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
            RuntimeError: If the task's ``on_save_checkpoint`` hides that of ``SGMCMCModule``.
        """
        if "state_dict" in checkpoint and "sgmcmc_task" not in checkpoint:
            raise RuntimeError(
                "a checkpoint lacks the chain's part: on_save_checkpoint(checkpoint) of the task "
                "has to call super().on_save_checkpoint(checkpoint)"
            )
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(target) as temporary, temporary.open("w+b") as file:
            _serialise(checkpoint, file)
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


def _serialise(checkpoint: dict[str, Any], file: BinaryIO) -> None:
    """Write what ``torch.save`` writes; where that fails, raise what the file raised."""
    try:
        torch.save(checkpoint, file)
    except RuntimeError as error:  # of the end of its archive, which is not where it should be
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


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
    """Verify a checkpoint with all the files that hold chains of it.

    Raises:
        FileNotFoundError: If one is missing.
        DamagedFileError: If one is not what was written, or they are of different steps.
    """
    first = read_checkpoint(path)
    for rank in range(1, len(groups_of(path, first))):
        read_part(path, first, rank)


def groups_of(path: Path, first: Mapping[str, Any]) -> list[list[int]]:
    """Return the numbers of the chains in each file of a checkpoint.

    Args:
        path: Of the checkpoint.
        first: The content of that file.

    Raises:
        DamagedFileError: If an earlier version wrote it, by several processes.
    """
    if first.get("sgmcmc_files", 1) > 1:
        raise DamagedFileError(
            f"{path} is of an earlier version, which kept chains by the number of their process: "
            "continue it with that version, or run the chains anew; load_posterior still reads "
            "the draws"
        )
    groups: list[list[int]] | None = first.get("sgmcmc_chains")
    if groups is None:  # of an earlier version, with all chains in one file
        groups = [first["callbacks"].get("KeepDraws", {}).get("chains", [0])]
    return groups


def read_part(
    path: Path, first: Mapping[str, Any], rank: int, read: Read | None = None
) -> dict[str, Any]:
    """Return the content of one file of a checkpoint.

    Args:
        path: Of the checkpoint.
        first: The content of that file.
        rank: The number of the file, that of the process that wrote it.
        read: Reads a file; by default :func:`read_checkpoint`.

    Raises:
        FileNotFoundError: If it is missing.
        DamagedFileError: If it is not what was written, or of another step or run.
    """
    groups = groups_of(path, first)
    own = file_of(path, groups, rank)
    without = f"no chain goes on from {path.name} without the state of {_named(groups[rank])}"
    try:
        content = (read or read_checkpoint)(own)
    except FileNotFoundError:
        raise FileNotFoundError(f"{own} is missing: {without}") from None
    except DamagedFileError:
        raise DamagedFileError(f"{own} is damaged: {without}") from None
    same = content["global_step"] == first["global_step"]
    if not same or content.get("sgmcmc_chains") != groups:
        raise DamagedFileError(f"{own} is of another step than {path}: {without}")
    return content


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


def _named(chains: Sequence[int]) -> str:
    if len(chains) == 1:
        return f"chain {chains[0]}"
    return f"chains {', '.join(map(str, chains[:-1]))} and {chains[-1]}"


def keep_previous(path: Path) -> None:
    """Give a checkpoint the name of the one before it, and keep it under its own as well."""
    files = _files(path)
    for file in files:
        previous = file.with_name(file.name.replace(LAST, PREVIOUS))
        with written_whole(previous) as temporary:
            try:
                os.link(file, temporary)
            except OSError:  # a file system without hard links
                shutil.copyfile(file, temporary)
    names = {file.name.replace(LAST, PREVIOUS) for file in files}
    _remove_others(path.with_name(PREVIOUS), names)


def remove_others(path: Path, groups: Sequence[Sequence[int]]) -> None:
    """Remove the files of an older checkpoint of the same name, whose chains lay otherwise."""
    _remove_others(path, {file_of(path, groups, rank).name for rank in range(len(groups))})


def _remove_others(path: Path, names: Collection[str]) -> None:
    for file in _files(path):
        if file.name not in names:
            file.unlink()


def _files(path: Path) -> list[Path]:
    """Return the files of a checkpoint that are there, the first one's before those of others."""
    return [file for file in (path, *sorted(path.parent.glob(f"{path.name}.*"))) if file.is_file()]
