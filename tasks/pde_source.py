"""Surrogate of Darcy flow with varying sources (HASGLD-SA, section 5.3.1, Table 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lightning_sgmcmc.posterior import KeptDraws
from tasks.darcy import Array, DarcySurrogate, edges_with_flow
from tasks.data.pde_source import PDESourceData
from tasks.figures import flow_figure
from tasks.networks import run_data
from tasks.price import price_rows
from tasks.regression import coverage_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Mean relative L2 test error in percent (Wang, Deng, Lin 2020, Table 1), by sparse rate.
TABLE_1 = {
    "SGLD": {0.0: 2.03, 0.3: 1.38, 0.5: 1.25, 0.7: 1.26},
    "HASGLD-SA (M=1)": {0.0: 0.45, 0.3: 0.37, 0.5: 0.29, 0.7: 0.30},
    "HASGLD-SA (M=2)": {0.0: 0.42, 0.3: 0.34, 0.5: 0.27, 0.7: 0.27},
}


class PDESource(DarcySurrogate):
    """Source [B, ny, nx] to velocities [B, edges], with noise proportional to the flow's size.

    The network is any from [B, 1, ny, nx] to [B, edges]. It sees sources over the root mean square
    of the nonzero ones, and gives velocities over theirs, in the training data.

    n(x) = ||u(x)|| / sqrt(D), with ||u||^2 = s' Q s a quadratic form of the strengths s of the
    sources (two for three spots, the rates of wells), because the velocity is linear in them; where
    there is flow without any of them, s ends with 1. So sigma is the relative L2 error that the
    noise allows, the paper's loss is the likelihood's residual, and n is known for any input
    without knowing its velocity.

    Arguments are those of :class:`~tasks.regression.RegressionTask`.
    """

    table_number, table, digits = 1, TABLE_1, 3
    former_names: ClassVar = {
        **DarcySurrogate.former_names,
        "net.input_scale": "input_scale",
        "net.output_scale": "output_scale",
    }

    input_scale: Tensor
    output_scale: Tensor
    gram: Tensor
    spots: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("input_scale", torch.ones(()))
        self.register_buffer("output_scale", torch.ones(()))
        self.register_buffer("gram", torch.empty(0))  # Q / D, of the values in the cells below
        self.register_buffer("spots", torch.empty(0, dtype=torch.long))  # a cell for each strength

    def take_scales(self) -> None:
        """Take scales and the quadratic form from the training data."""
        data = self._data()
        basis, patterns = data.data.basis_velocity, data.data.patterns
        if basis is None or patterns is None:
            raise ValueError("pde_source needs spots or wells, the data set holds other sources")
        # A strength is read where its rate alone enters, not at the well that balances it.
        alone = (patterns > 0) & ((patterns != 0).sum(axis=0) == 1)
        spots = np.array([np.argwhere(cells)[0] for cells in alone if cells.any()])
        scale = np.array(
            [p[c].max() if c.any() else 1.0 for p, c in zip(patterns, alone, strict=True)]
        )
        flows = basis / scale[:, None]
        gram = torch.from_numpy(flows @ flows.T / basis.shape[1])
        squares, counts = np.zeros(2), np.zeros(2)
        active = torch.zeros(basis.shape[1], dtype=torch.bool)
        for source, velocity in data.training_blocks():
            nonzero = source[source != 0]
            squares += np.sum(nonzero**2), np.sum(velocity**2)
            counts += nonzero.size, velocity.size
            active |= edges_with_flow(velocity)
        with torch.no_grad():
            self.input_scale.fill_(float(np.sqrt(squares[0] / counts[0])))
            self.output_scale.fill_(float(np.sqrt(squares[1] / counts[1])))
            self.gram = gram.to(self.output_scale)
            self.spots = torch.from_numpy(spots).to(self.spots.device)
        self.active = active

    def network_inputs(self, x: Tensor) -> Tensor:
        """Return scaled sources, [B, 1, ny, nx]."""
        return (x / self.input_scale).unsqueeze(1)

    def in_units(self, output: Tensor) -> Tensor:
        """Return velocities [B, edges]."""
        return output * self.output_scale

    def noise_shape(self, x: Tensor) -> Tensor:
        """Return ||u(x)|| / sqrt(D), [B, 1], from the strengths of the sources in x."""
        strengths = x[:, self.spots[:, 0], self.spots[:, 1]]
        if len(self.gram) > len(self.spots):
            strengths = torch.cat([strengths, torch.ones_like(x[:, 0, :1])], 1)
        squared = torch.einsum("bi,ij,bj->b", strengths, self.gram, strengths)
        return squared.clamp_min(torch.finfo(x.dtype).tiny).sqrt().unsqueeze(1)

    def _data(self) -> PDESourceData:
        return run_data(self, PDESourceData)

    def paper(self) -> dict[str, Any] | None:
        """Return the paper's table; none beside an own permeability or own wells."""
        spec = self._data().spec
        own = spec.field == "file" or spec.source != "three_spot"
        return None if own else super().paper()

    def describe(self, kept: KeptDraws) -> dict[str, Any]:
        """Return the noise scale, the field and the exact linear baseline."""
        data = self._data()
        linear = 100 * data.least_squares_error()
        return super().describe(kept) | {
            "field": data.data.metadata.get("permeability", data.spec.field),
            "log10_contrast": self.log10_contrast(),
            "linear_least_squares": {
                "relative_l2_mean_percent": float(linear.mean()),
                "relative_l2_median_percent": float(np.median(linear)),
            },
        }

    def log10_contrast(self) -> float:
        """Return log10 of the largest permeability over the least, of cells with flow."""
        data = self._data().data
        kappa = data.permeability[data.active]
        return math.log10(kappa.max() / kappa.min())

    def summary(self, results: dict[str, Any]) -> list[tuple[str, str]]:
        """Return rows of the table that a run prints last."""
        metrics, details = results["metrics"], results["task_details"]
        linear = details["linear_least_squares"]["relative_l2_mean_percent"]
        noise = f"{100 * details['noise_scale']:.4f} % of the flow's size"
        return [
            *self.error_rows(metrics, ("ensemble", "posterior_mean", "last", "burn_in")),
            *([self.paper_row()] if results["paper"] else []),
            ("exact linear least squares", f"{linear:.1e} %"),
            *coverage_rows(metrics["ensemble"], details),
            *price_rows(results.get("price")),
            ("noise scale", f"{noise}, from {details['noise_scale_from']}"),
        ]

    def flow_figure(
        self, field: Array, velocities: Sequence[Array], title: str, spread: str
    ) -> Figure:
        """Draw one source with the field's permeability, and its flow."""
        data = self._data().data
        kappa = data.permeability.copy()
        kappa[~data.active] = np.nan  # drawn as nothing
        truth, mean, std = velocities
        return flow_figure(data.grid, kappa, field, truth, mean, std, title, spread)
