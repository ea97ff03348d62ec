"""The device that tests run on, which ``pytest --device`` chooses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

#: ``cpu``, ``cuda``, or ``fake``: a GPU that a machine does not need to have.
CHOSEN = os.environ.get("SGMCMC_TEST_DEVICE", "cpu")
#: Where the tests' chains and data are.
DEVICE = torch.device("cpu") if CHOSEN == "cpu" else torch.device("cuda", 0)


def trainer_settings() -> dict[str, Any]:
    """Return the settings with which a Trainer runs on the device."""
    if CHOSEN == "cpu":
        return {"accelerator": "cpu", "devices": 1}
    if CHOSEN == "cuda":
        return {"accelerator": "gpu", "devices": 1}
    from tests.fake_gpu import fake_trainer_settings

    return fake_trainer_settings()


#: Test modules whose chains and data lie on the device: laws, contracts, runs, chains, predictions.
TAKE_IT = (
    "lightning_sgmcmc/test_device.py",
    "lightning_sgmcmc/callbacks/test_guard.py",
    "lightning_sgmcmc/chain/test_bfloat16.py",
    "lightning_sgmcmc/samplers/test_calibration.py",
    "lightning_sgmcmc/samplers/test_contract.py",
    "lightning_sgmcmc/samplers/test_discretised_law.py",
    "lightning_sgmcmc/samplers/test_logistic.py",
    "lightning_sgmcmc/samplers/test_stationarity.py",
    "lightning_sgmcmc/samplers/test_thermostat_order.py",
    "lightning_sgmcmc/samplers/test_waiting.py",
    "lightning_sgmcmc/samplers/test_weak_order.py",
)
_OWN = "makes tensors of its own beside the harness's"
#: Why others do not, by the longest of these that a module's path begins with.
ON_THE_CPU = {
    "": "no chain, or one whose numbers are made on the CPU",
    "pde/": "NumPy and SciPy",
    "lightning_sgmcmc/test_kernels.py": "compiled loops for the CPU",
    "lightning_sgmcmc/steps/": "compiled loops for the CPU",
    "lightning_sgmcmc/posterior/": "files, and tiles for the CPU's caches; test_device.py predicts",
    "lightning_sgmcmc/run/": "the command line",
    "tasks/": "recorded results, data and pages",
    "test_": "pages, packages and the command line",
    "tasks/test_collapsed_head.py": _OWN,
    "tasks/test_input_noise.py": _OWN,
    "test_examples.py": _OWN,
    "lightning_sgmcmc/preconditioners/test_fisher.py": _OWN,
    "lightning_sgmcmc/preconditioners/test_rmsprop.py": _OWN,
    "lightning_sgmcmc/preconditioners/test_lbfgs.py": _OWN,
    "lightning_sgmcmc/preconditioners/test_decaying_rmsprop.py": _OWN,
    "lightning_sgmcmc/samplers/test_hamcmc.py": _OWN,
    "lightning_sgmcmc/samplers/test_self_check.py": _OWN,
    "lightning_sgmcmc/samplers/test_sgnht.py": _OWN,
    "lightning_sgmcmc/samplers/test_hmc.py": _OWN,
    "lightning_sgmcmc/samplers/test_sgld.py": _OWN,
    "lightning_sgmcmc/samplers/test_sgfs.py": _OWN,
}


def why_on_the_cpu(path: Path) -> str | None:
    """Return why a test module runs on the CPU alone, None where it takes the device."""
    name = path.relative_to(Path(__file__).parent).as_posix()
    if name in TAKE_IT:
        return None
    return ON_THE_CPU[max((key for key in ON_THE_CPU if name.startswith(key)), key=len)]
