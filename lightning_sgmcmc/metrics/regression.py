"""How good a Gaussian predictive distribution is: errors, bands, coverage, CRPS."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def relative_l2_error(prediction: Tensor, truth: Tensor) -> Tensor:
    """Return ||prediction - truth|| / ||truth|| of each example.

    Args:
        prediction: [N, ...].
        truth: [N, ...], no example of which is identically zero.

    Returns:
        [N], a fraction.
    """
    error: Tensor = torch.linalg.vector_norm((prediction - truth).reshape(len(truth), -1), dim=1)
    size: Tensor = torch.linalg.vector_norm(truth.reshape(len(truth), -1), dim=1)
    return error / size


def gaussian_crps(truth: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Continuous ranked probability score of N(mean, std^2) at the truth, in the truth's units.

    crps = std (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)),  z = (truth - mean) / std
    (Gneiting and Raftery 2007, section 4.2). All arguments have one shape; std is positive.
    """
    z = (truth - mean) / std
    density = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return std * (z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))


def band_metrics(truth: Tensor, mean: Tensor, std: Tensor) -> dict[str, float]:
    """Measure central Gaussian bands mean +- z std against the truth.

    Args:
        truth: [N, D].
        mean: Predictive mean, [N, D].
        std: Predictive standard deviation, noise included, [N, D], positive.

    Returns:
        ``coverage_<percent>`` over all entries; ``coverage_<percent>_output_p05`` and ``_p95``,
        the 5 % and 95 % quantiles over the D outputs of each one's coverage over examples;
        ``crps``; ``width_90``, the mean width of the 90 % band, beside ``mae``, the mean absolute
        error; all in the truth's units.
    """
    deviation = ((truth - mean) / std).abs()
    result = {}
    for level in (0.5, 0.9, 0.95):
        z = math.sqrt(2) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))
        inside = (deviation <= z).double()
        name = f"coverage_{100 * level:g}"
        result[name] = float(inside.mean())
        outputs = inside.mean(0)
        result[f"{name}_output_p05"] = float(outputs.quantile(0.05))
        result[f"{name}_output_p95"] = float(outputs.quantile(0.95))
    z90 = math.sqrt(2) * float(torch.erfinv(torch.tensor(0.9, dtype=torch.float64)))
    result["crps"] = float(gaussian_crps(truth, mean, std).mean())
    result["width_90"] = float((2 * z90 * std).mean())
    result["mae"] = float((truth - mean).abs().mean())
    return result
