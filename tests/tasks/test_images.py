"""Image sets: small files of the published form are read as they stand, others are refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
import urllib.error
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tasks.data import cifar10, mnist
from tasks.data.cifar10 import CIFAR10Data
from tasks.data.images import ImageData
from tasks.data.mnist import FashionMNISTData, IDXFiles, MNISTData

rng = np.random.default_rng(0)
DIGITS = {
    part: rng.integers(0, 256, (n, 28, 28), np.uint8) for part, n in (("train", 40), ("t10k", 7))
}
LABELS = {part: np.arange(len(x), dtype=np.uint8) % 10 for part, x in DIGITS.items()}


def idx(array: NDArray[np.uint8]) -> bytes:
    head = struct.pack(f">{array.ndim}I", *array.shape)
    return b"\0\0\x08" + bytes([array.ndim]) + head + array.tobytes()


def written(root: Path, folder: str, source: str, flip: bool = False) -> IDXFiles:
    """Write the four files; ``flip`` inverts the images."""
    (root / folder / "raw").mkdir(parents=True, exist_ok=True)
    checksums = {}
    for part in ("train", "t10k"):
        images = 255 - DIGITS[part] if flip else DIGITS[part]
        for kind, array in (("images-idx3", images), ("labels-idx1", LABELS[part])):
            content = gzip.compress(idx(array))
            name = f"{part}-{kind}-ubyte.gz"
            (root / folder / "raw" / name).write_bytes(content)
            checksums[name] = f"md5:{hashlib.md5(content).hexdigest()}"
    return IDXFiles(folder, source, checksums)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    digits = written(tmp_path, "MNIST", "file:///nowhere/mnist/")
    clothes = written(tmp_path, "FashionMNIST", "file:///nowhere/fashion/", flip=True)
    monkeypatch.setattr(MNISTData, "files", digits)
    monkeypatch.setattr(MNISTData, "others", {"fashion": clothes})
    monkeypatch.setattr(FashionMNISTData, "files", clothes)
    monkeypatch.setattr(FashionMNISTData, "others", {"mnist": digits})
    return tmp_path


def ready(kind: type[ImageData], root: Path, **options: Any) -> ImageData:
    data = kind(root=str(root), **options)
    data.prepare_data()
    data.setup()
    return data


def test_bytes_become_pixels(root: Path) -> None:
    data = ready(MNISTData, root)
    x, y = data.tensors("train")
    assert x.shape == (40, 1, 28, 28)
    np.testing.assert_array_equal((x[:, 0] * 255).round().numpy(), DIGITS["train"])
    assert y.tolist() == LABELS["train"].tolist()
    flat, _ = ready(MNISTData, root, flatten=True, scale="126").tensors("test")
    np.testing.assert_allclose(flat, DIGITS["t10k"].reshape(7, 784) / 126.0, rtol=1e-6)
    # Fashion-MNIST, here the inverse, comes from files of its own.
    clothes, _ = ready(FashionMNISTData, root).tensors("train")
    torch.testing.assert_close(clothes, 1 - x)


def test_standardised_pixels_use_the_training_split(root: Path) -> None:
    data = ready(MNISTData, root, scale="standardise", num_val=10, val_from="last")
    x, _ = data.tensors("train")
    assert abs(x.mean()) < 1e-5
    assert abs(x.std(correction=0) - 1) < 1e-5
    raw = DIGITS["train"].astype(float)
    expected = (raw[30:] - raw[:30].mean()) / raw[:30].std()
    np.testing.assert_allclose(data.tensors("val")[0][:, 0], expected, rtol=1e-4, atol=1e-5)


def test_projected_pixels(root: Path) -> None:
    data = ready(MNISTData, root, projection_dim=5, ood="rotated")
    assert data.input_shape == (5,)
    x, _ = data.tensors("train")
    torch.testing.assert_close(x.mean(0), torch.zeros(5), rtol=0, atol=1e-5)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(5), rtol=0, atol=1e-5)
    # It is affine in the pixels: the image half-way between two lies half-way.
    first, second = (DIGITS["train"][i : i + 10, None] // 2 * 2 for i in (0, 10))
    project = data.transform(DIGITS["train"][:, None])
    between = project(first // 2 + second // 2)
    np.testing.assert_allclose(between, (project(first) + project(second)) / 2, atol=1e-4)
    assert abs(project(first) - project(second)).max() > 1
    # The scale of the pixels falls out; the seed chooses the projection.
    other, _ = ready(MNISTData, root, projection_dim=5, scale="126").tensors("train")
    torch.testing.assert_close(x, other, rtol=1e-3, atol=1e-4)
    third, _ = ready(MNISTData, root, projection_dim=5, projection_seed=1).tensors("train")
    assert not torch.allclose(x, third, atol=0.1)
    ((turned, _),) = data.extra_dataloaders()["ood"]
    assert turned.shape == (7, 5)


def test_out_of_distribution_sets(root: Path) -> None:
    test, labels = ready(MNISTData, root).tensors("test")
    ((turned, y),) = ready(MNISTData, root, ood="rotated").extra_dataloaders()["ood"]
    # Counter-clockwise: what was the right column, top to bottom, is the top row, left to right.
    torch.testing.assert_close(turned[:, 0, 0], test[:, 0, :, -1])
    torch.testing.assert_close(turned[:, 0, :, 0], test[:, 0, 0].flip(1))
    assert y.tolist() == labels.tolist()
    for ood in (True, "fashion"):
        ((clothes, _),) = ready(MNISTData, root, ood=ood).extra_dataloaders()["ood"]
        torch.testing.assert_close(clothes, 1 - test)
    ((digits, _),) = ready(FashionMNISTData, root, ood=True).extra_dataloaders()["ood"]
    torch.testing.assert_close(digits, test)
    assert ready(MNISTData, root).extra_dataloaders() == {}


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (MNISTData, {"scale": "none"}, "scale must be unit, 126 or standardise, got 'none'"),
        (MNISTData, {"ood": "mnist"}, "ood must be fashion or rotated, got 'mnist'"),
        (CIFAR10Data, {"ood": "fashion"}, "ood must be rotated, got 'fashion'"),
        (MNISTData, {"projection_dim": 785}, "must lie between 1 and 784, got 785"),
        (CIFAR10Data, {"projection_dim": 0}, "must lie between 1 and 3072, got 0"),
    ],
)
def test_arguments(kind: type[ImageData], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**options)


def test_missing_and_wrong_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    (root / "FashionMNIST" / "raw" / "t10k-images-idx3-ubyte.gz").unlink()
    ready(MNISTData, root)  # who does not ask for the other set does not need it
    with pytest.raises(FileNotFoundError, match=r"fashion/t10k-images.* cannot be fetched"):
        MNISTData(root=str(root), ood=True).prepare_data()
    (root / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz").write_bytes(b"half a file")
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte\.gz is not the file expected"):
        MNISTData(root=str(root)).prepare_data()


def test_images_of_another_shape_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MNISTData, "shape", (1, 28, 32))
    with pytest.raises(
        ValueError, match=r"training images are of shape \(1, 28, 28\), not \(1, 28"
    ):
        ready(MNISTData, root)


def test_idx_files_that_are_none(tmp_path: Path) -> None:
    whole = idx(DIGITS["t10k"])
    np.testing.assert_array_equal(mnist.read_idx(whole), DIGITS["t10k"])
    for content in (b"", whole[:2], b"PNG" + whole):
        with pytest.raises(ValueError, match="not an IDX file of unsigned bytes"):
            mnist.read_idx(content)
    for content in (whole[:9], whole[:-1], whole + b"\0"):
        with pytest.raises(ValueError, match="cut short or too long"):
            mnist.read_idx(content)
    for i, content in enumerate((whole, gzip.compress(whole)[:-9], gzip.compress(whole[:-1]))):
        path = tmp_path / f"{i}.gz"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{i}\.gz is not a packed IDX file"):
            mnist.read_packed(path)


def photographs() -> dict[str, tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    generator = np.random.default_rng(1)
    return {
        name: (
            generator.integers(0, 256, (3, 3, 32, 32), np.uint8),
            (np.arange(3, dtype=np.uint8) + 3 * i) % 10,
        )
        for i, name in enumerate(cifar10.FILES)
    }


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Six files of three images each, whose checksums the reader takes for the right ones."""
    contents = {
        name: b"".join(bytes([y]) + x.tobytes() for x, y in zip(*pair, strict=True))
        for name, pair in photographs().items()
    }
    sums = {name: f"md5:{hashlib.md5(content).hexdigest()}" for name, content in contents.items()}
    monkeypatch.setattr(cifar10, "FILES", sums)
    return contents


