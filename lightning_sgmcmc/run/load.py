"""A finished run as a posterior: the module that its configuration names, with its draws."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import jsonargparse
import torch

from lightning_sgmcmc.callbacks.report import results
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.posterior import DrawStore, Posterior, chains_in
from lightning_sgmcmc.run.config_file import read_config
from lightning_sgmcmc.run.parser_errors import reason


def load_posterior(run_folder: str | Path, module: SGMCMCModule | None = None) -> Posterior:
    """Open a run's draws.

    Args:
        run_folder: The folder that the run printed last.
        module: The module that was sampled; None builds it from the run's ``config.yaml``.

    Raises:
        FileNotFoundError: If the folder holds no draws, or not those of all chains, or no config
            when one is needed.
        DamagedFileError: If ``results.json`` is not what the run wrote.
        ValueError: If the draws do not fit the module.
    """
    folder = Path(run_folder)
    chains = chains_in(folder / "samples")
    if not chains:
        raise FileNotFoundError(f"{folder} holds no samples/chain<c> folder: no draw was kept")
    check_chains(folder)
    if module is None:
        module = module_from_config(folder / "config.yaml")
    module.run_folder = folder  # whose draws a Trainer's test and predict take
    return Posterior(module, [DrawStore.open(folder / "samples", chain) for chain in chains])


def check_chains(folder: Path) -> None:
    """Raise FileNotFoundError if a run that has ended holds draws of some of its chains only."""
    path = folder / "results.json"
    if not path.is_file():
        return
    held, counted = len(chains_in(folder / "samples")), results.read(path).get("num_chains", 0)
    if 0 < held < counted:
        raise FileNotFoundError(
            f"{folder / 'samples'} holds {held} of the {counted} chains that results.json counts: "
            "restore the others from a copy"
        )


def module_from_config(path: Path) -> SGMCMCModule:
    """Build the module that a run's ``config.yaml`` names, with fresh weights.

    Raises:
        FileNotFoundError: If there is no such file.
        DamagedFileError: If it is not what the run wrote.
        ValueError: If it names a class that cannot be imported, or does not fit the class.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: give the module to load_posterior yourself")
    model = read_config(path)["model"]
    try:
        import_module(model["class_path"].rpartition(".")[0])
    except ImportError as error:
        raise ValueError(
            f"{path} names {model['class_path']}, which cannot be imported ({error}): put its "
            "folder on PYTHONPATH, or give the module to load_posterior yourself"
        ) from error
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(SGMCMCModule, "model")
    try:
        with torch.random.fork_rng(devices=[]):
            module = parser.instantiate_classes(parser.parse_object({"model": model})).model
    except jsonargparse.ArgumentError as error:
        raise ValueError(f"{path}: {reason(str(error), error)}") from error
    assert isinstance(module, SGMCMCModule)
    return module
