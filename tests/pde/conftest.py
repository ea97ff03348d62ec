from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="session")
def fake_spe10_values() -> np.ndarray:
    """Values in SPE10's shape that tell where they stand: no two rows or layers are alike."""
    component, layer, y, x = np.indices((3, 85, 220, 60), sparse=True)
    return 1.0 + x + 100.0 * (y % 7) + 1000.0 * (layer % 5) + 10000.0 * component + 0 * y


@pytest.fixture(scope="session")
def fake_spe10(tmp_path_factory: pytest.TempPathFactory, fake_spe10_values: np.ndarray) -> Path:
    """A text file of SPE10's length, six values a line."""
    path = tmp_path_factory.mktemp("spe10") / "spe_perm.dat"
    words = np.char.mod("%d", np.arange(100_000)).tolist()
    numbers = fake_spe10_values.astype(int).ravel().tolist()
    lines = ("\t".join([words[n] for n in numbers[i : i + 6]]) for i in range(0, len(numbers), 6))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def real_spe10() -> Path:
    """The real file below $SGMCMC_DATA_ROOT."""
    root = os.environ.get("SGMCMC_DATA_ROOT")
    path = Path(root or "") / "spe10" / "spe_perm.dat.xz"
    if root is None or not path.exists():
        pytest.skip("needs $SGMCMC_DATA_ROOT/spe10/spe_perm.dat.xz")
    return path
