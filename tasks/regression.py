"""Regression with a Gaussian likelihood: the base of the PDE surrogates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lightning_sgmcmc import Sampler
from lightning_sgmcmc.metrics import Prediction, band_metrics, relative_l2_error
from lightning_sgmcmc.module import SGMCMCModule

Batch = tuple[Tensor, Tensor]


class RegressionTask(SGMCMCModule):
    """y ~ N(f(x), (sigma n(x))^2), independently in each of the D outputs.

    n(x) is a known function of the input, 1 unless a subclass says otherwise, so that the
    likelihood stays a density in y. With n(x) = ||y(x)|| / sqrt(D), sigma is a relative error.
    A scale that does not fit the errors makes a poor posterior (Marceau-Caron and Ollivier 2017,
    "Practical remarks"); it is had in one of three ways:

    - a number: sigma is fixed.
    - ``"learned"``: log sigma is a parameter that is sampled with the weights.
    - ``"residuals"``: sigma follows the training residuals during burn-in and is fixed where
      burn-in ends, such that a central band of probability ``noise_quantile`` holds that fraction
      of them. Outliers move a quantile less than they move the root mean square.

    Args:
        net: Maps x to [B, D].
        sampler: Called with the parameters.
        noise: One of the three above.
        noise_quantile: For ``"residuals"``, in (0, 1).
        initial_noise: Where ``"learned"`` and ``"residuals"`` start.
        **chain: Arguments of :class:`~lightning_sgmcmc.module.SGMCMCModule`.

    Raises:
        ValueError: If a value lies outside its range.
    """

    log_noise: Tensor
    active: Tensor

    def __init__(
        self,
        net: nn.Module,
        sampler: Callable[[Iterable[nn.Parameter]], Sampler],
        *,
        noise: float | Literal["learned", "residuals"] = "residuals",
        noise_quantile: float = 0.9,
        initial_noise: float = 1.0,
        **chain: Any,
    ) -> None:
        super().__init__(net, sampler, **chain)
        if isinstance(noise, str) and noise not in ("learned", "residuals"):
            raise ValueError(f'noise must be a number, "learned" or "residuals", got {noise!r}')
        start = initial_noise if isinstance(noise, str) else noise
        if not 0 < start < math.inf:
            raise ValueError(f"the noise scale must be positive and finite, got {start}")
        if not 0 < noise_quantile < 1:
            raise ValueError(f"noise_quantile must lie in (0, 1), got {noise_quantile}")
        self.noise, self.noise_quantile = noise, noise_quantile
        log_noise = torch.tensor(math.log(start))
        if noise == "learned":
            self.log_noise = nn.Parameter(log_noise)
        else:
            self.register_buffer("log_noise", log_noise)
        # Outputs that are zero in all data; they take no part in bands and in sigma.
        self.register_buffer("active", torch.ones(0, dtype=torch.bool))
        self._residual: Tensor | None = None

    def noise_shape(self, x: Tensor) -> Tensor:
        """Return n(x) of each example, [B, 1], in the units of y."""
        return torch.ones(len(x), 1, device=x.device, dtype=x.dtype)

    def nll(self, batch: Batch) -> Tensor:
        """Return -log N(y; f(x), (sigma n(x))^2 I) of each example, [B]."""
        x, y = batch
        n = self.noise_shape(x)
        residual: Tensor = (y - self(x)) / n
        if self.training:
            self._residual = residual.detach()
        squares = (residual**2).sum(1) * torch.exp(-2 * self.log_noise)
        constant = self.log_noise + 0.5 * math.log(2 * math.pi) + n.log().mean(1)
        return 0.5 * squares + y.shape[1] * constant

    def predictive(self, batch: Batch) -> Tensor:
        """Return f(x), [B, D]."""
        output: Tensor = self(batch[0])
        return output

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Take one step; during burn-in, let sigma follow the residuals if it is to."""
        super().training_step(batch, batch_idx)
        if self.noise == "residuals" and self.global_step < self.draw_schedule.burn_in:
            assert self._residual is not None
            scale = [self._quantile_scale(self._residual[:, self._columns()][:, ::16])]
            if self.trainer.world_size > 1:
                self._average_over_ranks(scale)
            self.log_noise.lerp_(scale[0].log().to(self.log_noise), 0.1)

    def on_burn_in_end(self) -> None:
        """Fix sigma by the residuals of the whole training set."""
        if self.noise != "residuals" or self.stream is None:
            return
        with torch.no_grad():
            x, y = self.stream.tensors
            parts = [
                ((y[i : i + 256] - self(x[i : i + 256])) / self.noise_shape(x[i : i + 256]))
                for i in range(0, len(x), 256)
            ]
            residual = torch.cat([part[:, self._columns()] for part in parts])
            self.log_noise.copy_(self._quantile_scale(residual).log())

    def _columns(self) -> Tensor | slice:
        return self.active if self.active.numel() else slice(None)

    def _quantile_scale(self, residual: Tensor) -> Tensor:
        """Return sigma such that the central band holds ``noise_quantile`` of the residuals."""
        flat = residual.abs().reshape(-1)
        order = max(1, round(self.noise_quantile * flat.numel()))
        quantile = flat.kthvalue(order).values
        normal = math.sqrt(2) * float(
            torch.erfinv(torch.tensor(self.noise_quantile, dtype=torch.float64))
        )
        return (quantile / normal).clamp_min(torch.finfo(flat.dtype).tiny)

    @property
    def sigma(self) -> float:
        """The noise scale now."""
        return math.exp(float(self.log_noise.detach()))

    def metrics(self, prediction: Prediction, batch: Batch) -> dict[str, float]:
        """Return errors, bands with noise included, CRPS and the mean predictive NLL.

        Relative errors are in percent. Bands leave out outputs that are zero in all data; those
        of a single network (``prediction.std`` 0) are the noise's alone.
        """
        x, y = batch
        truth = y.double()
        error = 100 * relative_l2_error(prediction.mean, truth)
        noise = self.sigma * self.noise_shape(x).double()
        std = (prediction.std**2 + noise**2).sqrt()
        columns = self._columns()
        spread = prediction.std[:, columns]
        return {
            "relative_l2_mean_percent": float(error.mean()),
            "relative_l2_median_percent": float(error.median()),
            "relative_l2_max_percent": float(error.max()),
            "rmse": float((prediction.mean - truth).square().mean().sqrt()),
            "nll": float(prediction.nll.mean()),
            **band_metrics(truth[:, columns], prediction.mean[:, columns], std[:, columns]),
            "weights_share_of_variance": float((spread**2).mean() / (std[:, columns] ** 2).mean()),
        }

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log NLL and relative error of the current weights."""
        super().validation_step(batch, batch_idx)
        error = 100 * relative_l2_error(self(batch[0]), batch[1])
        self.log(
            "val/relative_l2_mean_percent", error.mean(), batch_size=len(error), sync_dist=True
        )
        self.log("noise_scale", self.sigma)

    def describe(self) -> dict[str, Any]:
        """Return the noise scale and how it was had."""
        how = {
            "learned": "sampled with the weights",
            "residuals": f"the {100 * self.noise_quantile:g} % quantile of the training residuals "
            "where burn-in ended",
        }
        named = how[self.noise] if isinstance(self.noise, str) else "given"
        return {"noise_scale": self.sigma, "noise_scale_from": named}
