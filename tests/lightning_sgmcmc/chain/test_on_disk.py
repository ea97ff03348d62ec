"""Minibatches of data on disk are those of the same data in memory, and are read as needed."""

from __future__ import annotations

import pickle
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lightning_sgmcmc import SGLD, BatchStream, ControlVariate, OnDisk
from lightning_sgmcmc.callbacks import ChainCheckpoint, fingerprint
from lightning_sgmcmc.chain.burn_in import OptimizerBurnIn
from lightning_sgmcmc.posterior.distill import Student
from tests.device import DEVICE
from tests.toy import Toy, ToyData, toy_data, trainer

N = 500


@pytest.fixture
def arrays(tmp_path: Path) -> tuple[Any, Any]:
    """x [N, 7, 3] and y [N], also in files of three kinds."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((N, 7, 3)).astype(np.float32)
    y = generator.integers(0, 9, N)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    tensors = {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}
    save_file(tensors, tmp_path / "set.safetensors", metadata={"of": "a test"})
    x.tofile(tmp_path / "x.raw")
    return x, y


OPENED: dict[str, Callable[[Path], Any]] = {
    "mapped": lambda folder: np.load(folder / "x.npy", mmap_mode="r"),
    "memmap": lambda folder: np.memmap(folder / "x.raw", np.float32, "r", shape=(N, 7, 3)),
    "npy": lambda folder: OnDisk(folder / "x.npy"),
    "safetensors": lambda folder: OnDisk(folder / "set.safetensors", "x"),
}


@pytest.mark.parametrize("sampling", ["independent", "reshuffled"])
@pytest.mark.parametrize("chains", [None, 3])
@pytest.mark.parametrize("kind", OPENED)
def test_minibatches_are_those_of_memory(
    tmp_path: Path, arrays: Any, kind: str, chains: int | None, sampling: Any
) -> None:
    x, y = map(torch.from_numpy, arrays)
    memory = BatchStream({"x": x, "y": y}, 16, sampling)
    disk = BatchStream({"x": OPENED[kind](tmp_path), "y": y}, 16, sampling)
    both = BatchStream({"x": OPENED[kind](tmp_path), "y": OnDisk(tmp_path / "y.npy")}, 16, sampling)
    for stream in (memory, disk, both):
        stream.bind(DEVICE, 5, num_chains=chains, rank=1, world_size=2)
    for step in (0, 1, 2, 30, 31, 32, 33, 3, 3, 4, 2):  # ahead, across a pass, back, again
        expected = memory.at(step)
        for stream in (disk, both):
            found = stream.at(step)
            assert torch.equal(found["x"], expected["x"])
            assert torch.equal(found["y"], expected["y"])
    for stream in (disk, both):
        for part, other in zip(memory.whole(), stream.whole(), strict=True):
            assert torch.equal(part["x"], other["x"])
        assert torch.equal(memory.spread(7)["x"], stream.spread(7)["x"])


def test_parts_of_a_mapped_array_begin_where_they_should(tmp_path: Path, arrays: Any) -> None:
    x, _ = arrays
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    raw = np.memmap(tmp_path / "x.raw", np.float32, "r", offset=84 * 100, shape=(N - 100, 7, 3))
    for rows, first in ((OnDisk(mapped[100:400][20:]), 120), (OnDisk(raw[20:]), 120)):
        assert torch.equal(rows[3:9], torch.from_numpy(x[first + 3 : first + 9]))
        assert torch.equal(rows[::50], torch.from_numpy(x[first : first + len(rows) : 50].copy()))
        assert not len(rows[5:5])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.bool, torch.uint8])
def test_types_of_safetensors(tmp_path: Path, dtype: torch.dtype) -> None:
    values = (torch.arange(30).reshape(10, 3) % 7).to(dtype)
    save_file({"a": torch.zeros(1, dtype=torch.int8), "v": values}, tmp_path / "v.safetensors")
    rows = OnDisk(tmp_path / "v.safetensors", "v")
    assert (rows.dtype, rows.shape) == (dtype, values.shape)
    assert torch.equal(rows[torch.tensor([9, 0, 4])], values[[9, 0, 4]])


def test_a_mask_chooses_no_rows(tmp_path: Path, arrays: Any) -> None:
    rows = OnDisk(tmp_path / "x.npy")
    mask = torch.zeros(N, dtype=torch.bool)
    mask[5] = True
    with pytest.raises(IndexError, match="by their numbers"):
        rows[mask]
    found = rows[mask.nonzero()[:, 0].int()]
    assert torch.equal(found, torch.from_numpy(arrays[0])[5:6])


def test_a_function_of_rows(tmp_path: Path, arrays: Any) -> None:
    x = torch.from_numpy(arrays[0])
    rows = OnDisk(tmp_path / "x.npy").map(Tensor.double).map(lambda r: (r.flatten(1) - 1) / 3)
    assert (rows.dtype, rows.shape, rows.numel()) == (torch.float64, (N, 21), N * 21)
    assert torch.equal(rows[10:20], (x[10:20].double().flatten(1) - 1) / 3)
    with pytest.raises(ValueError, match=r"a function of 2 rows must return as many, got \[7, 3\]"):
        OnDisk(tmp_path / "x.npy").map(lambda r: r.mean(0))


def test_mean_and_standard_deviation_by_blocks(tmp_path: Path, monkeypatch: Any) -> None:
    """Of columns with scales and offsets of their own, 7 rows at a time."""
    monkeypatch.setattr("lightning_sgmcmc.chain.on_disk._AT_ONCE", 8 * 3 * 7)
    values = np.random.default_rng(0).standard_normal((100, 3)) * [1, 1e-3, 1e4] + [0, 1e3, -5]
    np.save(tmp_path / "v.npy", values)
    mean, std = OnDisk(tmp_path / "v.npy").mean_and_std()
    np.testing.assert_allclose(mean, values.mean(0), rtol=1e-13)
    np.testing.assert_allclose(std, values.std(0, ddof=1), rtol=1e-10)


def test_a_thread_reads_the_next_minibatch(tmp_path: Path, arrays: Any, monkeypatch: Any) -> None:
    """In a row of steps only the first is waited for; the rows of all chains are one reading."""
    readers: list[bool] = []
    rows = OnDisk._rows

    def noted(self: OnDisk, numbers: Any) -> Any:
        assert len(numbers) == 5 * 8
        readers.append(threading.current_thread() is threading.main_thread())
        return rows(self, numbers)

    monkeypatch.setattr(OnDisk, "_rows", noted)
    stream = BatchStream(OnDisk(tmp_path / "x.npy"), 8)
    stream.bind(DEVICE, 0, num_chains=5)
    for step in range(6):
        stream.at(step)
    stream.tensors._ahead[1].result()
    assert readers == [True] + [False] * 6


def test_memory_holds_the_rows_in_hand(tmp_path: Path, monkeypatch: Any) -> None:
    """Of 32 MB, read in minibatches, blocks and evenly spaced rows, a few are held at a time."""
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("the system does not tell what is resident")

    def resident() -> int:
        (kilobytes,) = re.findall(r"VmRSS:\s+(\d+) kB", status.read_text())
        return int(kilobytes) << 10

    (tmp_path / "x.raw").write_bytes(bytes(32 << 20))
    rows = OnDisk(np.memmap(tmp_path / "x.raw", np.float32, "r", shape=(1 << 13, 1024)))
    stream = BatchStream(rows, 8, "independent")
    stream.bind(DEVICE, 0)
    stream.at(0)
    before, most = resident(), 0
    for _ in range(3):
        for step in range(1000):
            stream.at(step)
        for _part in stream.whole():
            most = max(most, resident())
        for first in range(8):
            rows[first::64]
            most = max(most, resident())
    assert most - before < 16 << 20


def test_rows_are_read_alike_where_offsets_need_a_seek(
    tmp_path: Path, arrays: Any, monkeypatch: Any
) -> None:
    monkeypatch.delattr("os.preadv")
    rows, x = OnDisk(tmp_path / "x.npy"), torch.from_numpy(arrays[0])
    rows.read_ahead(torch.tensor([3, 499]))
    assert torch.equal(rows[7:90], x[7:90])
    assert torch.equal(rows[torch.tensor([3, 499])], x[[3, 499]])


class OnDiskData(ToyData):
    """The toy's training set in files."""

    def __init__(self, folder: Path, batch_size: int = 16) -> None:
        super().__init__(batch_size)
        self.folder = folder
        for name, tensor in zip("xy", toy_data(), strict=True):
            np.save(folder / f"{name}.npy", tensor.numpy())

    def train_dataloader(self) -> BatchStream:
        return BatchStream([OnDisk(self.folder / f"{n}.npy") for n in "xy"], self.batch_size)


