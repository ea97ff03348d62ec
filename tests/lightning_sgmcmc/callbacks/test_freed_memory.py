"""What a step frees stays with the process: by the pages that the system hands out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_sgmcmc.callbacks.freed_memory import _mallopt

ROOT = Path(__file__).resolve().parents[3]

SCRIPT = """
import resource, sys, warnings
warnings.filterwarnings("ignore")
import lightning as L
import torch
from tests.toy import NotSummedUp, Toy, ToyData

class Work(L.Callback):
    pages = []

    def on_train_batch_end(self, *args, **kwargs):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            [torch.ones(500_000) for _ in range(8)]  # 16 MB, freed at once
        self.pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

callbacks = [Work(), NotSummedUp()]
L.Trainer(
    max_steps=8, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks,
).fit(Toy(burn_in=1), ToyData())
print("pages", min(Work.pages[3:]))
"""


def pages(folder: Path, **settings: str) -> int:
    """Return how many pages a process gets for ten times 16 MB during a chain's step.

    The fewest of five steps: the system itself may take pages of an idle process and give them
    back, which counts as well.
    """
    folder.mkdir()
    own = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=own | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | settings,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return int(done.stdout.split("pages")[-1])


@pytest.mark.skipif(_mallopt() is None, reason="no glibc")
def test_a_step_s_memory_serves_the_next_unless_the_environment_says_how(tmp_path: Path) -> None:
    whole = 10 * 16e6 / os.sysconf("SC_PAGE_SIZE")
    assert pages(tmp_path / "kept") < 0.01 * whole
    # Its own way, by the settings that a process starts with.
    given = {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}
    assert pages(tmp_path / "given", **given) > 0.5 * whole
