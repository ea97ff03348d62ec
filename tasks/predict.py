"""Predict other inputs by the draws of a run.

A run of a table takes a table: a text file or a NumPy file with the columns of the one that it was
trained on, in any order, with or without the target. Words become the features that they were
there, numbers are scaled as they were. What is predicted is a CSV file with a line for each row.

Any other run takes an array of inputs [B, ...], a .npy file, as its task does. What is predicted is
a .npz file of mean, epistemic_std and, where the task states them, std, lower and upper.
"""

from __future__ import annotations

import csv
import io
import sys
from argparse import RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from torch import Tensor

from lightning_sgmcmc.callbacks.report import results
from lightning_sgmcmc.common.files import write_beside
from lightning_sgmcmc.metrics import Moments
from lightning_sgmcmc.posterior import Posterior
from lightning_sgmcmc.run.errors import OneLineParser, fail
from lightning_sgmcmc.run.load import load_posterior
from tasks.data.classes import Standardiser
from tasks.data.table import read_features, remark_range
from tasks.experiments.tables import DIVERGED

_BLOCK = 10_000  # rows that are predicted at once
_INTERVAL = 0.9


def read_inputs(run_folder: str | Path, file: str | Path) -> Tensor:
    """Return the rows of a table as a run's task takes them, [B, D].

    Args:
        run_folder: Of a run that has ended, of ``uci_regression`` or ``class_table``.
        file: A table as in :func:`~tasks.data.table.read_features`.

    Raises:
        FileNotFoundError: If the file or the run's results are not there.
        ValueError: If the run is not of a table, or the file does not have its columns.
    """
    inputs = _details(Path(run_folder)).get("inputs")
    if inputs is None:
        raise ValueError(f"{run_folder} is not the run of a table: it takes inputs as a .npy file")
    return _scaled(inputs, file)


def _scaled(inputs: dict[str, Any], file: str | Path) -> Tensor:
    x = read_features(file, inputs["columns"])
    remark_range(x, inputs, file)
    scaled = torch.from_numpy(x)
    if "mean" in inputs:
        scale = Standardiser(np.array(inputs["mean"]), np.array(inputs["scale"]))
        scaled = torch.from_numpy(scale(x))
    _refuse_infinite(scaled.float(), file)
    return scaled


def _refuse_infinite(x: Tensor, file: str | Path) -> None:
    """Refuse inputs [B, ...] that are not finite in the network's type."""
    beyond = ~x.reshape(len(x), -1).isfinite().all(-1)
    if bool(beyond.any()):
        raise ValueError(
            f"{file}: input {int(beyond.nonzero()[0]) + 1} holds a value that is too large for the "
            "network"
        )


def _details(run: Path) -> dict[str, Any]:
    """Return what a run's task says of it."""
    path = run / "results.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: give the folder of a run that has ended; 'sgmcmc train --finish "
            f"{run}' ends one that was stopped"
        )
    content = results.read(path)
    if "task_details" not in content:
        what = "diverged" if DIVERGED in content else "is not the run of a task"
        raise ValueError(f"{run} {what}: there is nothing to predict with")
    details: dict[str, Any] = content["task_details"]
    return details


def main(arguments: Sequence[str], program: str) -> Path:
    """Write what a run predicts for the inputs in a file.

    Args:
        arguments: The command line without the program's name.
        program: Its name.

    Returns:
        The file that was written, which is also the last line printed.
    """
    parser = OneLineParser(
        program, description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("file", type=Path, help="its inputs: a table, or an array in a .npy file")
    parser.add_argument(
        "--out", type=Path, help="file to write (default: FILE-predicted.csv or .npz, here)"
    )
    parser.add_argument(
        "--interval",
        type=float,
        help=f"probability that lies between lower and upper (default: {_INTERVAL})",
    )
    given = parser.parse_args(list(arguments))
    details = _details(given.run)
    is_table = "inputs" in details
    out: Path = given.out or Path(f"{given.file.stem}-predicted.{'csv' if is_table else 'npz'}")
    if out.exists():
        fail(f"{out} is there already: move it away, or give --out another name")
    if not out.parent.is_dir():
        fail(f"there is no folder {out.parent} for --out: make it first")
    posterior = load_posterior(given.run)
    x = _scaled(details["inputs"], given.file) if is_table else _array(posterior, given.file)
    columns = _columns(posterior, x, given.interval)
    write_beside(out, _csv(columns, details) if is_table else _npz(columns))
    print(out)
    return out


def _array(posterior: Posterior, path: Path) -> Tensor:
    """Return inputs [B, ...], floating numbers in the task's precision.

    Whole numbers stay what they are where the network takes them, and become floating ones if not.
    """
    if path.suffix != ".npy":
        raise ValueError(f"{path} is no .npy file, and the run is not of a table")
    x = np.load(path, allow_pickle=False)
    if not x.ndim or not len(x):
        raise ValueError(f"{path} has no inputs: an array [B, ...] is needed, got {list(x.shape)}")
    if x.dtype.kind not in "biuf":
        raise ValueError(f"{path} holds values of type {x.dtype}, and inputs are real numbers")
    whole = x.dtype.kind != "f"
    tensor = torch.from_numpy(x.astype(np.int64 if whole else np.float64))
    if not bool(tensor.isfinite().all()):
        raise ValueError(f"{path} holds a number that is not finite")
    floating = tensor.to(next(posterior.module.parameters()).dtype)
    _refuse_infinite(floating, path)
    for inputs in [tensor, floating] if whole else [floating]:
        try:
            posterior.module.law(inputs[:1])
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, LookupError, TypeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
        else:
            return inputs
    raise ValueError(
        f"{path}: the run's network does not take inputs {list(x.shape[1:])} of type {x.dtype}, of "
        f"which the file has {len(x)}: {reason}"
    )


def _columns(
    posterior: Posterior, x: Tensor, interval: float | None
) -> dict[str, NDArray[np.float64]]:
    """Return what is predicted for each input, by name."""
    parts = [_moments(p, interval) for p in _predictions(posterior, x)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _predictions(posterior: Posterior, x: Tensor) -> Iterator[Moments]:
    blocks = torch.split(x, _BLOCK)
    console = Console(stderr=True)
    hidden = len(blocks) == 1 or not sys.stderr.isatty()
    for block in track(blocks, "predicting", console=console, disable=hidden):
        yield posterior.predict(block)


def _moments(prediction: Moments, interval: float | None) -> dict[str, NDArray[np.float64]]:
    found = {"mean": prediction.mean, "epistemic_std": prediction.epistemic_std}
    try:
        found["std"] = prediction.std
        found["lower"], found["upper"] = prediction.interval(
            _INTERVAL if interval is None else interval
        )
    except TypeError:
        if interval is not None:
            raise
    return {name: tensor.cpu().numpy() for name, tensor in found.items()}


def _csv(columns: dict[str, NDArray[np.float64]], details: dict[str, Any]) -> str:
    """Return a line for each row: the target's moments, or its class and all probabilities."""
    if "lower" in columns:
        shown = {name: values[:, 0] for name, values in columns.items()}
    else:
        p = columns["mean"]
        names = details.get("class_names") or [str(c) for c in range(p.shape[1])]
        shown = {"class": np.array(names)[p.argmax(-1)]}
        shown |= {f"p_{name}": values for name, values in zip(names, p.T, strict=True)}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(shown)
    writer.writerows(zip(*(values.tolist() for values in shown.values()), strict=True))
    return text.getvalue()


def _npz(columns: dict[str, NDArray[np.float64]]) -> bytes:
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **columns)
    return content.getvalue()
