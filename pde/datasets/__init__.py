"""Data sets: families of problems, and the runner that draws and solves them."""

from .dataset import PathLike, load
from .permeability import PermeabilityDataset, PermeabilityDataSpec
from .runner import generate

generate_permeabilities = generate


def load_permeabilities(path: PathLike) -> PermeabilityDataset:
    """Open a data set of permeabilities; as `load`."""
    return load(path, PermeabilityDataSpec)
