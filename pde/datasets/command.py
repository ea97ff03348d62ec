"""Make a data set of Darcy flows."""

from __future__ import annotations

import argparse
import sys
from inspect import signature
from pathlib import Path
from typing import Any, NoReturn

from pde.datasets.family import DataSpec
from pde.datasets.fno import FnoDataSpec
from pde.datasets.own_fields import OwnFieldsSpec
from pde.datasets.own_problem import own_problem
from pde.datasets.pdebench import PdebenchDataSpec
from pde.datasets.permeability import PermeabilityDataSpec
from pde.datasets.reaction import ReactionDataSpec
from pde.datasets.runner import generate
from pde.datasets.source import SourceDataSpec
from pde.errors import PdeError
from pde.fields.kle import MEANS


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; '{self.prog} --help' says more\n")


class _Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults that are values."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        is_value = action.default is not None and action.default is not False
        return super()._get_help_string(action) if is_value else action.help


def parser(program: str | None = None) -> argparse.ArgumentParser:
    """The command line: one subcommand for each kind of data set."""
    main = _Parser(prog=program, description=__doc__, allow_abbrev=False)
    kinds = main.add_subparsers(required=True, metavar="KIND")

    source = _kind(
        kinds,
        "source",
        "one permeability, varying sources (Wang, Deng, Lin 2020, section 5.3.1)",
        SourceDataSpec,
    )
    add = source.add_argument
    add("--source", choices=("three_spot", "random"), help="kind (three_spot without --wells)")
    add("--spread", choices=("variance", "sd"), default="variance", help="the 5 of N(10, 5)")
    add("--field", choices=("channelised", "spe10"), help="permeability (default: channelised)")
    _own_field(source)
    add("--field-seed", type=int, default=0, help="seed of the synthetic channelised field")
    add("--spe10-file", help="spe_perm.dat, plain, .xz, or in the official zip")
    add("--layer", type=int, default=36, help="SPE10 layer, 1 (top) to 85")
    add("--component", choices=("kx", "ky", "kz"), default="kx", help="SPE10 component")
    add("--origin", type=int, nargs=2, default=(0, 0), metavar=("X", "Y"), help="SPE10 crop")

    permeability = _kind(
        kinds,
        "permeability",
        "random permeabilities, flow from left to right (the same, section 5.3.2)",
        PermeabilityDataSpec,
    )
    _random_field(permeability)
    fields = _kind(kinds, "fields", "own permeabilities, all fields of a file", OwnFieldsSpec)
    _own_fields(fields)
    reaction = _kind(
        kinds,
        "reaction",
        "random permeabilities, flow from left to right with a reaction",
        ReactionDataSpec,
    )
    _random_field(reaction)
    reaction.add_argument("--reaction", type=float, default=10.0, help="the rate c")
    fno = _kind(
        kinds,
        "fno",
        "12 or 3 by a thresholded field, u = 0 around it (Li et al. 2021)",
        FnoDataSpec,
    )
    fno.add_argument("--every", type=int, default=5, help="the solver's steps from node to node")
    _two_values(fno, 3.0, 12.0)
    pdebench = _kind(
        kinds,
        "pdebench",
        "1 or .1 by five bumps, p = 0 around it (Takamoto et al. 2022)",
        PdebenchDataSpec,
    )
    pdebench.add_argument("--beta", type=float, default=1.0, help="the source, everywhere")
    _two_values(pdebench, 0.1, 1.0)
    return main


def _kind(kinds: Any, name: str, about: str, spec: type[DataSpec]) -> argparse.ArgumentParser:
    """A subcommand, with the options that all kinds have."""
    kind: argparse.ArgumentParser = kinds.add_parser(
        name,
        help=about,
        formatter_class=_Defaults,
        allow_abbrev=False,
    )
    kind.set_defaults(spec=spec)
    add = kind.add_argument
    add("--out", type=Path, required=True, help="the .safetensors file to write")
    if spec is not OwnFieldsSpec:
        add("--samples", dest="num_samples", type=int, default=1500, help="number of samples")
        what = "nodes that are kept" if name == "fno" else "cells"
        default = spec.__dataclass_fields__["nx"].default
        add("--grid", type=int, help=f"{what} in each direction (default: {default})")
    add("--seed", type=int, default=0, help="seed of the samples")
    if name != "fno":  # which has nothing else
        add("--pressure", dest="save_pressure", action="store_true", help="keep the pressures too")
    add("--workers", type=int, help="how many work at once (default: all cores)")
    add(
        "--scheduler", metavar="ADDRESS", help="of a Dask cluster that does the work in their place"
    )
    add("--backend", choices=("auto", "compiled", "scipy"), default="auto", help="solver")
    return kind


