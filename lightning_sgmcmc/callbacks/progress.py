"""Progress of a chain over its whole length."""

from __future__ import annotations

import sys
import time
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from lightning_sgmcmc.callbacks.run import task_of
from lightning_sgmcmc.chain import Chain, Task


class ChainProgress(ProgressBar):
    """One bar for a run: phase, loss, step size, draws kept and the time left.

    Where the output is not a terminal, the same numbers are printed as a line every tenth of the
    run.
    """

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._bar: Progress | None = None
        self._task: Any = None
        self._started = (0.0, 0)
        self._shown = 0.0

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
        total = trainer.max_steps if trainer.max_steps > 0 else None
        self._begin("burn-in", total, trainer.global_step)

    def _begin(self, description: str, total: float | None, completed: int = 0) -> None:
        if not self._enabled or not sys.stderr.isatty():
            return
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        self._task = self._bar.add_task(description, total=total, completed=completed, numbers="")
        self._bar.start()

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

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        """Advance the bar, a few times a second, or print a line every tenth of the run."""
        if not self._enabled:
            return
        task = task_of(pl_module)
        now, step, last = time.monotonic(), trainer.global_step, trainer.max_steps
        if self._bar is not None:
            if now - self._shown > 0.2 or step == last:
                self._shown = now
                self._bar.update(
                    self._task,
                    completed=step,
                    description=_phase(task.chain),
                    numbers=_numbers(trainer, task),
                )
        elif last > 0 and (step * 10 // last) > ((step - 1) * 10 // last):
            elapsed, first = now - self._started[0], self._started[1]
            left = elapsed / max(1, step - first) * (last - step)
            print(
                f"{_phase(task.chain)} {step}/{last}  {_numbers(trainer, task)}  "
                f"{left / 60:.1f} min left",
                flush=True,
            )

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop the bar."""
        self._stop()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Stop the bar."""
        self._stop()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _phase(chain: Chain) -> str:
    if not chain.sampling_now:
        return "burn-in (optimizer)"
    return "burn-in" if chain.steps < chain.draws.burn_in else "sampling"


def _numbers(trainer: L.Trainer, task: Task) -> str:
    """Return loss, step size, draws, and what a task logs with ``prog_bar=True``."""
    chain = task.chain
    shown = [
        f"nll {float(chain.last_loss.mean()):.4g}",
        f"lr {chain.lr:.2e}",
        f"draws {task.kept.num_draws}",
        *(f"{name} {float(value):.4g}" for name, value in trainer.progress_bar_metrics.items()),
    ]
    return "  ".join(shown)
