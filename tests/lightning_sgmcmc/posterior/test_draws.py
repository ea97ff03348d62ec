"""Draws on disk: what is written is what is read, and the index never promises too much."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from lightning_sgmcmc.common.files import DamagedFileError
from lightning_sgmcmc.posterior import DrawStore
from lightning_sgmcmc.posterior.draws import open_stores


def weights(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "net.weight": torch.randn(5, 3, generator=generator),
        "net.bias": torch.randn(5, generator=generator).mul_(1e3),
        "steps": torch.tensor([2**24 + 1]),
    }


def filled(folder: Path, steps: tuple[int, ...] = (10, 20, 30), **kwargs: Any) -> DrawStore:
    store = DrawStore(folder, **kwargs)
    for step in steps:
        store.save(step, weights(step), weight=step / 7)
    return store


def indexed(store: DrawStore) -> list[str]:
    content = json.loads((store.folder / "index.json").read_text())
    return [entry["file"] for entry in content["draws"]]


def test_round_trip_is_bit_equal(tmp_path: Path) -> None:
    constants = {"mean": torch.tensor([1.0, float("inf")]), "active": torch.tensor([True, False])}
    filled(tmp_path, chain=3).save_constants(constants)
    store = DrawStore.open(tmp_path, chain=3)
    assert [(draw.step, draw.weight) for draw in store.draws] == [(s, s / 7) for s in (10, 20, 30)]
    for draw in store.draws:
        loaded, saved = store.load(draw), weights(draw.step)
        assert loaded.keys() == saved.keys()
        assert all(torch.equal(loaded[k], saved[k]) for k in saved)
    loaded = store.load_constants()
    assert all(torch.equal(loaded[k], v) for k, v in constants.items())


def test_chains_do_not_mix(tmp_path: Path) -> None:
    filled(tmp_path, (10,), chain=0)
    filled(tmp_path, (20, 30), chain=1)
    assert [d.step for d in DrawStore.open(tmp_path, 0).draws] == [10]
    assert [d.step for d in DrawStore.open(tmp_path, 1).draws] == [20, 30]


def test_views_are_stored_as_themselves(tmp_path: Path) -> None:
    """A transposed weight, overlapping slices, and one tensor under two names."""
    flat = torch.arange(12.0)
    given = {"a": flat[:6].view(2, 3).T, "b": flat[6:], "c": flat[3:9], "d": flat, "e": flat}
    store = DrawStore(tmp_path)
    store.save(1, given, 1.0)
    store.save_constants(given)
    for loaded in (store.load(store.draws[0]), store.load_constants()):
        assert all(torch.equal(loaded[k], given[k]) for k in given)


@pytest.mark.parametrize(
    ("dtype", "stored", "digits"),
    [
        ("float32", torch.float32, 24),
        ("bfloat16", torch.bfloat16, 8),
        ("float16", torch.float16, 11),
    ],
)
def test_floats_are_rounded_to_the_stored_type(
    tmp_path: Path, dtype: str, stored: torch.dtype, digits: int
) -> None:
    store = filled(tmp_path, (10,), dtype=dtype)
    on_disk = load_file(store.folder / "step_10.safetensors")
    assert on_disk["net.weight"].dtype == stored
    opened = DrawStore.open(tmp_path)
    assert opened.dtype == dtype
    loaded = opened.load(opened.draws[0])
    for name in ("net.weight", "net.bias"):
        given = weights(10)[name].cpu()
        assert loaded[name].dtype == torch.float32
        error = ((loaded[name] - given) / given).abs().max()
        assert error <= 2.0**-digits
        assert (error > 2.0 ** -(digits + 4)) == (dtype != "float32")
    assert torch.equal(loaded["steps"], weights(10)["steps"])  # 2^24 + 1 is no float32


def test_a_weight_that_the_stored_type_cannot_hold_is_refused(tmp_path: Path) -> None:
    """float16 ends at 65,504."""
    with pytest.raises(ValueError, match="w holds a value that float16 cannot"):
        DrawStore(tmp_path, dtype="float16").save(1, {"w": torch.tensor([7e4])}, 1.0)
    assert not (tmp_path / "chain0" / "index.json").exists()


def test_unknown_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"dtype must be one of float32, .* got 'float8'"):
        DrawStore(tmp_path, dtype="float8")


@pytest.mark.parametrize("moment", ["before", "after"])
def test_index_names_whole_files_only(tmp_path: Path, monkeypatch: Any, moment: str) -> None:
    """A process that dies before or after the draw's renaming leaves an index that can be read."""
    store = filled(tmp_path)
    replace = os.replace

    def die(source: Any, target: Any) -> None:
        if moment == "after":
            replace(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        store.save(40, weights(40), 1.0)
    monkeypatch.undo()
    assert (store.folder / "step_40.safetensors").is_file() == (moment == "after")
    opened = DrawStore.open(tmp_path)
    assert [d.step for d in opened.draws] == [10, 20, 30]
    opened.rewind(opened.draws)  # and continuing clears what was left over
    names = {path.name for path in store.folder.iterdir()}
    assert names == {"index.json", *(f"step_{s}.safetensors" for s in (10, 20, 30))}


def test_missing_index_and_missing_draw_are_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no draw was kept"):
        DrawStore.open(tmp_path)
    store = filled(tmp_path)
    (store.folder / "step_20.safetensors").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"step_20\.safetensors is in the index but missing"
    ):
        DrawStore.open(tmp_path)