def draws(folder: Path) -> dict[str, Tensor]:
    files = sorted((folder / "samples").glob("chain*/step_*.safetensors"))
    assert files
    return {f"{f.parent.name}/{f.name}/{n}": t for f in files for n, t in load_file(f).items()}


@pytest.mark.parametrize(
    ("precision", "chain"),
    [
        ("32-true", {}),
        ("64-true", {}),
        ("64-true", {"num_chains": 2}),
        ("32-true", {"gradients": ControlVariate()}),
    ],
)
def test_a_run_and_its_resume_are_those_of_memory(
    tmp_path: Path, precision: Any, chain: dict[str, Any]
) -> None:
    """Begun in memory and continued on disk in the middle of a pass, the chain is the same."""

    def run(name: str, data: Any, steps: int, ckpt: str | None = None) -> dict[str, Tensor]:
        folder = tmp_path / name
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        torch.manual_seed(1)
        module = Toy(burn_in=2, thinning=3, **chain)
        made = trainer(folder, steps, [ChainCheckpoint(5)], precision=precision)
        made.fit(module, datamodule=data, ckpt_path=ckpt, weights_only=True)
        states = {f"state {k}": module.chain.state(k)["net.weight"] for k in module.chain.numbers}
        return draws(folder) | states

    memory, disk = run("memory", ToyData(), 20), run("disk", OnDiskData(tmp_path), 20)
    run("both", ToyData(), 10)
    last = str(tmp_path / "both" / "checkpoints" / "last.ckpt")
    both = run("both", OnDiskData(tmp_path), 20, last)
    assert memory.keys() == disk.keys() == both.keys()
    for name, tensor in memory.items():
        assert torch.equal(tensor, disk[name])
        assert torch.equal(tensor, both[name])


