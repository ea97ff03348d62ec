"""What an experiment's cells run with, read from the objects that ``scripts/reproduce.py`` builds.

A cell that is a run goes through the command line's parser, and its sampler is built. A study is
computed, with the sampling loop replaced by one that notes what it is given and returns noise.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jsonargparse import Namespace

from lightning_sgmcmc import BatchStream, Sampler
from lightning_sgmcmc.common.arguments import arguments_of
from lightning_sgmcmc.run.cli import ChainCLI
from tasks.experiments import gaussians, logistic, loop
from tasks.experiments.experiment import Cell, Study
from tasks.experiments.hasgld import spike_slab, spike_slab_chains
from tasks.experiments.psgld import a9a, australian
from tasks.experiments.sgfs import drbm_chains, kdd99_posterior, mnist79, step_sizes
from tasks.experiments.theory import averages, hessian, pairs, regression, scores
from tasks.laplace import Laplace
from tests.tasks.protocols import KDD_ROWS, Each

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
#: What is stated apart from a sampler's other options.
APART = ("lr", "num_data", "prior", "preconditioner", "temperature", "seed", "increments")
Resolved = dict[str, Any]


class Parsed(ChainCLI):
    """Parses a command line, and builds nothing.

    Args:
        args: The command line.
    """

    def __init__(self, args: list[str]) -> None:
        program, sys.argv = sys.argv, sys.argv[:1]  # LightningCLI warns when both are given
        try:
            super().__init__(CONFIGS, args)
        finally:
            sys.argv = program

    def before_instantiate_classes(self) -> None:
        """Choose no folder."""

    def instantiate_classes(self) -> None:
        """Build no module, no data and no trainer."""


def relevant(cell: Cell) -> str:
    """Return what of a run's overrides can change what :func:`of_run` returns."""
    apart = ("name", "seed_everything", "checkpoint_every", "data.", "model.net")
    kept = {
        name: value
        for name, value in cell.overrides.items()
        if name in ("data.batch_size", "data.sampling") or not name.startswith(apart)
    }
    dropout = cell.overrides.get("model.net", {}).get("init_args", {}).get("dropout")
    return json.dumps([cell.config, kept, dropout], sort_keys=True)


def of_run(cell: Cell) -> Resolved:
    """Return what a run of the command line runs with."""
    config = Parsed(cell.arguments(CONFIGS)).config
    model, data = config.model.init_args, config.data.init_args
    sampler = _sampler(model.sampler)
    batch = data.get("sampling", "auto")
    adam = model.burn_in_optimizer
    net = (model.get("net") or {}).get("init_args") or {}
    callbacks = [c for c in config.trainer.callbacks or [] if "Pruning" in c.class_path]
    law = sampler.batches if batch == "auto" else batch
    gradients = "auto" if model.gradients == "auto" else _call(model.gradients)
    bounded = sampler.auto_lr and law != "full" and gradients != "FullGradient()"
    return _of_sampler(sampler) | {
        "step_fraction": model.step_fraction if sampler.auto_lr else None,
        "bound": model.max_gradient_noise if bounded else None,
        "gradients": gradients if bounded or gradients != "auto" else None,
        "schedule": _call(model.schedule),
        "batch": data.batch_size,
        "law": law,
        "steps": config.trainer.max_steps,
        "burn_in": model.burn_in,
        "thinning": model.thinning,
        "weights": model.draw_weights,
        "freeze": model.freeze_preconditioner if sampler.preconditioner.adaptive else None,
        "chains": model.num_chains,
        "optimizer": adam and _of_optimizer(adam),
        "pruning": _call(callbacks[0]) if callbacks else None,
        "dropout": net.get("dropout", 0.0),
    }


def _of_optimizer(adam: Any) -> str:
    name, arguments = adam.optimizer.class_path.rpartition(".")[2], adam.optimizer.init_args
    stated = f"{name}(lr={arguments.lr}, betas={tuple(arguments.betas)})"
    return f"{stated}, {adam.steps} steps, warmup {adam.warmup}, final {adam.final}"


def _sampler(stated: Any) -> Sampler:
    """Build a sampler of one weight."""
    built: Sampler = _built(stated, [torch.zeros(2, requires_grad=True)])
    return built


def _built(stated: Any, *positional: Any) -> Any:
    module, _, name = stated.class_path.rpartition(".")
    arguments = {k: _value(v) for k, v in vars(stated.get("init_args") or Namespace()).items()}
    return getattr(importlib.import_module(module), name)(*positional, **arguments)


def _value(stated: Any) -> Any:
    if hasattr(stated, "class_path"):
        module, _, name = stated.class_path.rpartition(".")
        if "optim" in module or name == "RMSspectral":  # called with the weights later
            arguments = {k: v for k, v in vars(stated.init_args).items() if k != "lr"}
            return partial(getattr(importlib.import_module(module), name), **arguments)
        return _built(stated)
    return stated


