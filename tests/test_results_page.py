"""docs/results.md names every field of results.json, and every alarm with its remedy."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest

from lightning_sgmcmc import SGHMC, GaussianPrior
from lightning_sgmcmc.adaptation import GradientNoise, NoiseTemperature
from lightning_sgmcmc.diagnostics import (
    ConfigurationalTemperature,
    PredictiveTemperature,
    Step,
    Temperature,
    alarms,
    summarise,
)
from tests.device import trainer_settings
from tests.toy import Toy, ToyData

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results.md"
ROWS = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
#: Fields below which names are free: of packages, arguments and layers.
FREE = ("versions", "arguments", "layers")


def named(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def leaves(value: Any, path: str = "") -> list[str]:
    """Return the paths of all values, of a list the first entry's."""
    if isinstance(value, list):
        value = value[0] if value and isinstance(value[0], dict) else None
    if not isinstance(value, dict):
        return [path]
    inner = [leaves(item, f"{path}.{key}".lstrip(".")) for key, item in value.items()]
    return [leaf for found in inner for leaf in found]


def explained(path: str) -> bool:
    """Whether a row has the path itself, or a part of it and names all the rest."""
    for first, *rest in ROWS:
        words = set(named(" ".join([first, *rest])))
        for field in named(first):
            if path == field or (field.endswith(".*") and path.startswith(field[:-1])):
                return True
            if path.startswith(field + "."):
                below = path[len(field) + 1 :].split(".")
                free = [i for i, word in enumerate(below) if word in FREE]
                below = below[: free[0] + 1] if free else below
                if all(word in words for word in below):
                    return True
    return False


@pytest.mark.parametrize("sampling", ["auto", "full"])
def test_every_field_of_results_json_is_explained(tmp_path: Path, sampling: str) -> None:
    sampler = partial(SGHMC, lr="auto", prior=GaussianPrior(4.0))
    module = Toy(sampler, burn_in=20, thinning=2, num_chains=4)
    settings = trainer_settings() | {"max_steps": 80, "default_root_dir": tmp_path}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    L.Trainer(**settings, **quiet).fit(module, datamodule=ToyData(16, sampling))
    (path,) = tmp_path.rglob("results.json")
    found = leaves(json.loads(path.read_text()))
    assert len(found) > 80
    assert [leaf for leaf in found if not explained(leaf)] == []


def test_every_alarm_is_explained() -> None:
    rng = np.random.default_rng(0)
    good = rng.standard_normal((4, 100, 20))
    stuck, apart, drifting = np.ones((4, 100, 5)), good.copy(), good.copy()
    apart[0] += 3
    drifting += np.linspace(0, 30, 100)[None, :, None]
    broken = good.copy()
    broken[0, 3] = np.nan
    mixed = summarise(predictions=good)

    def predictive(**changed: Any) -> PredictiveTemperature:
        values: dict[str, Any] = {
            "temperature": Temperature(1.0, 0.01, 0),
            "deviation": 1.0,
            "deviation_error": 0.005,
            "mean_error": 0.0,
            "mean_error_significance": 1.0,
            "degrees": 100,
            "ess": 300.0,
            "exact_share": 0.0,
        }
        return PredictiveTemperature(**(values | changed))

    def hot(value: float) -> PredictiveTemperature:
        return predictive(temperature=Temperature(value, 0.01, 0), deviation=value**0.5)

    total = Temperature(1.5, 0.01, 0)
    noise = NoiseTemperature(0.5, 1.0)
    found = [
        *alarms(summarise(predictions=broken)),
        *alarms(summarise(predictions=stuck)),
        *alarms(mixed, examples_known=False),
        *alarms(summarise(predictions=good[:, :10])),
        *alarms(summarise(predictions=apart)),
        *alarms(summarise(predictions=drifting)),
        *alarms(mixed, step=Step(0.5, last=1.5)),
        *alarms(mixed, predictive=hot(2.0)),
        *alarms(mixed, predictive=hot(0.5)),
        *alarms(mixed, predictive=predictive(mean_error=1.0, mean_error_significance=1e-6)),
        *alarms(mixed, predictive=predictive(deviation_error=0.2)),
        *alarms(mixed, kinetic_temperature=total),
        *alarms(mixed, configurational=ConfigurationalTemperature(total, {})),
        *alarms(mixed, noise=GradientNoise(noise, {"w": noise})),
    ]
    words = [words for row in ROWS for words in named(row[0]) if " " in words]
    kinds = [[word for word in words if word in alarm.text] for alarm in found]
    assert all(len(kind) == 1 for kind in kinds), list(zip(kinds, found, strict=True))
    assert {kind[0] for kind in kinds} == set(words)
