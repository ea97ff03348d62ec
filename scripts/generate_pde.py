"""Make a data set of Darcy flows; `--help` says how."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pde import (
    PdeError,
    PermeabilityDataSpec,
    SourceDataSpec,
    generate,
    generate_permeabilities,
)
from pde.fields.kle import MEANS


def parser() -> argparse.ArgumentParser:
    """The command line: one subcommand for each kind of data set."""
    main = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    kinds = main.add_subparsers(dest="kind_of_set", required=True)
    source = kinds.add_parser(
        "source",
        help="one permeability, varying sources (Wang, Deng, Lin 2020, section 5.3.1)",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = source.add_argument
    add("--out", type=Path, required=True, help="the .npz file to write")
    add("--samples", type=int, default=1500, help="number of samples")
    add("--grid", type=int, default=60, help="cells in each direction")
    add("--source", choices=("three_spot", "random"), default="three_spot", help="kind of source")
    add("--spread", choices=("variance", "sd"), default="variance", help="the 5 of N(10, 5)")
    add("--field", choices=("channelised", "spe10"), default="channelised", help="permeability")
    add("--field-seed", type=int, default=0, help="seed of the synthetic channelised field")
    add("--spe10-file", help="spe_perm.dat, plain, .xz, or in the official zip")
    add("--layer", type=int, default=36, help="SPE10 layer, 1 (top) to 85")
    add("--component", choices=("kx", "ky", "kz"), default="kx", help="SPE10 component")
    add("--origin", type=int, nargs=2, default=(0, 0), metavar=("X", "Y"), help="SPE10 crop")
    add("--pressure", action="store_true", help="keep the pressures too")
    add("--workers", type=int, default=1, help="worker processes, for random sources")
    add("--seed", type=int, default=0, help="seed of the sources")

    permeability = kinds.add_parser(
        "permeability",
        help="random permeabilities, flow from left to right (the same, section 5.3.2)",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = permeability.add_argument
    add("--out", type=Path, required=True, help="the .safetensors file to write")
    add("--samples", type=int, default=1500, help="number of samples")
    add("--grid", type=int, default=50, help="cells in each direction")
    add("--kind", choices=tuple(MEANS), default="additive", help="permeability")
    add("--mean", type=float, help="kappa_0 (default: 6 if additive, 0 if lognormal)")
    add("--variance", type=float, default=2.0, help="variance of the Gaussian field")
    add("--lengths", type=float, nargs=2, default=(0.2, 0.3), metavar=("LX", "LY"), help="of it")
    add("--terms", type=int, default=64, help="Karhunen-Loeve modes")
    add("--kernel", choices=("gaussian", "exponential"), default="gaussian", help="covariance")
    add("--source", type=float, default=1.0, help="the source f, the same everywhere")
    add("--pressure", action="store_true", help="keep the pressures too")
    add("--workers", type=int, help="how many work at once (default: all cores)")
    add(
        "--scheduler", metavar="ADDRESS", help="of a Dask cluster that does the work in their place"
    )
    add("--backend", choices=("auto", "compiled", "scipy"), default="auto", help="solver")
    add("--seed", type=int, default=0, help="seed of the fields")
    return main


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status is 2 on bad arguments, 130 on Ctrl-C."""
    given = parser().parse_args(argv)
    try:
        if given.kind_of_set == "permeability":
            return _permeability(given)
        spec = SourceDataSpec(
            nx=given.grid,
            ny=given.grid,
            field=given.field,
            field_seed=given.field_seed,
            spe10_file=given.spe10_file,
            layer=given.layer,
            component=given.component,
            origin=given.origin,
            source=given.source,
            spread=given.spread,
            num_samples=given.samples,
            seed=given.seed,
            save_pressure=given.pressure,
        )
        print(generate(spec, given.out, workers=given.workers))
    except (PdeError, OSError) as error:
        print(f"generate_pde: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; run the same command again to continue", file=sys.stderr)
        return 130
    return 0


def _permeability(given: argparse.Namespace) -> int:
    mean = MEANS[given.kind] if given.mean is None else given.mean
    spec = PermeabilityDataSpec(
        nx=given.grid,
        ny=given.grid,
        kind=given.kind,
        mean=mean,
        variance=given.variance,
        lengths=given.lengths,
        terms=given.terms,
        kernel=given.kernel,
        source=given.source,
        num_samples=given.samples,
        seed=given.seed,
        save_pressure=given.pressure,
    )
    path = generate_permeabilities(
        spec, given.out, given.workers, given.backend, scheduler=given.scheduler
    )
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
