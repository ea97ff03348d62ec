"""The device that tests run on, which ``pytest --device`` chooses."""

from __future__ import annotations

import os
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
    from tests.fake_gpu import FakeAccelerator

    return {"accelerator": FakeAccelerator(), "devices": 1}


def why_on_the_cpu(path, name):
    return None
