"""docs/subsurface.md runs from top to bottom, its commands with short settings."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.commands import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "subsurface.md"
SHORT = {
    "source": ["--workers=1"],
    "fields": ["--workers=1"],
    "pde_source": [
        "--data.num_samples=40", "--model.burn_in_optimizer.steps=10", "--model.burn_in=12",
        "--model.thinning=2", "--trainer.max_steps=20", "--model.net.hidden=20",
    ],
    "pde_perm": [
        "--model.burn_in_optimizer.steps=4", "--model.burn_in=6", "--model.thinning=2",
        "--trainer.max_steps=10", "--model.net.hidden=20", "--model.net.encoder_channels=[4, 2]",
    ],
}  # fmt: skip
TRAINER = [
    "--wandb_project=null",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
]


def test_the_page_runs(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SGMCMC_RUN_FOLDER", raising=False)
    names: dict[str, Any] = {}
    for language, block in re.findall(r"```(\w*)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        if language == "python":
            exec(compile(block, str(PAGE), "exec"), names)
            continue
        for line in block.strip().splitlines():
            _, *words = line.replace("'", "").split()
            kind = words[1] if words[0] == "generate" else words[2]
            more = SHORT[kind] + (TRAINER if words[0] == "train" else [])
            assert main([*words, *more]) == 0
            os.environ.pop("SGMCMC_RUN_FOLDER", None)
    rates = names["solver"].well_rates(names["flow"])
    np.testing.assert_allclose(rates, [10, 8, -18], rtol=1e-9)
    assert names["prediction"].mean.shape == (1, 1372)
    for name in ("flow.png", "flow.vti", "set.safetensors", "fields.safetensors"):
        assert (tmp_path / name).stat().st_size > 0
