"""Draws of a chain on disk: one safetensors file a draw, and an index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from lightning_sgmcmc.common.files import (
    DamagedFileError,
    digest_of,
    encoded,
    save_encoded,
    save_tensors,
    verify,
    write_beside,
)
from lightning_sgmcmc.posterior.sparse import packed, unpacked

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_CONSTANTS = "constants.safetensors"


@dataclass(frozen=True)
class Draw:
    """One entry of the index: the step, the file's name, the weight in averages, the checksum.

    The checksum is empty for draws of a run that had none.
    """

    step: int
    file: str
    weight: float
    sha256: str = ""


def check_dtype(dtype: str) -> None:
    """Raise ValueError if draws cannot be stored in a type."""
    if dtype not in DTYPES:
        raise ValueError(f"draw_dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")


class DrawStore:
    """The folder ``samples/chain<c>`` of a run.

    ``step_<k>.safetensors`` holds the sampled weights after k steps, pruned ones without their
    zeros (:func:`~lightning_sgmcmc.posterior.sparse.packed`), ``constants.safetensors``
    what is not sampled (buffers, frozen weights), ``index.json`` the draws in order, with the
    SHA-256 of each file and of itself. A file is in the index only once it is whole. A file is
    compared with its checksum when it is first read.

    Args:
        folder: The run's ``samples`` folder.
        chain: Number of the chain.
        dtype: Type that floating-point weights are stored in: float32, bfloat16 or float16.

    Raises:
        ValueError: If the type is unknown.
    """

    def __init__(self, folder: Path, chain: int = 0, dtype: str = "float32") -> None:
        check_dtype(dtype)
        self.folder = Path(folder) / f"chain{chain}"
        self.dtype = dtype
        self.draws: list[Draw] = []
        #: The checksum of what every draw shares; empty if there is none.
        self.constants = ""
        self._verified: set[str] = set()

    @property
    def index(self) -> Path:
        """The file that lists the draws."""
        return self.folder / "index.json"

    @classmethod
    def open(cls, folder: Path, chain: int = 0) -> DrawStore:
        """Open a chain's draws for reading.

        Raises:
            FileNotFoundError: If there is no index, or a draw that it names is missing.
            DamagedFileError: If the index is not what was written.
        """
        store = cls(folder, chain)
        if not store.index.is_file():
            raise FileNotFoundError(f"{store.folder} holds no index.json: no draw was kept there")
        content = _read_index(store.index)
        store.dtype, store.constants = content["dtype"], content.get("constants", "")
        store.draws = [Draw(**entry) for entry in content["draws"]]
        for draw in store.draws:
            if not (store.folder / draw.file).is_file():
                raise FileNotFoundError(
                    f"{store.folder / draw.file} is in the index but missing: restore it from a "
                    "copy, or run the chain anew"
                )
        return store

    def save_constants(self, tensors: Mapping[str, Tensor]) -> None:
        """Write what every draw shares."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.constants = save_tensors(self.folder / _CONSTANTS, tensors)

    def save(self, step: int, weights: Mapping[str, Tensor], weight: float) -> None:
        """Write one draw, then the index.

        Raises:
            OSError: If the disk is full, or the folder is read-only or gone.
        """
        self.write(step, self.encoded(weights), weight)

    def encoded(self, weights: Mapping[str, Tensor]) -> bytes:
        """Return the content of a draw's file.

        Raises:
            ValueError: If a weight is too large for the type that draws are stored in.
        """
        dtype = DTYPES[self.dtype]
        stored = {k: t.to(dtype) if t.is_floating_point() else t for k, t in weights.items()}
        for name, tensor in stored.items():
            if tensor is weights[name] or bool(tensor.isfinite().all()):
                continue
            if bool(weights[name].isfinite().all()):
                raise ValueError(
                    f"{name} holds a value that {self.dtype} cannot: choose draw_dtype bfloat16 or "
                    "float32"
                )
        return encoded(packed(stored))

    def write(self, step: int, content: bytes, weight: float) -> None:
        """Write what :meth:`encoded` has made of a draw, then the index; without torch.

        Raises:
            OSError: As :meth:`save`.
        """
        if not self.draws:
            self.folder.mkdir(parents=True, exist_ok=True)
        name = f"step_{step}.safetensors"
        digest = save_encoded(self.folder / name, content)
        self.draws.append(Draw(step, name, weight, digest))
        self._write_index()

    def rewind(self, draws: list[Draw], constants: str = "") -> None:
        """Return to an earlier index, removing the files of later draws.

        Args:
            draws: Of that index.
            constants: The checksum of ``constants.safetensors`` then.

        Raises:
            FileNotFoundError: If an earlier draw's file is missing.
            DamagedFileError: If one is not what was written.
        """
        for draw in draws:
            if not (self.folder / draw.file).is_file():
                raise FileNotFoundError(
                    f"the checkpoint counts on {self.folder / draw.file}, which is missing: "
                    "restore it from a copy, or run the chain anew"
                )
            verify(self.folder / draw.file, draw.sha256)
        known = {draw.file for draw in draws}
        if self.folder.is_dir():
            for file in self.folder.glob("step_*.safetensors"):
                if file.name not in known:
                    file.unlink()
            self.draws, self.constants = list(draws), constants
            self._write_index()

    def heal_constants(self, tensors: Mapping[str, Tensor]) -> None:
        """Write the weights that are not sampled again where their file is damaged or missing."""
        try:
            verify(self.folder / _CONSTANTS, self.constants)
        except (FileNotFoundError, DamagedFileError):
            self.save_constants(tensors)

    def load(self, draw: Draw) -> dict[str, Tensor]:
        """Return one draw's weights, in float32 where they were stored in a shorter type.

        Raises:
            FileNotFoundError: If the file is missing.
            DamagedFileError: If it is not what was written, or holds a weight that is not finite.
        """
        tensors = unpacked(self._read(draw.file, draw.sha256))
        for name, tensor in tensors.items():
            if not bool(tensor.isfinite().all()):
                raise DamagedFileError(
                    f"{self.folder / draw.file} is no draw: {name} holds a value that is not "
                    "finite; restore the file from a copy, or run the chain anew"
                )
        return {k: t.float() if t.is_floating_point() else t for k, t in tensors.items()}

    def load_constants(self) -> dict[str, Tensor]:
        """Return what every draw shares.

        Raises:
            FileNotFoundError: If the file is missing.
            DamagedFileError: If it is not what was written.
        """
        return self._read(_CONSTANTS, self.constants)

    def _read(self, name: str, digest: str) -> dict[str, Tensor]:
        path = self.folder / name
        if name not in self._verified:
            verify(path, digest)
            self._verified.add(name)
        try:
            return load_file(path)
        except Exception as error:  # of a type that safetensors does not share with Python's
            raise DamagedFileError(
                f"{path} is damaged ({error}): restore it from a copy, or run the chain anew"
            ) from error

    def _write_index(self) -> None:
        entries = [asdict(draw) for draw in self.draws]
        content = {
            "schema": 2,
            "dtype": self.dtype,
            "constants": self.constants,
            "draws": entries,
        }
        content["sha256"] = digest_of(content)
        write_beside(self.index, json.dumps(content, indent=1))


def _read_index(path: Path) -> dict[str, Any]:
    """Return the content of an index.

    Raises:
        DamagedFileError: If it is not what was written.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        digest = content.pop("sha256", None)
        if content["schema"] == 1 or digest == digest_of(content):
            return content
    except (ValueError, TypeError, AttributeError, KeyError):  # no JSON, or no index
        pass
    raise DamagedFileError(
        f"{path} is damaged: continue the run from its last checkpoint, which writes it again, or "
        "restore it from a copy"
    )


def chains_in(samples: Path) -> list[int]:
    """Return the numbers of the chains whose folders lie in ``samples``; a copy is none."""
    names = (path.name.removeprefix("chain") for path in samples.glob("chain*"))
    return sorted(int(name) for name in names if name.isdecimal())


def open_stores(run_folder: str | Path) -> list[DrawStore]:
    """Open the draws of every chain of a run, without its module.

    Raises:
        FileNotFoundError: If the folder holds none.
    """
    folder = Path(run_folder) / "samples"
    stores = [DrawStore.open(folder, chain) for chain in chains_in(folder)]
    if not any(store.draws for store in stores):
        raise FileNotFoundError(f"{run_folder} holds no draws in samples/chain<c>: none was kept")
    return stores
