"""Table 2 of HASGLD-SA (section 5.3.2): velocities from the permeability.

Cells, each a run or a computation of its own:

- ``references-KIND-P``: what learns no network, or nothing (table2_references).
- ``NET-FORM-KIND-P``: the paper's network or a U-Net on P modes, sampled at T = 1 by underdamped
  Langevin dynamics. FORM says what stands around the network (:class:`~tasks.nets.flow.FlowNet`):
  ``plain`` nothing, as in the paper; ``conservative`` the projection onto flows that balance;
  ``physics`` that, Darcy's law and the symmetry; ``profile`` all of it, with the noise's profile
  over the edges from the held-out residuals.
- ``METHOD-RATE``: the paper's own cells, its network and form, its three methods and sparse rates,
  on additive fields of 64 modes.
- ``shift-KIND``: the U-Net of 64 modes on fields of other kinds than it was trained on
  (table2_shift).

sigma is had from 100 of the 1,300 training fields, which are held out; no other choice depends on
them. What was chosen, was on 200 held-out training fields (``choices``).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tasks.experiments.experiment import Cell, Experiment, Study
from tasks.experiments.hasgld import table2_report
from tasks.experiments.hasgld.table1 import METHODS
from tasks.experiments.hasgld.table2_references import references
from tasks.experiments.hasgld.table2_shift import panel
from tasks.experiments.overrides import Component, built, component, ours, pruning, sampler
from tasks.experiments.tables import Results, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Net = Literal["paper", "unet"]
Form = Literal["plain", "conservative", "physics", "profile"]
Kind = Literal["additive", "lognormal"]

CONFIG = "table2.yaml"
KINDS: tuple[Kind, ...] = ("additive", "lognormal")
TERMS = (32, 64, 128)
NETS: tuple[Net, ...] = ("paper", "unet")
RATES = (0.0, 0.3, 0.5)

#: Fields in a minibatch; passes by Adam, then until C freezes, and of sampling.
BATCH = {"paper": 32, "unet": 16}
ADAM = {
    ("paper", "additive"): 40,
    ("paper", "lognormal"): 40,
    ("unet", "additive"): 40,
    ("unet", "lognormal"): 100,
}
SETTLE, SAMPLE = 2, 10
#: Fraction of the largest stable step: in proportion to the batch, for the gradient's noise heats
#: the chain by about the fraction times N over the batch.
FRACTION = {"paper": 0.01, "unet": 0.005}
#: Power of kappa that stands before the network, see FlowNet.
POWER = {"additive": 1.0, "lognormal": 0.5}
TRAINING = 1200
#: The metric of all chains but HASGLD's.
METRIC: Component = ours("RMSProp", alpha=0.99, eps=1e-12, floor=0.5)
#: Momentum of the chain and fraction of the largest stable step that were tried.
CHAINS = ((0.99, 0.1), (0.99, 0.02), (0.99, 0.005))
#: Steps of HASGLD-SA that were tried; the largest stable one is 12.
HASGLD_STEPS = (0.02, 0.1)


def cells() -> list[Cell | Study]:
    """Return all cells."""
    found: list[Cell | Study] = [
        Study(f"references-{kind}-{terms}", partial(references, kind=kind, terms=terms))
        for kind in KINDS
        for terms in TERMS
    ]
    found += [
        network(net, "physics", kind, terms) for kind in KINDS for net in NETS for terms in TERMS
    ]
    found += [network("unet", "profile", kind, 64) for kind in KINDS]
    found += [network("paper", form, "additive", 64) for form in ("plain", "conservative")]
    found += [method(name, rate) for name in METHODS for rate in RATES]
    found += [Study(f"shift-{kind}", partial(panel, kind=kind)) for kind in KINDS]
    return found


def choices() -> list[Cell]:
    """Return the runs that the protocol was chosen from, on 200 held-out training fields."""
    found: list[tuple[str, Cell, dict[str, Any]]] = []
    for kind in KINDS:
        run = network("unet", "physics", kind, 64)
        found += [(f"power-{kind}-{a:g}", run, {"model.power": a}) for a in (0.0, 0.5, 1.0)]
    run = network("unet", "physics", "additive", 64)
    for momentum, fraction in CHAINS:
        tried = {"model.sampler.momentum": momentum, "model.step_fraction": fraction}
        found.append((f"chain-{momentum}-{fraction}", run, tried))
    run = method("hasgld1", 0.0)
    found += [(f"hasgld1-{lr:g}", run, {"model.sampler.lr": lr}) for lr in HASGLD_STEPS]
    return [run.but(f"trial-{name}", tried | {"data.num_val": 200}) for name, run, tried in found]


def network(net: Net, form: Form, kind: Kind, terms: int) -> Cell:
    """Return the run of a network on a kind of field."""
    overrides = _lengths(net, kind) | {"data.kind": kind, "data.terms": terms}
    overrides |= _sampler("SGHMC", momentum=0.99, preconditioner=METRIC)
    if net == "unet":
        overrides["model.net"] = component("tasks.nets.unet.UNet")
    if form != "plain":
        overrides["model.conservative"] = True
    if form in ("physics", "profile"):
        overrides |= {"model.power": POWER[kind], "model.symmetric": True}
    if form == "profile":
        overrides["model.noise_by_output"] = True
    return Cell(f"{net}-{form}-{kind}-{terms}", CONFIG, overrides)


def method(name: str, rate: float) -> Cell:
    """Return one of the paper's cells: its network, pruned while Adam runs, and its sampler.

    SGLD has the frozen metric of the other cells here: it is pSGLD.
    """
    batches = _batches("paper")
    if name == "sgld":
        drawn = _sampler("SGLD", preconditioner=METRIC)
    else:
        drawn = _sampler("HASGLD", memory=int(name[-1]), slots=1)
    overrides = _lengths("paper", "additive") | drawn
    overrides |= pruning(rate, 10 * batches, 40 * batches, batches)
    return Cell(f"{name}-{int(100 * rate)}", CONFIG, overrides)


def _sampler(name: str, **settings: Any) -> dict[str, Any]:
    return sampler(name, "auto", ours("FanInGaussianPrior", variance=2.0), **settings)


def _batches(net: Net) -> int:
    """Return the steps in a pass through the training fields."""
    return -(-TRAINING // BATCH[net])


def _lengths(net: Net, kind: Kind) -> dict[str, Any]:
    """Return what says how long to run."""
    batches, adam = _batches(net), ADAM[net, kind]
    return {
        "model.burn_in_optimizer.steps": batches * adam,
        "model.burn_in": batches * (adam + SETTLE),
        "model.step_fraction": FRACTION[net],
        "model.thinning": batches // 2,
        "trainer.max_steps": batches * (adam + SETTLE + SAMPLE),
        "data.batch_size": BATCH[net],
    }


def report(results: Results) -> list[str | Table]:
    """Return the paper's table, its cells as measured, the networks and the references."""
    labels = {name: (METHODS[name], built(method(name, 0.0).overrides)) for name in METHODS}
    return [
        table2_report.paper_table(labels),
        table2_report.network_table(results, KINDS, TERMS),
        table2_report.reference_table(results, KINDS, TERMS),
        table2_report.shift_table(results, KINDS),
    ]


def figures(results: Results, out: Path) -> dict[str, Figure]:
    """Return error over the number of modes, and what becomes of a network on other fields."""
    return table2_report.figures(results, KINDS, TERMS)


EXPERIMENT = Experiment(cells, report, table2_report.SHEET.choices(choices), figures=figures)