def test_a_file_has_the_fingerprint_of_its_rows(
    tmp_path: Path, arrays: Any, monkeypatch: Any
) -> None:
    """Of large data only evenly spaced rows are read: here each 42nd, 3 at a time."""
    monkeypatch.setattr(fingerprint, "_READ", 1000)
    monkeypatch.setattr(fingerprint, "_AT_ONCE", 3)
    x = torch.from_numpy(arrays[0])
    found = [fingerprint._hash(iter([data])) for data in (x, OnDisk(tmp_path / "x.npy"))]
    x[42 * 8] += 1
    assert found[0] == found[1] != fingerprint._hash(iter([x]))


def test_a_student_learns_from_the_same_rows(tmp_path: Path, arrays: Any) -> None:
    x, y = map(torch.from_numpy, arrays)
    student = Student(nn.Linear(1, 1))
    files = (OnDisk(tmp_path / "x.npy"), OnDisk(tmp_path / "y.npy"))
    for found, expected in zip(
        student.minibatch(files, 7), student.minibatch((x, y), 7), strict=True
    ):
        assert torch.equal(found, expected)


def test_another_process_opens_the_file_itself(tmp_path: Path, arrays: Any) -> None:
    rows = OnDisk(np.load(tmp_path / "x.npy", mmap_mode="r")[50:]).map(Tensor.double)
    rows.read_ahead(torch.arange(3))
    content = pickle.dumps(rows)
    assert len(content) < 2000
    assert torch.equal(pickle.loads(content)[7:9], torch.from_numpy(arrays[0][57:59]).double())