def test_rewind_removes_later_draws_and_goes_on(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.save_constants({"a": torch.ones(1)})
    early = (store.folder / "step_10.safetensors").read_bytes()
    store.rewind(store.draws[:1])
    assert indexed(store) == ["step_10.safetensors"]
    assert [p.name for p in store.folder.glob("step_*")] == ["step_10.safetensors"]
    assert (store.folder / "step_10.safetensors").read_bytes() == early
    assert (store.folder / "constants.safetensors").is_file()
    store.save(15, weights(15), 1.0)
    assert [d.step for d in DrawStore.open(tmp_path).draws] == [10, 15]


def test_rewind_refuses_when_an_earlier_draw_is_missing(tmp_path: Path) -> None:
    store = filled(tmp_path)
    (store.folder / "step_10.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"checkpoint counts on .*step_10\.safetensors"):
        store.rewind(store.draws[:2])
    assert (store.folder / "step_30.safetensors").is_file()  # nothing is removed then


def test_constants_are_written_again_where_they_are_harmed_alone(tmp_path: Path) -> None:
    store, constants = DrawStore(tmp_path), {"buffer": torch.arange(3.0)}
    store.save_constants(constants)
    path = store.folder / "constants.safetensors"
    whole = path.read_bytes()
    path.unlink()
    store.heal_constants(constants)
    assert path.read_bytes() == whole
    path.write_bytes(whole[:-1] + b"!")
    store.heal_constants(constants)
    assert path.read_bytes() == whole
    store.heal_constants({"buffer": torch.zeros(3)})
    assert torch.equal(store.load_constants()["buffer"], torch.arange(3.0))


def test_rewind_to_nothing_without_a_folder(tmp_path: Path) -> None:
    DrawStore(tmp_path).rewind([])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["step_20.safetensors", "constants.safetensors", "index.json"])
def test_every_flipped_bit_and_every_missing_byte_is_named(tmp_path: Path, name: str) -> None:
    """Of a draw, of what all draws share, and of the index."""
    store = DrawStore(tmp_path)
    store.save_constants({"mean": torch.tensor([1.0, float("inf")])})
    for step in (10, 20, 30):
        store.save(step, {"a": torch.randn(2, generator=torch.Generator().manual_seed(step))}, 0.5)
    path = store.folder / name
    whole = path.read_bytes()
    flipped = [whole[:i] + bytes([b ^ 1 << i % 8]) + whole[i + 1 :] for i, b in enumerate(whole)]
    for damaged in [*flipped, *(whole[:i] for i in range(0, len(whole), 7))]:
        path.write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=f"{name} is damaged"):
            _read(tmp_path)
    path.write_bytes(whole)
    assert _read(tmp_path) == 3


def _read(folder: Path) -> int:
    store = DrawStore.open(folder)
    store.load_constants()
    return len([store.load(draw) for draw in store.draws])


def test_damage_is_named_before_the_chain_continues(tmp_path: Path) -> None:
    store = filled(tmp_path)
    path = store.folder / "step_10.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedFileError, match=r"step_10\.safetensors is damaged"):
        store.rewind(store.draws[:2])
    assert (store.folder / "step_30.safetensors").is_file()  # nothing is removed then


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_draw_that_is_not_finite_is_named(tmp_path: Path, value: float) -> None:
    store = filled(tmp_path)
    store.save(40, weights(40) | {"net.bias": torch.full((5,), value)}, 1.0)
    store = DrawStore.open(tmp_path)
    store.load(store.draws[0])
    with pytest.raises(DamagedFileError, match=r"step_40\.safetensors is no draw: net\.bias"):
        store.load(store.draws[3])


def test_draws_of_runs_without_checksums_are_read(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.save_constants({"a": torch.ones(1)})
    entries = [{"step": d.step, "file": d.file, "weight": d.weight} for d in store.draws]
    text = json.dumps({"schema": 1, "dtype": "float32", "draws": entries})
    (store.folder / "index.json").write_text(text)
    assert _read(tmp_path) == 3


def test_a_copy_of_a_chains_folder_is_not_a_chain(tmp_path: Path) -> None:
    filled(tmp_path / "samples", chain=1)
    (tmp_path / "samples" / "chain1_old").mkdir()
    assert [store.folder.name for store in open_stores(tmp_path)] == ["chain1"]
