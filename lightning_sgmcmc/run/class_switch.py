"""What a configuration keeps of a class's arguments when another class takes its place.

jsonargparse keeps every argument that the new class accepts as well: ``--model.sampler=SGLD`` on a
configuration of SGHMC with a preconditioner would stay preconditioned. Here an argument belongs
to the class that it was written for. A switch drops it, unless it says which distribution is
sampled or which chain it is (:data:`KEPT`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from jsonargparse import Namespace, _typehints
from jsonargparse._util import NestedArg

from lightning_sgmcmc.common.arguments import argument_names, listed
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.samplers import Sampler

#: The arguments that stay when one class below a base takes the place of another. A sampler's
#: target and chain are not the sampler's own; nor are the arguments of a chain its task's. Of any
#: other class (network, prior, preconditioner, schedule, optimizer, data) nothing stays.
KEPT = {
    Sampler: ("prior", "temperature", "seed", "num_data", "chain", "noise"),
    SGMCMCModule: tuple(argument_names(SGMCMCModule)),  # without the network
}
_CONFIGS = ("--task", "--config", "-c")


@dataclass
class Switch:
    """One class in the place of another, with the old one's arguments."""

    old: str
    new: str
    kept: dict[str, Any]
    dropped: list[str]

    def note(self, final: Any) -> str | None:
        """Return what was kept and dropped, in a line; None where the old one had no arguments.

        Args:
            final: The class's arguments in the end; what was given anew is not kept.
        """
        kept = {k: v for k, v in self.kept.items() if v is not None and _within(v, final.get(k))}
        parts = []
        if kept:
            parts.append(f"{_name(self.new)} keeps {listed(_plain(kept))} of {_name(self.old)}")
        if self.dropped:
            owner = "" if kept else f" of {_name(self.old)}"
            verb = "is" if len(self.dropped) == 1 else "are"
            parts.append(f"{_and(self.dropped)}{owner} {verb} dropped")
        return "; ".join(parts) or None


@contextmanager
def own_arguments() -> Iterator[list[Switch]]:
    """Let a class have its own arguments only, in all that jsonargparse parses meanwhile.

    jsonargparse has no setting for this, so the one function in which it decides is replaced for
    the time being; the tests of this file fail where a version of it no longer asks there. There
    ``--model.sampler.slots=null`` stays null as well.

    Yields:
        The switches met so far, the same one possibly several times.
    """
    switches: list[Switch] = []
    original: Callable[..., None] = _typehints.discard_init_args_on_class_path_change

    def discard(parser_or_action: Any, previous: Any, value: Any) -> None:
        given = value.get("init_args")
        if isinstance(given, NestedArg) and given.val is None:
            value["init_args"] = given._replace(val="null")  # which it writes as "None" otherwise
        if not isinstance(previous, (dict, Namespace)):
            return
        old, arguments = previous.get("class_path"), previous.get("init_args")
        if not old or not arguments or _same(old, value["class_path"]):
            return
        names = list(vars(arguments) if isinstance(arguments, Namespace) else arguments)
        for name in names:
            if not _stays(name, arguments[name], old, value["class_path"]):
                arguments.pop(name)
        original(parser_or_action, previous, value)  # drops what the new class does not accept
        kept = {name: arguments[name] for name in names if name in arguments}
        dropped = [name for name in names if name not in kept]
        if _imported(old) not in KEPT:  # a base, which stands for what nobody has given
            switches.append(Switch(old, value["class_path"], kept, dropped))

    _typehints.discard_init_args_on_class_path_change = discard
    try:
        yield switches
    finally:
        _typehints.discard_init_args_on_class_path_change = original


def notes(switches: Sequence[Switch], config: Namespace) -> list[str]:
    """Return what the classes of a configuration took over, a line for each that was switched.

    Args:
        switches: What :func:`own_arguments` has met.
        config: The configuration that came out.
    """
    last = {switch.new: switch for switch in switches}
    found = []
    for class_path, arguments in _classes(config):
        switch = last.pop(class_path, None)
        note = switch.note(arguments) if switch else None
        if note:
            found.append(note)
    return found


def classes_first(arguments: Sequence[str]) -> list[str]:
    """Return a command line with ``--X=CLASS`` before the options of ``--X.*`` that precede it.

    An option is then for the class that the command line names, in whatever order they come. If
    it names several for one X, options between two are for the first of these.
    """
    groups: list[list[str]] = []
    start = 0
    switched: set[str] = set()
    for argument in arguments:
        if groups and not argument.startswith("-") and _bare(groups[-1]):
            groups[-1].append(argument)
        else:
            groups.append([argument])
    for i, group in enumerate(groups):
        option, value = _split(group)
        if option in _CONFIGS:
            start, switched = i + 1, set()
        elif re.fullmatch(r"[A-Za-z_][\w.]*", value) and value.lower() not in _WORDS:
            if option not in switched:
                own = [j for j in range(start, i) if groups[j][0].startswith(f"{option}.")]
                groups.insert(own[0] if own else i, groups.pop(i))
            switched.add(option)
    return [argument for group in groups for argument in group]


_WORDS = ("null", "none", "true", "false")


def _bare(group: list[str]) -> bool:
    return len(group) == 1 and group[0].startswith("-") and "=" not in group[0]


def _split(group: list[str]) -> tuple[str, str]:
    option, _, value = group[0].partition("=")
    return option, group[1] if len(group) == 2 else value


def _stays(name: str, value: Any, old: str, new: str) -> bool:
    """Return whether an argument of the old class is the new one's too."""
    for base, names in KEPT.items():
        if all(isinstance(c, type) and issubclass(c, base) for c in map(_imported, (old, new))):
            return name in names or (base is Sampler and name == "lr" and value == "auto")
    return False


def _same(old: str, new: str) -> bool:
    return old == new or (_imported(old) is not None and _imported(old) is _imported(new))


def _imported(path: str) -> Any:
    try:
        return resolve_name(path)
    except (ImportError, AttributeError, ValueError):
        return None


def _classes(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield the class paths in a configuration, each with its arguments."""
    if isinstance(config, list):
        config = dict(enumerate(config))
    if isinstance(config, Namespace):
        config = vars(config)
    if not isinstance(config, dict):
        return
    if isinstance(config.get("class_path"), str):
        yield config["class_path"], config.get("init_args") or {}
    for value in config.values():
        yield from _classes(value)


def _within(part: Any, whole: Any) -> bool:
    """Return whether all that a configuration says stands in another, which may say more."""
    if not isinstance(part, (dict, Namespace)) or not isinstance(whole, (dict, Namespace)):
        return bool(part == whole)
    items = part.items() if isinstance(part, dict) else vars(part).items()
    return all(_within(value, whole.get(name)) for name, value in items)


def _plain(value: Any) -> Any:
    """Return values for reading, where a class with arguments is a call."""
    if isinstance(value, Namespace):
        value = vars(value)
    if not isinstance(value, dict):
        return value
    if "class_path" not in value:
        return {name: _plain(v) for name, v in value.items()}
    return _Call(f"{_name(value['class_path'])}({listed(_plain(value.get('init_args') or {}))})")


class _Call(str):
    """A call in words, which is not quoted."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _name(path: str) -> str:
    return path.rsplit(".", 1)[-1]


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
