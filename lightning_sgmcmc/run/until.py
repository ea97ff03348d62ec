"""Run until the verdict holds: go on with a chain, or start it anew, as its remedy says."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning_sgmcmc.callbacks.report import results
from lightning_sgmcmc.callbacks.report.remedy import (
    can_be_followed,
    changed_options,
    ended_early,
    is_anew,
)
from lightning_sgmcmc.run.config_file import read_config

# Steps that a round has to add, relative to those so far, to be worth it.
_WORTH = 1.05


class Rounds:
    """The rounds of a run with ``--until sampled``.

    A round whose remedy is a longer run continues the chain from its checkpoint. One that changes
    the step size or the minibatches starts a new chain with a burn-in of its own in a folder beside
    the first, ``<folder>-2`` and so on, the next that is free: earlier draws do not count.

    Args:
        run: Runs what a command line says and returns its folder.
        minutes: Time for all rounds together; None sets no bound.
    """

    def __init__(self, run: Callable[[list[str]], Path], minutes: float | None) -> None:
        self._run, self._minutes = run, minutes
        self._began = time.monotonic()

    def follow(self, folder: Path) -> Path:
        """Follow the remedies of a run that has ended, and say what all rounds cost.

        Args:
            folder: Of that run.

        Returns:
            The folder of the last round.
        """
        first, number = folder, 1
        config, content = _read(folder)
        steps, spent = int(config["trainer"]["max_steps"]), 0
        planned = steps  # those that the burn-in of the present folder was chosen for
        seconds = float(content["wall_seconds"])
        self._began -= seconds
        while content["diagnostics"]["alarms"]:
            more = self._steps(content, steps, seconds)
            if more is None or not can_be_followed(config, content):
                break
            if ended_early(config, content):  # a bound of the user's, which is of all rounds
                break
            anew = is_anew(content)
            if anew:
                spent, number = spent + content["num_gradients"], number + 1
                arguments = ["--config", str(folder / "config.yaml")]
                arguments += changed_options(config, content, more / planned)
                planned = more
                while (folder := first.with_name(f"{first.name}-{number}")).exists():
                    number += 1  # of an earlier command, or of another run
                arguments += ["--out", str(folder)]
            else:
                arguments = ["--out", str(folder), "--ckpt_path", "last"]
            before = time.monotonic()
            self._run([*arguments, f"--trainer.max_steps={more}"])
            seconds = time.monotonic() - before + (0 if anew else seconds)
            steps = more
            config, content = _read(folder)
        held = "holds" if not content["diagnostics"]["alarms"] else "does not hold yet"
        print(
            f"  the verdict {held} after {spent + content['num_gradients']} gradients a chain and "
            f"{time.monotonic() - self._began:.0f} s"
        )
        return folder

    def _steps(self, content: dict[str, Any], steps: int, seconds: float) -> int | None:
        """Return the steps of the next round in the time left, None where they are too few."""
        remedy = content["diagnostics"]["remedy"]
        wanted = int(steps * remedy["steps"])
        anew = is_anew(content)
        if self._minutes is None:
            return wanted
        left = self._minutes * 60 - (time.monotonic() - self._began)
        affordable = int(max(left, 0.0) * steps / seconds) + (0 if anew else steps)
        longest = min(wanted, affordable)
        return longest if longest >= (0.5 if anew else _WORTH) * steps else None


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    return read_config(folder / "config.yaml"), results.read(folder / "results.json")
