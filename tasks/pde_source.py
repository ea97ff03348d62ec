"""Surrogate of Darcy flow with varying sources (HASGLD-SA, section 5.3.1, Table 1)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tasks.data.pde_source import PDESourceData
from tasks.regression import RegressionTask

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_sgmcmc.posterior import KeptDraws

#: Mean relative L2 test error in percent (Wang, Deng, Lin 2020, Table 1), by sparse rate.
TABLE_1 = {
    "SGLD": {0.0: 2.03, 0.3: 1.38, 0.5: 1.25, 0.7: 1.26},
    "HASGLD-SA (M=1)": {0.0: 0.45, 0.3: 0.37, 0.5: 0.29, 0.7: 0.30},
    "HASGLD-SA (M=2)": {0.0: 0.42, 0.3: 0.34, 0.5: 0.27, 0.7: 0.27},
}


class PDESource(RegressionTask):
    """Source [B, ny, nx] to velocities [B, edges], with noise proportional to the flow's size.

    n(x) = ||u(x)|| / sqrt(D), with ||u||^2 = (f1, f2) Q (f1, f2)' a quadratic form of the two
    source strengths, because the velocity is linear in them. So sigma is the relative L2 error
    that the noise allows, the paper's loss is the likelihood's residual, and n is known for any
    input without knowing its velocity.

    Arguments are those of :class:`~tasks.regression.RegressionTask`.
    """

    gram: Tensor
    spots: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("gram", torch.eye(2))  # Q / D
        self.register_buffer("spots", torch.zeros(2, 2, dtype=torch.long))  # cells of f1, f2

    def setup(self, stage: str) -> None:
        """Take scales and the quadratic form from the training data."""
        super().setup(stage)
        data = self._data()
        source, velocity = data.arrays("train")
        nonzero = source[source != 0]
        basis = data.data.basis_velocity
        if basis is None:
            raise ValueError("pde_source needs three-spot sources, the data set holds others")
        strengths = data.data.strengths
        assert strengths is not None
        with torch.no_grad():
            self.net.get_buffer("input_scale").fill_(float(np.sqrt(np.mean(nonzero**2))))
            self.net.get_buffer("output_scale").fill_(float(np.sqrt(np.mean(velocity**2))))
            self.gram.copy_(torch.from_numpy(basis @ basis.T / velocity.shape[1]))
            for row in range(2):
                cell = np.argwhere(np.isclose(source[0], strengths[0, row]))[0]
                self.spots[row] = torch.from_numpy(cell)
        self.active = torch.from_numpy(np.abs(velocity).max(0) > 0)

    def noise_shape(self, x: Tensor) -> Tensor:
        """Return ||u(x)|| / sqrt(D), [B, 1], from the strengths of the two sources in x."""
        strengths = x[:, self.spots[:, 0], self.spots[:, 1]]
        squared = torch.einsum("bi,ij,bj->b", strengths, self.gram, strengths)
        return squared.clamp_min(torch.finfo(x.dtype).tiny).sqrt().unsqueeze(1)

    def _data(self) -> PDESourceData:
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, PDESourceData):
            raise TypeError(f"PDESource needs PDESourceData, got {type(data).__name__}")
        return data

    def paper(self) -> dict[str, Any]:
        """Return Table 1."""
        return {
            "source": "Wang, Deng, Lin 2020, Table 1: mean relative L2 test error, percent",
            "table": {k: {f"{r:g}": v for r, v in row.items()} for k, row in TABLE_1.items()},
        }

    def describe(self, kept: KeptDraws) -> dict[str, Any]:
        """Return the noise scale, the field and the exact linear baseline."""
        data = self._data()
        linear = 100 * data.least_squares_error()
        kappa = data.data.permeability
        return super().describe(kept) | {
            "field": data.data.metadata.get("permeability", data.spec.field),
            "log10_contrast": math.log10(kappa.max() / kappa.min()),
            "linear_least_squares": {
                "relative_l2_mean_percent": float(linear.mean()),
                "relative_l2_median_percent": float(np.median(linear)),
            },
        }

    def summary(self, results: dict[str, Any]) -> list[tuple[str, str]]:
        """Return rows of the table that a run prints last."""
        metrics, details = results["metrics"], results["task_details"]
        rows = [
            (
                label,
                f"{metrics[key]['relative_l2_mean_percent']:.3f} %  (median "
                f"{metrics[key]['relative_l2_median_percent']:.3f} %)",
            )
            for label, key in (
                ("ensemble of draws", "ensemble"),
                ("mean of the weights", "posterior_mean"),
                ("last draw", "last"),
                ("where burn-in ended", "burn_in"),
            )
            if key in metrics
        ]
        best = min(v for row in TABLE_1.values() for v in row.values())
        rows.append(("paper, SGLD / best cell", f"{TABLE_1['SGLD'][0.0]} % / {best} %"))
        linear = details["linear_least_squares"]["relative_l2_mean_percent"]
        rows.append(("exact linear least squares", f"{linear:.1e} %"))
        ensemble = metrics["ensemble"]
        rows.append(
            (
                "coverage of 50, 90, 95 % bands",
                ", ".join(f"{100 * ensemble[f'coverage_{p}']:.1f} %" for p in (50, 90, 95)),
            )
        )
        rows.append(
            (
                "noise scale",
                f"{100 * details['noise_scale']:.4f} % of the flow's size, "
                f"from {details['noise_scale_from']}",
            )
        )
        return rows

    def figures(self, kept: KeptDraws) -> dict[str, Figure]:
        """Return the prediction of a typical and of the worst test field, with its uncertainty."""
        from tasks.figures import flow_figure

        held = kept.held_out["test"]
        prediction = kept.ensemble("test")
        x, y = held.examples
        error = torch.linalg.vector_norm(prediction.mean - y, dim=1) / torch.linalg.vector_norm(
            y, dim=1
        )
        noise = self.sigma * self.noise_factors(x).double()
        std = (prediction.std**2 + noise**2).sqrt()
        order = error.argsort()
        chosen = {"median": int(order[len(order) // 2]), "worst": int(order[-1])}
        data = self._data().data
        return {
            f"flow_{name}": flow_figure(
                data.grid,
                data.permeability,
                x[i].cpu().numpy(),
                y[i].cpu().numpy(),
                prediction.mean[i].cpu().numpy(),
                std[i].cpu().numpy(),
                f"{name} test field, relative L2 error {100 * float(error[i]):.3f} %",
            )
            for name, i in chosen.items()
        }
