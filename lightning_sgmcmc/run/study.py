"""A study of trials in a folder, for any number of processes on one machine, and for restarts."""

from __future__ import annotations

import math
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock, Timeout
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.pool import NullPool

from lightning_sgmcmc.run.sweep import Sweep

_ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
_SHOWN = 10


class Study:
    """Trials of a sweep in ``DIR/study.db``, each a run in ``DIR/trial-NNN``.

    A process holds the lock of its trial as long as it lives. A trial that is under way and whose
    lock is free was stopped or killed: whoever asks next goes on with it from its checkpoint. A
    study of which every trial failed gives way to another one.

    Args:
        folder: DIR.
        sweep: What is searched.

    Raises:
        ValueError: If the folder holds a study of something else.
    """

    def __init__(self, folder: Path, sweep: Sweep) -> None:
        self.folder, self.sweep = folder, sweep
        folder.mkdir(parents=True, exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._lock = FileLock(folder / ".study.lock")
        with self._lock:
            # The file is shared by processes, each of which waits for the others, and closed by
            # each after every use. It is not named by the URL, in which a "?" ends the name.
            storage = optuna.storages.RDBStorage(
                "sqlite://",
                engine_kwargs={
                    "creator": lambda: sqlite3.connect(folder / "study.db", timeout=60),
                    "poolclass": NullPool,
                },
            )
            self._study = self._opened(storage)
            held = self._study.user_attrs.get("sweep")
            failed = all(trial.state == TrialState.FAIL for trial in self.trials)
            if held not in (None, sweep.identity) and failed:  # its command was a mistake
                optuna.delete_study(study_name=self._study.study_name, storage=storage)
                for path in folder.glob("trial-*"):
                    shutil.rmtree(path)
                self._study, held = self._opened(storage), None
            if held is None:
                self._study.set_user_attr("sweep", sweep.identity)
        if held not in (None, sweep.identity):
            raise ValueError(
                f"{folder} holds a study of another space, metric or command: choose another --out"
            )

    def _opened(self, storage: optuna.storages.RDBStorage) -> optuna.Study:
        """Return the study in a storage, a new one if there is none."""
        held_names = optuna.get_all_study_names(storage)
        return optuna.create_study(
            storage=storage,
            study_name=held_names[0] if held_names else self.sweep.name,  # a folder has one
            sampler=self.sweep.sampler(),
            pruner=self.sweep.pruner(),
            direction=self.sweep.goal,
            load_if_exists=True,
        )

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials so far."""
        return self._study.get_trials(deepcopy=False)

    @property
    def ended(self) -> list[FrozenTrial]:
        """The trials that gave a sample or were pruned, in their order."""
        return [t for t in self.trials if t.state in _ENDED]

    @contextmanager
    def next_trial(self, total: int) -> Iterator[Trial | None]:
        """Hold the next trial, one that was stopped first; None where there are enough.

        Args:
            total: Number of trials that the study is to have.
        """
        with self._lock:
            trial, lock = self._claim(total)
        try:
            yield trial
        finally:
            if lock is not None:
                lock.release()

    def _claim(self, total: int) -> tuple[Trial | None, FileLock | None]:
        if len(self.ended) >= total:
            return None, None
        running = [t for t in self.trials if t.state == TrialState.RUNNING]
        under_way = 0
        for stopped in running:
            lock = self._lock_of(stopped.number)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                under_way += 1
                continue
            if self.trials[stopped.number].state != TrialState.RUNNING:  # it has ended since
                lock.release()
                continue
            if stopped.params.keys() == self.sweep.space.keys():
                return Trial(self._study, stopped._trial_id), lock
            self._study.tell(stopped.number, state=TrialState.FAIL)  # killed while it was chosen
            lock.release()
        if under_way + len(self.ended) >= total:
            return None, None
        trial = self._study.ask(self.sweep.space)
        lock = self._lock_of(trial.number)
        lock.acquire(blocking=False)
        return trial, lock

    def _lock_of(self, number: int) -> FileLock:
        return FileLock(self.folder / f".trial-{number:03d}.lock")

    def folder_of(self, number: int) -> Path:
        """Return the folder of a trial's run."""
        return self.folder / f"trial-{number:03d}"

    def end(self, trial: Trial, outcome: str, value: float | None) -> None:
        """Note how a trial ended.

        Args:
            trial: The trial.
            outcome: In words.
            value: Of the metric, for one that gave a sample; None prunes it.
        """
        trial.set_user_attr("outcome", outcome)
        sampled = value is not None and math.isfinite(value)
        state = TrialState.COMPLETE if sampled else TrialState.PRUNED
        self._study.tell(trial, value if sampled else None, state=state)

    def fail(self, trial: Trial) -> None:
        """Note that a trial ended by a mistake or a defect."""
        self._study.tell(trial, state=TrialState.FAIL)

    def best(self) -> FrozenTrial | None:
        """Return the best trial that gave a sample, None where none did."""
        sampled = [t for t in self.trials if t.state == TrialState.COMPLETE]
        return next(iter(self._ranked(sampled)), None)

    def _ranked(self, trials: list[FrozenTrial]) -> list[FrozenTrial]:
        """Return trials that ended, those that gave a sample first, the best of each first."""
        sign = 1 if self.sweep.goal == "minimize" else -1

        def rank(trial: FrozenTrial) -> tuple[int, float, int]:
            value = last_value(trial)
            return (
                trial.state.value,
                sign * value if math.isfinite(value) else math.inf,
                trial.number,
            )

        return sorted(trials, key=rank)

    def table(self) -> str:
        """Return the best trials, a line each."""
        names = [name.removeprefix("model.") for name in self.sweep.space]
        rows = [["trial", self.sweep.metric, "draws", *names, "outcome"]]
        ranked = self._ranked(self.ended)
        for trial in ranked[:_SHOWN]:
            chosen = [_short(trial.params[name]) for name in self.sweep.space]
            outcome = str(trial.user_attrs.get("outcome", ""))
            draws = str(trial.last_step or 0)
            rows.append([str(trial.number), _short(last_value(trial)), draws, *chosen, outcome])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
        lines = [
            "  ".join(
                [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]
            )
            for row in rows
        ]
        if len(ranked) > _SHOWN:
            lines.append(f"... and {len(ranked) - _SHOWN} more")
        return "\n".join(f"  {line}" for line in lines)


def last_value(trial: FrozenTrial) -> float:
    """Return a trial's metric at its last draw, infinity where it had none."""
    values: dict[int, float] = trial.intermediate_values
    return values[max(values)] if values else float("inf")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
