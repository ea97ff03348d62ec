"""A run's folder: made for one run, and locked while its process lives."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from functools import partial
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only

from lightning_sgmcmc.callbacks.checkpoint_files import LAST, PREVIOUS, newest
from lightning_sgmcmc.common.files import write_beside
from lightning_sgmcmc.run.errors import CommandLineError, file_reason

_VARIABLE = "SGMCMC_RUN_FOLDER"
#: What a run leaves beside its configuration.
_LEFT = ("metrics.csv", "figures", "samples", "checkpoints")


class RunFolder:
    """The folder of one run, which no other process writes into.

    The first process of a run makes and locks it; the others only learn its name. The lock ends
    with its process, also where that is killed.

    Args:
        given: The folder that the user chose; None takes ``default``, with a number after it
            where another run has that name.
        default: A new folder.

    Raises:
        CommandLineError: If another process runs in the folder, or processes that something else
            than the first of them started would each choose a name of their own.
    """

    def __init__(self, given: str | None, default: Path) -> None:
        self._made: list[Path] = []
        self._chosen = given is not None
        self._lock: FileLock | None = None
        if given is None:
            given = os.environ.get(_VARIABLE) if started_by_first() else None
        if given is None and started_by_others():
            raise CommandLineError(
                "processes that torchrun or a scheduler starts need one folder: give it with --out"
            )
        self.path = Path(given) if given is not None else default
        if not is_first():
            self._config = self._read()
            return
        if given is not None:
            self._make(self.path, exist_ok=True)
        else:
            self._make_new(default)
        lock = FileLock(self.path / ".lock", blocking=False)
        with contextlib.suppress(Timeout):
            lock.acquire()
        if not lock.is_locked:
            raise CommandLineError(
                f"another process runs in {self.path}: wait for its end, or choose another --out"
            )
        self._lock = lock
        self._before = {path.name for path in self.path.iterdir()}
        self._config = self._read()
        self._saved = self._stamp()
        os.environ[_VARIABLE] = str(self.path)

    def _read(self) -> str | None:
        """Return the configuration that lies in the folder."""
        path = self.path / "config.yaml"
        return path.read_text() if path.is_file() else None

    def _make_new(self, default: Path) -> None:
        number = 1
        while True:
            try:
                self._make(self.path, exist_ok=False)
                return
            except FileExistsError:
                number += 1
                self.path = default.with_name(f"{default.name}-{number}")

    def _make(self, path: Path, exist_ok: bool) -> None:
        missing = [p for p in (path, *path.parents) if not p.exists()]
        try:
            path.mkdir(parents=True, exist_ok=exist_ok)
        except FileExistsError:
            raise
        except OSError as error:
            reason = file_reason(error)
            raise CommandLineError(f"{reason}; --out FOLDER writes the run elsewhere") from None
        self._made = missing

    def leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let others have the folder; a command that was refused leaves it as it was.

        One that saved steps before it failed was not refused: its configuration is theirs.
        """
        if self._lock is None:
            return
        if isinstance(error, SystemExit) and error.code == 2:
            if self._config is not None and self._stamp() == self._saved:
                write_beside(self.path / "config.yaml", self._config)
            elif self._config is None and not self._holds_run:
                self._clear(*{"config.yaml", "wandb", *_LEFT} - self._before)
        self.release()

    def release(self) -> None:
        """Let others have the folder; one that this run made and left empty goes."""
        if self._lock is None:
            return
        os.environ.pop(_VARIABLE, None)
        with contextlib.suppress(PermissionError):  # Windows keeps a file that is open
            Path(self._lock.lock_file).unlink(missing_ok=True)
        self._lock.release()
        self._lock = None
        with contextlib.suppress(OSError):
            for path in self._made:
                path.rmdir()

    def _stamp(self) -> tuple[int, int] | None:
        """Return what tells the last checkpoint from a later one."""
        path = self.path / "checkpoints" / LAST
        return (path.stat().st_mtime_ns, path.stat().st_ino) if path.is_file() else None

    @property
    def _was_run(self) -> bool:
        """Whether the folder had a run's configuration; without, what lies in it is another's."""
        return self._config is not None and "\ncheckpoint_every:" in self._config

    @property
    def _has_checkpoint(self) -> bool:
        return any((self.path / "checkpoints" / name).is_file() for name in (LAST, PREVIOUS))

    @property
    def _holds_run(self) -> bool:
        drawn = (self.path / "samples").glob("*/step_*")
        return self._has_checkpoint or (self.path / "results.json").exists() or any(drawn)

    def to_continue(self, wanted: str, anew: bool = True) -> Path | None:
        """Return the checkpoint to continue from; None begins a run, or one that left none anew.

        Args:
            wanted: ``"last"``, or the path of a checkpoint. With ``"last"`` one command line
                serves the first start of a job and all later ones.
            anew: Whether a run may begin, or begin anew.

        Raises:
            CommandLineError: If there is no such file and no run to begin, or one would replace a
                configuration that is not of a run.
            DamagedFileError: If neither of the last two checkpoints is what was written.
        """
        last = wanted == "last"
        path = self.path / "checkpoints" / LAST if last else Path(wanted)
        if last and self._has_checkpoint:
            return newest(path.parent)
        finished = (self.path / "results.json").is_file()
        if last and anew and self._was_run and not finished:
            rank_zero_info(
                f"Note: the run in {self.path} stopped before its first checkpoint: it begins anew"
            )
            self._clear(*_LEFT)
            return None
        if last and anew and self._chosen and not self._holds_run:
            self._refuse_foreign()
            rank_zero_info(f"Note: there is no run in {self.path} yet: it begins")
            return None
        if last or not path.is_file():
            raise CommandLineError(
                f"there is no checkpoint {path}: nothing to continue; without --ckpt_path a run "
                "starts anew"
            )
        home = path.absolute().parent.parent
        if home != self.path.absolute() and (home / "samples").is_dir():
            raise CommandLineError(
                f"{path} counts on the draws beside it: continue in its folder, --out {home}"
            )
        return path

    def to_start(self) -> None:
        """Clear away what a start left that came to nothing.

        Raises:
            CommandLineError: If the folder holds a run, or a configuration that is not of one.
        """
        if self._holds_run and not started_by_first():
            raise CommandLineError(
                f"{self.path} already holds a run: continue it with --ckpt_path last, or choose "
                "another --out"
            )
        self._refuse_foreign()
        if self._was_run:
            self._clear(*_LEFT)

    def _refuse_foreign(self) -> None:
        if self._config is not None and not self._was_run:
            raise CommandLineError(
                f"{self.path / 'config.yaml'} is not of a run, which would write its own there: "
                "choose another --out"
            )

    def _clear(self, *names: str) -> None:
        if self._lock is None:
            return
        for name in names:
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


@partial(rank_zero_only, default=False)
def is_first() -> bool:
    """Return whether this is the first process of all."""
    return True


def started_by_first() -> bool:
    """Return whether the first process of this run has started this one."""
    return int(os.environ.get("LOCAL_RANK", 0)) > 0 and _VARIABLE in os.environ


def started_by_others() -> bool:
    """Return whether this is one of several processes that something else has started."""
    return any(int(os.environ.get(name) or 1) > 1 for name in ("WORLD_SIZE", "SLURM_NTASKS"))


def new_name(task: str, sampler: str, seed: int) -> Path:
    """Return the name of a new run's folder, to the second."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path("runs") / task / f"{sampler}-seed{seed}-{stamp}"
