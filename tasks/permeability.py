"""Surrogates of a permeability, which know the fields that they were trained on."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lightning_sgmcmc.callbacks.report import results as run_results
from lightning_sgmcmc.posterior import KeptDraws
from tasks.darcy import FieldSurrogate
from tasks.training_law import FEWEST, TrainingLaw

#: Training fields from which their law is taken, at most, spread evenly.
_FIELDS = 2000
Row = tuple[str, str]


class PermeabilitySurrogate(FieldSurrogate):
    """Permeabilities [B, ny, nx] to values at places.

    A run keeps the law of its training fields, and :meth:`remark` says which fields are outside.
    """

    _training_law: TrainingLaw | None = None

    def describe(self, kept: KeptDraws) -> dict[str, Any]:
        """Return what the base does, the law of the training fields and the test fields outside."""
        found, data = super().describe(kept), self._data()
        count = data.split("train").stop
        chosen = slice(0, count, -(-count // _FIELDS))
        if len(range(count)[chosen]) < FEWEST:
            return found
        law = TrainingLaw.fit(data.samples(chosen)[0])
        test = data.arrays("test")[0]
        return found | {
            "training_law": law.parameters(),
            "test_fields": len(test),
            "test_fields_outside": int(law.outside(test).sum()),
        }

    def remark(self, x: Tensor) -> str | None:
        """Return a line where permeabilities [B, ny, nx] are outside the training law."""
        if self._training_law is None:
            details = self.details()
            if "training_law" not in details:  # of an earlier version
                return None
            self._training_law = TrainingLaw(**details["training_law"])
        return self._training_law.remark(x.double().cpu().numpy())

    def details(self) -> dict[str, Any]:
        """Return what :meth:`describe` said of the finished run, nothing before."""
        folder = self.run_folder or (self.kept.folder.parent if hasattr(self, "kept") else None)
        if folder is None or not (folder / "results.json").is_file():
            return {}
        found: dict[str, Any] = run_results.read(folder / "results.json")["task_details"]
        return found


def outside_rows(details: dict[str, Any]) -> list[Row]:
    """Return the row of a run's table that says how many test fields are outside.

    Args:
        details: What a :class:`PermeabilitySurrogate` describes of a run.
    """
    if "training_law" not in details:
        return []
    share = f"{100 * details['training_law']['level']:.2g} % expected"
    value = "{test_fields_outside} of {test_fields}".format(**details)
    return [("test fields outside the training law", f"{value} ({share})")]
