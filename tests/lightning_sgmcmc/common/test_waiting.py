"""The line that is printed where something takes long."""

from __future__ import annotations

import time

import pytest

from lightning_sgmcmc.common import waiting


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(waiting, "rank_zero_info", lines.append)
    monkeypatch.setattr(waiting, "LONG", 0.05)
    return lines


def test_what_is_long_says_so_while_it_runs(said: list[str]) -> None:
    with waiting.said_if_long("measuring"):
        until = time.monotonic() + 10
        while not said and time.monotonic() < until:
            time.sleep(0.01)
        assert said == ["measuring"]
    time.sleep(0.1)
    assert said == ["measuring"]


def test_what_is_short_or_fails_says_nothing(said: list[str]) -> None:
    with waiting.said_if_long("measuring"):
        pass
    with pytest.raises(ValueError, match="bad"), waiting.said_if_long("measuring"):
        raise ValueError("bad")
    time.sleep(0.2)
    assert said == []
