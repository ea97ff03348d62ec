"""MNIST and Fashion-MNIST, read from the files as published."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from tasks.data.classes import Examples
from tasks.data.download import fetch
from tasks.data.images import ImageData

_CLOTHES = "T-shirt, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot"


@dataclass(frozen=True)
class IDXFiles:
    """Four packed IDX files: images and labels, for training and for testing.

    Attributes:
        folder: Where they lie in the folder of data sets, in torchvision's layout.
        source: Where they are published.
        checksums: Of every file.
    """

    folder: str
    source: str
    checksums: dict[str, str]

    def fetch(self, root: Path, part: Literal["train", "t10k"]) -> list[Path]:
        """Return the files of images and of labels, fetched unless they are there, and checked.

        Raises:
            FileNotFoundError: If one cannot be fetched; the message says where to put it.
            ValueError: If one is not the file expected.
        """
        return [
            fetch(self.source + name, root / self.folder / "raw" / name, self.checksums[name])
            for name in (f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz")
        ]

    def read(self, root: Path, part: Literal["train", "t10k"]) -> Examples:
        """Return images [N, 1, H, W] and labels [N], as bytes."""
        images, labels = map(read_packed, self.fetch(root, part))
        return images[:, None], labels


MNIST = IDXFiles(
    "MNIST",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    {
        "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
    },
)
FASHION = IDXFiles(
    "FashionMNIST",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    {
        "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
    },
)


class MNISTData(ImageData):
    """60,000 training and 10,000 test images of handwritten digits, 28 x 28, grey.

    The four files are fetched as ``MNIST/raw/*.gz`` under ``root`` unless they are there.
    ``ood="fashion"`` holds Fashion-MNIST's test images, which are of the same form. Arguments are
    those of :class:`~tasks.data.images.ImageData`.
    """

    num_classes = 10
    class_names = tuple("0123456789")
    shape = (1, 28, 28)
    ood_sets = ("fashion", "rotated")
    files: ClassVar[IDXFiles] = MNIST
    #: Sets of the same form by name.
    others: ClassVar[dict[str, IDXFiles]] = {"fashion": FASHION}

    def prepare_data(self) -> None:
        """Fetch the files, unless they are there, and check them."""
        self.files.fetch(self.root, "train")
        self.files.fetch(self.root, "t10k")
        if self.ood in self.others:
            self.others[self.ood].fetch(self.root, "t10k")

    def images(self) -> tuple[Examples, Examples]:
        """Read the four files."""
        return self.files.read(self.root, "train"), self.files.read(self.root, "t10k")

    def other_images(self, name: str) -> Examples:
        """Read the other set's test images."""
        return self.others[name].read(self.root, "t10k")


class FashionMNISTData(MNISTData):
    """60,000 training and 10,000 test images of clothes in 10 classes, 28 x 28, grey.

    The four files are fetched as ``FashionMNIST/raw/*.gz`` under ``root`` unless they are there.
    ``ood="mnist"`` holds MNIST's test images, which are of the same form. Arguments are those of
    :class:`~tasks.data.images.ImageData`.
    """

    class_names = tuple(_CLOTHES.split(", "))
    ood_sets = ("mnist", "rotated")
    files = FASHION
    others: ClassVar[dict[str, IDXFiles]] = {"mnist": MNIST}


def read_packed(path: Path) -> NDArray[np.uint8]:
    """Return the array of a packed IDX file.

    Raises:
        ValueError: If it is no such file, or damaged; the message names it.
    """
    try:
        return read_idx(gzip.decompress(path.read_bytes()))
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError) as error:
        raise ValueError(f"{path} is not a packed IDX file: {error}") from error


def read_idx(content: bytes) -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes.

    Raises:
        ValueError: If it is no such file, or its length is not what its head says.
    """
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise ValueError("not an IDX file of unsigned bytes")
    head = 4 + 4 * content[3]
    shape = struct.unpack(f">{content[3]}I", content[4:head]) if len(content) >= head else (-1,)
    if len(content) - head != math.prod(shape):
        raise ValueError(f"an IDX file of {len(content)} bytes is cut short or too long")
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)
