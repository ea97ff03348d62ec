"""How a command ends when something goes wrong: one table, one line, one status.

An exception that leaves a command is a *mistake* of the user's, or a *defect* of the program.

A mistake is one line, ``error: ...``, and the status of :data:`TABLE`. It is an exception

1. of a type in :data:`TABLE`: files, memory, the trainer's settings, archives, the chain; or
2. that a ``raise`` statement made in a package that speaks to its user (:data:`SPEAKERS`), or in
   the user's own module, of a type that carries a sentence (:data:`SENTENCES`); or
3. that arose while a class of another package was built which the configuration names: its
   arguments are the user's, and the line names the class.

All else is a defect: no ``raise`` statement of ours foresaw it (``'<' not supported between ...``
inside our code), or it comes from the depths of a library that was called with what we made. Its
traceback is printed whole, the status is 1, and the last line says where to report it. Where
the traceback passes through the user's own module, the last line names the file and the line.
"""

from __future__ import annotations

import argparse
import dis
import re
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Literal, NoReturn

#: Packages whose ``raise`` statements are sentences for the user.
SPEAKERS = ("lightning_sgmcmc", "tasks", "pde", "scripts", "lightning", "jsonargparse")
OURS = SPEAKERS[:4]
SENTENCES = (ValueError, TypeError, LookupError, ImportError)

_PLACES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
_BUILDERS = ("jsonargparse", "lightning.pytorch.cli")
_CALLBACKS = "lightning.pytorch.callbacks"  # whose RuntimeErrors are of what a user asked for


class CommandLineError(ValueError):
    """A command that cannot be carried out; its message is one line."""


def _message(error: BaseException) -> str:
    """Return what an exception says, which is not quoted where it is a ``KeyError``."""
    text = str(error.args[0]) if isinstance(error, LookupError) and error.args else str(error)
    return text or type(error).__name__


def _parser(error: BaseException) -> str:
    # It takes torch's seconds, and whatever raised such an error has imported it.
    said: str = import_module("lightning_sgmcmc.run.parser_errors").reason(str(error), error)
    return said


def file_reason(error: BaseException) -> str:
    """Return which file could not be used, and why."""
    if not isinstance(error, OSError) or error.strerror is None:
        return _message(error)
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return ": ".join([*names[:1], error.strerror.lower()])


def _wandb(error: BaseException) -> str:
    remedy = "--wandb_project=null runs without it, WANDB_MODE=offline without a network"
    return f"W&B: {_message(error)}; {remedy}"


def _damaged(error: BaseException) -> str:
    return f"a file is damaged or of another format: {_message(error)}"


def _memory(error: BaseException) -> str:
    said = _message(error).splitlines()[0]
    return f"out of memory: {said}; take smaller minibatches or a smaller network"


@dataclass(frozen=True)
class Entry:
    """What one type of exception ends a command with.

    Attributes:
        type: ``module.Class``; a module that was never imported has raised nothing.
        status: The command's status.
        form: Makes the line of the exception.
    """

    type: str
    status: int
    form: Callable[[BaseException], str]

    def holds(self, error: BaseException) -> bool:
        """Return whether an exception is of this type."""
        module, _, name = self.type.rpartition(".")
        kind = getattr(sys.modules.get(module), name, None)
        return isinstance(kind, type) and isinstance(error, kind)


_ROOT = "lightning_sgmcmc"
#: The first entry that holds is taken.
TABLE = (
    Entry(f"{_ROOT}.callbacks.ChainDivergedError", 3, _message),
    Entry(f"{_ROOT}.callbacks.ReplicasDifferError", 3, _message),
    Entry(f"{_ROOT}.samplers.NonFiniteGradientError", 3, _message),
    Entry(f"{_ROOT}.preconditioners.fisher_dense.SingularMetricError", 3, _message),
    Entry(f"{_ROOT}.run.errors.CommandLineError", 2, _message),
    Entry("pde.errors.PdeError", 2, _message),
    Entry("wandb.errors.Error", 2, _wandb),
    Entry("pydantic_core.ValidationError", 2, _wandb),  # of W&B's settings
    Entry("builtins.OSError", 2, file_reason),
    Entry("lightning.fabric.utilities.exceptions.MisconfigurationException", 2, _message),
    Entry("jsonargparse.ArgumentError", 2, _parser),
    Entry("yaml.YAMLError", 2, _message),
    Entry("_pickle.UnpicklingError", 2, _damaged),
    Entry("safetensors.SafetensorError", 2, _damaged),
    Entry("zipfile.BadZipFile", 2, _damaged),
    Entry("lzma.LZMAError", 2, _damaged),
    Entry("json.JSONDecodeError", 2, _damaged),
    Entry("builtins.UnicodeDecodeError", 2, _damaged),
    Entry("builtins.MemoryError", 2, _memory),
    Entry("torch.OutOfMemoryError", 2, _memory),
)


