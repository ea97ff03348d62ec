"""The command ``sgmcmc``, from a checkout as ``python -m sgmcmc`` too.

``tasks`` and ``pde`` are names that others use as well: a file ``tasks.py`` on the path, or the
distribution py-pde, which imports as ``pde``. Whichever of two Python finds would run in silence.
The command therefore starts only where all packages are those beside this file, and as they were
installed. A user's own modules are found in the working folder, after all others.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

GENERIC = ("pde", "tasks")
PACKAGES = ("lightning_sgmcmc", *GENERIC)


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status.

    Args:
        arguments: The command line without the program's name; None takes ``sys.argv``.
    """
    given = sys.argv[1:] if arguments is None else arguments
    folder = Path(__file__).resolve().parent
    wrong = next(filter(None, (shadow(package, folder) for package in PACKAGES)), None)
    wrong = wrong or next(filter(None, (hidden(argument, folder) for argument in given)), None)
    if wrong is not None:
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    for place in (str(folder), os.getcwd()):  # an editable install's packages are found last of all
        if place not in sys.path:
            sys.path.append(place)
    try:
        run: Callable[[list[str]], int] = import_module("tasks.commands").main
        return run(given)
    except KeyboardInterrupt:  # where nothing runs yet that would be saved
        print("stopped", file=sys.stderr)
        return 130


def shadow(package: str, folder: Path) -> str | None:
    """Return what stands in the place of a package, None if it is the one in ``folder``."""
    file = folder / package / "__init__.py"
    found = find_spec(package)
    places = [found.origin, *(found.submodule_search_locations or ())] if found else []
    place = next(filter(None, places), None)  # a folder without __init__.py has no origin
    if place is None or Path(place).resolve() != file:
        return (
            f"'import {package}' finds {place or 'nothing'} and not {file}: rename what it finds, "
            "take its folder off PYTHONPATH, or install lightning-sgmcmc again in an environment "
            "of its own"
        )
    recorded = _recorded(folder, f"{package}/__init__.py")
    if recorded is not None and recorded != _digest(file):
        return (
            f"{file} is not the file that was installed, maybe that of another distribution with "
            f"a package '{package}' (py-pde has 'pde'): install lightning-sgmcmc again, in an "
            "environment of its own"
        )
    return None


def hidden(argument: str, folder: Path) -> str | None:
    """Return why an argument does not mean the user's own ``tasks.X``; None where it need not."""
    path = argument.rpartition("=")[2]
    package, name, *_ = [*path.split("."), ""]
    if package not in GENERIC or not re.fullmatch(r"\w+(\.\w+)*\.[A-Z]\w*", path):
        return None  # not the path of a class
    own = next((p for p in (Path(f"{package}.py"), Path(package)) if p.exists()), None)
    if own is None or own.resolve() == folder / package:
        return None
    if find_spec(f"{package}.{name}") or hasattr(import_module(package), name):
        return None
    return (
        f"{path} is not in the package '{package}' of lightning-sgmcmc, which hides "
        f"{own.resolve()}: rename that"
    )


def _recorded(folder: Path, name: str) -> str | None:
    """Return the SHA-256 of a file when it was installed; None in a checkout."""
    for distribution in metadata.distributions(name="lightning-sgmcmc", path=[str(folder)]):
        for file in distribution.files or ():
            if file.as_posix() == name and file.hash is not None:
                return file.hash.value
    return None


def _digest(file: Path) -> str:
    """Return a file's SHA-256 as RECORD files write it."""
    digest = hashlib.sha256(file.read_bytes()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


if __name__ == "__main__":
    sys.exit(main())
