"""Rows on disk in pieces are those of a list, and a save costs what is new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_sgmcmc.common.files import DamagedFileError
from lightning_sgmcmc.posterior.pieces import Pieces


def row(number: int) -> dict[str, torch.Tensor]:
    """A row, of which every third has no predictions."""
    found = {"weights": torch.full((2, 3), float(number), dtype=torch.float64)}
    return found | ({"predictions": torch.tensor([float(number)])} if number % 3 else {})


def fill(pieces: Pieces, numbers: range) -> None:
    for number in numbers:
        pieces.add(row(number), {"step": float(number), "nll": number / 7})


def content(pieces: Pieces) -> Any:
    rows = pieces.of("weights"), pieces.of("predictions"), pieces.of("none")
    return len(pieces), pieces.numbers(), [r.tolist() for r in rows]


@given(st.lists(st.integers(0, 5), max_size=6), st.data())
def test_pieces_hold_what_a_list_holds(
    tmp_path_factory: Any, sizes: list[int], data: st.DataObject
) -> None:
    """After saves at any rows, from any of them, and of what came after it."""
    folder = tmp_path_factory.mktemp("pieces")
    pieces, states = Pieces(folder), [({"count": 0, "last": "", "sha256": ""}, 0)]
    for size in sizes:
        fill(pieces, range(len(pieces), len(pieces) + size))
        states.append((pieces.save(), len(pieces)))
    fill(pieces, range(len(pieces), len(pieces) + 2))
    plain = Pieces(folder / "never written")
    fill(plain, range(len(pieces)))
    assert content(pieces) == content(plain)
    state, count = data.draw(st.sampled_from(states))
    again = Pieces(folder)
    again.load(state)
    fill(again, range(count, count + 3))
    plain = Pieces(folder / "never written")
    fill(plain, range(count + 3))
    assert content(again) == content(plain)
    again.save()
    assert content(again) == content(plain)


def test_equal_rows_are_equal_files(tmp_path: Path) -> None:
    """Of every process: a library's order of chance would show among ten."""
    for folder in map(str, range(10)):
        pieces = Pieces(tmp_path / folder)
        fill(pieces, range(3))
        pieces.save()
    assert len({path.read_bytes() for path in tmp_path.rglob("1-3.safetensors")}) == 1


def test_a_save_writes_new_rows_alone(tmp_path: Path) -> None:
    pieces = Pieces(tmp_path)
    states = []
    for i in range(20):
        fill(pieces, range(100 * i, 100 * i + 100))
        states.append(pieces.save())
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 20
    assert max(sizes) < 1.1 * min(sizes)
    assert {len(str(state)) for state in states[1:]} <= {*range(90, 150)}
    assert pieces.save() == states[-1]  # nothing new


@pytest.mark.parametrize("how", ["flip", "truncate", "remove"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_damage_is_named(tmp_path: Path, how: str, which: int) -> None:
    pieces = Pieces(tmp_path)
    for i in range(3):
        fill(pieces, range(4 * i, 4 * i + 4))
        state = pieces.save()
    fill(pieces, range(12, 16))
    pieces.save()
    path = tmp_path / f"{4 * which + 1}-{4 * which + 4}.safetensors"
    whole = path.read_bytes()
    if how == "flip":
        path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 4]) + whole[-8:])
    elif how == "truncate":
        path.write_bytes(whole[:-20])
    else:
        path.unlink()
    with pytest.raises(DamagedFileError, match=rf"{path.name} is (damaged|missing)"):
        Pieces(tmp_path).load(state)
    assert (tmp_path / "13-16.safetensors").is_file()  # nothing was removed
    path.write_bytes(whole)
    Pieces(tmp_path).load(state)
    assert not (tmp_path / "13-16.safetensors").is_file()


def test_other_processes_read_and_write_nothing(tmp_path: Path) -> None:
    first, second = Pieces(tmp_path), Pieces(tmp_path, writes=False)
    for pieces in (first, second):
        fill(pieces, range(5))
        pieces.save()
        fill(pieces, range(5, 7))
    assert content(first) == content(second)
    second.clear()
    assert len(list(tmp_path.iterdir())) == 1
    first.clear()
    assert not list(tmp_path.iterdir())
