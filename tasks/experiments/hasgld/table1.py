"""Table 1 of HASGLD-SA (Wang, Deng, Lin 2020): three methods, four sparse rates.

Each cell is run from three beginnings, which the table names:

- ``burnin``: Adam for 80 passes with gradual pruning, then the method's own chain at T = 1, its
  noise scale from the residuals of that point. It has the posterior for its law, but is too short
  to leave the place where Adam ended.
- ``random``: the chain at T = 1 from random weights, pruned during its burn-in, with a given noise
  scale of 1 % of the flow's size. It samples its posterior as far as it has reached it.
- ``printed``: HASGLD-SA's Algorithm 2 as printed, with its normalised steps, from random weights.
  It does not sample a posterior; it is what the paper describes.

All beginnings get about as many gradients; a step of an adapting HASGLD takes two.

The paper says of the field only "permeability field of SPE10 model". These cells are on the
embedded synthetic field of that character. Further ones run ``burnin``, with the same steps, on k_x
of three SPE10 layers; they are left out where the SPE10 file is not at hand. ``references`` are
predictions without a network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tasks.data.pde_source import SPE10_NAMES, SPE10_URL, PDESourceData, find_spe10
from tasks.experiments.experiment import Cell, Experiment, Study
from tasks.experiments.sheet import sheet
from tasks.experiments.tables import Column, Results, Row, Table, paper_row
from tasks.pde_source import TABLE_1
from tasks.surrogates import Regression, relative_errors

SHEET = sheet("table1")
METHODS = SHEET.labels
BUILT = SHEET.built()
STARTS, LAYERS = SHEET.settings["starts"], SHEET.settings["layers"]


def cells() -> list[Cell | Study]:
    """Return the runs, and the references."""
    return [*SHEET.runs(), Study("references", references)]


def references(folder: Path, **options: Any) -> dict[str, Any]:
    """Measure two predictions without a network on the test fields.

    They are the mean field, and least squares on the sum of the two rates, all that a network
    knows which cannot tell the two wells apart.

    Args:
        folder: Of the cell.
        **options: Of :class:`~tasks.data.pde_source.PDESourceData`.
    """
    data = PDESourceData(**options)
    data.prepare_data()
    data.setup()
    (x, y), (x_test, y_test) = data.arrays("train"), data.arrays("test")
    found = {}
    for name, used in (("mean field", 0), ("sum of the rates", 1)):
        given, asked = (s.clip(min=0).sum((1, 2))[:, None][:, :used] for s in (x, x_test))
        errors = 100 * relative_errors(Regression.fit(given, y).predict(asked), y_test)
        found[name] = {"mean": float(errors.mean()), "median": float(np.median(errors))}
    return {"errors_percent": found}


def left_out() -> tuple[list[str], str]:
    """Return the names of the cells that cannot run for want of data, and why, in one line."""
    if find_spe10().is_file():
        return [], ""
    names = [c.name for c in SHEET.runs() if c.name.startswith("spe10-")]
    return names, (
        f"{len(names)} cells on SPE10 layers are left out: no {' or '.join(SPE10_NAMES)} in "
        f"{find_spe10().parent}; fetch {SPE10_URL} and put it there"
    )


def report(results: Results) -> Iterator[str | Table]:
    """Yield the table of the embedded field, of the layers once one is finished, the references."""
    columns = SHEET.made(SHEET.columns)
    rows = [
        paper_row(["*paper*", method], columns, numbers.values())
        for method, numbers in TABLE_1.items()
    ]
    yield SHEET.intro
    yield Table(SHEET.heading, columns, rows + _rows(STARTS))
    if any(result and name.startswith("spe10-") for name, result in results.items()):
        yield SHEET.settings["of_layers"]
        columns = SHEET.made(SHEET.settings["layer_columns"])
        yield Table(["SPE10 layer", "method"], columns, _rows(LAYERS))
    found = (results.get("references") or {}).get("errors_percent", {})
    rows = [Row([name], record=record) for name, record in found.items()]
    yield "Without a network, on the embedded field:"
    yield Table(["prediction"], [Column("error", ("mean", "median"), "{:.3g} ({:.3g})")], rows)


def _rows(labels: Mapping[str, str]) -> list[Row]:
    """Return the rows of all methods from some beginnings or on some layers."""
    return [
        Row([title, BUILT[f"{start}-{method}-0"]], f"{start}-{method}")
        for start, title in labels.items()
        for method in METHODS
        if (start, method) != ("printed", "sgld")
    ]


EXPERIMENT = Experiment(cells, report, SHEET.choices(), left_out)
