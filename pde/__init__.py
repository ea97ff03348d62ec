"""Darcy flow on rectangular grids: permeability fields, exact RT0/P0 solutions, data sets."""

from .darcy.conforming import conforming_pressure
from .darcy.discrete_bound import discrete_bound
from .darcy.error_bound import energy_bound, energy_norm
from .darcy.family import DarcyFamily
from .darcy.fitted_pressure import fitted_pressure
from .darcy.multiscale import MultiscaleSolution, MultiscaleSolver
from .darcy.solver import DarcySolution, DarcySolver
from .darcy.wells import Well, read_wells
from .datasets import generate_permeabilities, load_permeabilities
from .datasets.dataset import Dataset, load
from .datasets.family import DataSpec, Family
from .datasets.fno import FnoDataSpec
from .datasets.own_fields import OwnFieldsSpec
from .datasets.pdebench import PdebenchDataSpec
from .datasets.permeability import PermeabilityDataset, PermeabilityDataSpec
from .datasets.reaction import ReactionDataSpec, ReactionSolver
from .datasets.runner import generate
from .datasets.source import SourceDataSpec
from .errors import FileContentError, IncompatibleSourceError, PdeError
from .fields.channels import channelised_permeability
from .fields.kle import KarhunenLoeve, RandomPermeability
from .fields.sources import random_source, three_spot_source, three_spot_strengths, three_spots
from .grid import Grid
from .io.field_file import FieldFile, read_field
from .io.pdebench import ImportedDarcy, read_pdebench
from .io.spe10 import read_spe10, spe10_layer
from .io.vtk import write_vtk

__all__ = [
    "DarcyFamily",
    "DarcySolution",
    "DarcySolver",
    "DataSpec",
    "Dataset",
    "Family",
    "FieldFile",
    "FileContentError",
    "FnoDataSpec",
    "Grid",
    "ImportedDarcy",
    "IncompatibleSourceError",
    "KarhunenLoeve",
    "MultiscaleSolution",
    "MultiscaleSolver",
    "OwnFieldsSpec",
    "PdeError",
    "PdebenchDataSpec",
    "PermeabilityDataSpec",
    "PermeabilityDataset",
    "RandomPermeability",
    "ReactionDataSpec",
    "ReactionSolver",
    "SourceDataSpec",
    "Well",
    "channelised_permeability",
    "conforming_pressure",
    "discrete_bound",
    "energy_bound",
    "energy_norm",
    "fitted_pressure",
    "generate",
    "generate_permeabilities",
    "load",
    "load_permeabilities",
    "random_source",
    "read_field",
    "read_pdebench",
    "read_spe10",
    "read_wells",
    "spe10_layer",
    "three_spot_source",
    "three_spot_strengths",
    "three_spots",
    "write_vtk",
]
