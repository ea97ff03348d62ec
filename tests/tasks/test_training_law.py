"""Which fields are outside the law of the training fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

import pde
from tasks.experiments.hasgld import table2, table2_outside, table2_shift
from tasks.permeability import PermeabilitySurrogate, outside_rows
from tasks.training_law import TrainingLaw


def fields(seed: int, count: int, kind: str = "additive", **other: Any) -> np.ndarray:
    usual: dict[str, Any] = {"kind": kind, "mean": 6.0 if kind == "additive" else 0.0, "terms": 24}
    law = pde.PermeabilityDataSpec(nx=20, ny=20, seed=seed, **(usual | other)).fields
    return np.stack([law.sample(i) for i in range(count)])


@pytest.mark.parametrize("kind", ["additive", "lognormal"])
def test_the_training_law_is_inside_and_rougher_fields_are_outside(kind: str) -> None:
    """False alarms of 2,000 fields at level 1/301, with the threshold of 300 drawn once.

    Given the threshold, the rate of false alarms is Beta(1, 300): below .0335 with probability
    1 - 4e-5. A count that a binomial law of that rate exceeds with probability 1e-5 fails.
    """
    law = TrainingLaw.fit(fields(0, 600, kind))
    assert law.level == 1 / 301
    assert law.outside(fields(1, 2000, kind)).sum() <= binom.isf(1e-5, 2000, 0.0335)
    rough = fields(1, 50, kind, lengths=(0.08, 0.12), terms=120)
    assert law.outside(rough).all()
    assert law.outside(fields(1, 50, kind)[:, :, ::-1]).sum() == 0  # mirrored: of the same law
    channels = [pde.channelised_permeability(pde.Grid(20, 20), seed) for seed in range(8)]
    level = np.log(fields(0, 20, kind)).mean()
    crops = [np.exp(np.log(c) - np.log(c).mean() + level) for c in channels]
    assert law.outside(np.stack(crops)).all()
    assert law.outside(1e4 * fields(1, 10, kind)).all()
    for lengths in ((0.07, 0.3), (0.2, 0.1)):  # rough along x alone, along y alone
        assert law.outside(fields(1, 20, kind, lengths=lengths, terms=120)).mean() > 0.8


def test_the_threshold_is_an_order_statistic_of_the_other_half() -> None:
    for count, order in ((40, 20), (4000, 1999)):
        known = np.random.default_rng(count).lognormal(size=(count, 6, 5))
        law = TrainingLaw.fit(known)
        assert law.threshold == np.sort(law.distances(known[1::2]))[order - 1]
        assert law.level == max(1e-3, 1 / (count // 2 + 1))
        assert (law.distances(known[1::2]) > law.threshold).sum() == count // 2 - order


def test_the_law_does_not_depend_on_the_scale_of_cells() -> None:
    """Normal scores are the same for kappa and any increasing function of it, here its cube."""
    known = np.random.default_rng(0).lognormal(size=(60, 8, 8))
    asked = np.random.default_rng(1).lognormal(size=(9, 8, 8))
    plain, cubed = TrainingLaw.fit(known), TrainingLaw.fit(known**3)
    inside = np.clip(asked, *plain.range)
    np.testing.assert_allclose(
        plain.distances(known[:20]), cubed.distances(known[:20] ** 3), rtol=0.05
    )
    assert np.corrcoef(plain.distances(inside), cubed.distances(inside**3))[0, 1] > 0.99


def test_two_values_are_enough_for_a_law() -> None:
    known = np.where(np.random.default_rng(0).random((80, 9, 9)) < 0.5, 3.0, 12.0)
    law = TrainingLaw.fit(known)
    assert not law.outside(known[:10]).any()
    assert law.outside(np.where(known[:10] == 12.0, 24.0, 3.0)).all()
    with pytest.raises(ValueError, match="needs 4 of them or more, got 3"):
        TrainingLaw.fit(known[:3])


def test_two_values_are_the_same_in_single_precision() -> None:
    """A network's fields are float32, where .1 is larger and 100.3 larger than in float64."""
    known = np.where(np.random.default_rng(0).random((80, 9, 9)) < 0.5, 0.1, 100.3)
    law = TrainingLaw.fit(known)
    assert float(np.float32(100.3)) > 100.3
    single = known.astype(np.float32).astype(float)
    np.testing.assert_allclose(law.distances(single), law.distances(known), rtol=1e-6)
    assert law.remark(single) is None


def test_a_line_comes_where_the_law_does_not_explain_the_count() -> None:
    """By the binomial law, with at most `level` as its rate of false alarms."""
    law = TrainingLaw.fit(fields(0, 600))
    inside, rough = fields(1, 400), fields(1, 20, lengths=(0.08, 0.12), terms=120)
    inside = inside[~law.outside(inside)]
    assert law.remark(inside) is None
    said = law.remark(rough[:1])
    assert said is not None
    assert said.startswith(
        "1 of 1 fields are outside the law of the training fields, of which 0.33"
    )
    for bad in range(8):
        mixed = np.concatenate([inside[: 300 - bad], rough[:bad]])
        expected = bad > 0 and binom.sf(bad - 1, 300, 1 / 301) <= 1 / 301
        assert (law.remark(mixed) is not None) == expected


def test_a_run_keeps_its_law_and_predictions_say_what_is_outside(tmp_path: Path) -> None:
    class Held(PermeabilitySurrogate):
        flow_figure = _data = None  # type: ignore[assignment]

        def __init__(self, folder: Path) -> None:
            torch.nn.Module.__init__(self)
            self.run_folder = folder

    law = TrainingLaw.fit(fields(0, 200))
    details = json.loads(json.dumps({"training_law": law.parameters()}))
    rough = torch.from_numpy(fields(1, 3, lengths=(0.08, 0.12), terms=120)).float()
    assert Held(tmp_path).remark(rough) is None  # no results yet
    content = {"provenance": {}, "task_details": details}
    (tmp_path / "results.json").write_text(json.dumps(content))
    assert "3 of 3 fields" in str(Held(tmp_path).remark(rough))
    usual = torch.from_numpy(fields(1, 3)).float()
    assert Held(tmp_path).remark(usual) is None
    (tmp_path / "results.json").write_text(json.dumps(content | {"task_details": {}}))
    assert Held(tmp_path).remark(rough) is None  # of an earlier version
    assert outside_rows({}) == []


def test_the_study_counts_each_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGMCMC_DATA_ROOT", str(tmp_path / "nothing"))
    content = table2_outside.outside(tmp_path, grid=20, training=200, further=50, fields=10)
    rows = content["rows"]
    assert len(rows) == 2 * len(table2_shift.OTHERS)  # no SPE10 without its file
    for kind in ("additive", "lognormal"):
        assert rows[f"{kind}, as in training"]["outside"] <= 0.1  # 5 of 50 at level .01
        assert rows[f"{kind}, lengths .1, .15"]["outside"] == 1.0
    assert "| additive, lengths .1, .15 | 10 | 100 |" in table2.EXPERIMENT.render(
        {"outside": content}
    )