def cut(path: Path, size: int) -> Path:
    path.write_bytes(path.read_bytes()[:size])
    return path


WRONG: dict[str, tuple[type[Exception], str, Callable[[Path, Any], Any]]] = {
    "cut": (ValueError, r"x.npy is cut short: it has 9,000 bytes, expected at least 42,128 for "
            r"\[500, 7, 3\]", lambda f, x: OnDisk(cut(f / "x.npy", 9000))),
    "header": (ValueError, "x.npy is no .npy file", lambda f, x: OnDisk(cut(f / "x.npy", 5))),
    "safetensors": (ValueError, "set.safetensors is no safetensors file, or is cut short",
                    lambda f, x: OnDisk(cut(f / "set.safetensors", 20), "x")),
    "name": (KeyError, "has no tensor 'z': choose among x, y",
             lambda f, x: OnDisk(f / "set.safetensors", "z")),
    "unnamed": (ValueError, "FILE.safetensors with the name",
                lambda f, x: OnDisk(f / "set.safetensors")),
    "missing": (FileNotFoundError, "gone.npy", lambda f, x: OnDisk(f / "gone.npy")),
    "memory": (TypeError, "an array is in memory", lambda f, x: OnDisk(x)),
    "columns": (ValueError, "do not lie one after another",
                lambda f, x: OnDisk(np.load(f / "x.npy", mmap_mode="r")[:, :2])),
    "copy": (TypeError, "mapped copy-on-write",
             lambda f, x: OnDisk(np.load(f / "x.npy", mmap_mode="c"))),
    "full": (ValueError, "full batches put all data into every step",
             lambda f, x: BatchStream(OnDisk(f / "x.npy"), 8, "full")),
    "length": (ValueError, r"same first dimension, got \[499, 500\]",
               lambda f, x: BatchStream((OnDisk(f / "x.npy"), torch.zeros(N - 1)), 8)),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_wrong_files_are_refused(tmp_path: Path, arrays: Any, what: str) -> None:
    error, message, make = WRONG[what]
    with pytest.raises(error, match=message):
        make(tmp_path, arrays[0])


def test_arrays_as_torch_cannot_read_them_are_refused(tmp_path: Path) -> None:
    ones = np.ones((4, 3), np.float32)
    for name, array, message in (
        ("order", ones.astype(">f4"), "holds values of type >f4, which torch does not know"),
        ("columns", np.asfortranarray(ones), "stored column by column"),
        ("number", np.float32(1), "holds a single number"),
    ):
        np.save(tmp_path / f"{name}.npy", array)
        with pytest.raises((TypeError, ValueError), match=message):
            OnDisk(tmp_path / f"{name}.npy")


def test_a_file_that_is_cut_later_is_refused(tmp_path: Path, arrays: Any) -> None:
    rows = OnDisk(tmp_path / "y.npy")
    assert rows[300:302].tolist() == arrays[1][300:302].tolist()
    with (tmp_path / "y.npy").open("r+b") as file:
        file.truncate(1000)
    for part in (slice(0, 500), torch.tensor([0, 400])):
        with pytest.raises(ValueError, match="it was changed after it was opened"):
            rows[part]
    with pytest.raises(IndexError, match="rows 3 to 500 of 500"):
        rows[torch.tensor([3, 500])]


def test_labels_of_each_chain_are_not_moved_on_disk(tmp_path: Path) -> None:
    module = Toy(
        lambda params: SGLD(params, lr=1e-3, prior=None),
        starts="randomised_map",
        burn_in=5,
        burn_in_optimizer=OptimizerBurnIn(torch.optim.Adam, 4),
    )
    with pytest.raises(ValueError, match="hold each chain's labels in memory"):
        trainer(tmp_path / "run", 10).fit(module, datamodule=OnDiskData(tmp_path))
