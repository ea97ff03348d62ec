"""Regression with a Gaussian likelihood: the base of the PDE surrogates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from lightning_sgmcmc import Sampler
from lightning_sgmcmc.metrics import (
    Conformal,
    Moments,
    Normal,
    Prediction,
    band_metrics,
    relative_l2_error,
)
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.posterior import KeptDraws
from lightning_sgmcmc.priors.base import positive
from lightning_sgmcmc.target.linear_head import features_of, output_layer
from tasks.networks import CALIBRATION, fit_network, training_set
from tasks.residual_scale import ResidualScale

Batch = tuple[Tensor, Tensor]

#: Ways to set sigma other than a number, and those of them that follow the training residuals.
NOISES = ("learned", "residuals", "held_out", "input")
FOLLOWING = ("residuals", "held_out")
SAMPLED = ("learned", "input")
#: Examples whose error is shown while several chains run.
_SHOWN = 256


class RegressionTask(SGMCMCModule):
    """y_j ~ N(f_j(x), (sigma_j p_j n(x))^2), independently in each of the D outputs j.

    n(x) is a known function of the input, 1 unless a subclass says otherwise, so that the
    likelihood stays a density in y. With n(x) = ||y(x)|| / sqrt(D), sigma is a relative error.
    p is 1, or the profile of the errors over the outputs (``noise_by_output``).
    A scale that does not fit the errors makes a poor posterior (Marceau-Caron and Ollivier 2017,
    "Practical remarks"). There are five ways to set it; it is one number in all but the last:

    - a number: sigma is fixed.
    - ``"learned"``: a parameter ``log_noise`` is sampled with the weights, and sigma^2 =
      exp(2 log_noise) + ``noise_floor``^2. Targets without noise, a simulation's for instance, need
      a floor: the curvature along the weights goes as sigma^-2, and no step suits a chain whose
      sigma falls without end.
    - ``"residuals"``: sigma follows the training residuals during burn-in and is fixed where
      burn-in ends, such that a central band of probability ``noise_quantile`` holds that fraction
      of them (:class:`~tasks.residual_scale.ResidualScale`).
    - ``"held_out"``: as ``"residuals"``, but the value that is fixed where burn-in ends comes from
      the data module's validation split. It is for networks that fit their training data far
      better than other data: sigma from the training residuals would be too small.
    - ``"input"``: sigma_j(x)^2 = exp(2 (log_noise + ``noise_spread`` g_j(x))) + ``noise_floor``^2
      (Nix and Weigend 1994). The network gives g after f, [B, 2 D], or ``noise_net`` gives g,
      [B, 1] for all outputs or [B, D]. ``log_noise`` and the weights of g are sampled with the
      others: their prior, with ``noise_spread``, is that of log sigma(x).

    The network may see scaled inputs and give scaled outputs: a subclass says so in
    :meth:`network_inputs` and :meth:`in_units`, by buffers that :meth:`take_scales` sets. They are
    stored with the draws.

    Args:
        net: Any network from x, or what ``network_inputs`` makes of it, to [B, D]; to [B, 2 D] with
            noise ``"input"`` and no ``noise_net``.
        sampler: Called with the parameters.
        noise: One of the five above.
        noise_quantile: For ``"residuals"`` and ``"held_out"``, in (0, 1).
        noise_by_output: Let p follow the residuals where sigma is fixed by them, see
            :func:`~tasks.residual_scale.output_profile`.
        initial_noise: Where sigma starts unless it is a number.
        noise_floor: Bound from below of a sigma that is sampled, without effect on others.
        noise_spread: What g is multiplied by, positive; without effect on other noises.
        noise_net: A network of g alone, which sees what ``net`` sees.
        **chain: Arguments of :class:`~lightning_sgmcmc.module.SGMCMCModule`.

    Raises:
        ValueError: If a value lies outside its range.
    """

    #: What earlier runs call their constants now, None for what is no longer kept.
    former_names: ClassVar[dict[str, str | None]] = {"noise_moments": None}

    log_noise: Tensor
    active: Tensor
    noise_profile: Tensor

    def __init__(
        self,
        net: nn.Module,
        sampler: Callable[[Iterable[nn.Parameter]], Sampler],
        *,
        noise: float | Literal["learned", "residuals", "held_out", "input"] = "residuals",
        noise_quantile: float = 0.9,
        noise_by_output: bool = False,
        initial_noise: float = 1.0,
        noise_floor: float = 0.0,
        noise_spread: float = 1.0,
        noise_net: nn.Module | None = None,
        **chain: Any,
    ) -> None:
        super().__init__(net, sampler, **chain)
        if isinstance(noise, str) and noise not in NOISES:
            raise ValueError(f"noise must be a number or one of {', '.join(NOISES)}, got {noise!r}")
        start = initial_noise if isinstance(noise, str) else noise
        if not 0 < start < math.inf:
            raise ValueError(f"the noise scale must be positive and finite, got {start}")
        by_residuals = ResidualScale(noise_quantile, noise == "held_out", noise_by_output)
        if noise_by_output and noise not in FOLLOWING:
            raise ValueError(
                f"noise_by_output needs noise to be one of {', '.join(FOLLOWING)}, got {noise!r}"
            )
        if not 0 <= noise_floor < math.inf:
            raise ValueError(f"noise_floor must be at least 0 and finite, got {noise_floor}")
        if noise_net is not None and noise != "input":
            raise ValueError(f'noise_net needs noise to be "input", got {noise!r}')
        self.noise = noise
        #: How sigma follows the residuals, where it does.
        self.by_residuals = by_residuals if noise in FOLLOWING else None
        self.noise_floor = noise_floor if noise in SAMPLED else 0.0
        self.noise_spread = positive(noise_spread, "noise_spread")
        self.noise_net = noise_net
        log_noise = torch.tensor(math.log(start))
        if noise in SAMPLED:
            self.log_noise = nn.Parameter(log_noise)
        else:
            self.register_buffer("log_noise", log_noise)
        # Outputs that are zero in all data; they take no part in bands and in sigma.
        self.register_buffer("active", torch.ones(0, dtype=torch.bool))
        # p; empty where all outputs have the same.
        self.register_buffer("noise_profile", torch.ones(0))
        self._residual: Tensor | None = None

    def take_scales(self) -> None:
        """Take from the data what the task is scaled by, before anything else; here nothing."""

    def network_inputs(self, x: Tensor) -> Tensor:
        """Return what the network sees of inputs x [B, ...]."""
        return x

    def in_units(self, output: Tensor) -> Tensor:
        """Return the network's outputs [B, D] in the units of y, by an affine map of each."""
        return output

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the network gives for f, [B, D], and log sigma, [], [B, 1] or [B, D]."""
        output: Tensor = self.net(self.network_inputs(x))
        if self.noise == "input" and self.noise_net is None:
            output, g = output.tensor_split(2, 1)
            return output, self._log_sigma_of(g)
        return output, self.log_sigma_at(x)

    def log_sigma_at(self, x: Tensor) -> Tensor:
        """Return log sigma where ``net`` does not give it, [], [B, 1] or [B, D]."""
        if self.noise_net is None:
            return self.log_sigma
        return self._log_sigma_of(self.noise_net(self.noise_inputs(x)))

    def _log_sigma_of(self, g: Tensor) -> Tensor:
        return self._above_floor(self.log_noise + self.noise_spread * g)

    def noise_inputs(self, x: Tensor) -> Tensor:
        """Return what ``noise_net`` sees of inputs x [B, ...]."""
        return self.network_inputs(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return f(x), [B, D], in the units of y."""
        return self.in_units(self.outputs(x)[0])

    def head_targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return t [N, D] and log s [N] with y_i = shift + s_i t_i, t_i ~ N(W phi_i, sigma_i^2 I).

        Raises:
            ValueError: If outputs are scaled by several numbers, for which one factor does not do.
        """
        x, y = batch
        n = self.noise_factors(x)
        shift = self.in_units(torch.zeros_like(y[:1]))
        scale = self.in_units(torch.ones_like(y[:1])) - shift
        if n.shape[1] != 1 or bool((scale != scale[:, :1]).any()):
            raise ValueError(
                "collapse_head needs the same scale and noise in all outputs: "
                "set noise_by_output to false"
            )
        return (y - shift) / n, n[:, 0].log()

    def head_features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the head's inputs [N, p] in units of the noise shape, and log sigma [] or [N]."""
        x, y = batch
        assert self.head is not None
        layer = self.get_submodule(self.head)
        assert isinstance(layer, nn.Linear)
        features = features_of(layer, lambda: self.net(self.network_inputs(x)))
        zero = torch.zeros_like(y[:1, :1])
        scale = self.in_units(zero + 1) - self.in_units(zero)
        log_sigma = self.log_sigma_at(x)
        of_each = log_sigma[:, 0] if log_sigma.dim() else log_sigma
        return features * scale / self.noise_factors(x), of_each

    def noise_shape(self, x: Tensor) -> Tensor:
        """Return n(x) of each example, [B, 1], in the units of y."""
        return torch.ones_like(x.flatten(1)[:, :1])

    def noise_factors(self, x: Tensor) -> Tensor:
        """Return p n(x) of each example, [B, 1] or [B, D]: the noise over sigma."""
        shape = self.noise_shape(x)
        return shape * self.noise_profile if self.noise_profile.numel() else shape

    @property
    def log_sigma(self) -> Tensor:
        """Log sigma where g is 0, [] or [K]: sigma^2 = exp(2 log_noise) + floor^2."""
        return self._above_floor(self.log_noise)

    def _above_floor(self, log_noise: Tensor) -> Tensor:
        if not self.noise_floor:
            return log_noise
        floor = torch.full_like(log_noise, 2 * math.log(self.noise_floor))
        return torch.logaddexp(2 * log_noise, floor) / 2

    def law(self, x: Tensor) -> Normal:
        """Return N(f(x), (sigma p n(x))^2)."""
        output, log_sigma = self.outputs(x)
        # A sum with the buffer, which posterior.fused follows; of exp(log_noise) it would not know
        # where it is from.
        return Normal(self.in_units(output), (self.noise_factors(x).log() + log_sigma).exp())

    def nll(self, batch: Batch) -> Tensor:
        """Return -log N(y; f(x), (sigma p n(x))^2) of each example, [B].

        Raises:
            ValueError: If y has another shape than f, against which it would broadcast.
        """
        x, y = batch
        n = self.noise_factors(x)
        output, log_sigma = self.outputs(x)
        if isinstance(y, Tensor) and y.shape != output.shape:  # no Tensor while torch.fx traces
            raise ValueError(
                f"targets have shape {list(y.shape)}, what the network gives for them "
                f"{list(output.shape)}: let both be [B, D]"
            )
        residual = self.residual_of(output, batch)
        # What torch.func traces, for gradients of single examples, does not outlive that.
        traced = torch._C._functorch.is_functorch_wrapped_tensor(residual)
        if self.training and self.chain.stack is None and not traced:
            self._residual = residual.detach()
        if self.noise == "input":
            squares = ((residual * torch.exp(-log_sigma)) ** 2).sum(1)
            log_sigma = log_sigma.mean(1)
        else:  # log sigma twice: one would change the rounding of chains that are recorded
            squares = (residual**2).sum(1) * torch.exp(-2 * self.log_sigma)
        constant = log_sigma + 0.5 * math.log(2 * math.pi) + n.log().mean(1)
        return 0.5 * squares + y.shape[1] * constant

    def residual(self, batch: Batch) -> Tensor:
        """Return (y - f(x)) / (p n(x)), [B, D]."""
        return self.residual_of(self.outputs(batch[0])[0], batch)

    def residual_of(self, output: Tensor, batch: Batch) -> Tensor:
        """Return (y - f(x)) / (p n(x)), [B, D], from what the network gives for f."""
        x, y = batch
        result: Tensor = (y - self.in_units(output)) / self.noise_factors(x)
        return result

    @property
    def label_uniforms(self) -> int:  # type: ignore[override]
        """D, what drawing an example's label takes."""
        assert self.chain.stream is not None
        return int(self.chain.stream.tensors[1].shape[1])

    def draw_labels(self, batch_and_uniforms: tuple[Batch, Tensor]) -> Batch:
        """Return the batch with y drawn from the model by the inverse of its CDF."""
        (x, y), uniforms = batch_and_uniforms
        z = torch.special.ndtri(uniforms.clamp(1e-12, 1 - 1e-12)).to(y.dtype)
        output, log_sigma = self.outputs(x)
        return x, self.in_units(output) + torch.exp(log_sigma) * self.noise_factors(x) * z

    def perturb_labels(self, batch: Batch, normal: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with y + sigma p n(x) z for y.

        Raises:
            ValueError: If sigma is not a number, so that it is not known before the fit.
        """
        if isinstance(self.noise, str):
            raise ValueError(
                f'starts "randomised_map" perturb labels by a known noise, got {self.noise!r}: '
                "give noise as a number"
            )
        x, y = batch
        return x, y + torch.exp(self.log_sigma) * self.noise_factors(x) * normal(y)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Take one step; during burn-in, let sigma follow the residuals if it is to."""
        super().training_step(batch, batch_idx)
        if self.by_residuals is not None and self.chain.steps < self.chain.draws.burn_in:
            self.by_residuals.follow(self)

    def latest_residual(self, examples: int | None = None) -> Tensor | None:
        """Return the residuals of the last minibatch, of all chains, [B, D]; None if not known.

        Args:
            examples: How many of each chain are enough, where they have to be computed.
        """
        stream = self.chain.stream
        if self.chain.stack is None:
            return self._residual
        if stream is None or self.chain.collapse_head or not self.chain.steps:
            return None
        batch, axis = stream.at(self.chain.steps - 1), int(stream.stacked)
        if examples is not None:
            batch = tuple(t.narrow(axis, 0, min(t.shape[axis], examples)) for t in batch)
        with torch.no_grad():
            residual: Tensor = self.chain.evaluate("residual", batch, stream.stacked)
        return residual.flatten(0, 1)

    def setup(self, stage: str) -> None:
        """Take scales, fit the network to the data, and refuse data that lack what sigma needs.

        Raises:
            ValueError: If targets are not [N, D], the network has other shapes than the data, there
                is no validation split that sigma is taken from, or a profile is asked for and D is
                unknown.
        """
        self.take_scales()
        examples = training_set(self) if stage == "fit" else None
        if examples is not None:
            x, y = examples
            if y.dim() != 2:
                raise ValueError(
                    f"the training targets are {list(y.shape)}, not [N, D]: give a single one as "
                    "[N, 1]"
                )
            self._fit_networks(x[:CALIBRATION].to(self.device), y.shape[1])
            if self.chain.collapse_head:
                try:
                    self._find_head((self._as_seen(x[:2]), self._as_seen(y[:2])))
                except ValueError as reason:
                    self.chain.sample_head(reason)
        super().setup(stage)
        if stage != "fit":
            return
        if self.by_residuals is not None:
            # Also where an earlier fit has left one, by which residuals would be divided.
            outputs = examples[1].shape[1] if examples and self.by_residuals.by_output else 0
            self.noise_profile = torch.ones(outputs)
            self.by_residuals.check(self)

    def on_train_start(self) -> None:
        """Refuse a sigma that a sampler would take for the error of its step; then as ever.

        Raises:
            ValueError: If the sampler adapts to the potential without knowing sigma.
        """
        sampler = self.chain.sampler
        adapts = sampler.batches == "full" and self.by_residuals is not None
        if adapts and sampler.temperature and not self.chain.optimizer_steps:
            raise ValueError(
                f"{sampler.name} adapts its step to the potential, which noise "
                f'"{self.noise}" changes where burn-in ends: give burn_in_optimizer, so that the '
                'residuals are known before, or let noise be a number or "learned"'
            )
        super().on_train_start()

    def _fit_networks(self, x: Tensor, outputs: int) -> None:
        """Fit the networks to the data.

        Raises:
            ValueError: If one has other shapes than the data.
        """
        if self.noise_net is not None:
            seen = self.noise_inputs(x)
            try:
                fit_network(self.noise_net, seen, 1)
            except ValueError:
                fit_network(self.noise_net, seen, outputs, "outputs, or one log scale for all")
        elif self.noise == "input":
            what = f'outputs with noise "input", f and log scale for each of {outputs}'
            fit_network(self.net, self.network_inputs(x), 2 * outputs, what)
            return
        self._fit_network(x, outputs)

    def _fit_network(self, x: Tensor, outputs: int) -> None:
        fit_network(self.net, self.network_inputs(x), outputs)

    def _as_seen(self, data: Tensor) -> Tensor:
        """Return data as the weights are, which an earlier fit may have made float64."""
        return data.to(self.device, self.log_noise.dtype if data.is_floating_point() else None)

    def _find_head(self, batch: Batch) -> None:
        """Take the linear layer whose output is the network's for the head.

        Raises:
            ValueError: If residuals, which need a head at every step, are to set sigma, the head's
                own weights set it, or one factor does not do for all outputs.
        """
        if self.noise == "input" and self.noise_net is None:
            raise ValueError(
                "collapse_head needs a noise that the head's own weights do not set: give it a "
                "network of its own by noise_net"
            )
        if self.noise in FOLLOWING:
            raise ValueError(
                f'collapse_head needs a noise that residuals do not set: let it be "learned" or a '
                f"number, not {self.noise!r}"
            )
        self.head_targets(batch)
        log_sigma = self.log_sigma_at(batch[0])
        if log_sigma.dim() and log_sigma.shape[1] != 1:
            raise ValueError(
                "collapse_head needs the same noise in all outputs of an example: let noise_net "
                "give one log scale"
            )
        name = output_layer(self.net, self.network_inputs(batch[0]))
        self.head = None if name is None else f"net.{name}".rstrip(".")

    def on_burn_in_end(self) -> None:
        """Fix sigma, and p, by the residuals if they set it."""
        if self.by_residuals is not None:
            self.by_residuals.fix(self)

    @property
    def active_columns(self) -> Tensor | slice:
        """The outputs that are not zero in all data."""
        return self.active if self.active.numel() else slice(None)

    @property
    def sigma(self) -> float:
        """The noise scale that the module holds."""
        return math.exp(float(self.log_sigma.detach()))

    def noise_scale(self, kept: KeptDraws) -> float:
        """Return the root of the mean of sigma^2 over draws, the noise scale of their mean.

        It is a mean over held-out examples and outputs too where sigma differs between them.
        Without draws, or held-out examples that they predict, it is the module's sigma.
        """
        name = next(iter(kept.held_out), None)
        if name is None or not kept.num_draws:
            return self.sigma
        noise = kept.ensemble(name).noise
        assert noise is not None
        x = kept.held_out[name].examples[0]
        if self.noise == "input":
            return float((noise / self.noise_factors(x).square()).mean().sqrt())
        return float(noise[0, 0].sqrt() / self.noise_factors(x[:1])[0, 0])

    def metrics(self, prediction: Prediction, batch: Batch) -> dict[str, float]:
        """Return errors, bands with noise included, CRPS and the mean predictive NLL.

        Relative errors are in percent. Bands leave out outputs that are zero in all data; those
        of a single network are the noise's alone.
        """
        truth = batch[1].double()
        error = 100 * relative_l2_error(prediction.mean, truth)
        columns = self.active_columns
        std, of_weights = prediction.std[:, columns], prediction.epistemic_std[:, columns]
        return {
            "relative_l2_mean_percent": float(error.mean()),
            "relative_l2_median_percent": float(error.median()),
            "relative_l2_max_percent": float(error.max()),
            "rmse": float((prediction.mean - truth).square().mean().sqrt()),
            "nll": float(prediction.nll.mean()),
            **band_metrics(truth[:, columns], prediction.mean[:, columns], std),
            "weights_share_of_variance": float((of_weights**2).mean() / (std**2).mean()),
        }

    def progress(self) -> dict[str, float]:
        """Return the last step's error where it is known, sigma if it is sought and one, the NLL.

        The error is the root mean square of the residuals (y - f) / (p n). The NLL alone would not
        do: it moves with sigma.
        """
        residual = self.latest_residual(_SHOWN)
        error = {} if residual is None else {"error": float(residual.square().mean().sqrt())}
        sought = isinstance(self.noise, str) and self.noise != "input"
        sigma = {"sigma": self._present_sigma()} if sought else {}
        return error | sigma | super().progress()

    def _present_sigma(self) -> float:
        """Return sigma, the mean over chains where it is sampled."""
        states = [self.chain.state(k).get("log_noise") for k in range(self.chain.num_chains)]
        sampled = [math.hypot(math.exp(s), self.noise_floor) for s in states if s is not None]
        return sum(sampled) / len(sampled) if sampled else self.sigma

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log NLL and relative error of the current weights."""
        super().validation_step(batch, batch_idx)
        prediction = self.chain.evaluate("predictive", batch)
        if self.chain.stack is not None:
            prediction = prediction.mean(0)
        error = 100 * relative_l2_error(prediction, batch[1])
        self.log(
            "val/relative_l2_mean_percent", error.mean(), batch_size=len(error), sync_dist=True
        )
        if self.noise != "input":
            self.log("noise_scale", self._present_sigma())

    def describe(self, kept: KeptDraws) -> dict[str, Any]:
        """Return the noise scale and how it was had."""
        if self.by_residuals is not None:
            named = self.by_residuals.described
        elif self.noise == "learned":
            named = "sampled with the weights"
        elif self.noise == "input":
            named = "a function of the input, sampled with the weights"
        else:
            named = "given"
        found = {"noise_scale": self.noise_scale(kept), "noise_scale_from": named}
        if self.noise_profile.numel():
            profile = self.noise_profile[self.active_columns].double()
            found["noise_profile_quantiles"] = {
                f"{q:g}": float(profile.quantile(q)) for q in (0.0, 0.05, 0.5, 0.95, 1.0)
            }
        if "calibration" in kept.held_out and "test" in kept.held_out and kept.num_draws:
            found["conformal"] = self._conformal(kept)
        return found

    def _conformal(self, kept: KeptDraws) -> dict[str, float]:
        """Return how often conformal bands hold the test examples, zero outputs left out."""
        columns = self.active_columns

        def of(name: str) -> tuple[Moments, Tensor]:
            return kept.ensemble(name).outputs(columns), kept.held_out[name].examples[1][:, columns]

        bands = Conformal(*of("calibration"), self.kept_difficulty(kept, "calibration"))
        return bands.metrics(*of("test"), difficulty=self.kept_difficulty(kept, "test"))

    def difficulty(self, x: Tensor, prediction: Moments) -> Tensor | None:
        """Return what the errors of predictions are in proportion to, from the inputs alone, [B].

        Conformal bands follow it (:class:`~lightning_sgmcmc.metrics.Conformal`). None, the default,
        says that all examples are alike.
        """
        return None

    def kept_difficulty(self, kept: KeptDraws, name: str) -> Tensor | None:
        """Return the difficulty of the examples of a held-out set, [B]."""
        return self.difficulty(kept.held_out[name].examples[0], kept.ensemble(name))


def coverage_rows(
    ensemble: dict[str, float], details: dict[str, Any] | None = None
) -> list[tuple[str, str]]:
    """Return rows, name and value, of a run's table that say how often bands hold the truth.

    Args:
        ensemble: Metrics of the ensemble.
        details: What the task describes of a run, for conformal bands where it has any.
    """
    found = {"bands": ensemble, "conformal bands": (details or {}).get("conformal", {})}
    rows = []
    for name, shares in found.items():
        levels = [p for p in (50, 90, 95) if f"coverage_{p}" in shares]
        if levels:
            held = ", ".join(f"{100 * shares[f'coverage_{p}']:.1f} %" for p in levels)
            rows.append((f"coverage of {', '.join(map(str, levels))} % {name}", held))
    return rows