def verdict(error: BaseException) -> tuple[int, str] | None:
    """Return status and line of a mistake, None for a defect."""
    for entry in TABLE:
        if entry.holds(error):
            return entry.status, entry.form(error)
    frames = _frames(error.__traceback__)
    if not frames:
        return None
    last = frames[-1]
    if last.root == "jsonargparse" and isinstance(error, SENTENCES):
        return 2, _parser(error)
    sentence = isinstance(error, SENTENCES) or (
        isinstance(error, RuntimeError)
        and (last.root in OURS or last.module.startswith(_CALLBACKS))
    )
    if last.raises and sentence and (last.root in SPEAKERS or last.own):
        return 2, _message(error)
    builders = [i for i, frame in enumerate(frames) if frame.module.startswith(_BUILDERS)]
    built = frames[builders[-1] + 1 :] if builders else []
    if built and not any(frame.root in OURS or frame.own for frame in built):
        return 2, f"{built[0].owner}: {_message(error)}"
    return None


@dataclass(frozen=True)
class _Frame:
    """One level of a traceback: where it is, and whether a ``raise`` statement ended it."""

    module: str
    path: str
    line: int
    owner: str
    raises: bool

    @property
    def root(self) -> str:
        return self.module.partition(".")[0]

    @property
    def own(self) -> bool:
        """Whether it lies in a user's own module: in no library and in none of our packages."""
        library = self.path.startswith(_PLACES) or not Path(self.path).is_file()
        return not library and self.root not in OURS and self.module != "__main__"


def _frames(trace: TracebackType | None) -> list[_Frame]:
    """Return the levels of a traceback, the innermost last."""
    found = []
    while trace is not None:
        code = trace.tb_frame.f_code
        owner = code.co_qualname.rpartition(".")[0] or code.co_name
        operation = dis.opname[code.co_code[trace.tb_lasti]]
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        found.append(
            _Frame(module, code.co_filename, trace.tb_lineno, owner, operation == "RAISE_VARARGS")
        )
        trace = trace.tb_next
    return found


def _note(error: BaseException, folder: Path | None) -> str:
    """Return the line under a defect's traceback."""
    own = [frame for frame in _frames(error.__traceback__) if frame.own]
    if own:
        return f"error: it passes through your own {own[-1].path}, line {own[-1].line}"
    config = f" and {folder / 'config.yaml'}" if folder is not None else ""
    return (
        f"error: this is a defect of the program: report it with the lines above{config} as an "
        "issue, as CONTRIBUTING.md says"
    )


class Guard:
    """Ends a command by the law of this module.

    Attributes:
        folder: The run's, once there is one; a defect is reported with its configuration.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Literal[False]:
        """Raise ``SystemExit`` in place of a mistake; leave a defect as it is, with a note."""
        if not isinstance(error, Exception):  # none, Ctrl-C, or a command that has ended
            return False
        judged = verdict(error)
        if judged is not None:
            fail(judged[1], judged[0])
        if not getattr(error, "__notes__", None):
            error.add_note(_note(error, self.folder))
        return False


def fail(message: str, status: int = 2) -> NoReturn:
    """Print one line and exit with a status."""
    print(f"error: {one_line(message)}", file=sys.stderr)
    raise SystemExit(status) from None


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong with a command's arguments in one line."""

    def error(self, message: str) -> NoReturn:
        """End the command."""
        fail(f"{message}; '{self.prog} --help' says more")


def one_line(message: str) -> str:
    """Return a message without its line breaks."""
    return re.sub(r"\s+", " ", str(message)).strip()
