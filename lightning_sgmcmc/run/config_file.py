"""``config.yaml``: the whole configuration of a run, whose first line is its checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lightning_sgmcmc.common.files import DamagedFileError, write_beside

_STAMP = "# SHA-256 of the lines below: "


def write_config(path: Path, settings: Mapping[str, Any]) -> None:
    """Write a configuration of plain values."""
    text = yaml.safe_dump(dict(settings), sort_keys=False)
    write_beside(path, f"{_STAMP}{_digest(text.encode())}\n{text}")


def read_config(path: Path) -> dict[str, Any]:
    """Return the configuration that a run wrote, or a user's own without a checksum.

    Raises:
        FileNotFoundError: If there is no such file.
        DamagedFileError: If it is not what was written.
    """
    content = path.read_bytes()
    first, _, body = content.partition(b"\n")
    stamped = first.startswith(b"#") or b"SHA-256" in first
    if stamped and first != f"{_STAMP}{_digest(body)}".encode():
        raise DamagedFileError(
            f"{path} is damaged, its checksum is not the one that it was written with: restore it "
            "from a copy; if you changed it yourself, take its first line away"
        )
    try:
        settings = yaml.safe_load(content)
    except (ValueError, yaml.YAMLError):
        settings = None
    if not isinstance(settings, dict) or not isinstance(settings.get("model"), dict):
        raise DamagedFileError(
            f"{path} is damaged, it does not hold a run's configuration: restore it from a copy"
        )
    return settings


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
