"""Surrogate of Darcy flow with varying permeability (HASGLD-SA, section 5.3.2, Table 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from lightning_sgmcmc import Sampler
from lightning_sgmcmc.metrics import Prediction
from tasks.data.pde_perm import PDEPermData
from tasks.nets.flow import FlowNet
from tasks.regression import Batch, RegressionTask
from tasks.surrogates import Regression, num_features, relative_errors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_sgmcmc.posterior import KeptDraws

#: Mean relative L2 test error in percent (Wang, Deng, Lin 2020, Table 2), by sparse rate.
TABLE_2 = {
    "SGLD": {0.0: 3.07, 0.3: 3.04, 0.5: 3.06},
    "HASGLD-SA (M=1)": {0.0: 2.72, 0.3: 0.85, 0.5: 1.42},
    "HASGLD-SA (M=2)": {0.0: 1.68, 0.3: 0.78, 0.5: 1.21},
}


class PDEPerm(RegressionTask):
    """Permeability [B, ny, nx] to velocities [B, edges], with noise proportional to the field.

    n(x) = c exp(mean log kappa): the flow of a given pressure is proportional to a factor of the
    field. c is such that n is the root mean square of the velocities over the training data.

    Args:
        net: Maps [B, 1, ny, nx] to [B, edges]; :class:`~tasks.nets.flow.FlowNet` goes around it.
        sampler: Called with the parameters.
        power: Power of kappa that the velocities take before the network is asked.
        conservative: Project the velocities onto those that create no water.
        symmetric: Let mirror images share what is learned.
        **regression: Arguments of :class:`~tasks.regression.RegressionTask`.
    """

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

    def setup(self, stage: str) -> None:
        """Take scales from the training data."""
        super().setup(stage)
        data = self._data()
        permeability, velocity = data.arrays("train")
        logs = np.log(permeability)
        factor = np.exp(logs.mean(axis=(1, 2)))[:, None]
        scale = float(np.sqrt(np.mean((velocity / factor) ** 2)))
        with torch.no_grad():
            self.net.get_buffer("log_mean").fill_(float(logs.mean()))
            self.net.get_buffer("log_std").fill_(float(logs.std()))
            self.net.get_buffer("source").fill_(data.spec.source)
            self.flow_scale.fill_(scale)
        self.active = torch.from_numpy(np.abs(velocity).max(0) > 0)

    def noise_shape(self, x: Tensor) -> Tensor:
        """Return c exp(mean log kappa), [B, 1]."""
        return self.flow_scale * x.log().mean((-2, -1)).exp().unsqueeze(-1)

    def _data(self) -> PDEPermData:
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, PDEPermData):
            raise TypeError(f"PDEPerm needs PDEPermData, got {type(data).__name__}")
        return data

    def metrics(self, prediction: Prediction, batch: Batch) -> dict[str, float]:
        """Return those of the base, and how far cells are from balance.

        ``imbalance`` is the root mean square over cells of the predicted mean's outflow less the
        source, over the root mean square flow through an edge; ``imbalance_of_truth`` the same of
        the data, in the precision that the network sees.
        """
        data, grid = self._data(), self._data().data.grid
        found = {}
        for name, values in (("imbalance", prediction.mean), ("imbalance_of_truth", batch[1])):
            velocity = values.double().cpu().numpy()
            excess = (grid.divergence(velocity) - data.spec.source) * grid.hx
            found[name] = float(np.sqrt(np.mean(excess**2) / np.mean(velocity**2)))
        return super().metrics(prediction, batch) | found

    def paper(self) -> dict[str, Any]:
        """Return Table 2."""
        return {
            "source": "Wang, Deng, Lin 2020, Table 2: mean relative L2 test error, percent",
            "table": {k: {f"{r:g}": v for r, v in row.items()} for k, row in TABLE_2.items()},
        }

    def describe(self, kept: KeptDraws) -> dict[str, Any]:
        """Return the noise scale, the field and the regressions that it is to be held against."""
        data = self._data()
        xi, velocity = data.coefficients("train"), data.arrays("train")[1]
        found = {}
        for name, quadratic in (("mean_field", None), ("linear", 0), ("quadratic", 15)):
            used = xi[:, :0] if quadratic is None else xi
            products = quadratic or 0
            enough = num_features(used.shape[1], products) < len(xi)
            if enough and products <= used.shape[1]:
                model = Regression.fit(used, velocity, products)
                test = data.coefficients("test")[:, : used.shape[1]]
                errors = relative_errors(model.predict(test), data.arrays("test")[1])
                found[name] = 100 * float(errors.mean())
        return super().describe(kept) | {
            "field": f"{data.spec.kind}, mean {data.spec.mean:g}, {data.spec.terms} modes",
            "regressions_relative_l2_mean_percent": found,
        }

    def summary(self, results: dict[str, Any]) -> list[tuple[str, str]]:
        """Return rows of the table that a run prints last."""
        metrics, details = results["metrics"], results["task_details"]
        rows = [
            (
                label,
                f"{metrics[key]['relative_l2_mean_percent']:.2f} %  (median "
                f"{metrics[key]['relative_l2_median_percent']:.2f} %)",
            )
            for label, key in (
                ("ensemble of draws", "ensemble"),
                ("last draw", "last"),
                ("where burn-in ended", "burn_in"),
            )
            if key in metrics
        ]
        if details["field"].startswith("additive"):
            best = min(v for row in TABLE_2.values() for v in row.values())
            rows.append(("paper, SGLD / best cell", f"{TABLE_2['SGLD'][0.0]} % / {best} %"))
        rows += [
            (name.replace("_", " ") + (" regression" if name != "mean_field" else ""), f"{e:.2f} %")
            for name, e in details["regressions_relative_l2_mean_percent"].items()
        ]
        ensemble = metrics["ensemble"]
        rows.append(
            (
                "cells' imbalance (truth's)",
                f"{ensemble['imbalance']:.1e} ({ensemble['imbalance_of_truth']:.1e})",
            )
        )
        rows.append(
            (
                "coverage of 50, 90, 95 % bands",
                ", ".join(f"{100 * ensemble[f'coverage_{p}']:.1f} %" for p in (50, 90, 95)),
            )
        )
        return rows

    def figures(self, kept: KeptDraws) -> dict[str, Figure]:
        """Return the prediction of a typical and of the worst test field, with its uncertainty."""
        from pde.plot import plot_comparison

        held = kept.held_out["test"]
        prediction = kept.ensemble("test")
        x, y = held.examples
        truth = y.double()
        error = torch.linalg.vector_norm(prediction.mean - truth, dim=1)
        error = error / torch.linalg.vector_norm(truth, dim=1)
        noise = self.ensemble_sigma * self.noise_factors(x).double()
        std = (prediction.std**2 + noise**2).sqrt() * self.active
        order = error.argsort()
        grid = self._data().data.grid
        figures = {}
        for name, i in (("median", int(order[len(order) // 2])), ("worst", int(order[-1]))):
            figures[f"flow_{name}"] = figure = plot_comparison(
                grid, truth[i].numpy(), prediction.mean[i].numpy(), std[i].numpy()
            )
            percent = 100 * float(error[i])
            figure.suptitle(f"{name} test field, relative L2 error {percent:.2f} %")
        return figures
