"""Laplace approximations over the last layers of an ensemble of networks with two outputs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightning_sgmcmc import load_posterior
from lightning_sgmcmc.metrics import Normal, band_metrics
from lightning_sgmcmc.target.linear_head import features_of
from tasks.data.bde import BDEData
from tasks.experiments.experiment import need
from tasks.uci import UCIRegression


class Trained(NamedTuple):
    """What a network gives for B examples, of standardised targets.

    Attributes:
        features: Inputs of the last layer and a 1, [B, p].
        mean: f, [B].
        log_sigma: log sigma, [B].
    """

    features: Tensor
    mean: Tensor
    log_sigma: Tensor


def outputs(task: UCIRegression, x: Tensor) -> Trained:
    """Return what the task's network gives for inputs x [B, D]."""
    layer = task.net.layers[-1]  # type: ignore[index]
    assert isinstance(layer, nn.Linear)
    phi = features_of(layer, lambda: task.net(task.network_inputs(x)))
    f, log_sigma = task.outputs(x)
    return Trained(phi, task.output_scale * f[:, 0], log_sigma[:, 0])


def variances(
    there: Trained, seen: Trained, prior_variance: float, c: float, s: float
) -> tuple[Tensor, Tensor]:
    """Return the variance of f under the last layer's weights, and the noise's mean, each [B].

    With phi the features, f = c w_f' phi and log sigma = b + s w_g' phi. The expected Hessian of
    the NLL in (f, log sigma) is diag(1 / sigma^2, 2), so that given all other weights w_f and w_g
    are independent Gaussians with the precisions

        H_f = sum_i c^2 phi_i phi_i' / sigma_i^2 + I / v,    H_g = sum_i 2 s^2 phi_i phi_i' + I / v.

    sigma^2 is log-normal then, with the mean exp(2 log sigma + 2 s^2 phi' H_g^-1 phi).

    Args:
        there: The examples that are predicted.
        seen: The training examples.
        prior_variance: v.
        c: The task's ``output_scale``.
        s: The task's ``noise_spread``.
    """
    found = []
    for factor, weight in ((c, torch.exp(-seen.log_sigma)), (s, torch.tensor(math.sqrt(2)))):
        rows = factor * seen.features * weight.reshape(-1, 1)
        precision = rows.T @ rows + torch.eye(rows.shape[1], dtype=rows.dtype) / prior_variance
        phi = factor * there.features
        found.append((phi * torch.linalg.solve(precision, phi.T).T).sum(1))
    return found[0], torch.exp(2 * there.log_sigma + 2 * found[1])


@torch.no_grad()
def compute(name: str, seed: int, prior_variance: float, folder: Path) -> dict[str, Any]:
    """Return the metrics of the mixture over the networks of a deep ensemble's run.

    Args:
        name: Of the table.
        seed: Of the ensemble, whose run lies beside the folder.
        prior_variance: That of the ensemble's weights.
        folder: Of this computation.

    Raises:
        ValueError: If the ensemble has not been run.
    """
    trained = folder.parent / f"{name}-ensemble-{seed}"
    need(trained)
    data = BDEData(name)  # type: ignore[arg-type]
    data.setup()
    (x, y), (x_test, y_test) = data.tensors("train"), data.tensors("test")
    parts = []
    for task in load_posterior(trained):
        assert isinstance(task, UCIRegression)
        task.double().eval()
        there = outputs(task, x_test)
        of_mean, noise = variances(
            there, outputs(task, x), prior_variance, task.output_scale, task.noise_spread
        )
        parts.append(torch.stack([there.mean, of_mean + noise]))
    means, spread = torch.stack(parts, 1)
    truth = ((y_test - y.mean(0)) / y.std(0))[:, 0]
    return {"metrics": {"ensemble": scores(means, spread, truth, y)}}


def scores(means: Tensor, spread: Tensor, truth: Tensor, y: Tensor) -> dict[str, float]:
    """Return the metrics of an equal mixture of Gaussians, in deviations of the training targets.

    Args:
        means: Of K Gaussians, [K, B], of the target over its deviation with correction 1.
        spread: Their variances, [K, B].
        truth: The targets in that unit, [B].
        y: The training targets [N, 1]; the metrics' unit is their deviation without correction.
    """
    unit = float(y.std(0) / y.std(0, correction=0))
    means, deviations, truth = unit * means, unit * spread.sqrt(), unit * truth
    mean = means.mean(0)
    std = (deviations.square().mean(0) + means.var(0, correction=0)).sqrt()
    parts = [
        Normal(m[:, None], s[:, None]).log_density(truth[:, None])
        for m, s in zip(means, deviations, strict=True)
    ]
    mixture = torch.stack(parts).logsumexp(0) - math.log(len(parts))
    gaussian = Normal(mean[:, None], std[:, None]).log_density(truth[:, None])
    return {
        "rmse_standardised": float((mean - truth).square().mean().sqrt()),
        "nll_standardised": -float(mixture.mean()),
        "nll_gaussian_standardised": -float(gaussian.mean()),
        "coverage_90": band_metrics(truth[:, None], mean[:, None], std[:, None])["coverage_90"],
    }
