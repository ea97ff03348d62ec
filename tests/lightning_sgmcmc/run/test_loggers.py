"""W&B works without a key."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb

from lightning_sgmcmc.run.loggers import wandb_has_key, wandb_logger


@pytest.fixture
def home(tmp_path: Path, monkeypatch: Any) -> Iterator[Path]:
    """A home without W&B's key, where W&B also keeps what it writes for itself."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC"):
        monkeypatch.setenv(name, "")  # so that what a test leaves there is taken back
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_SILENT", "true")
    yield tmp_path
    wandb.teardown()  # it reads the environment once a process


def test_key_in_the_environment(home: Path, monkeypatch: Any) -> None:
    assert not wandb_has_key()
    monkeypatch.setenv("WANDB_API_KEY", "")
    assert not wandb_has_key()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert wandb_has_key()


@pytest.mark.parametrize(
    ("content", "has_key"),
    [
        ("machine api.wandb.ai login user password secret\n", True),
        ("machine example.org login user password secret\n", False),
        ("machine api.wandb.ai login\n", False),
        ("no netrc at all\n", False),
    ],
    ids=["ours", "other", "cut", "nonsense"],
)
def test_key_in_netrc(home: Path, content: str, has_key: bool) -> None:
    file = home / ".netrc"
    file.write_text(content)
    file.chmod(0o600)
    assert wandb_has_key() is has_key


def test_wandb_is_offline_without_a_key(home: Path, caplog: Any) -> None:
    with caplog.at_level("INFO"):
        logger = wandb_logger(home / "run", "name", "project")
    assert "wandb sync" in caplog.text
    run = logger.experiment
    assert run.settings._offline
    assert Path(run.dir).is_relative_to(home / "run")
    logger.log_metrics({"a": 1.0}, step=1)
    run.finish()
    assert list((home / "run" / "wandb").glob("offline-run-*/*.wandb"))


def test_wandb_mode_wins(home: Path, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with caplog.at_level("INFO"):
        logger = wandb_logger(home / "run", "name")
    assert "wandb sync" not in caplog.text
    assert logger.experiment.settings.mode == "disabled"
    logger.experiment.finish()
    assert os.environ["WANDB_MODE"] == "disabled"
    assert not list(home.rglob("*.wandb"))
