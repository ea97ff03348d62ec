"""Darcy flow on rectangular grids: permeability fields, exact RT0/P0 solutions, data sets."""

from .darcy import DarcySolution, DarcySolver
from .dataset import Dataset, load
from .errors import FileContentError, IncompatibleSourceError, PdeError
from .family import DarcyFamily
from .fields import channelised_permeability
from .generation import generate
from .grid import Grid
from .importing import ImportedDarcy, read_pdebench
from .kle import KarhunenLoeve, RandomPermeability
from .multiscale import MultiscaleSolution, MultiscaleSolver
from .permeability import (
    PermeabilityDataset,
    PermeabilityDataSpec,
    generate_permeabilities,
    load_permeabilities,
)
from .sources import random_source, three_spot_source, three_spot_strengths, three_spots
from .spe10 import read_spe10, spe10_layer
from .spec import SourceDataSpec
from .vtk import write_vtk

__all__ = [
    "DarcyFamily",
    "DarcySolution",
    "DarcySolver",
    "Dataset",
    "FileContentError",
    "Grid",
    "ImportedDarcy",
    "IncompatibleSourceError",
    "KarhunenLoeve",
    "MultiscaleSolution",
    "MultiscaleSolver",
    "PdeError",
    "PermeabilityDataSpec",
    "PermeabilityDataset",
    "RandomPermeability",
    "SourceDataSpec",
    "channelised_permeability",
    "generate",
    "generate_permeabilities",
    "load",
    "load_permeabilities",
    "random_source",
    "read_pdebench",
    "read_spe10",
    "spe10_layer",
    "three_spot_source",
    "three_spot_strengths",
    "three_spots",
    "write_vtk",
]