def _call(stated: Any) -> str | None:
    """Return a component as the call that builds it."""
    if stated is None:
        return None
    arguments = ", ".join(f"{k}={v}" for k, v in (stated.get("init_args") or {}).items())
    return f"{stated.class_path.rpartition('.')[2]}({arguments})"


def _of_sampler(sampler: Sampler) -> Resolved:
    metric = sampler.preconditioner
    of_metric = {"name": type(metric).__name__} | arguments_of(metric)
    options = {k: v for k, v in arguments_of(sampler).items() if k not in (*APART, *of_metric)}
    inner = getattr(sampler, "optimizer", None)
    if isinstance(inner, torch.optim.Optimizer):
        stated = {k: inner.defaults[k] for k in ("alpha", "eps", "betas") if k in inner.defaults}
        if inner.defaults.get("momentum"):
            stated["momentum"] = inner.defaults["momentum"]
        options["optimizer"] = {"name": type(inner).__name__} | stated
    return {
        "sampler": type(sampler).__name__,
        "options": options,
        "metric": of_metric,
        "lr": "auto" if sampler.auto_lr else sampler.lr,
        "bound": None,
        "gradients": None,
        "weights": "auto",
        "prior": repr(sampler.prior),
        "temperature": sampler.temperature,
    }


class Recorder:
    """Stands in for the sampling loop, and notes what it is given."""

    def __init__(self) -> None:
        self.found: list[Resolved] = []
        self.stream: BatchStream | None = None

    def sample(
        self,
        sampler: Sampler,
        *,
        steps: int,
        gradient: Any = None,
        burn_in: int = 0,
        thinning: int = 1,
        freeze: bool = True,
        **_: Any,
    ) -> tuple[Any, float]:
        """Return eight draws of noise around the start, or as many as were asked for."""
        self.note(sampler, gradient, freeze, steps=steps, burn_in=burn_in, thinning=thinning)
        (theta,) = sampler.params
        first = theta.detach().numpy()
        count = min(8, (steps - burn_in) // thinning)
        rng = np.random.default_rng(0)
        draws = np.stack([first + rng.standard_normal(first.shape) for _ in range(count)])
        return np.moveaxis(draws, 0, 1) if sampler.chain_dims else draws[None], 1.0

    def walk(
        self,
        sampler: Sampler,
        *,
        steps: int,
        gradient: Any,
        each: Any,
        burn_in: int = 0,
        freeze_at: int | None = None,
        schedule: Any = None,
    ) -> None:
        """Hand over the start as the state of every step that is a power of two."""
        decay = schedule and ", ".join(f"{k}={v:.3g}" for k, v in schedule.keywords.items())
        called = schedule and f"{schedule.func.__name__}({decay})"
        frozen = freeze_at is not None
        self.note(sampler, gradient, frozen, steps=steps, burn_in=burn_in, schedule=called)
        for i in range((steps - burn_in).bit_length()):
            each(2**i, sampler.params[0].detach())

    def note(self, sampler: Sampler, gradient: Any, freeze: bool, **stated: Any) -> None:
        """Note a call of a sampling loop."""
        metric = sampler.preconditioner
        of_gradient = {}
        if isinstance(gradient, gaussians.NoisyGradient):
            covariance = np.linalg.inv(gradient.precision.numpy()).round(6).tolist()
            of_gradient = {"gradient_noise": gradient.sd, "covariance": covariance}
        self.found.append(
            _of_sampler(sampler)
            | {
                "step_fraction": None,
                "schedule": None,
                "batch": self.stream and self.stream.batch_size,
                "law": self.stream.sampling if self.stream else "exact",
                "thinning": 1,
                "freeze": ("before" if metric.frozen else freeze) if metric.adaptive else None,
                "chains": sampler.num_chains or 1,
                "optimizer": None,
                "pruning": None,
                "dropout": 0.0,
            }
            | stated
            | of_gradient
        )

    def use(self, *args: Any) -> BatchStream:
        """Build a stream of minibatches, and note it."""
        self.stream = BatchStream(*args)
        return self.stream


def recording(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recorder:
    """Replace the sampling loop everywhere, the data by noise, and what is done with draws."""
    found = Recorder()
    for module in (loop, gaussians, logistic, spike_slab_chains, kdd99_posterior):
        monkeypatch.setattr(module, "sample", found.sample)
    for module in (logistic, kdd99_posterior):
        monkeypatch.setattr(module, "BatchStream", found.use)
    stable = property(lambda self: True)  # unstable steps of a constant C are not run otherwise
    monkeypatch.setattr(gaussians.Linear, "stable", stable)
    rng = np.random.default_rng(0)

    def examples(n: int, d: int) -> tuple[Any, Any]:
        return rng.standard_normal((n, d)), (rng.random(n) < 0.5).astype(float)

    def approximation(x: Any, y: Any, variance: float) -> Laplace:
        return Laplace(np.zeros(x.shape[1]), np.eye(x.shape[1]))

    for module in (logistic, mnist79, australian, a9a):
        monkeypatch.setattr(module, "laplace", approximation)
    monkeypatch.setattr(australian, "examples", lambda: examples(690, 15))
    monkeypatch.setattr(australian, "compare", lambda *_: {})
    (tmp_path / "truth").mkdir()
    truth = {"mean": [0.0] * 15, "covariance": np.eye(15).tolist()}
    (tmp_path / "truth" / "results.json").write_text(json.dumps(truth))
    test = examples(10, 123)
    monkeypatch.setattr(a9a, "_examples", lambda held_out: (examples(32_561 - held_out, 123), test))
    monkeypatch.setattr(a9a, "errors", lambda *_: {})
    monkeypatch.setattr(mnist79, "sevens_and_nines", lambda n: examples(n, 51))
    monkeypatch.setattr(kdd99_posterior, "_examples", _machines_examples)
    monkeypatch.setattr(drbm_chains.Machines, "mode", lambda self, *_: _mode(self))
    monkeypatch.setattr(kdd99_posterior.Machines, "fisher", _fisher)
    monkeypatch.setattr(step_sizes, "read_moments", _moments)
    monkeypatch.setattr(step_sizes, "over_steps", _over_steps)
    monkeypatch.setattr(spike_slab, "scores", lambda *_: {})
    for theorems in (averages, hessian, scores):
        monkeypatch.setattr(theorems, "walk", found.walk)
        monkeypatch.setattr(theorems, "fitted", lambda *_: (0.0, 0.0))
    monkeypatch.setattr(pairs, "walk", found.walk)
    monkeypatch.setattr(regression, "BatchStream", found.use)
    monkeypatch.setattr(averages, "exact", lambda *a: np.ones(len(a[4])))
    monkeypatch.setattr(hessian, "constant_metric", lambda *_: 0.0)
    return found


def _machines_examples(size: kdd99_posterior.Size) -> tuple[Any, Any]:
    rows = size.rows or KDD_ROWS
    return torch.zeros(rows, 40), torch.arange(rows) % 6


def _mode(machines: drbm_chains.Machines) -> Any:
    return torch.arange(machines.size, dtype=torch.float64) / machines.size


def _fisher(machines: drbm_chains.Machines, *_: Any) -> Any:
    return torch.eye(machines.size, dtype=torch.float64)


def _moments(folder: Path, suffix: str = "") -> dict[str, Any]:
    return {"mean": np.zeros(100), "covariance": np.eye(100), "mode": np.zeros(100)}


def _over_steps(
    folder: Path, reference: Any, method: step_sizes.Method, chains: Any, **_: Any
) -> dict[str, Any]:
    for value in method.values:
        chains(value)
    return {}


def of_study(study: Study, recorder: Recorder, folder: Path) -> Resolved:
    """Return what a study's calls of the sampling loop run with.

    Values that differ between calls are an :class:`Each`; chains that run one after another, of
    which nothing differs, are counted.
    """
    recorder.found, recorder.stream = [], None
    (folder / study.name).mkdir(exist_ok=True)
    study.compute(folder / study.name)
    calls: list[Resolved] = []
    for call, same in groupby(recorder.found):
        calls.append(call | {"chains": call["chains"] * len(list(same))})
    return {name: _joined([call[name] for call in calls]) for name in calls[0]} if calls else {}


def _joined(values: list[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else Each(values)


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each value that is not the one expected."""
    for name in sorted({*expected, *found}):
        wanted, got = expected.get(name, "not stated"), found.get(name, "not there")
        if not _equal(wanted, got):
            yield f"{name}: the protocol states {wanted}, the cell runs with {got}"


def _equal(wanted: Any, got: Any) -> bool:
    if isinstance(wanted, Each) or isinstance(got, Each):
        same = isinstance(wanted, Each) and isinstance(got, Each) and len(wanted) == len(got)
        return same and all(map(_equal, wanted, got))
    if isinstance(wanted, list) and isinstance(got, list):
        return len(wanted) == len(got) and all(map(_equal, wanted, got))
    if isinstance(wanted, Mapping) and isinstance(got, Mapping):
        return set(wanted) == set(got) and all(_equal(wanted[k], got[k]) for k in wanted)
    if isinstance(wanted, float) and isinstance(got, (float, int)):
        return wanted == pytest.approx(got, rel=1e-3)
    return bool(wanted == got) and isinstance(wanted, bool) == isinstance(got, bool)
