"""Darcy flow of FNO's law (Li et al. 2021, section 5.2) beside published networks.

Cells ``NET-N``: a U-Net or a Fourier neural operator, trained on N fields in all eight positions of
the square and sampled at T = 1 by underdamped Langevin dynamics, as ``configs/darcy_pressure.yaml``
says. 50 further fields are held out and give the noise's scale sigma; 200 others are the test.
"""

from __future__ import annotations

from collections.abc import Iterator

from tasks.darcy_pressure import PUBLISHED
from tasks.experiments.experiment import Experiment
from tasks.experiments.sheet import sheet
from tasks.experiments.tables import Results, Row, Table, paper_row

SHEET = sheet("fno_darcy")


def report(results: Results) -> Iterator[str | Table]:
    """Yield our runs beside the published errors."""
    columns = SHEET.made(SHEET.columns)
    rows = []
    for run in SHEET.runs():
        net, fields = run.name.split("-")
        rows.append(Row([SHEET.labels[net], fields], run.name))
    rows += [
        paper_row([f"*paper*: {name}", "1000"], columns, [error])
        for name, error in PUBLISHED.items()
    ]
    yield SHEET.intro
    yield Table(SHEET.heading, columns, rows)


EXPERIMENT = Experiment(SHEET.runs, report)
