"""Regression with more weights than data under a spike and slab: HASGLD-SA, section 5.2.

Wang, Deng and Lin 2020. y = X beta + N(0, 3), n = 100 rows of N(0, Sigma), Sigma_ij =
.8^(|i-j|/4), p = 200, beta = (3, 1, 0, ..., 0), under SGLD-SA's adaptive prior with the paper's
nu = lambda = 1, v1 = 100, v0 = .1, delta = .5, a = 1, b = p and omega_k = 5 (10 + k)^-.9. Gradients
are exact. Five data sets, each with 50 examples for choosing a setting and 50 for testing, are
stacked chains.

The paper's step size .1 is unstable for SGLD on this posterior, whose limit is near .001. It is the
step size of the normalised steps of the paper's Algorithm 2, which is run as printed too. The paper
does not state tau, the iterations, M and the start. Here chains start at a ridge regression. Metric
and hyper-parameters adapt for 4,000 gradients and freeze, and 8,000 more give the draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, zeros

from lightning_sgmcmc import HASGLD, SGLD, Sampler, SpikeAndSlabPrior
from tasks.experiments.experiment import Experiment, Study
from tasks.experiments.hasgld.spike_slab_chains import Chains, Data, run, together
from tasks.experiments.hasgld.spike_slab_report import SHEET, draw, scores, table
from tasks.experiments.labels import of_sampler
from tasks.experiments.tables import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ADAPTING, SAMPLING = 4_000, 8_000  # gradients


@dataclass(frozen=True)
class Method:
    """A sampler, by a setting of it and the values that this was chosen from.

    The setting is lr, for SGLD N times the paper's epsilon; for the printed algorithm it is the
    temperature T = 1/tau, at the paper's step size .1.
    """

    make: Callable[[list[Tensor], float], Sampler]
    setting: str
    value: float
    grid: tuple[float, ...] = ()
    stacked: bool = True

    def label(self, value: float) -> str:
        """Return what tables call it: what it builds; its prior is SGLD-SA's."""
        return of_sampler(self.make([zeros(2)], value))


def _sgld(params: list[Tensor], lr: float, T: float = 1.0) -> Sampler:
    return SGLD(params, lr, prior=SpikeAndSlabPrior(), temperature=T)


def _hasgld(memory: int, params: list[Tensor], lr: float) -> Sampler:
    return HASGLD(params, lr, memory=memory, slots=None, prior=SpikeAndSlabPrior())


def _printed(params: list[Tensor], T: float) -> Sampler:
    prior = SpikeAndSlabPrior()
    return HASGLD(params, 0.1, memory=1, slots=1, paper_mode=True, temperature=T, prior=prior)


METHODS = {
    "sgld": Method(_sgld, "lr", 0.06, (0.01, 0.03, 0.06)),
    "hasgld1": Method(partial(_hasgld, 1), "lr", 0.3, (0.03, 0.1, 0.3)),
    "hasgld2": Method(partial(_hasgld, 2), "lr", 0.3),
    "printed": Method(_printed, "T", 1e-4, (1.0, 1e-2, 1e-4), False),
    "cold": Method(partial(_sgld, T=1e-4), "lr", 0.01, (0.003, 0.01, 0.06)),
}


def cells() -> list[Study]:
    """Return one study a method, at the step size that was chosen for it."""
    return [Study(name, partial(compute, name, METHODS[name].value)) for name in METHODS]


def choices() -> list[Study]:
    """Return the settings that were chosen from, by the validation examples of four data sets."""
    return [
        Study(f"{name}-{value:g}", partial(compute, name, value, part="validation", repetitions=4))
        for name, method in METHODS.items()
        for value in method.grid
    ]


def compute(
    name: str,
    value: float,
    folder: Path,
    part: str = "test",
    repetitions: int = 5,
    adapting: int = ADAPTING,
    sampling: int = SAMPLING,
    reference: int = 800,
) -> dict[str, Any]:
    """Run a method's chains and return what they reach on one part of the data."""
    method = METHODS[name]
    data = Data.simulate(repetitions)
    setting = {"method": name, "setting": f"{method.setting} = {value:g}"}
    found = chains(method, value, data, adapting, sampling)
    return setting | scores(found, data, part, folder, reference)


def chains(method: Method, value: float, data: Data, adapting: int, sampling: int) -> Chains:
    """Run a method on all data sets, as one computation where it can."""
    if method.stacked:
        return run(method.make, value, *data.train, adapting, sampling)
    alone = range(len(data.train[0]))
    return together([run(method.make, value, *data.train, adapting, sampling, k) for k in alone])


LABELS = {name: method.label(method.value) for name, method in METHODS.items()}


def figures(results: Results, out: Path) -> dict[str, Figure | str]:
    """Return the paper's Figure 2: coefficients, and test errors along the chains."""
    done = {name: label for name, label in LABELS.items() if results.get(name)}
    drawn = {name: label for name, label in done.items() if (out / name / "curves.npz").is_file()}
    if done and not drawn:
        return {"spike-slab": f"it needs {out}/CELL/curves.npz, which only a run leaves"}
    return {"spike-slab": draw(drawn, out, ADAPTING)} if drawn else {}


def _labels(name: str) -> list[str]:
    method, _, value = name.partition("-")
    return [METHODS[method].label(float(value))]


EXPERIMENT = Experiment(
    cells,
    lambda results: [table(results, LABELS)],
    SHEET.choices(choices, heading=["method"], labels=_labels),
    figures=figures,
)
