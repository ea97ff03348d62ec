"""Files are whole, on the disk, with ordinary modes, and name their damage."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lightning_sgmcmc.common.files import (
    DamagedFileError,
    clear_temporary,
    save_tensors,
    verify,
    write_beside,
    written_whole,
)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_files_have_the_modes_of_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_beside(tmp_path / "a.txt", "text")
        save_tensors(tmp_path / "b.safetensors", {"a": torch.ones(2)})
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {mode}


def test_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: Any
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        target = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        assert target.is_dir() or mode == os.O_RDWR  # Windows flushes no other
        calls.append(f"flush {'folder' if target.is_dir() else 'file'}")
        fsync(descriptor)

    def note_replace(source: Any, target: Any) -> None:
        calls.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    write_beside(tmp_path / "a.txt", "text")
    assert calls == ["flush file", "rename", "flush folder"]


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: Any, function: str
) -> None:
    path = tmp_path / "a.txt"
    write_beside(path, "old")

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as context:
        context.setattr(os, function, full)
        with pytest.raises(OSError, match="no space"):
            write_beside(path, "new")
    assert (path.read_text(), names(tmp_path)) == ("old", {"a.txt"})
    write_beside(path, "new")
    assert path.read_text() == "new"


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for keep in (".mine.tmp", "a.tmp", ".a"):
        (tmp_path / keep).write_text("")
    with written_whole(tmp_path / "b") as temporary:
        temporary.write_text("whole")
    temporary.write_text("half")  # as a kill leaves it, which runs no handler
    clear_temporary(tmp_path, tmp_path / "gone")
    assert names(tmp_path) == {".mine.tmp", "a.tmp", ".a", "b"}


def test_tensors_return_their_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    digest = save_tensors(path, {"a": torch.arange(3.0)})
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert torch.equal(load_file(path)["a"], torch.arange(3.0))
    verify(path, digest)
    verify(path, "")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedFileError, match=r"a\.safetensors is damaged"):
        verify(path, digest)
