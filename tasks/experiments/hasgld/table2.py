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

from tasks.experiments.experiment import Cell, Study
from tasks.experiments.hasgld import table2_report, table2_shift
from tasks.experiments.hasgld.table1 import METHODS
from tasks.experiments.hasgld.table2_references import references

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
    found += [Study(f"shift-{kind}", partial(table2_shift.panel, kind=kind)) for kind in KINDS]
    return found


def choices() -> list[Cell | Study]:
    """Return the runs that the protocol was chosen from, on 200 held-out training fields."""
    found: list[Cell | Study] = []
    for kind in KINDS:
        for power in (0.0, 0.5, 1.0):
            run = network("unet", "physics", kind, 64)
            found.append(_trial(f"power-{kind}-{power:g}", run, f"--model.power={power}"))
    for momentum, fraction in CHAINS:
        run = network("unet", "physics", "additive", 64)
        what = (f"--model.sampler.momentum={momentum}", f"--model.step_fraction={fraction}")
        found.append(_trial(f"chain-{momentum}-{fraction}", run, *what))
    for lr in HASGLD_STEPS:
        run = method("hasgld1", 0.0)
        found.append(_trial(f"hasgld1-{lr:g}", run, f"--model.sampler.lr={lr}"))
    return found


def _trial(name: str, run: Cell, *overrides: str) -> Cell:
    return Cell(f"trial-{name}", run.config, (*run.overrides, *overrides, "--data.num_val=200"))


def network(net: Net, form: Form, kind: Kind, terms: int) -> Cell:
    """Return the run of a network on a kind of field."""
    overrides = [
        *_lengths(net, kind),
        f"--data.kind={kind}",
        f"--data.terms={terms}",
        f"--data.batch_size={BATCH[net]}",
    ]
    if net == "unet":
        overrides.append("--model.net=tasks.nets.unet.UNet")
    if form != "plain":
        overrides.append("--model.conservative=true")
    if form in ("physics", "profile"):
        overrides += [f"--model.power={POWER[kind]}", "--model.symmetric=true"]
    if form == "profile":
        overrides.append("--model.noise_by_output=true")
    return Cell(f"{net}-{form}-{kind}-{terms}", CONFIG, tuple(overrides))


def method(name: str, rate: float) -> Cell:
    """Return one of the paper's cells: its network, pruned while Adam runs, and its sampler."""
    batches = _batches("paper")
    overrides = [*_lengths("paper", "additive"), f"--data.batch_size={BATCH['paper']}"]
    if name == "sgld":
        overrides += ["--model.sampler=lightning_sgmcmc.SGLD"]
    else:
        overrides += [
            "--model.sampler=lightning_sgmcmc.HASGLD",
            f"--model.sampler.memory={name[-1]}",
        ]
    overrides += ["--model.sampler.lr=auto"]
    if rate:
        overrides += [
            "--trainer.callbacks+=lightning_sgmcmc.callbacks.GradualPruning",
            f"--trainer.callbacks.rate={rate}",
            f"--trainer.callbacks.start={10 * batches}",
            f"--trainer.callbacks.stop={40 * batches}",
            f"--trainer.callbacks.every={batches}",
        ]
    return Cell(f"{name}-{int(100 * rate)}", CONFIG, tuple(overrides))


def _batches(net: Net) -> int:
    """Return the steps in a pass through the training fields."""
    return -(-TRAINING // BATCH[net])


def _lengths(net: Net, kind: Kind) -> list[str]:
    """Return what says how long to run."""
    batches = _batches(net)
    adam = ADAM[net, kind]
    return [
        f"--model.burn_in_optimizer.steps={batches * adam}",
        f"--model.burn_in={batches * (adam + SETTLE)}",
        f"--model.step_fraction={FRACTION[net]}",
        f"--model.thinning={batches // 2}",
        f"--trainer.max_steps={batches * (adam + SETTLE + SAMPLE)}",
    ]


def render(results: dict[str, dict[str, Any] | None], chosen_from: bool) -> str:
    """Return the paper's table, its cells as measured, the networks and the references."""
    if chosen_from:
        return table2_report.render_choices(results)
    return table2_report.render(results, KINDS, TERMS)


def figures(results: dict[str, dict[str, Any] | None], out: Path) -> dict[str, Figure]:
    """Return error over the number of modes, and what becomes of a network on other fields."""
    return table2_report.figures(results, KINDS, TERMS)
