"""Draws of a chain on disk: one safetensors file a draw, and an index."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def write_beside(path: Path, text: str) -> None:
    """Write a text file beside ``path`` and rename it, so that no half of it is ever seen."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file beside ``path`` and rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    # Copies, because safetensors refuses tensors that share memory, such as tied buffers.
    copies = {
        name: t.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, t in tensors.items()
    }
    save_file(copies, temporary)
    os.replace(temporary, path)


@dataclass(frozen=True)
class Draw:
    """One entry of the index: the step, the file's name and the weight in averages."""

    step: int
    file: str
    weight: float


class DrawStore:
    """The folder ``samples/chain<c>`` of a run.

    ``step_<k>.safetensors`` holds the sampled weights after k steps, ``constants.safetensors``
    what is not sampled (buffers, frozen weights), ``index.json`` the draws in order. A file is
    in the index only once it is whole.

    Args:
        folder: The run's ``samples`` folder.
        chain: Number of the chain.
        dtype: Type that floating-point weights are stored in: float32, bfloat16 or float16.

    Raises:
        ValueError: If the type is unknown.
    """

    def __init__(self, folder: Path, chain: int = 0, dtype: str = "float32") -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
        self.folder = Path(folder) / f"chain{chain}"
        self.dtype = dtype
        self.draws: list[Draw] = []

    @property
    def _index(self) -> Path:
        return self.folder / "index.json"

    @classmethod
    def open(cls, folder: Path, chain: int = 0) -> DrawStore:
        """Open a chain's draws for reading.

        Raises:
            FileNotFoundError: If there is no index, or a draw that it names is missing.
        """
        store = cls(folder, chain)
        if not store._index.is_file():
            raise FileNotFoundError(f"{store.folder} holds no index.json: no draw was kept there")
        content = json.loads(store._index.read_text())
        store.dtype = content["dtype"]
        store.draws = [Draw(**entry) for entry in content["draws"]]
        for draw in store.draws:
            if not (store.folder / draw.file).is_file():
                raise FileNotFoundError(f"{store.folder / draw.file} is in the index but missing")
        return store

    def save_constants(self, tensors: Mapping[str, Tensor]) -> None:
        """Write what every draw shares."""
        self.folder.mkdir(parents=True, exist_ok=True)
        save_tensors(self.folder / "constants.safetensors", tensors)

    def save(self, step: int, weights: Mapping[str, Tensor], weight: float) -> None:
        """Write one draw, then the index."""
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"step_{step}.safetensors"
        dtype = DTYPES[self.dtype]
        save_tensors(
            self.folder / name,
            {k: t.to(dtype) if t.is_floating_point() else t for k, t in weights.items()},
        )
        self.draws.append(Draw(step, name, weight))
        self._write_index()

    def rewind(self, draws: list[Draw]) -> None:
        """Return to an earlier index, removing the files of later draws.

        Raises:
            FileNotFoundError: If an earlier draw's file is missing.
        """
        for draw in draws:
            if not (self.folder / draw.file).is_file():
                raise FileNotFoundError(
                    f"the checkpoint counts on {self.folder / draw.file}, which is missing"
                )
        known = {draw.file for draw in draws}
        if self.folder.is_dir():
            for file in [*self.folder.glob("step_*.safetensors"), *self.folder.glob(".*.tmp")]:
                if file.name not in known:
                    file.unlink()
            self.draws = list(draws)
            self._write_index()

    def load(self, draw: Draw) -> dict[str, Tensor]:
        """Return one draw's weights, in float32 where they were stored in a shorter type."""
        tensors = load_file(self.folder / draw.file)
        return {k: t.float() if t.is_floating_point() else t for k, t in tensors.items()}

    def load_constants(self) -> dict[str, Tensor]:
        """Return what every draw shares."""
        return load_file(self.folder / "constants.safetensors")

    def _write_index(self) -> None:
        entries = [asdict(draw) for draw in self.draws]
        content = json.dumps({"schema": 1, "dtype": self.dtype, "draws": entries}, indent=1)
        write_beside(self._index, content)
