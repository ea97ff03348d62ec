"""Gaussian prior with variances by layer."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import Tensor

from lightning_sgmcmc.priors.base import positive
from lightning_sgmcmc.priors.tensorwise import TensorwiseGaussianPrior, fan_in


class LayerwiseGaussianPrior(TensorwiseGaussianPrior):
    """Every weight is N(0, v), with v by the name of its parameter.

    The sampler must know the names: build it from ``net.named_parameters()``, as the module does.

        LayerwiseGaussianPrior({"*.bias": 10.0, "net.0.*": 1.0}, default=0.1)

    Args:
        variances: Shell patterns over parameter names and the variances of what they match,
            positive. The first pattern that matches a name decides.
        default: Variance of the parameters that none matches; None makes these an error.
        per_fan_in: Divide the variances of weights by their fan-in, as in
            :class:`~lightning_sgmcmc.priors.FanInGaussianPrior`.

    Raises:
        ValueError: If a variance is not positive; and before the first step, if the names are
            unknown, a pattern decides for no parameter, or none decides for one and there is no
            default.
    """

    def __init__(
        self,
        variances: Mapping[str, float],
        default: float | None = None,
        per_fan_in: bool = False,
    ) -> None:
        self.patterns = {
            pattern: positive(value, f"the prior's variance for {pattern!r}")
            for pattern, value in variances.items()
        }
        self.default = None if default is None else positive(default, "the prior's variance")
        self.per_fan_in = per_fan_in
        self._variances: list[float] = []
        self._complaint: str | None = "it was never attached to parameters"

    def attach(
        self, params: Sequence[Tensor], chain_dims: int = 0, names: Sequence[str] | None = None
    ) -> None:
        """Find the variance of each parameter by its name."""
        super().attach(params, chain_dims, names)
        self._variances, self._complaint = [], None
        if names is None:
            self._complaint = (
                "the sampler was given parameters without names: give it net.named_parameters()"
            )
            return
        deciding = [next((p for p in self.patterns if fnmatchcase(n, p)), None) for n in names]
        unused = [pattern for pattern in self.patterns if pattern not in deciding]
        if unused:
            matches = any(fnmatchcase(name, unused[0]) for name in names)
            why = "matches only what earlier ones match" if matches else "matches no parameter"
            self._complaint = f"the pattern {unused[0]!r} {why}, of {', '.join(names)}"
        elif self.default is None and None in deciding:
            name = names[deciding.index(None)]
            self._complaint = f"no pattern matches {name}: add one, or give a default variance"
        else:
            self._variances = [
                (self.default if pattern is None else self.patterns[pattern])  # type: ignore[operator]
                / (fan_in(p, chain_dims) if self.per_fan_in else 1)
                for pattern, p in zip(deciding, params, strict=True)
            ]

    def restricted_to(self, names: Sequence[str]) -> LayerwiseGaussianPrior:
        """Return a copy with the patterns that decide for one of the names."""
        deciding = {next((p for p in self.patterns if fnmatchcase(n, p)), None) for n in names}
        restricted = copy.copy(self)
        restricted.patterns = {p: v for p, v in self.patterns.items() if p in deciding}
        return restricted

    def check(self) -> None:
        """Raise ValueError if patterns and names do not fit."""
        if self._complaint is not None:
            raise ValueError(f"{self!r} does not fit: {self._complaint}")

    def variances(self, params: Sequence[Tensor]) -> list[float]:
        """Return the variance of each tensor."""
        self.check()
        return self._variances

    def __repr__(self) -> str:
        default = "" if self.default is None else f", default={self.default:g}"
        divided = ", per_fan_in=True" if self.per_fan_in else ""
        return f"LayerwiseGaussianPrior({self.patterns}{default}{divided})"
