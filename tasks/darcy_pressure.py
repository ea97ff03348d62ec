"""Surrogate of a Darcy pressure, as neural operators are compared (Li et al. 2021, section 5.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import pde
from lightning_sgmcmc import Sampler
from tasks.darcy import Array
from tasks.data.darcy_pressure import DarcyPressureData
from tasks.figures import field_figure
from tasks.nets.pressure import PressureNet
from tasks.networks import fit_network, run_data
from tasks.permeability import PermeabilitySurrogate, outside_rows
from tasks.price import price_rows
from tasks.regression import coverage_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Mean relative L2 test errors in percent on FNO's set of 85 x 85 nodes, 1,000 training fields.
PUBLISHED = {
    "FNO": 1.08,
    "FNO, updated code": 0.76,
    "U-NO": 1.13,
    "F-FNO": 0.77,
    "Galerkin transformer": 0.84,
    "LSM": 0.65,
    "Transolver": 0.57,
}


class DarcyPressure(PermeabilitySurrogate):
    """Permeability [B, ny, nx] to pressures [B, ny nx], with noise in proportion to 1 / kappa.

    n(x) = c exp(-mean log kappa): the pressure of a given source is inversely proportional to a
    factor of the field. c is such that n is the root mean square of the pressures over the training
    data.

    Args:
        net: Any network from [B, 1, ny, nx] to [B, ny nx]. A
            :class:`~tasks.nets.pressure.PressureNet` goes around it.
        sampler: Called with the parameters.
        **regression: Arguments of :class:`~tasks.regression.RegressionTask`.
    """

    digits, drawn = 2, "pressure"

    def __init__(
        self,
        net: nn.Module,
        sampler: Callable[[Iterable[nn.Parameter]], Sampler],
        **regression: Any,
    ) -> None:
        super().__init__(PressureNet(net), sampler, **regression)

    @property
    def around(self) -> PressureNet:
        """What stands around the network."""
        assert isinstance(self.net, PressureNet)
        return self.net

    def take_scales(self) -> None:
        """Take scales from the training data."""
        self.around.take_scales(*map(torch.from_numpy, self._data().arrays("train")))
        self.active = self.around.inner

    def noise_shape(self, x: Tensor) -> Tensor:
        """Return c exp(-mean log kappa), [B, 1]."""
        return self.around.sizes(x)

    def _fit_network(self, x: Tensor, outputs: int) -> None:
        fit_network(self.around.net, self.around.network_inputs(x), outputs, "places")

    def _data(self) -> DarcyPressureData:
        return run_data(self, DarcyPressureData)

    def paper(self) -> dict[str, Any] | None:
        """Return published errors on sets of FNO's law; none of PDEBench's."""
        if not isinstance(self._data().spec, pde.FnoDataSpec):
            return None
        return {
            "source": "mean relative L2 test error, percent; 1,000 fields of 85 x 85 nodes",
            "table": PUBLISHED,
        }

    def summary(self, results: dict[str, Any]) -> list[tuple[str, str]]:
        """Return rows of the table that a run prints last."""
        metrics, details = results["metrics"], results["task_details"]
        rows = self.error_rows(metrics, ("ensemble", "posterior_mean", "last", "burn_in"))
        if results["paper"]:
            best = min(PUBLISHED, key=lambda name: PUBLISHED[name])
            said = ", ".join(f"{name} {PUBLISHED[name]} %" for name in ("FNO", best))
            rows.append(("published, 1,000 fields", said))
        rows += coverage_rows(metrics["ensemble"], details)
        return [*rows, *outside_rows(details), *price_rows(results.get("price"))]

    def flow_figure(
        self, field: Array, velocities: Sequence[Array], title: str, spread: str
    ) -> Figure:
        """Draw one field: the permeability, the pressure, the error and the deviation."""
        truth, mean, std = (values.reshape(field.shape) for values in velocities)
        return field_figure(self._data().data.grid, field, truth, mean, std, title, spread)