def packed(path: Path, contents: dict[str, bytes], mode: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, content in {"readme.html": b"", **contents}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def are_the_photographs(data: ImageData) -> None:
    *train, test = photographs().values()
    x, y = data.tensors("train")
    np.testing.assert_array_equal((x * 255).round(), np.concatenate([pair[0] for pair in train]))
    assert y.tolist() == np.concatenate([pair[1] for pair in train]).tolist()
    np.testing.assert_array_equal((data.tensors("test")[0] * 255).round(), test[0])
    assert data.tensors("test")[1].tolist() == test[1].tolist()


@pytest.mark.parametrize(("suffix", "mode"), [("gz", "w:gz"), ("xz", "w:xz")])
def test_cifar_from_an_archive(
    tmp_path: Path, batches: dict[str, bytes], suffix: str, mode: str
) -> None:
    path = tmp_path / "cifar10" / f"cifar-10-binary.tar.{suffix}"
    # The order of the members in the archive is no matter.
    packed(path, dict(reversed(batches.items())), mode)
    are_the_photographs(ready(CIFAR10Data, tmp_path))
    assert os.listdir(path.parent) == [path.name]  # nothing was unpacked


def test_cifar_from_a_folder_in_place_of_an_archive(
    tmp_path: Path, batches: dict[str, bytes]
) -> None:
    folder = tmp_path / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    (tmp_path / "cifar10" / "cifar-10-binary.tar.gz").write_bytes(b"not looked at")
    for name, content in batches.items():
        (folder / name).write_bytes(content)
    are_the_photographs(ready(CIFAR10Data, tmp_path))
    (folder / "data_batch_3.bin").write_bytes(batches["data_batch_2.bin"])
    with pytest.raises(ValueError, match=r"data_batch_3\.bin is not the file expected"):
        ready(CIFAR10Data, tmp_path)
    (folder / "test_batch.bin").unlink()
    (folder / "data_batch_3.bin").write_bytes(batches["data_batch_3.bin"])
    with pytest.raises(FileNotFoundError, match=r"test_batch\.bin is missing: unpack"):
        ready(CIFAR10Data, tmp_path)


@pytest.mark.parametrize("inner", ["cifar10", "."])
def test_cifar_from_torchvision_s_version(
    tmp_path: Path, batches: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, inner: str
) -> None:
    from torchvision.datasets import CIFAR10

    folder = tmp_path / inner / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    sums = []
    for name, (x, y) in photographs().items():
        content = {"data": x.reshape(3, -1), "labels": y.tolist()}
        written = pickle.dumps(content)
        (folder / name.removesuffix(".bin")).write_bytes(written)
        sums.append([name.removesuffix(".bin"), hashlib.md5(written).hexdigest()])
    meta = pickle.dumps({"label_names": list("abcdefghij")})
    (folder / "batches.meta").write_bytes(meta)
    monkeypatch.setattr(CIFAR10, "train_list", sums[:-1])
    monkeypatch.setattr(CIFAR10, "test_list", sums[-1:])
    md5 = hashlib.md5(meta).hexdigest()
    entry = {"filename": "batches.meta", "key": "label_names", "md5": md5}
    monkeypatch.setattr(CIFAR10, "meta", entry)
    are_the_photographs(ready(CIFAR10Data, tmp_path))
    (folder / "data_batch_1").write_bytes(b"another file")  # never unpickled
    with pytest.raises(ValueError, match="cifar-10-batches-py is not whole"):
        ready(CIFAR10Data, tmp_path)


def test_cifar_archives_that_are_damaged(tmp_path: Path, batches: dict[str, bytes]) -> None:
    path = tmp_path / "cifar10" / "cifar-10-binary.tar.gz"
    packed(path, batches, "w:gz")
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ValueError, match=r"cifar-10-binary\.tar\.gz is damaged"):
        ready(CIFAR10Data, tmp_path)
    packed(path, {**batches, "data_batch_5.bin": batches["data_batch_4.bin"]}, "w:gz")
    with pytest.raises(ValueError, match=r"data_batch_5\.bin in .* is not the file expected"):
        ready(CIFAR10Data, tmp_path)
    del batches["test_batch.bin"]
    packed(path, batches, "w:gz")
    with pytest.raises(ValueError, match=r"test_batch\.bin in .* \(missing, not md5:"):
        ready(CIFAR10Data, tmp_path)
    with pytest.raises(ValueError, match="has 3073 bytes an image, this one 3072"):
        cifar10.parse(bytes(3072))


