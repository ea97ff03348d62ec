"""A search space in a YAML file of W&B's format, for W&B's agents and for ``sgmcmc tune`` alike."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
import yaml
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial

from lightning_sgmcmc.run.yaml_check import check_yaml

#: Keys of a sweep file that have a meaning here; W&B ignores none of them either.
_KEYS = ("program", "name", "description", "method", "metric", "parameters", "early_terminate",
         "command")  # fmt: skip
_METHODS = ("bayes", "random")
_KINDS = ("uniform", "log_uniform_values", "int_uniform", "q_uniform", "categorical", "constant")
#: How the outcome of a trial begins whose draws are no sample of their target.
NO_SAMPLE = "does not sample"


class Halving(optuna.pruners.SuccessiveHalvingPruner):
    """Asynchronous successive halving, in which trials that do not sample are no measure."""

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Return whether a trial is worse than the others."""
        measures = copy.copy(study)
        trials = study.get_trials(deepcopy=False)
        measures.get_trials = lambda **_: [t for t in trials if not does_not_sample(t)]  # type: ignore[method-assign]
        return super().prune(measures, trial)


def does_not_sample(trial: FrozenTrial) -> bool:
    """Return whether a trial has ended, and its draws are no sample of their target."""
    return str(trial.user_attrs.get("outcome", "")).startswith(NO_SAMPLE)


@dataclass(frozen=True)
class Sweep:
    """What is searched, and by what it is judged.

    Attributes:
        name: Of the file.
        arguments: What every run is started with, without the program's name.
        space: The parameters' laws by the names of the command line.
        metric: A running metric, such as ``val/ensemble_nll``.
        goal: Whether it is to be small or large.
        method: How parameters are chosen: ``bayes`` or ``random``.
        min_iter: Draws after which a run may first be stopped; None stops none.
        eta: One of so many runs goes on there, and at ``eta`` times the draws again.
    """

    name: str
    arguments: tuple[str, ...]
    space: dict[str, BaseDistribution]
    metric: str
    goal: Literal["minimize", "maximize"] = "minimize"
    method: str = "bayes"
    min_iter: int | None = None
    eta: int = 3

    @property
    def identity(self) -> str:
        """What must not change while a study goes on, as JSON."""
        space = {k: optuna.distributions.distribution_to_json(v) for k, v in self.space.items()}
        return json.dumps([self.metric, self.goal, self.arguments, space])

    def sampler(self) -> optuna.samplers.BaseSampler:
        """Return what chooses the parameters of the next trial."""
        if self.method == "random":
            return optuna.samplers.RandomSampler()
        return optuna.samplers.TPESampler(n_startup_trials=8)

    def pruner(self) -> optuna.pruners.BasePruner:
        """Return what stops a trial that is worse than others: asynchronous successive halving."""
        if self.min_iter is None:
            return optuna.pruners.NopPruner()
        return Halving(min_resource=self.min_iter, reduction_factor=self.eta)

    def options(self, parameters: Mapping[str, Any]) -> list[str]:
        """Return parameters as options of a command line, in the order of the file."""
        return [f"--{name}={_text(parameters[name])}" for name in self.space if name in parameters]


def find(configs: Path, name: str) -> Path:
    """Return the file of a sweep.

    Args:
        configs: Folder of the tasks' YAML files, with a folder ``sweeps``.
        name: Of one there, or a path.

    Raises:
        ValueError: If there is none.
    """
    path = configs / "sweeps" / f"{name}.yaml"
    if path.is_file():
        return path
    if Path(name).is_file():
        return Path(name)
    known = ", ".join(sorted(p.stem for p in (configs / "sweeps").glob("*.yaml")))
    raise ValueError(f"unknown sweep {name!r}: choose one of {known}, or the path of a YAML file")


