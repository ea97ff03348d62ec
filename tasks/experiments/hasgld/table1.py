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

Of the field the paper says only "permeability field of SPE10 model". These cells are on the
embedded synthetic field of that character. Further ones run ``burnin``, with the same steps, on k_x
of three SPE10 layers; they are left out where the SPE10 file is not at hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tasks.data.pde_source import SPE10_NAMES, SPE10_URL, find_spe10
from tasks.experiments.experiment import Cell, Experiment
from tasks.experiments.overrides import component, gaussian, pruning, sampler, schedule
from tasks.experiments.sheet import sheet
from tasks.experiments.tables import Results, Row, Table, paper_row
from tasks.pde_source import TABLE_1

CONFIG = "table1.yaml"
RATES = (0.0, 0.3, 0.5, 0.7)
PASS = 18  # steps in a pass through 1,200 fields in batches of 64
LAYER_RATES = (0.0, 0.5)
SHEET = sheet("table1")
METHODS = SHEET.labels
STARTS, LAYERS, STEP, GRID, FRACTION = (
    SHEET.settings[name] for name in ("starts", "layers", "step", "grid", "fraction")
)


def cells() -> list[Cell]:
    """Return all cells of the table: the embedded field's, then those of the SPE10 layers."""
    embedded = [
        cell(start, method, rate, STEP[start][method], FRACTION[start])
        for start in STARTS
        for method in STEP[start]
        for rate in RATES
    ]
    return embedded + [
        _on_layer(layer, method, rate)
        for layer in LAYERS
        for method in METHODS
        for rate in LAYER_RATES
    ]


def left_out() -> tuple[list[str], str]:
    """Return the names of the cells that cannot run for want of data, and why, in one line."""
    if find_spe10().is_file():
        return [], ""
    names = [c.name for c in cells() if c.name.startswith("spe10-")]
    return names, (
        f"{len(names)} cells on SPE10 layers are left out: no {' or '.join(SPE10_NAMES)} in "
        f"{find_spe10().parent}; fetch {SPE10_URL} and put it there"
    )


def choices() -> list[Cell]:
    """Return the runs that the protocol was chosen from, on 120 held-out training fields."""
    result = []
    for start, methods in GRID.items():
        for method, step in [(name, step) for name, steps in methods.items() for step in steps]:
            lr, _, fraction = str(step).partition(":")
            base = cell(start, method, 0.0, lr if fraction else step, float(fraction or 0.1))
            result.append(base.but(f"{start}-{method}-lr{lr}{fraction}", {"data.num_val": 120}))
    return result


def cell(start: str, method: str, rate: float, lr: float | str, fraction: float) -> Cell:
    """Return one cell's run."""
    adam = 80 * PASS if start == "burnin" else 0
    adapting = method != "sgld"
    if start == "burnin":
        burn_in = adam + (10 * PASS if adapting else 0)
    else:
        burn_in = (30 if adapting else 60) * PASS
    sampling = (20 if start == "burnin" else 10 if adapting else 20) * PASS
    first, last = (10 * PASS, 45 * PASS) if start == "burnin" else (5 * PASS, 20 * PASS)
    overrides = pruning(rate, first, last, PASS) | {
        "model.burn_in": burn_in,
        "trainer.max_steps": burn_in + sampling,
        "model.step_fraction": fraction,
    }
    settings: dict[str, Any] = {"memory": int(method[-1]), "slots": 1} if adapting else {}
    if start == "burnin":
        optimizer = component("torch.optim.Adam", lr=1e-3, betas=[0.9, 0.99])
        overrides["model.burn_in_optimizer"] = {"optimizer": optimizer, "steps": adam}
    elif start == "random":
        overrides["model.noise"] = 0.01
    else:
        settings |= {"paper_mode": True, "temperature": 1e-6}
        overrides |= schedule("PolynomialDecay", b=10 * PASS, gamma=2.0)
    name = "HASGLD" if adapting else "SGLD"
    overrides |= sampler(name, lr, gaussian(1.0), **settings)
    return Cell(f"{start}-{method}-{int(100 * rate)}", CONFIG, overrides)


def _on_layer(layer: int, method: str, rate: float) -> Cell:
    base = cell("burnin", method, rate, STEP["burnin"][method], FRACTION["burnin"])
    field = {"data.field": "spe10", "data.layer": layer}
    return base.but(f"spe10-{layer}-{method}-{int(100 * rate)}", field)


def report(results: Results) -> Iterator[str | Table]:
    """Yield the table of the embedded field, and that of the layers once one is finished."""
    columns = SHEET.made(SHEET.columns)
    rows = [
        paper_row(["*paper*", method], columns, [row[rate] for rate in RATES])
        for method, row in TABLE_1.items()
    ]
    rows += [
        Row([label, METHODS[method]], f"{start}-{method}")
        for start, label in STARTS.items()
        for method in STEP[start]
    ]
    yield SHEET.intro
    yield Table(SHEET.heading, columns, rows)
    if any(result and name.startswith("spe10-") for name, result in results.items()):
        rows = [
            Row([label, long_name], f"spe10-{layer}-{method}")
            for layer, label in LAYERS.items()
            for method, long_name in METHODS.items()
        ]
        yield SHEET.settings["of_layers"]
        columns = SHEET.made(SHEET.settings["layer_columns"])
        yield Table(["SPE10 layer", "method"], columns, rows)


EXPERIMENT = Experiment(cells, report, SHEET.choices(choices), left_out)
