"""Table 1 of natural Langevin dynamics (Marceau-Caron and Ollivier 2017): ten rows on MNIST.

A 784-400-400-10 ReLU network, minibatches of 100, 50,000 updates with steps halved every 10,000, a
draw every 100 after 500, and a metric C with gamma_t = 1/sqrt(t) and 1e-4 on its diagonal.

The ensembles are run as published, with a C that adapts until the end, and with a C that is frozen
where burn-in ends. The network of the posterior mean (PostMean) belongs to the same run.
``qdop-chains``, beyond the paper, has three chains. ``NAME-accurate`` has the step that was most
accurate in the trials, which is the paper's rule, where the least NLL chose another.
``rmsprop-printed`` has Algorithm 2's metric, ``qdop-sampled`` a Fisher matrix of labels that the
network's predictions give, and ``qdop-cold`` the temperature 1/N. ``qdop-smooth``, beyond the
paper, has five chains of a network whose first weights are smooth over the pixels a priori, and
freezes C after the first of the five steps. SGD's last iterate is one network; ``sgd-averaged`` and
``sgd-accurate`` also average what samplers average, weighted alike. In ``NAME-alike`` all draws or
iterates count the same, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterable

from tasks.experiments.experiment import Experiment
from tasks.experiments.sheet import sheet, stated_numbers
from tasks.experiments.tables import Results, Row, Table

SHEET = sheet("nld")
#: The runs of SGD, whose last iterate predicts.
POINTS = ("sgd", "dropout")
#: Those of which also the mean over iterates does, by their predictions or by their weights.
AVERAGED = ("sgd-averaged", "sgd-accurate", "sgd-alike")
PREDICTING = {
    "last": "last iterate",
    "ensemble": "mean prediction of iterates",
    "posterior_mean": "mean weights of iterates",
}
SUFFIXES = ("", "-alike", "-accurate", "-chains", "-frozen", "-printed", "-sampled", "-cold")


def report(results: Results) -> Iterable[str | Table]:
    """Return the paper's table and ours."""
    yield SHEET.intro
    columns = SHEET.made(SHEET.columns)
    rows, built = SHEET.paper(columns), SHEET.built()
    for name in POINTS:
        rows += _rows(results, name, f"{SHEET.labels[name]}: {built[name]}")
    for name in AVERAGED:
        for part, of in PREDICTING.items():
            rows += _rows(results, name, f"SGD, {of}: {built[name]}", part)
    for suffix in SUFFIXES:
        for part, of in (("ensemble", "Ensemble"), ("posterior_mean", "PostMean")):
            for name, theirs in SHEET.labels.items():
                if name not in POINTS and name + suffix in built:
                    title = f"{of}, {theirs}: {built[name + suffix]}"
                    rows += _rows(results, name + suffix, title, part)
    yield Table(SHEET.heading, columns, rows)
    yield SHEET.settings["of_chains"]
    chains = [
        Row([f"{name}: {words}"], name)
        for name, words in built.items()
        if name not in POINTS + AVERAGED
    ]
    yield Table(["run"], SHEET.made(SHEET.settings["chains"]), chains)


def _rows(results: Results, name: str, label: str, part: str = "ensemble") -> list[Row]:
    """Return a run's row; of several chains one of each and one of their draws together.

    Of single chains a run measures the test set alone. The mean over chains that start at different
    places is no network of use, and has no row.
    """
    run = results.get(name)
    if part == "posterior_mean" and (name.endswith("-chains") or (run and run["num_chains"] > 1)):
        return []
    if run is None or run["num_chains"] == 1:
        return [Row([label], name, part=part)]
    each = {"metrics": {"ensemble": run["task_details"]["chains"]["metrics"]}}
    together = f"{label}, {run['num_chains']} together"
    return [Row([f"{label}, each chain"], record=each), Row([together], name)]


def _setting(name: str) -> tuple[str, str, str]:
    """Return the method, the step and the prior's variance that a trial's name states."""
    method, _, words = name.partition("-short-")
    numbers = stated_numbers(words.split("-"))
    return SHEET.labels[method], f"{numbers['lr']:g}", str(numbers.get("variance", "flat"))


EXPERIMENT = Experiment(
    SHEET.runs,
    report,
    SHEET.choices(
        best="Most accurate: {}.",
        parts=lambda name: (name.split("-short")[0], name),
        entry="{name}",
        heading=("method", "step", "prior variance"),
        labels=_setting,
    ),
)