def read(path: Path, more: Sequence[str] = ()) -> Sweep:
    """Read a sweep.

    Args:
        path: Of the file.
        more: Arguments of every run beside those of the file.

    Raises:
        ValueError: If something in it is not what it should be; the message names it.
    """
    check_yaml(path)
    content = yaml.safe_load(path.read_text())
    if not isinstance(content, dict):
        raise ValueError(f"{path} is no sweep: it must hold {', '.join(_KEYS)}")
    for key in content:
        if key not in _KEYS:
            raise ValueError(f"{path}: unknown key {key!r}: choose from {', '.join(_KEYS)}")
    try:
        metric, parameters = content["metric"]["name"], content["parameters"]
    except (KeyError, TypeError):
        raise ValueError(f"{path} must say metric: {{name: ...}} and parameters: ...") from None
    if not isinstance(parameters, dict) or not parameters:
        raise ValueError(f"{path}: parameters must map options of the command line to values")
    if not isinstance(metric, str):
        raise ValueError(f"{path}: metric.name must be a name, got {metric!r}")
    goal, method = content["metric"].get("goal", "minimize"), content.get("method", "bayes")
    if goal not in ("minimize", "maximize"):
        raise ValueError(f"{path}: metric.goal must be minimize or maximize, got {goal!r}")
    if method not in _METHODS:
        raise ValueError(f"{path}: method must be one of {', '.join(_METHODS)}, got {method!r}")
    laws = {str(name): _law(path, str(name), law) for name, law in parameters.items()}
    constants = [f"--{name}={_text(law)}" for name, law in laws.items() if not _is_law(law)]
    min_iter, eta = _halving(path, content.get("early_terminate"))
    return Sweep(
        path.stem,
        (*_command(path, content.get("command")), *constants, *more),
        {name: law for name, law in laws.items() if _is_law(law)},
        metric,
        goal,
        method,
        min_iter,
        eta,
    )


def _halving(path: Path, stated: Any) -> tuple[int | None, int]:
    """Return the draws at which trials are first compared, None for never, and eta."""
    if stated is None:
        return None, 3
    if isinstance(stated, dict) and stated.get("type") == "hyperband":
        min_iter, eta = stated.get("min_iter", 0), stated.get("eta", 3)
        whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (min_iter, eta))
        if whole and min_iter >= 1 and eta >= 2:
            return min_iter, eta
    raise ValueError(
        f"{path}: early_terminate must be {{type: hyperband, min_iter: N, eta: 3}} with whole "
        "N >= 1 and eta >= 2"
    )


def _command(path: Path, command: Any) -> list[str]:
    """Return a sweep's own arguments: what follows ``train`` or the program."""
    words = [str(word) for word in command] if isinstance(command, list) else []
    starts = [i for i, word in enumerate(words) if word in ("train", "${program}")]
    if not starts or "${args}" not in words:
        raise ValueError(
            f"{path}: command must be a list with 'train', the task and ${{args}}, such as "
            '["${env}", "${interpreter}", -m, sgmcmc, train, --task, NAME, "${args}"]'
        )
    return [word for word in words[starts[-1] + 1 :] if not word.startswith("${")]


def _is_law(value: Any) -> bool:
    return isinstance(value, BaseDistribution)


def _law(path: Path, name: str, stated: Any) -> Any:
    """Return the law of a parameter, or its one value."""
    where = f"{path}: parameters.{name}"
    if not isinstance(stated, dict):
        raise ValueError(f"{where} must be {{values: [...]}}, {{min: a, max: b}} or {{value: v}}")
    kind = stated.get("distribution")
    if kind is not None and kind not in _KINDS:
        raise ValueError(f"{where}.distribution must be one of {', '.join(_KINDS)}, got {kind!r}")
    if not isinstance(stated.get("values", []), list):
        raise ValueError(f"{where}.values must be a list, got {stated['values']!r}")
    for value in (*stated.get("values", ()), stated.get("value")):
        try:
            json.dumps(value)
        except TypeError:
            raise ValueError(f"{where}: write {value} in quotes, it is a date for YAML") from None
    if "value" in stated:
        return stated["value"]
    try:
        if "values" in stated:
            return CategoricalDistribution(stated["values"])
        low, high = stated["min"], stated["max"]
        for bound in (low, high):
            if isinstance(bound, bool) or not isinstance(bound, (int, float)):
                hint = "; YAML reads 1.0e-4 as a number, and 1e-4 as a word"
                raise ValueError(f"min and max must be numbers, got {bound!r}{hint}")
            if not math.isfinite(bound):
                raise ValueError(f"min and max must be finite, got {bound}")
        whole = isinstance(low, int) and isinstance(high, int)
        if kind == "int_uniform" or (kind is None and whole):
            return IntDistribution(low, high)
        step = stated["q"] if kind == "q_uniform" else None
        return FloatDistribution(low, high, log=kind == "log_uniform_values", step=step)
    except (KeyError, TypeError, ValueError) as error:
        missing = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{where}: {missing}") from None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
