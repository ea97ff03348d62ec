"""CIFAR-10, read from its binary version or, where it is there, from its python version."""

from __future__ import annotations

import hashlib
import lzma
import tarfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torchvision.datasets import CIFAR10  # type: ignore[import-untyped]

from tasks.data.classes import Examples
from tasks.data.download import check_digest, digest, fetch, open_with_bar
from tasks.data.images import ImageData

#: The files of the binary version, five to train on and one to test on, and their checksums.
FILES = {
    "data_batch_1.bin": "md5:5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "md5:5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "md5:942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "md5:ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "md5:53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "md5:803d5f7f4d78ea53de84dbe85f74fb6d",
}
#: The archive as published.
ARCHIVE = "cifar-10-binary.tar.gz"
CHECKSUM = "md5:c32a1d4ab5d03f1284b67883e8d87530"
_URL = f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}"
_FOLDER = "cifar-10-batches-bin"
_PYTHON = "cifar-10-batches-py"
_SHAPE = (3, 32, 32)
_THINGS = "airplane automobile bird cat deer dog frog horse ship truck"


class CIFAR10Data(ImageData):
    """50,000 training and 10,000 test photographs of ten kinds of things, 32 x 32, in colour.

    Taken from the first of these that is there, in the folder ``cifar10`` under ``root``: the
    unpacked binary version ``cifar-10-batches-bin``, ``cifar-10-binary.tar.gz`` or ``.tar.xz``,
    which is read without being unpacked, or torchvision's ``cifar-10-batches-py``, which may also
    lie in ``root`` itself. Without any, the first archive is fetched. Arguments are those of
    :class:`~tasks.data.images.ImageData`; no image is augmented.
    """

    num_classes = 10
    class_names = tuple(_THINGS.split())
    shape = _SHAPE

    def prepare_data(self) -> None:
        """Fetch the archive, unless one of the versions is there."""
        if self._source() is None:
            fetch(_URL, self.root / "cifar10" / ARCHIVE, CHECKSUM)

    def images(self) -> tuple[Examples, Examples]:
        """Read the six files, each checked.

        Raises:
            FileNotFoundError: If no version is there.
            ValueError: If a file is not the one expected.
        """
        source = self._source()
        if source is None:
            raise FileNotFoundError(
                f"{self.root / 'cifar10'} holds no CIFAR-10: call prepare_data(), or put "
                f"{_URL} there"
            )
        if source.name == _PYTHON:
            return _read_python(source.parent)
        contents = read_folder(source) if source.is_dir() else read_archive(source)
        parts = [parse(contents[name]) for name in FILES]
        images, labels = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
        return (images, labels), parts[-1]

    def _source(self) -> Path | None:
        folder = self.root / "cifar10"
        packed = [folder / ARCHIVE, folder / ARCHIVE.replace(".gz", ".xz")]
        places = [folder / _FOLDER, *packed, folder / _PYTHON, self.root / _PYTHON]
        return next((place for place in places if place.exists()), None)


def parse(content: bytes) -> Examples:
    """Return images [N, 3, 32, 32] and labels [N] of a file: a byte and 3,072 bytes an image.

    Raises:
        ValueError: If it does not hold whole images.
    """
    size = 1 + int(np.prod(_SHAPE))
    if not content or len(content) % size:
        raise ValueError(
            f"a CIFAR-10 file has {size} bytes an image, this one {len(content)} bytes"
        )
    rows: NDArray[np.uint8] = np.frombuffer(content, np.uint8).reshape(-1, size)
    return rows[:, 1:].reshape(-1, *_SHAPE), rows[:, 0]


def read_folder(folder: Path) -> dict[str, bytes]:
    """Return the contents of the six files of the unpacked binary version.

    Raises:
        FileNotFoundError: If one is missing.
        ValueError: If one is not the file expected.
    """
    for name, checksum in FILES.items():
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name} is missing: unpack the archive anew")
        found = digest(folder / name, checksum)
        check_digest(found, checksum, f"{folder / name}", "unpack the archive anew")
    return {name: (folder / name).read_bytes() for name in FILES}


def read_archive(path: Path) -> dict[str, bytes]:
    """Return the contents of the six files in an archive, of any compression.

    Raises:
        ValueError: If it is damaged, or a file in it is missing or not the one expected.
    """
    found: dict[str, bytes] = {}
    try:
        with open_with_bar(path) as raw, tarfile.open(fileobj=raw, mode="r|*") as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                file = archive.extractfile(member) if name in FILES else None
                if file is not None:
                    found[name] = file.read()
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it to fetch it anew") from error
    for name, checksum in FILES.items():
        got = f"md5:{hashlib.md5(found[name]).hexdigest()}" if name in found else "missing"
        check_digest(got, checksum, f"{name} in {path}", "delete the archive to fetch it anew")
    return found


def _read_python(root: Path) -> tuple[Examples, Examples]:
    # torchvision unpickles these files, each after a check of its published checksum.
    parts = []
    for train in (True, False):
        try:
            data = CIFAR10(str(root), train=train, download=False)
        except RuntimeError as error:
            raise ValueError(
                f"{root / _PYTHON} is not whole: put the published files there, or delete it to "
                "fetch the binary version"
            ) from error
        parts.append((data.data.transpose(0, 3, 1, 2), np.array(data.targets)))
    return parts[0], parts[1]
