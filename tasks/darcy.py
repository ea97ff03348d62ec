"""What the surrogates of Darcy flow share: published errors, rows of the table and figures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_sgmcmc.metrics import Conformal, relative_l2_error
from lightning_sgmcmc.posterior.held_out import evaluating
from tasks.data.flows import FlowData
from tasks.price import Surrogate, clock_of, price, seconds
from tasks.regression import RegressionTask

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_sgmcmc.posterior import KeptDraws

Array = NDArray[np.float64]
#: What an error is measured of, by its name in a run's results.
MEASURED = {
    "ensemble": "ensemble of draws",
    "posterior_mean": "mean of the weights",
    "last": "last draw",
    "burn_in": "where burn-in ended",
}


class FieldSurrogate(RegressionTask):
    """Fields on the cells to values at places: rows of a run's table, and figures.

    Places that are zero in all training data take no part in bands and in sigma.
    """

    #: Digits behind the point of errors in percent.
    digits: ClassVar[int]
    #: What the figures show, the first word of their names.
    drawn: ClassVar[str] = "flow"

    def error_rows(self, metrics: dict[str, Any], names: Sequence[str]) -> list[tuple[str, str]]:
        """Return rows of the run's table with the errors of what is there of ``names``."""
        rows = []
        for name in names:
            if name in metrics:
                mean, median = (
                    f"{metrics[name][f'relative_l2_{kind}_percent']:.{self.digits}f} %"
                    for kind in ("mean", "median")
                )
                rows.append((MEASURED[name], f"{mean}  (median {median})"))
        return rows

    def figures(self, kept: KeptDraws) -> dict[str, Figure]:
        """Return the prediction of a typical and of the worst test field, with its uncertainty.

        That is the predictive deviation or, where a run has pairs for calibration, half the width
        of the conformal bands that hold as much as one deviation of a normal law.
        """
        prediction = kept.ensemble("test")
        x, y = kept.held_out["test"].examples
        truth = y.double()
        error = relative_l2_error(prediction.mean, truth)
        std, name = prediction.std * self.active, "predicted deviation"
        calibration = kept.held_out.get("calibration")
        if calibration is not None and calibration.size > 2:  # the fewest for a band of 68 %
            set_aside = kept.ensemble("calibration"), calibration.examples[1]
            bands = Conformal(*set_aside, self.kept_difficulty(kept, "calibration"))
            half = bands.half_width(prediction, 0.683, self.kept_difficulty(kept, "test"))
            std, name = half * self.active, "half of a 68 % conformal band"
        order = error.argsort()
        chosen = {"median": int(order[len(order) // 2]), "worst": int(order[-1])}
        found = {}
        for kind, i in chosen.items():
            title = (
                f"{kind} test field, relative L2 error {100 * float(error[i]):.{self.digits}f} %"
            )
            field, *velocities = (t[i].cpu().numpy() for t in (x, truth, prediction.mean, std))
            found[f"{self.drawn}_{kind}"] = self.flow_figure(field, velocities, title, name)
        return found

    @abstractmethod
    def _data(self) -> FlowData[Any]:
        """Return the run's data."""

    @torch.no_grad()
    def price(self, results: dict[str, Any]) -> dict[str, Any] | None:
        """Return after how many fields a draw, and all of them, cost less than our solver.

        The price of an ensemble is that of a network times the number of draws. On a CPU times are
        the processor's, and training's that of the clock times the threads of all processes; beside
        a GPU the clock's.
        """
        if not results["metrics"]:
            return None
        clock, batch = clock_of(self.chain.device), self.kept.held_out["test"].first
        on_cpu = self.chain.device.type == "cpu"
        threads = torch.get_num_threads() if on_cpu else 1

        def predict() -> float:  # a number, which a GPU has ended for
            return float(self.chain.evaluate("predictive", batch).sum())

        with evaluating(self):
            predict()
            network = seconds(predict, clock) / (len(batch[0]) * self.chain.num_chains)
        draws = results["num_draws"] * results["num_chains"]
        surrogates = {}
        for kind, count in (("last", 1), ("ensemble", draws)):
            error = results["metrics"][kind]["relative_l2_mean_percent"]
            name = "one draw" if count == 1 else f"{draws} draws"
            surrogates[name] = Surrogate(count * network, error)
        busy = self.trainer.world_size * threads if on_cpu else 1
        found = price(self._data(), busy * results["wall_seconds"], surrogates, clock)
        return {"clock": "processor" if on_cpu else "wall", "threads": threads} | found

    @abstractmethod
    def flow_figure(
        self, field: Array, velocities: Sequence[Array], title: str, spread: str
    ) -> Figure:
        """Draw one input field [ny, nx] and three of outputs [D].

        These are the truth, the predictive mean, and what is said of its error, named ``spread``.
        """


class DarcySurrogate(FieldSurrogate):
    """Fields on the cells to velocities on the edges [B, edges], beside a table of a paper."""

    #: Number of the table in Wang, Deng, Lin 2020.
    table_number: ClassVar[int]
    #: Its mean relative L2 test errors in percent, by method and sparse rate.
    table: ClassVar[dict[str, dict[float, float]]]

    def paper(self) -> dict[str, Any] | None:
        """Return the paper's table."""
        return {
            "source": f"Wang, Deng, Lin 2020, Table {self.table_number}: mean relative L2 test "
            "error, percent",
            "table": {k: {f"{r:g}": v for r, v in row.items()} for k, row in self.table.items()},
        }

    def paper_row(self) -> tuple[str, str]:
        """Return the row with the paper's errors."""
        best = min(v for row in self.table.values() for v in row.values())
        return "paper, SGLD / best cell", f"{self.table['SGLD'][0.0]} % / {best} %"


def edges_with_flow(velocity: Array) -> Tensor:
    """Return on which edges velocities [N, edges] are not all zero, [edges]."""
    return torch.from_numpy(np.abs(velocity).max(0) > 0)
