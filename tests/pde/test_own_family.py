"""The family that docs/darcy.md shows works; the reaction family has the stated length."""

import re
import sys
import types
from pathlib import Path

import numpy as np

from pde import DarcySolver, generate, load

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "darcy.md").read_text()


def test_the_family_of_the_page_can_be_generated(tmp_path, monkeypatch):
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "(DataSpec)" in c]
    module = types.ModuleType("own_family")
    (tmp_path / "own_family.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))  # the workers are processes, and import it too
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.setitem(sys.modules, "own_family", module)
    exec(compile(code, "own_family.py", "exec"), module.__dict__)
    spec = module.ChannelSpec(num_samples=70)
    data = load(generate(spec, tmp_path / "a", workers=1, progress=False))
    assert data.spec == spec
    for i in (0, 69):
        one = DarcySolver(spec.grid, data.permeability[i], {"left": 1.0, "right": 0.0}).solve(0.0)
        np.testing.assert_allclose(data.velocity[i], one.velocity, rtol=1e-9, atol=1e-9)


def test_the_reaction_is_one_file_of_the_stated_length():
    (stated,) = re.findall(r"The reaction family is (\d+) lines", PAGE)
    lines = (ROOT / "pde" / "datasets" / "reaction.py").read_text().count("\n")
    assert lines == int(stated) <= 150