def _own_fields(kind: argparse.ArgumentParser) -> None:
    """The options of `OwnFieldsSpec.of_file`."""
    add = kind.add_argument
    add("--samples", dest="num_samples", type=int, help="the first so many; by default all")
    add("--permeability", dest="path", metavar="FILE", required=True, help="n own fields")
    add("--source", type=float, default=0.0, help="the source f, the same everywhere")
    _files_and_sides(kind, "table x,y,rate,pressure,radius")


def _own_field(kind: argparse.ArgumentParser) -> None:
    """The options of `own_problem`."""
    add = kind.add_argument
    add("--permeability", metavar="FILE", help="an own field: .npy, .npz, .csv, .h5, .vti, .vtr")
    add("--active", metavar="FILE", help="1 in cells that there is flow in, else 0")
    for name in ("nx", "ny"):
        add(f"--{name}", type=int, help="cells; by default --grid, or the file's")
    _files_and_sides(kind, "table x,y,rate,spread,pressure,radius; rates vary")


def _files_and_sides(kind: argparse.ArgumentParser, wells: str) -> None:
    add = kind.add_argument
    add("--permeability-name", metavar="NAME", help="the array in it, where it holds several")
    add("--axes", choices=("yx", "xy"), default="yx", help="how its axes run, the last one fastest")
    add("--wells", metavar="FILE", help=wells)
    for name in ("lx", "ly"):
        add(f"--{name}", type=float, help="length; by default 1, or the file's")
    for name, what in (("side-pressure", "pressure"), ("side-flux", "velocity outwards")):
        add(
            f"--{name}",
            nargs="+",
            type=_on_side,
            metavar="SIDE=VALUE",
            help=f"{what} of left, right, bottom, top, or a part as left:0:0.5",
        )


def _on_side(text: str) -> tuple[str, float]:
    side, _, value = text.partition("=")
    try:
        return side, float(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}, expected SIDE=VALUE, left=1 say") from error


def _random_field(kind: argparse.ArgumentParser) -> None:
    add = kind.add_argument
    add("--kind", choices=tuple(MEANS), default="additive", help="permeability")
    add("--mean", type=float, help="kappa_0 (default: 6 if additive, 0 if lognormal)")
    add("--variance", type=float, default=2.0, help="variance of the Gaussian field")
    add("--lengths", type=float, nargs=2, default=(0.2, 0.3), metavar=("LX", "LY"), help="of it")
    add("--terms", type=int, default=64, help="Karhunen-Loeve modes")
    add("--kernel", choices=("gaussian", "exponential"), default="gaussian", help="covariance")
    add("--source", type=float, default=1.0, help="the source f, the same everywhere")


def _two_values(kind: argparse.ArgumentParser, low: float, high: float) -> None:
    kind.add_argument("--low", type=float, default=low, help="the smaller permeability")
    kind.add_argument("--high", type=float, default=high, help="the larger one")


def main(arguments: list[str] | None = None, program: str | None = None) -> int:
    """Run the command.

    Args:
        arguments: The command line without the program's name; None takes ``sys.argv``.
        program: What the help calls it; None takes ``sys.argv[0]``.

    Returns:
        The exit status: 2 on bad arguments, 130 on Ctrl-C.
    """
    given = vars(parser(program).parse_args(arguments))
    kind, out, grid = given.pop("spec"), given.pop("out"), given.pop("grid", None)
    sizes = {} if grid is None else {"nx": grid, "ny": grid}
    how = {name: given.pop(name) for name in ("workers", "backend", "scheduler")}
    if "mean" in given and given["mean"] is None:
        given["mean"] = MEANS[given["kind"]]
    try:
        for name in ("side_pressure", "side_flux"):
            if pairs := given.get(name):
                given[name] = dict(pairs)
                if len(given[name]) < len(pairs):
                    raise PdeError(f"--{name.replace('_', '-')} names a side twice")
        if kind is SourceDataSpec:
            own = {name: given.pop(name) for name in signature(own_problem).parameters}
            own = {name: sizes.get(name) if value is None else value for name, value in own.items()}
            if given["source"] and own["wells"]:
                raise PdeError(f"--source {given['source']} and --wells: give one of them")
            given["source"] = given["source"] or "three_spot"
            spec: DataSpec = kind(**(given | own_problem(**own)))
        elif kind is OwnFieldsSpec:
            given["name"] = given.pop("permeability_name")
            given = {name: value for name, value in given.items() if value is not None}
            spec = OwnFieldsSpec.of_file(**given)
        else:
            spec = kind(**given, **sizes)
        print(generate(spec, out, **how))
    except (PdeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; run the same command again to continue", file=sys.stderr)
        return 130
    return 0
