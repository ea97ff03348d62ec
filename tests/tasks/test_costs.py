"""Tables of what things cost: ratios over rounds, and how a record shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.experiments import costs


def test_ratios_are_those_of_the_same_round() -> None:
    """A machine that is twice as slow in one round leaves every ratio as it is."""
    assert costs.spread([3.0, 6.0, 3.0, 12.0], [2.0, 4.0, 2.0, 8.0]) == [1.5, 1.5, 1.5]
    # Quartiles of 1, 2, 3, 4, 5: 1.5, 3, 4.5.
    assert costs.spread([1.0, 4.0, 9.0, 16.0, 25.0], [1.0, 2.0, 3.0, 4.0, 5.0]) == [3.0, 1.5, 4.5]
    with pytest.raises(ValueError, match="argument 2"):
        costs.spread([1.0, 2.0], [1.0])


def test_a_record_is_the_table_that_was_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.json"
    rows: list[list[costs.Cell]] = [["SGLD", [1.334, 1.2, 1.5], 1.8], ["all", None, 12345.6]]
    costs.publish("On a machine.", ["method", "ratio", "target"], rows, path)
    expected = """On a machine.

| method | ratio | target |
|---|---|---|
| SGLD | 1.33 (1.20, 1.50) | 1.8 |
| all |  | 12,346 |"""
    assert capsys.readouterr().out == expected + "\n"
    assert costs.table(json.loads(path.read_text())) == expected
