"""``sgmcmc tune``: runs of a task with parameters that a study chooses, on this machine."""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from optuna.trial import Trial

from lightning_sgmcmc.callbacks.progress import duration
from lightning_sgmcmc.callbacks.report import remedy, results
from lightning_sgmcmc.callbacks.requeue import REQUEUES
from lightning_sgmcmc.callbacks.run import task_of
from lightning_sgmcmc.callbacks.stop import RunStoppedError, StopSignal
from lightning_sgmcmc.diagnostics.verdict import ENOUGH_DRAWS
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.posterior import diagnose
from lightning_sgmcmc.run import cli, sweep
from lightning_sgmcmc.run.errors import Guard, OneLineParser, fail
from lightning_sgmcmc.run.study import Study
from lightning_sgmcmc.run.study_figure import study_figure

_EPILOG = """\
examples:
  sgmcmc tune pde_source --trials 30              the space in configs/sweeps/pde_source.yaml
  sgmcmc tune my.yaml --workers 4 --trainer.max_steps=4000

The same command goes on with a study that was stopped, and with more --trials; --trials 0 shows
its table. All other options are those of 'sgmcmc train', for every trial.
"""
_STOPPED = tuple(128 + number for number in (signal.SIGINT, signal.SIGTERM, REQUEUES))
_NOT_TUNED = ("--out", "--ckpt_path", "--finish", "--check", "--until", "--max_time")


