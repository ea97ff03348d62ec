"""Laws of the targets given inputs and weights, p(y | x, w), by which a task predicts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional

# Probabilities closer to 0 or 1 than that have much the same logit.
_END = 0.03


class Law(ABC):
    """p(y | x, w) of B examples under one draw of the weights, independent given x and w.

    The posterior predictive law is the mixture of these laws over draws w_k with weights q_k. Its
    mean is the weighted mean of the draws' means m_k, and its variance is

        sum_k q_k (m_k - mean)^2 + sum_k q_k v_k,    v_k = Var(y | x, w_k):

    the variance of the weights, and that of the noise. ``torch.distributions`` is of no use here:
    its checks of values stop ``torch.func.vmap``, and it samples from the global generator only.

    A law of your own defines ``mean``, ``noise``, :meth:`log_density` and :meth:`sample`, and is
    built again from its ``parameters`` alone.

    Args:
        *parameters: Tensors with one row per example.
    """

    def __init__(self, *parameters: Tensor) -> None:
        self.parameters = parameters

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """E(y | x, w), [B, ...]; of a class, E 1{y = c} = p(y = c | x, w), [B, C]."""

    @property
    def noise(self) -> Tensor | None:
        """v, which broadcasts against ``mean``; None where :meth:`variance` needs none."""
        return None

    @abstractmethod
    def log_density(self, y: Tensor) -> Tensor:
        """Return log p(y | x, w) of each example's whole target, [B], in nats."""

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Return one target for each example."""

    @classmethod
    def variance(cls, mean: Tensor, of_weights: Tensor, noise: Tensor | None) -> Tensor:
        """Return the mixture's variance.

        Args:
            mean: Of the mixture, [B, ...].
            of_weights: Variance of the draws' means, [B, ...].
            noise: Mean over draws of :attr:`noise`.
        """
        return of_weights if noise is None else of_weights + noise

    @classmethod
    def band(cls, mean: Tensor, std: Tensor, probability: float) -> tuple[Tensor, Tensor]:
        """Return the ends of a central interval of the mixture, from its mean and deviation.

        Raises:
            TypeError: If the law has none.
        """
        raise TypeError(f"{cls.__name__} has no central interval: take quantiles of its samples")

    @classmethod
    def logit(cls, mean: Tensor) -> Tensor | None:
        """Return the logit of each entry of a mean of probabilities, None of other means."""
        return None

    @classmethod
    def scores(cls, mean: Tensor, std: Tensor, y: Tensor) -> dict[str, float]:
        """Return how good a mixture is beside the targets, by names; none unless a law says so.

        Args:
            mean: Of the mixture, [B, ...].
            std: Its deviation, [B, ...].
            y: The targets.
        """
        return {}


class Normal(Law):
    """y_j ~ N(mean_j, std_j^2), independently in the entries of an example's target.

    Args:
        mean: [B, ...].
        std: A positive tensor that broadcasts against ``mean``: [B, 1] or [B, D] with one row per
            example, [1] or [D] for all examples, or one number.

    Raises:
        ValueError: If it does not broadcast.
    """

    def __init__(self, mean: Tensor, std: Tensor | float) -> None:
        if isinstance(std, (int, float)) or (isinstance(std, Tensor) and std.dim() == 0):
            std = std * torch.ones_like(mean)
        elif isinstance(std, Tensor) and isinstance(mean, Tensor):  # no Tensor while fx traces
            std = _by_example(std, mean)
        super().__init__(mean, std)

    @property
    def mean(self) -> Tensor:
        """The mean, [B, ...]."""
        return self.parameters[0]

    @property
    def noise(self) -> Tensor | None:
        """std^2, in float64: in float32 it would be 0 below 1e-19, and infinite above 1e19."""
        return self.parameters[1].double().square()

    def log_density(self, y: Tensor) -> Tensor:
        """Return log N(y; mean, std^2), summed over an example's entries, [B].

        Raises:
            ValueError: If y has another shape than the mean, against which it would broadcast.
        """
        mean, std = self.parameters
        if isinstance(y, Tensor) and y.shape != mean.shape:  # no Tensor while torch.fx traces
            raise ValueError(
                f"targets have shape {list(y.shape)}, the mean of their law {list(mean.shape)}: "
                "let both have the same"
            )
        terms = 0.5 * ((y - mean) / std).square() + std.log() + 0.5 * math.log(2 * math.pi)
        return -terms.unsqueeze(-1).flatten(1).sum(1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Return y, [B, ...]."""
        mean, std = self.parameters
        z = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
        return mean + std * z

    @classmethod
    def band(cls, mean: Tensor, std: Tensor, probability: float) -> tuple[Tensor, Tensor]:
        """Return mean -+ z std, z = Phi^-1((1 + probability) / 2).

        This is the interval of the normal law with the mixture's mean and variance. It is the
        mixture's own where the draws' means are normal and their noise is equal.
        """
        z = float(torch.special.ndtri(torch.tensor((1 + probability) / 2, dtype=torch.float64)))
        return mean - z * std, mean + z * std

    @classmethod
    def scores(cls, mean: Tensor, std: Tensor, y: Tensor) -> dict[str, float]:
        """Return the root mean square error and the coverage of 50, 90 and 95 % bands."""
        truth = y.to(mean)
        found = {"rmse": float((mean - truth).square().mean().sqrt())}
        for percent in (50, 90, 95):
            lower, upper = cls.band(mean, std, percent / 100)
            held = (truth >= lower) & (truth <= upper)
            found[f"coverage_{percent}"] = float(held.double().mean())
        return found