def test_cifar_is_fetched_where_there_is_none(
    tmp_path: Path, batches: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = tmp_path / "origin" / "cifar-10-binary.tar.gz"
    packed(origin, batches, "w:gz")
    monkeypatch.setattr(cifar10, "_URL", origin.as_uri())
    md5 = f"md5:{hashlib.md5(origin.read_bytes()).hexdigest()}"
    monkeypatch.setattr(cifar10, "CHECKSUM", md5)
    with pytest.raises(FileNotFoundError, match="holds no CIFAR-10: call prepare_data"):
        CIFAR10Data(root=str(tmp_path / "sets")).setup()
    are_the_photographs(ready(CIFAR10Data, tmp_path / "sets"))
    assert (tmp_path / "sets" / "cifar10" / "cifar-10-binary.tar.gz").is_file()


def real(*parts: str) -> None:
    root = os.environ.get("SGMCMC_DATA_ROOT")
    if root is None or not Path(root, *parts).exists():
        pytest.skip(f"needs $SGMCMC_DATA_ROOT/{'/'.join(parts)}")


def test_a_user_s_mnist() -> None:
    real("MNIST", "raw", "t10k-images-idx3-ubyte.gz")
    data = MNISTData(val_from="last", num_val=10_000)
    data.prepare_data()
    data.setup()
    labels = {name: data.tensors(name)[1] for name in ("train", "val", "test")}
    assert {name: len(y) for name, y in labels.items()} == {
        "train": 50_000,
        "val": 10_000,
        "test": 10_000,
    }
    assert int((labels["train"] == 0).sum() + (labels["val"] == 0).sum()) == 5923
    assert labels["test"][:5].tolist() == [7, 2, 1, 0, 4]


def test_a_user_s_cifar10() -> None:
    real("cifar10")
    data = CIFAR10Data()
    data.setup()
    assert data.tensors("train")[1].bincount().tolist() == [5000] * 10
    assert data.tensors("test")[1].bincount().tolist() == [1000] * 10