class Watch(L.Callback):
    """Report a trial's metric at every draw, and end a run that is worse or does not sample.

    The verdict is asked after 20, 40, 80, ... draws; an alarm ends the run there if no longer run
    could end the alarm.

    Args:
        trial: The trial.
        metric: A name in the rows of the run's draws.

    Attributes:
        reason: Why the run was ended before its last step; None if it was not.
        value: The metric at the last draw.
    """

    def __init__(self, trial: Trial, metric: str) -> None:
        self._trial, self._metric, self._draws = trial, metric, 0
        self._asked_at = ENOUGH_DRAWS
        frozen = trial.study.get_trials(deepcopy=False)[trial.number]
        self._reported = frozen.last_step or 0
        while self._asked_at < self._reported:  # as a trial that was not stopped
            self._asked_at *= 2
        self.reason: str | None = None
        # Of the last draw before a stop; a run with no step left reports nothing more.
        self.value = frozen.intermediate_values.get(self._reported, math.nan)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Refuse what cannot be tuned.

        Raises:
            ValueError: If the run has several processes.
        """
        if trainer.world_size > 1:
            raise ValueError("a trial runs in one process: take --trainer.devices=1 and --workers")

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Look at the draw of the step before, if there was one."""
        if self._is_new(pl_module):
            if self._draws >= self._asked_at:
                self._asked_at *= 2
                self.reason = self._alarm(pl_module)
            # A run that does not sample is no measure for others: its verdict comes first.
            if self.reason is None and self._trial.should_prune():
                self.reason = f"worse than others after {self._draws} draws"
            trainer.should_stop = self.reason is not None

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Look at the last draw."""
        self._is_new(pl_module)

    def _is_new(self, module: L.LightningModule) -> bool:
        """Report a draw that has not been seen.

        Raises:
            ValueError: If the metric is not measured.
        """
        kept = task_of(module).kept
        if kept.num_draws == self._draws:
            return False
        self._draws, row = kept.num_draws, kept.history[-1]
        if self._metric not in row:
            known = ", ".join(sorted(name for name in row if name.startswith("val/")))
            hint = f"choose one of {known}" if known else "give a validation split, --data.num_val"
            raise ValueError(f"the draws have no {self._metric}: {hint}")
        self.value = float(row[self._metric])
        if self._draws > self._reported:
            self._trial.report(self.value, self._draws)
            self._reported = self._draws
        return True

    def _alarm(self, module: L.LightningModule) -> str | None:
        """Return an alarm that a longer run would not end."""
        assert isinstance(module, SGMCMCModule)
        found = diagnose(module.kept, module.adaptation.stability)
        if not found["alarms"] or not remedy.is_anew({"diagnostics": found}):
            return None
        if found["remedy"]["lr"] >= 1 and not found["remedy"]["whole_data"]:
            return None  # slow so far, for want of momentum or of a larger step, and not hot
        return f"{sweep.NO_SAMPLE}: {_first(found['alarms'])}"


class Tuner:
    """Runs the trials of a study, one after the other.

    Args:
        configs: Folder of the tasks' YAML files.
        study: The study.
        total: Number of trials that it is to have.
    """

    def __init__(self, configs: Path, study: Study, total: int) -> None:
        self._configs, self._study, self._total = configs, study, total

    def work(self) -> None:
        """Run trials until there are enough."""
        os.environ.setdefault("WANDB_RUN_GROUP", f"tune-{self._study.folder.name}")
        while True:
            with self._study.next_trial(self._total) as trial:
                if trial is None:
                    return
                self._run(trial)

    def _run(self, trial: Trial) -> None:
        began, chosen = time.monotonic(), self._study.sweep.options(trial.params)
        folder = self._study.folder_of(trial.number)
        arguments = [*self._study.sweep.arguments, *chosen, "--out", str(folder)]
        if (folder / "config.yaml").is_file():  # it was stopped
            arguments += ["--ckpt_path", "last"]
        watch = Watch(trial, self._study.sweep.metric)
        folder.mkdir(exist_ok=True)
        try:
            with _output_to(folder / "output.txt"):
                cli.main(self._configs, arguments, [watch])
        except SystemExit as stop:
            if stop.code in _STOPPED:
                raise
            if stop.code != 3:
                self._study.fail(trial)
                fail(f"trial {trial.number}: {_said(folder)}")
            watch.reason = f"{sweep.NO_SAMPLE}: {_said(folder)}"
        except Exception:
            self._study.fail(trial)
            raise
        outcome = watch.reason
        if outcome is None:
            alarms = results.read(folder / "results.json")["diagnostics"]["alarms"]
            outcome = f"{sweep.NO_SAMPLE}: {_first(alarms)}" if alarms else None
        value = watch.value if outcome is None else None
        self._study.end(trial, outcome or "sampled", value)
        print(
            f"trial {trial.number}: {self._study.sweep.metric} {watch.value:.4g}, "
            f"{outcome or 'sampled'} ({duration(time.monotonic() - began)}); {shlex.join(chosen)}",
            flush=True,
        )


def main(configs: Path, arguments: Sequence[str]) -> None:
    """Run what the command line says.

    Args:
        configs: Folder of the tasks' YAML files.
        arguments: The command line without the program's name.
    """
    given, more = _parse(arguments)
    with Guard():
        for option in more:
            if option.partition("=")[0] in _NOT_TUNED:
                raise ValueError(f"{option.partition('=')[0]} does not go with a study of trials")
        space = sweep.read(sweep.find(configs, given.sweep), more)
        folder = Path(given.out or f"runs/tune/{space.name}")
        study = Study(folder, space)
        try:
            with StopSignal():
                _work(configs, study, given.trials, given.workers)
        except RunStoppedError as error:
            print(f"{error}: the same command goes on", file=sys.stderr)
            raise SystemExit(error.status) from None
        except SystemExit as stop:
            if stop.code in _STOPPED:
                print("stopped, with the trials saved: the same command goes on", file=sys.stderr)
            raise
        print(f"\n{study.table()}\n")
        figure = study_figure(study)
        if figure is not None:
            figure.savefig(folder / "study.png", dpi=130)
        _say_best(study)


def _work(configs: Path, study: Study, trials: int, workers: int) -> None:
    """Run trials in this process, and in others beside it."""
    context = multiprocessing.get_context("spawn")
    others = [
        context.Process(target=_beside, args=(configs, study.folder, study.sweep, trials, workers))
        for _ in range(min(workers, trials) - 1)
    ]
    _share(workers)
    try:
        for other in others:
            other.start()
        Tuner(configs, study, trials).work()
        for other in others:
            other.join()
    finally:
        for other in others:
            if other.is_alive():
                other.terminate()
        for other in others:
            other.join()
    ended = [other.exitcode for other in others if other.exitcode]
    for code in ended:
        if code > 0:
            raise SystemExit(code)
        name = signal.Signals(-code).name
        print(f"a worker was ended by {name}; the others took over its trial", file=sys.stderr)


def _beside(configs: Path, folder: Path, space: sweep.Sweep, trials: int, workers: int) -> None:
    _share(workers)
    with Guard(), StopSignal():
        try:
            Tuner(configs, Study(folder, space), trials).work()
        except RunStoppedError as error:
            raise SystemExit(error.status) from None


def _share(workers: int) -> None:
    """Leave the other workers their part of the cores."""
    if workers > 1:
        torch.set_num_threads(max(1, torch.get_num_threads() // workers))


def _say_best(study: Study) -> None:
    best = study.best()
    if best is None:
        print(
            "No trial gave a sample of its target. Longer runs (--trainer.max_steps) in another "
            "--out may; the alarms of a trial are in its results.json."
        )
        return
    print(f"Best: trial {best.number}, in {study.folder_of(best.number)}; again, or changed:")
    space = study.sweep
    print(f"  {shlex.join(['sgmcmc', 'train', *space.arguments, *space.options(best.params)])}")


def _first(alarms: Sequence[str]) -> str:
    """Return what the first of some alarms says, without its numbers and its remedy."""
    return re.sub(r" \(.*", "", re.split(r"[:;]", alarms[0])[0])


def _said(folder: Path) -> str:
    """Return the error that a run ended with."""
    lines = (folder / "output.txt").read_text(errors="replace").splitlines()
    said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return said[-1] if said else f"see {folder / 'output.txt'}"


@contextlib.contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Append what this process writes, by whatever way, to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [(number, os.dup(number)) for number in (1, 2)]
    with path.open("a", buffering=1) as file:
        for number, _ in kept:
            os.dup2(file.fileno(), number)
        try:
            with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
                yield
        finally:
            for number, own in kept:
                os.dup2(own, number)
                os.close(own)


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = OneLineParser(
        prog="sgmcmc tune",
        description="Search for parameters of a task by runs of it, with Optuna.",
        usage="sgmcmc tune SWEEP [--trials N] [--workers K] [--out DIR] [--option=value ...]",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("sweep", help="name of a file in configs/sweeps, or the path of one")
    parser.add_argument(
        "--trials", type=int, default=20, help="trials that the study is to have (default: 20)"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes at once (default: 1)")
    parser.add_argument("--out", help="folder of the study (default: runs/tune/SWEEP)")
    given, more = parser.parse_known_args(arguments)
    if given.trials < 0 or given.workers < 1:
        parser.error("--trials must be at least 0, --workers at least 1")
    wrong = next((word for word in more if not word.startswith("--")), None)
    if wrong is not None and "=" not in wrong:
        parser.error(f"{wrong!r} is no option: give --option=value")
    return given, more
