"""Run until the verdict holds: go on with a chain, or start it anew, as its remedy says."""

from __future__ import annotations

import json
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
from lightning_sgmcmc.common.files import write_beside
from lightning_sgmcmc.run.config_file import read_config

#: In the first round's folder: the names of the further ones, in their order.
_ROUNDS = "rounds.json"

# Steps that a round has to add, relative to those so far, to be worth it.
_WORTH = 1.05


class Rounds:
    """The rounds of a run with ``--until sampled``.

    A round whose remedy is a longer run continues the chain from its checkpoint. One that changes
    the step size or the minibatches starts a new chain with a burn-in of its own in a folder beside
    the first, ``<folder>-2`` and so on, the next that is free: earlier draws do not count. Where a
    command was stopped in such a round, the next one with the first folder goes on there.

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
        first, number = folder, 2
        config, content = _read(folder)
        steps, spent = max(int(config["trainer"]["max_steps"]), content["num_steps"]), 0
        planned = steps  # those that the burn-in of the present folder was chosen for
        seconds = float(content["wall_seconds"])
        self._began -= seconds
        names = _names(first)
        stopped = [first.with_name(name) for name in names]
        while content["diagnostics"]["alarms"]:
            more = self._steps(content, steps, seconds)
            if more is None or not can_be_followed(config, content):
                break
            if ended_early(config, content):  # a bound of the user's, which is of all rounds
                break
            anew = is_anew(content)
            if anew:
                spent += content["num_gradients"]
            resumes = anew and bool(stopped)
            arguments = ["--ckpt_path", "last"]
            if resumes:
                folder = stopped.pop(0)
                more = planned = int(read_config(folder / "config.yaml")["trainer"]["max_steps"])
            elif anew:
                arguments = ["--config", str(folder / "config.yaml")]
                arguments += changed_options(config, content, more / planned)
                planned = more
                while (folder := first.with_name(f"{first.name}-{number}")).exists():
                    number += 1  # of another run
                names.append(folder.name)
                write_beside(first / _ROUNDS, json.dumps(names))
            arguments += ["--out", str(folder), f"--trainer.max_steps={more}"]
            before = time.monotonic()
            self._run(arguments)
            elapsed = time.monotonic() - before
            config, content = _read(folder)
            if resumes:
                earlier = max(0.0, content["wall_seconds"] - elapsed)
                self._began, elapsed = self._began - earlier, elapsed + earlier
            steps, seconds = more, elapsed + (0 if anew else seconds)
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


def _names(first: Path) -> list[str]:
    """Return the names of the rounds' folders that an earlier command has begun."""
    path = first / _ROUNDS
    names: list[str] = json.loads(path.read_text()) if path.exists() else []
    return [name for name in names if (first.with_name(name) / "config.yaml").exists()]


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    return read_config(folder / "config.yaml"), results.read(folder / "results.json")
