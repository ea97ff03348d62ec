"""Fetching: whole and checked, or a line that says what to do."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tasks.data.download import data_root, fetch

CONTENT = bytes(range(256)) * 1000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.bin"
    path.write_bytes(CONTENT)
    return path


def checksum(kind: str, content: bytes = CONTENT) -> str:
    return f"{kind}:{hashlib.new(kind, content).hexdigest()}"


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_file_is_fetched_once(source: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "deep" / "er" / "set.bin"
    assert fetch(source.as_uri(), path, checksum(kind)) == path
    assert path.read_bytes() == CONTENT
    url = source.as_uri()
    source.unlink()
    fetch(url, path, checksum(kind))  # is there: no network needed


def test_a_wrong_file_is_never_taken(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "sets" / "set.bin"
    expected = checksum("sha256", b"another file")
    with pytest.raises(ValueError, match="not the file expected") as error:
        fetch(source.as_uri(), path, expected)
    assert str(path) in str(error.value)
    assert list(path.parent.iterdir()) == []
    path.write_bytes(b"half a fi")
    with pytest.raises(ValueError, match="delete it to fetch it anew"):
        fetch(source.as_uri(), path, expected)
    assert path.read_bytes() == b"half a fi"  # not ours to delete


def test_without_network_the_error_says_what_to_fetch_and_where_it_goes(tmp_path: Path) -> None:
    url, path = (tmp_path / "nowhere.bin").as_uri(), tmp_path / "sets" / "set.bin"
    with pytest.raises(FileNotFoundError) as error:
        fetch(url, path, checksum("sha256"))
    message = str(error.value)
    assert url in message
    assert f"put it at {path}" in message
    assert list(path.parent.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_the_same_error(source: Path, tmp_path: Path) -> None:
    (tmp_path / "sets").write_text("a file in the way")
    with pytest.raises(FileNotFoundError, match="put it at"):
        fetch(source.as_uri(), tmp_path / "sets" / "set.bin", checksum("md5"))


def test_a_download_that_breaks_off_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        headers = {"Content-Length": "100"}  # noqa: RUF012

        def __init__(self) -> None:
            self.parts = [b"x" * 60, b""]

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...

        def read(self, _: int) -> bytes:
            return self.parts.pop(0)

    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: Broken())
    path = tmp_path / "sets" / "set.bin"
    with pytest.raises(FileNotFoundError, match="60 of 100 bytes came"):
        fetch("https://example.org/set.bin", path, checksum("md5", b"x" * 60))
    assert list(path.parent.iterdir()) == []


def test_unknown_kinds_of_checksum_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"sha256:\.\.\. or md5:"):
        fetch(source.as_uri(), tmp_path / "set.bin", "crc32:1234")


def test_data_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGMCMC_DATA_ROOT", "there")
    assert data_root() == Path("there")
    assert data_root("here") == Path("here")
    monkeypatch.delenv("SGMCMC_DATA_ROOT")
    assert data_root() == Path("data")
