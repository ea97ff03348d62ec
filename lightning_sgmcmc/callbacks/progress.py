"""Progress of a chain over its whole length, in a terminal or in a log."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from lightning_sgmcmc.callbacks.run import task_of
from lightning_sgmcmc.chain import Chain, Task

#: Seconds between updates of the bar.
_BAR = 0.2
#: Least and largest number of seconds between two lines of a log.
_LEAST, _MOST = 10.0, 300.0


class ChainProgress(ProgressBar):
    """Phase, loss, step size, draws kept and the time left of a run, on standard error.

    A terminal shows one bar, and what is printed meanwhile stands above it. Anything else, such as
    a file, gets lines: one every tenth of the run, none within ten seconds of the last, and one
    after five minutes at the latest. The last one is of the whole run.
    """

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._bar: Progress | None = None
        self._task: Any = None
        self._handlers: list[tuple[logging.StreamHandler[Any], Any]] = []
        self._started = (0.0, 0)
        self._shown, self._step_shown = 0.0, 0

    def disable(self) -> None:
        """Show nothing, as on all ranks but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Show progress."""
        self._enabled = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the bar where the run stands."""
        super().on_train_start(trainer, pl_module)
        self._started = (time.monotonic(), trainer.global_step)
        self._shown, self._step_shown = self._started
        total = trainer.max_steps if trainer.max_steps > 0 else None
        self._begin(_phase(task_of(pl_module).chain), total, trainer.global_step)

    def _begin(self, description: str, total: float | None, completed: int = 0) -> None:
        if not self._enabled or not sys.stderr.isatty():
            return
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed}/{task.total}  {task.fields[numbers]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task(description, total=total, completed=completed, numbers="")
        self._bar.start()
        self._print_above()

    def _print_above(self) -> None:
        """Let the loggers write to what the bar has put in the place of standard error.

        They hold the one from before, and a line on it would leave a dead bar behind.
        """
        for name in ("", "lightning", "lightning.pytorch", "lightning.fabric", "py.warnings"):
            for handler in logging.getLogger(name).handlers:
                stream = getattr(handler, "stream", None)
                if isinstance(handler, logging.StreamHandler) and stream is sys.__stderr__:
                    self._handlers.append((handler, handler.setStream(sys.stderr)))

    def on_predict_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start a bar over batches."""
        self._begin("predicting", sum(trainer.num_predict_batches))

    def on_predict_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Advance the bar."""
        if self._bar is not None:
            self._bar.advance(self._task)

    def on_predict_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop the bar."""
        self._stop()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Show the step before, with which all callbacks are done, where it is time to."""
        if self._enabled and trainer.global_step > self._step_shown:
            self._show(trainer, task_of(pl_module))

    def _show(self, trainer: L.Trainer, task: Task, last: bool = False) -> None:
        now, step, total = time.monotonic(), trainer.global_step, trainer.max_steps
        since = now - self._shown
        if self._bar is not None:
            if since < _BAR and not last:
                return
            phase, numbers = _phase(task.chain), _numbers(trainer, task)
            self._bar.update(self._task, completed=step, description=phase, numbers=numbers)
        else:
            tenth = total > 0 and step * 10 // total > self._step_shown * 10 // total
            if not (last or since > _MOST or (tenth and since > _LEAST)):
                return
            rate = (now - self._started[0]) / max(1, step - self._started[1])
            left = f"  {duration(rate * (total - step))} left" if total > step else ""
            of = f"/{total}" if total > 0 else ""
            line = f"{_phase(task.chain)} {step}{of}  {_numbers(trainer, task)}{left}"
            print(line, file=sys.stderr, flush=True)
        self._shown, self._step_shown = now, step

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Show the last step and stop the bar."""
        if self._enabled and trainer.global_step > self._started[1]:
            self._show(trainer, task_of(pl_module), last=True)
        self._stop()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Stop the bar."""
        self._stop()

    def _stop(self) -> None:
        for handler, stream in self._handlers:
            handler.setStream(stream)
        self._handlers.clear()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def duration(seconds: float) -> str:
    """Return a duration in words, with two digits."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5970 else f"{seconds / 3600:.1f} h"


def _phase(chain: Chain) -> str:
    if not chain.sampling_now:
        return "optimizer"
    return "burn-in  " if chain.steps < chain.draws.burn_in else "sampling "


def _numbers(trainer: L.Trainer, task: Task) -> str:
    """Return the task's numbers, what it logs with ``prog_bar=True``, step size and draws."""
    values = {**task.progress(), **trainer.progress_bar_metrics}
    shown = "  ".join(f"{name} {float(value):.4g}" for name, value in values.items())
    return f"{shown}  lr {task.chain.lr:.2e}  draws {task.kept.num_draws}"
