"""Surrogate of Darcy flow with varying permeability (HASGLD-SA, section 5.3.2, Table 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

import pde
from lightning_sgmcmc import Sampler
from lightning_sgmcmc.metrics import Moments, Prediction
from lightning_sgmcmc.posterior import KeptDraws
from pde.datasets.permeability import PRESSURE
from pde.plot import plot_comparison
from tasks.darcy import Array, DarcySurrogate, edges_with_flow
from tasks.data.pde_perm import PDEPermData
from tasks.figures import SPEED
from tasks.nets.flow import FlowNet
from tasks.networks import fit_network, run_data
from tasks.permeability import PermeabilitySurrogate, outside_rows
from tasks.price import price_rows
from tasks.regression import Batch, coverage_rows
from tasks.surrogates import (
    EnergyErrors,
    Regression,
    balanced,
    energy_errors,
    num_features,
    relative_errors,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Mean relative L2 test error in percent (Wang, Deng, Lin 2020, Table 2), by sparse rate.
TABLE_2 = {
    "SGLD": {0.0: 3.07, 0.3: 3.04, 0.5: 3.06},
    "HASGLD-SA (M=1)": {0.0: 2.72, 0.3: 0.85, 0.5: 1.42},
    "HASGLD-SA (M=2)": {0.0: 1.68, 0.3: 0.78, 0.5: 1.21},
}


class PDEPerm(PermeabilitySurrogate, DarcySurrogate):
    """Permeability [B, ny, nx] to velocities [B, edges], with noise proportional to the field.

    n(x) = c exp(mean log kappa): the flow of a given pressure is proportional to a factor of the
    field. c is such that n is the root mean square of the velocities over the training data.

    Args:
        net: Any network from [B, 1, ny, nx] to [B, edges]. A :class:`~tasks.nets.flow.FlowNet`
            goes around it, which scales what it sees and gives.
        sampler: Called with the parameters.
        power: Power of kappa that the velocities take before the network is asked.
        conservative: Project the velocities onto those that create no water.
        symmetric: Let mirror images share what is learned.
        **regression: Arguments of :class:`~tasks.regression.RegressionTask`.
    """

    table_number, table, digits = 2, TABLE_2, 2

    flow_scale: Tensor

    def __init__(
        self,
        net: nn.Module,
        sampler: Callable[[Iterable[nn.Parameter]], Sampler],
        *,
        power: float = 0.0,
        conservative: bool = False,
        symmetric: bool = False,
        **regression: Any,
    ) -> None:
        super().__init__(FlowNet(net, power, conservative, symmetric), sampler, **regression)
        self.register_buffer("flow_scale", torch.ones(()))

    @property
    def flow(self) -> FlowNet:
        """What stands around the network."""
        assert isinstance(self.net, FlowNet)
        return self.net

    def take_scales(self) -> None:
        """Take scales from the training data."""
        data = self._data()
        if isinstance(data.spec, pde.OwnFieldsSpec):
            self._refuse_what_own_fields_lack(data.spec)
        total, squares, cells, edges = 0.0, 0.0, 0, 0
        active = torch.zeros(data.data.grid.num_edges, dtype=torch.bool)
        for permeability, velocity in data.training_blocks():
            logs = np.log(permeability)
            factor = np.exp(logs.mean(axis=(1, 2)))[:, None]
            total, cells = total + np.sum(logs), cells + logs.size
            squares, edges = squares + np.sum((velocity / factor) ** 2), edges + velocity.size
            active |= edges_with_flow(velocity)
        mean, deviations = total / cells, 0.0
        for permeability, _ in data.training_blocks():
            deviations += np.sum((np.log(permeability) - mean) ** 2)
        with torch.no_grad():
            self.flow.log_mean.fill_(float(mean))
            self.flow.log_std.fill_(float(np.sqrt(deviations / cells)))
            self.flow.source.fill_(data.spec.source)
            self.flow_scale.fill_(float(np.sqrt(squares / edges)))
        self.active = active

    def _refuse_what_own_fields_lack(self, spec: pde.OwnFieldsSpec) -> None:
        """Refuse what holds for flow from left to right through a unit square alone.

        Raises:
            ValueError: If the flow is another one.
        """
        plain = not (spec.wells or spec.side_flux) and set(spec.side_pressure) == {"left", "right"}
        unit = spec.grid.uniform and (spec.lx, spec.ly) == (1.0, 1.0)
        if self.flow.conservative and not (plain and unit):
            raise ValueError(
                "conservative holds for flow from left to right through a unit square, without "
                "wells: set --model.conservative=false"
            )
        if self.flow.symmetric and not (plain and spec.grid.uniform):
            raise ValueError(
                "symmetric holds for flow from left to right through equal cells, without wells: "
                "set --model.symmetric=false"
            )

    def _fit_network(self, x: Tensor, outputs: int) -> None:
        fit_network(self.flow.net, self.flow.network_inputs(x), outputs)

    def noise_inputs(self, x: Tensor) -> Tensor:
        """Return the standardised logarithm of the permeability, [B, 1, ny, nx]."""
        return self.flow.network_inputs(x)

    def noise_shape(self, x: Tensor) -> Tensor:
        """Return c exp(mean log kappa), [B, 1]."""
        return self.flow_scale * x.log().mean((-2, -1)).exp().unsqueeze(-1)

    def _data(self) -> PDEPermData:
        return run_data(self, PDEPermData)

    def metrics(self, prediction: Prediction, batch: Batch) -> dict[str, float]:
        """Return those of the base, and how far cells are from balance.

        ``imbalance`` is the root mean square over cells of the predicted mean's outflow less the
        source, over the root mean square flow through an edge; ``imbalance_of_truth`` the same of
        the data, in the precision that the network sees. Where the network conserves mass, there
        are the error in the energy norm, ``energy_grid_bound_percent`` that needs no solution to
        compute, ``energy_bound_percent`` of the distance to the exact flow, likewise, all in
        percent and the mean over fields, and the medians of the bounds over the error.
        """
        data, grid = self._data(), self._data().data.grid
        own = isinstance(data.spec, pde.OwnFieldsSpec)
        source = (
            data.spec.cell_source()
            if isinstance(data.spec, pde.OwnFieldsSpec)
            else data.spec.source
        )
        size = np.sqrt(grid.cell_areas) if own else grid.hx
        found = {}
        for name, values in (("imbalance", prediction.mean), ("imbalance_of_truth", batch[1])):
            velocity = values.double().cpu().numpy()
            excess = (grid.divergence(velocity) - source) * size
            found[name] = float(np.sqrt(np.nanmean(excess**2) / np.mean(velocity**2)))
        if self.flow.conservative:
            energy = self._energy(*(t.double().cpu() for t in (*batch, prediction.mean)))
            for name, errors in energy._asdict().items():
                found[f"energy_{name}_percent"] = 100 * float(errors.mean())
            found["grid_effectivity_median"] = float(np.median(energy.grid_bound / energy.error))
            found["effectivity_median"] = float(np.median(energy.bound / energy.error))
        return super().metrics(prediction, batch) | found

    def _energy(self, x: Tensor, truth: Tensor, mean: Tensor) -> EnergyErrors:
        """Return the relative energy errors of flows [n, edges]."""
        fields = x.numpy(), self._sides(), mean.numpy(), truth.numpy()
        return energy_errors(self._data().data.grid, *fields, float(self.flow.source))

    def _sides(self) -> dict[str, float]:
        """Return the pressures of the sides: the data's in a run, else those the run had."""
        if self._trainer is None:
            found: dict[str, float] = self.details().get("side_pressure", PRESSURE)
            return found
        spec = self._data().spec
        return dict(spec.side_pressure if isinstance(spec, pde.OwnFieldsSpec) else PRESSURE)

    def difficulty(self, x: Tensor, prediction: Moments) -> Tensor | None:
        """Return the bound of the mean flow's error that needs no solution, [B].

        It is :func:`pde.discrete_bound` over the root of kappa's geometric mean, the energy norm
        of the flow through as large a constant field at a pressure drop of 1. None where the flow
        need not balance.
        """
        if not self.flow.conservative:
            return None
        kappa, source = x.double().cpu().numpy(), float(self.flow.source)
        grid = pde.Grid(kappa.shape[-1], kappa.shape[-2])
        flow = balanced(grid, prediction.mean.cpu().numpy(), source)
        bound = pde.discrete_bound(grid, kappa, self._sides(), flow, source)
        return torch.from_numpy(bound / np.exp(np.log(kappa).mean((1, 2)) / 2))

    def describe(self, kept: KeptDraws) -> dict[str, Any]:
        """Return the noise scale, the field and, of data in memory, regressions beside it."""
        data = self._data()
        xi, velocity = data.coefficients("train"), next(data.training_blocks())[1]
        found: dict[str, float] = {}
        none = isinstance(data.spec, pde.OwnFieldsSpec) or not data.in_memory
        for name, quadratic in (
            () if none else (("mean_field", None), ("linear", 0), ("quadratic", 15))
        ):
            used = xi[:, :0] if quadratic is None else xi
            products = quadratic or 0
            enough = num_features(used.shape[1], products) < len(xi)
            if enough and products <= used.shape[1]:
                model = Regression.fit(used, velocity, products)
                test = data.coefficients("test")[:, : used.shape[1]]
                errors = relative_errors(model.predict(test), data.arrays("test")[1])
                found[name] = 100 * float(errors.mean())
        spec = data.spec
        return super().describe(kept) | {
            "field": f"own, {Path(spec.permeability_file).name}"
            if isinstance(spec, pde.OwnFieldsSpec)
            else f"{spec.kind}, mean {spec.mean:g}, {spec.terms} modes",
            "side_pressure": self._sides(),
            "regressions_relative_l2_mean_percent": found,
        }

    def summary(self, results: dict[str, Any]) -> list[tuple[str, str]]:
        """Return rows of the table that a run prints last."""
        metrics, details = results["metrics"], results["task_details"]
        rows = self.error_rows(metrics, ("ensemble", "last", "burn_in"))
        if details["field"].startswith("additive"):
            rows.append(self.paper_row())
        for name, error in details["regressions_relative_l2_mean_percent"].items():
            label = "mean field" if name == "mean_field" else f"{name} regression"
            rows.append((label, f"{error:.2f} %"))
        ensemble = metrics["ensemble"]
        balance = f"{ensemble['imbalance']:.1e} ({ensemble['imbalance_of_truth']:.1e})"
        if "energy_bound_percent" in ensemble:
            pair = "{energy_error_percent:.2f} %, {energy_grid_bound_percent:.2f} %"
            rows.append(("energy error, guaranteed bound", pair.format(**ensemble)))
            exact = f"{ensemble['energy_bound_percent']:.2f} %"
            rows.append(("guaranteed distance to the exact flow", exact))
        return [
            *rows,
            ("cells' imbalance (truth's)", balance),
            *coverage_rows(ensemble, results["task_details"]),
            *outside_rows(details),
            *price_rows(results.get("price")),
        ]

    def flow_figure(
        self, field: Array, velocities: Sequence[Array], title: str, spread: str
    ) -> Figure:
        """Draw one flow."""
        truth, mean, std = velocities
        if self.flow.conservative:
            one = (torch.from_numpy(t).double()[None] for t in (field, truth, mean))
            bound = 100 * self._energy(*one).grid_bound[0]
            title += f"\nenergy error, guaranteed: at most {bound:.2f} %"
        figure = plot_comparison(
            self._data().data.grid, truth, mean, std, label=SPEED, deviation_title=spread
        )
        figure.suptitle(title)
        return figure