def _by_example(std: Tensor, mean: Tensor) -> Tensor:
    """Return a deviation with one row per example of a mean [B, ...], against which it broadcasts.

    Raises:
        ValueError: If it does not.
    """
    shape = (1,) * (mean.dim() - std.dim()) + std.shape
    fits = len(shape) == mean.dim() and all(
        a in (1, b) for a, b in zip(shape, mean.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"std of shape {list(std.shape)} is no deviation of {list(mean.shape)}")
    return std.expand(len(mean), *shape[1:])


class _Labels(Law):
    """What laws of labels share: 1{y = c} has the variance p_c (1 - p_c) and no interval."""

    @classmethod
    def variance(cls, mean: Tensor, of_weights: Tensor, noise: Tensor | None) -> Tensor:
        """Return p (1 - p), the whole of which the mean determines."""
        return mean * (1 - mean).clamp_min(0)

    @classmethod
    def logit(cls, mean: Tensor) -> Tensor:
        """Return log((p + e) / (1 - p + e)), e = .03, near the logit of p between e and 1 - e."""
        return torch.log(mean + _END) - torch.log1p(_END - mean)

    @classmethod
    def band(cls, mean: Tensor, std: Tensor, probability: float) -> tuple[Tensor, Tensor]:
        """Raise TypeError."""
        raise TypeError("labels have no interval: mean holds their probabilities")


class Categorical(_Labels):
    """p(y = c | x, w) = softmax(logits)_c, y in 0, ..., C - 1.

    Args:
        logits: [B, C].
    """

    def __init__(self, logits: Tensor) -> None:
        super().__init__(logits)

    @property
    def mean(self) -> Tensor:
        """The classes' probabilities, [B, C]."""
        return self.parameters[0].softmax(-1)

    def log_density(self, y: Tensor) -> Tensor:
        """Return log p(y | x, w) of labels [B], of any type of whole numbers."""
        if isinstance(y, Tensor) and not y.is_floating_point():  # no Tensor while torch.fx traces
            y = y.long()
        return -functional.cross_entropy(self.parameters[0], y, reduction="none")

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Return labels, [B]."""
        return torch.multinomial(self.mean, 1, generator=generator).squeeze(-1)

    @classmethod
    def scores(cls, mean: Tensor, std: Tensor, y: Tensor) -> dict[str, float]:
        """Return the share of wrong labels in percent, that of the most probable class."""
        return {
            "error_percent": 100 * float((mean.argmax(-1) != y.to(mean.device)).double().mean())
        }


class Bernoulli(_Labels):
    """p(y = 1 | x, w) = 1 / (1 + exp(-logit)), y in {0, 1}.

    Args:
        logits: [B].
    """

    def __init__(self, logits: Tensor) -> None:
        super().__init__(logits)

    @property
    def mean(self) -> Tensor:
        """p(y = 1 | x, w), [B]."""
        return self.parameters[0].sigmoid()

    def log_density(self, y: Tensor) -> Tensor:
        """Return log p(y | x, w) of labels [B], 0 or 1 of any type; NaN for other labels."""
        logits = self.parameters[0]
        labels = y.to(logits.dtype)
        if isinstance(y, Tensor):  # none while torch.fx traces
            labels = labels.where((labels == 0) | (labels == 1), torch.nan)
        return -functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Return labels 0. and 1., [B]."""
        return torch.bernoulli(self.mean, generator=generator)

    @classmethod
    def scores(cls, mean: Tensor, std: Tensor, y: Tensor) -> dict[str, float]:
        """Return the share of wrong labels in percent, that of the more probable one."""
        wrong = (mean > 0.5) != (y.to(mean.device) > 0.5)
        return {"error_percent": 100 * float(wrong.double().mean())}


class Unstated(Law):
    """What is known of y where a task states no law: what its ensemble averages.

    Args:
        mean: What ``predictive`` returns, [B, ...].
    """

    def __init__(self, mean: Tensor) -> None:
        super().__init__(mean)

    @property
    def mean(self) -> Tensor:
        """What the ensemble averages, [B, ...]."""
        return self.parameters[0]

    def log_density(self, y: Tensor) -> Tensor:
        """Raise TypeError."""
        raise self._unstated()

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Raise TypeError."""
        raise self._unstated()

    @classmethod
    def variance(cls, mean: Tensor, of_weights: Tensor, noise: Tensor | None) -> Tensor:
        """Raise TypeError."""
        raise cls._unstated()

    @classmethod
    def band(cls, mean: Tensor, std: Tensor, probability: float) -> tuple[Tensor, Tensor]:
        """Raise TypeError."""
        raise cls._unstated()

    @staticmethod
    def _unstated() -> TypeError:
        return TypeError(
            "the task does not say how y is distributed about its predictions: let it define "
            "law(x), such as Normal(mean, std); epistemic_std has the deviation over draws alone"
        )
