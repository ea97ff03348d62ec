"""The parser's nested complaints as one line that names the field and the choices."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module

from lightning_sgmcmc import preconditioners, priors, samplers
from lightning_sgmcmc.common.arguments import argument_names

_NOTHING = (
    "nothing to run: give --task NAME or --config FILE, or a task of your own as --model CLASS "
    "with its --model.sampler and --data CLASS"
)

#: What stands for a field where a complaint names none.
_NOWHERE = "command line"


def reason(message: str, error: BaseException | None = None) -> str:
    """Return what is wrong, in one line.

    Args:
        message: The outermost complaint.
        error: The exception that carries it, whose causes are looked through.
    """
    causes = [message]
    while error is not None:
        causes.append(str(error))
        error = error.__cause__ or error.__context__
    needed = re.search(r"the following arguments are required: (.+)", causes[-1])
    if needed:
        return _missing(_field(causes), needed[1].split(", "))
    field = _field(causes)
    refused = re.search(r"Option '([^']+)' is not accepted", causes[-1])
    if refused:
        classes = re.findall(r"class_path[= ]'([\w.]+)'", " ".join(causes))
        if not classes:
            return f"{field} has no option {refused[1]!r}"
        names = _arguments(classes[-1])
        known = f": it takes {', '.join(names) or 'none'}{_meant(refused[1], names)}"
        name = classes[-1].rsplit(".", 1)[-1]
        return f"{name} has no option {refused[1]!r}{known}"
    unknown = re.search(r"Expected a dot import path string: (\S+)", causes[-1])
    if unknown:
        names = _CHOICES.get(field.rsplit(".", 1)[-1], list)()
        known = f": choose one of {', '.join(names)}, or the path of a class" if names else ""
        known += _meant(unknown[1], names)
        return f"{field}: unknown class {unknown[1]!r}{known}"
    text = " ".join(causes[-1].split())
    if not text.startswith(("Expected a", "Does not validate")):
        return text
    return f"{field}: {_expected(causes)}"


def _meant(given: str, names: list[str]) -> str:
    """Return the nearest of the choices as a question, or nothing."""
    near = get_close_matches(given, names, 1)
    return f"; do you mean {near[0]}?" if near else ""


def nearest_option(message: str, known: Iterable[str]) -> str:
    """Return what was meant by an option that a parser does not know, as a question, or nothing.

    Args:
        message: The parser's complaint.
        known: The options that it has.
    """
    unknown = re.match(r"unrecognized arguments: (--[\w.]+)", message)
    if unknown is None:
        return ""
    longer = sorted(name for name in known if name.startswith(unknown[1]))
    return f"; do you mean {longer[0]}?" if longer else _meant(unknown[1], list(known))


def _missing(field: str, names: list[str]) -> str:
    """Return what to give where a command lacks something."""
    if "model" in names:
        return _NOTHING
    if names == ["data"]:
        return "no data: give --data CLASS, a LightningDataModule, or the --task that names one"
    if names == ["sampler"]:
        return f"no sampler: give --model.sampler, one of {', '.join(_samplers())}"
    prefix = "" if field == _NOWHERE else f"{field}."
    return f"{field} needs {', '.join(names)}: give --{' and --'.join(prefix + n for n in names)}"


def _samplers() -> list[str]:
    """Return the names of the samplers that a run can be given."""
    helpers = (samplers.Sampler, samplers.ChainsInTurn)
    members = ((name, getattr(samplers, name)) for name in samplers.__all__)
    return sorted(n for n, m in members if issubclass(m, samplers.Sampler) and m not in helpers)


def _preconditioners() -> list[str]:
    """Return the names of the preconditioners that a sampler can be given."""
    bases = ("Fisher", "Preconditioner")
    return [name for name in preconditioners.__all__ if name not in bases]


def _priors() -> list[str]:
    """Return the names of the priors that a sampler can be given."""
    return [name for name in priors.__all__ if name != "Prior" and not name.isupper()]


_CHOICES = {"sampler": _samplers, "preconditioner": _preconditioners, "prior": _priors}


def _field(causes: list[str]) -> str:
    """Return the dotted name of the innermost field that a complaint is about."""
    longest: list[str] = []
    for cause in causes:
        keys = re.findall(r'Parser key "([\w.]+)"', cause)
        if len(keys) > len(longest):
            longest = keys
    return ".".join(longest) or _NOWHERE


def _expected(causes: list[str]) -> str:
    """Return what was expected and given, from the innermost complaint that says both."""
    whole = next(
        (c for c in reversed(causes) if c.lstrip().startswith("Does not validate")), causes[-1]
    )
    if 'Parser key "' in whole:
        whole = causes[-1]
    kinds = re.findall(
        r"Expected a (?:<class '(?:[\w.]+\.)?(\w+)'>|typing\.(Literal\[.*?\]|\w+))", whole
    )
    given = re.search(r"(?:Given value|Got value): (.+)", whole) or re.search(
        r"Got value: (.+)", causes[-1]
    )
    names = " or ".join(dict.fromkeys(a or b.removeprefix("Literal") for a, b in kinds))
    names = names.replace("Sequence", "a list such as [1, 2] or [a, b]")
    said = f", got {given[1].strip()}" if given else ""
    return f"expected {names or 'another value'}{said}"


def _arguments(path: str) -> list[str]:
    """Return the names of the options of a class."""
    module, _, name = path.rpartition(".")
    return argument_names(getattr(import_module(module), name))
