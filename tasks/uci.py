"""Regression on a table with a small net and a learned noise scale: a newcomer's first task."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_sgmcmc.callbacks.report.figures import predictions
from lightning_sgmcmc.metrics import Normal, Prediction
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.priors.base import positive
from tasks.data.table import described
from tasks.data.uci import UCIData
from tasks.networks import run_data
from tasks.regression import Batch, RegressionTask, coverage_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_sgmcmc.posterior import KeptDraws

#: Test RMSE and mean test log-likelihood over the 20 splits: Hernandez-Lobato and Adams 2015 (PBP,
#: 50 hidden units), Gal and Ghahramani 2016 (dropout) and Lakshminarayanan et al. 2017 (deep
#: ensembles), as the last of them tabulates all three (Table 1).
_METHODS = ("PBP", "MC dropout", "deep ensembles")
_NUMBERS = {
    "bostonHousing": ((3.01, -2.57), (2.97, -2.46), (3.28, -2.41)),
    "concrete": ((5.67, -3.16), (5.23, -3.04), (6.03, -3.06)),
    "energy": ((1.80, -2.04), (1.66, -1.99), (2.09, -1.38)),
    "yacht": ((1.02, -1.63), (1.11, -1.55), (1.58, -1.18)),
}
PUBLISHED = {name: dict(zip(_METHODS, row, strict=True)) for name, row in _NUMBERS.items()}


class UCIRegression(RegressionTask):
    """y ~ N(m + s c f((x - a) / b), (sigma s)^2), a, b, m, s the training rows' mean and scale.

    The net sees standardised features and predicts the standardised target, so that one prior
    suits any table; predictions, errors and densities are in the table's own units. Features that
    are constant over the training rows are shifted only. log sigma is sampled with the weights
    unless ``noise`` says otherwise.

    The network is any from [B, D] to [B, 1]. Under a prior that gives its outputs a size of their
    own, such as one by fan-in, c says how large the function is a priori, in deviations of the
    target: the output scale of a Gaussian process.

    Args:
        *args: Positional arguments of :class:`~tasks.regression.RegressionTask`.
        output_scale: c, positive.
        **kwargs: Keyword arguments of the base; ``noise`` is ``"learned"`` by default.

    Raises:
        ValueError: If a value lies outside its range.
    """

    #: Names of the buffers that scale features and target.
    scales = ("x_mean", "x_scale", "y_mean", "y_scale")

    x_mean: Tensor
    x_scale: Tensor
    y_mean: Tensor
    y_scale: Tensor

    def __init__(self, *args: Any, output_scale: float = 1.0, **kwargs: Any) -> None:
        kwargs.setdefault("noise", "learned")
        super().__init__(*args, **kwargs)
        self.output_scale = positive(output_scale, "output_scale")
        # Their length is known from the data only.
        for name in ("x_mean", "x_scale"):
            self.register_buffer(name, torch.empty(0, dtype=torch.float64))
        for name in ("y_mean", "y_scale"):
            self.register_buffer(name, torch.ones(1, dtype=torch.float64))

    def take_scales(self) -> None:
        """Take mean and scale of features and target from the training rows."""
        self.scale_by(*self._data().tensors("train"))

    def scale_by(self, x: Tensor, y: Tensor) -> None:
        """Take mean and scale of features x [N, D] and target y [N, 1]; a constant's scale is 1."""
        mean, scale, low = x.mean(0), x.std(0), x.amin(0)
        constant = x.amax(0) == low
        mean[constant], scale[constant] = low[constant], 1.0  # without the mean's rounding
        for name, value in (
            ("x_mean", mean),
            ("x_scale", scale),
            ("y_mean", y.mean(0)),
            ("y_scale", y.std(0) if bool(y.amax() > y.amin()) else torch.ones_like(y[0])),
        ):
            setattr(self, name, value.to(self.device))

    def _data(self) -> UCIData:
        return run_data(self, UCIData)

    def network_inputs(self, x: Tensor) -> Tensor:
        """Return standardised features, [B, D], in the network's type only now.

        Raises:
            ValueError: If x has another shape, of which one column would fill all.
        """
        width = self.x_mean.shape[-1]
        if isinstance(x, Tensor) and (x.dim() < 2 or x.shape[-1] != width):  # no Tensor under fx
            raise ValueError(
                f"x must be [B, {width}], the table's features (of a column of words each word is "
                f"one), got {list(x.shape)}"
            )
        return ((x - self.x_mean) / self.x_scale).to(self.log_noise.dtype)

    def in_units(self, output: Tensor) -> Tensor:
        """Return the predicted target [B, 1] in the table's units, float64."""
        return self.y_mean + self.y_scale * (self.output_scale * output)

    def noise_shape(self, x: Tensor) -> Tensor:
        """Return s for each row, [B, 1], so that sigma is relative to the target's spread."""
        return self.y_scale.to(self.log_noise.dtype).expand(x.shape[0], 1)

    def residual_of(self, output: Tensor, batch: Batch) -> Tensor:
        """Return ((y - m) / s - c f) s / (p n(x)), [B, 1], in the network's type."""
        x, y = batch
        target = ((y - self.y_mean) / self.y_scale).to(self.log_noise.dtype)
        difference = target - self.output_scale * output
        result: Tensor = difference * (self.noise_shape(x) / self.noise_factors(x))
        return result

    def metrics(self, prediction: Prediction, batch: Batch) -> dict[str, float]:
        """Return errors, log-likelihood, bands and CRPS, in the table's units.

        The log-likelihood is that of the mixture over draws; bands are mean +- z times the root of
        the draws' variance plus their mean noise variance. ``*_standardised`` are those of the
        target over its deviation in the training rows (1 / n); ``nll_gaussian_standardised`` is of
        the normal law with the mixture's mean and deviation.
        """
        found = super().metrics(prediction, batch)
        scale = float(self._data().tensors("train")[1].std(correction=0))
        gaussian = Normal(prediction.mean, prediction.std).log_density(batch[1].double())
        standardised = {
            "rmse_standardised": found["rmse"] / scale,
            "nll_standardised": found["nll"] - math.log(scale),
            "nll_gaussian_standardised": -float(gaussian.mean()) - math.log(scale),
        }
        kept = ("rmse", "mae", "crps", "coverage_50", "coverage_90", "coverage_95", "width_90")
        return (
            {name: found[name] for name in kept}
            | {"log_likelihood": -found["nll"], "nll": found["nll"]}
            | standardised
            | {"weights_share_of_variance": found["weights_share_of_variance"]}
        )

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the mean NLL of the current weights."""
        SGMCMCModule.validation_step(self, batch, batch_idx)

    def paper(self) -> dict[str, Any] | None:
        """Return published means over the 20 splits, for a named set."""
        data = self._data()
        if data.name not in PUBLISHED:
            return None
        return {
            "source": "Lakshminarayanan, Pritzel, Blundell 2017, Table 1: mean test RMSE and "
            "log-likelihood over the 20 splits",
            "table": {
                method: {"rmse": rmse, "log_likelihood": density}
                for method, (rmse, density) in PUBLISHED[data.name].items()
            },
        }

    def describe(self, kept: KeptDraws) -> dict[str, Any]:
        """Return what the data are, and the noise scale."""
        data = self._data()
        return super().describe(kept) | {
            "noise_scale": self.noise_scale(kept) * float(self.y_scale),
            "data": data.title,
            "split": data.index,
            "target": data.column,
            "features": len(self.x_mean),
            "inputs": described(data.columns, data.tensors("train")[0].numpy()),
            "rows": {name: len(data.tensors(name)[0]) for name in ("train", "val", "test")},
            "target_sd": float(data.tensors("test")[1].std(correction=0)),
        }

    def summary(self, results: dict[str, Any]) -> list[tuple[str, str]]:
        """Return rows of the table that a run prints last."""
        ensemble, last = results["metrics"]["ensemble"], results["metrics"]["last"]
        details = results["task_details"]
        rmse, density = (
            f"{ensemble[name]:.4g} (one draw {last[name]:.4g}"
            for name in ("rmse", "log_likelihood")
        )
        rows = [
            ("data", f"{details['data']}, split {details['split']}, target {details['target']}"),
            ("test RMSE", f"{rmse}, the mean alone {details['target_sd']:.4g})"),
            ("test log-likelihood", f"{density})"),
            *coverage_rows(ensemble),
            ("noise", f"{details['noise_scale']:.4g}, {details['noise_scale_from']}"),
        ]
        if results["paper"]:
            table = results["paper"]["table"]
            text = ", ".join(f"{m} {v['rmse']} ({v['log_likelihood']})" for m, v in table.items())
            rows.append(("published, RMSE (log-lik.)", f"{text}; means of 20 splits"))
        return rows

    def figures(self, kept: KeptDraws) -> dict[str, Figure]:
        """Return the test targets over their predictions, with 90 % bands."""
        column = self._data().column
        if column.isdigit():
            column = f"column {column}"
        y = kept.held_out["test"].examples[1]
        return {"predictions": predictions(kept.ensemble("test"), y, column, "test rows")}
