"""Step sizes along a chain (torch LR schedulers), and when a state is kept as a draw."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

#: How draws count in averages: see :class:`DrawSchedule`.
DrawWeights = Literal["auto", "time", "equal"]


class ConstantStep(LambdaLR):
    """lr_t = lr."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer, lambda step: 1.0)


class BlockDecay(LambdaLR):
    """lr_t = lr * factor^floor(t / every), as pSGLD's networks use (Li et al. 2016, section 5).

    Args:
        optimizer: The sampler.
        every: Steps in a block.
        factor: Multiplier from block to block, in (0, 1].

    Raises:
        ValueError: If a value lies outside its range.
    """

    def __init__(self, optimizer: Optimizer, every: int, factor: float = 0.5) -> None:
        if every < 1 or not 0 < factor <= 1:
            raise ValueError(f"need every >= 1 and factor in (0, 1], got {every} and {factor}")
        self.every, self.factor = every, factor
        super().__init__(optimizer, lambda step: factor ** (step // every))


class PolynomialDecay(LambdaLR):
    """lr_t = a (b + t)^-gamma with a = lr * b^gamma, so that lr is the first step size.

    Welling and Teh (2011) need gamma in (1/2, 1] for an asymptotically exact chain; averages are
    then weighted by the step sizes, as the posterior ensemble does.

    Args:
        optimizer: The sampler.
        b: Steps after which the decay sets in, positive.
        gamma: Power, not negative.

    Raises:
        ValueError: If a value lies outside its range.
    """

    def __init__(self, optimizer: Optimizer, b: float, gamma: float = 0.55) -> None:
        if not b > 0 or gamma < 0:
            raise ValueError(f"need b > 0 and gamma >= 0, got {b} and {gamma}")
        self.b, self.gamma = b, gamma
        super().__init__(optimizer, lambda step: (1 + step / b) ** -gamma)


@dataclass(frozen=True)
class Cycle:
    """A cyclical step size, and which states of a cycle are draws (Zhang et al. 2020).

    The sampler's step number t, counted from 0, has lr_t = lr/2 (1 + cos(pi (t mod L) / L)), at
    least ``floor`` times lr. The states that the last ``sampling`` part of a cycle's steps make
    are draws, where the step size is small; they count equally in averages.

    Args:
        length: L, steps in a cycle.
        sampling: Fraction of a cycle whose states are draws, in (0, 1].
        floor: Smallest step size as a fraction of lr, in (0, 1]; a step of zero never moves.

    Raises:
        ValueError: If a value lies outside its range.
    """

    length: int
    sampling: float = 0.5
    floor: float = 0.01

    def __post_init__(self) -> None:
        if self.length < 1 or not 0 < self.floor <= 1 or not 0 < self.sampling <= 1:
            raise ValueError(
                "need a cycle of at least 1 step, sampling in (0, 1] and floor in (0, 1], got "
                f"{self.length}, {self.sampling} and {self.floor}"
            )

    def factor(self, step: int) -> float:
        """Return lr_t / lr of the sampler's step number ``step``."""
        place = step % self.length
        return max(self.floor, 0.5 * (1 + math.cos(math.pi * place / self.length)))

    def keeps(self, step: int) -> bool:
        """Return whether the state that step number ``step`` makes is a draw."""
        first = self.length * (1 - self.sampling)
        return step % self.length >= first - 1e-9 * self.length  # 10 (1 - .7) is above 3


class CyclicalCosine(LambdaLR):
    """The step size of a :class:`Cycle`, which also says which states are draws.

    Args:
        optimizer: The sampler.
        cycle: Steps in a cycle.
        sampling: Fraction of a cycle whose states are draws, in (0, 1].
        floor: Smallest step size as a fraction of lr, in (0, 1].

    Raises:
        ValueError: If a value lies outside its range.
    """

    def __init__(
        self, optimizer: Optimizer, cycle: int, sampling: float = 0.5, floor: float = 0.01
    ) -> None:
        shape = Cycle(cycle, sampling, floor)
        self.cycle, self.sampling, self.floor = cycle, sampling, floor
        super().__init__(optimizer, lambda step: shape.factor(step))

    @property
    def draws(self) -> Cycle:
        """Which states are draws."""
        return Cycle(self.cycle, self.sampling, self.floor)


class WarmupCosine(LambdaLR):
    """Linear warm-up, then a cosine down to ``final``: the step sizes of an optimizer's burn-in.

    Args:
        optimizer: The burn-in optimizer.
        steps: Length of the burn-in.
        warmup: Fraction of it that warms up, in [0, 1).
        final: Last step size as a fraction of the largest, in [0, 1].

    Raises:
        ValueError: If a value lies outside its range.
    """

    def __init__(
        self, optimizer: Optimizer, steps: int, warmup: float = 0.02, final: float = 0.003
    ) -> None:
        if steps < 1 or not 0 <= warmup < 1 or not 0 <= final <= 1:
            raise ValueError(
                "need steps >= 1, warmup in [0, 1) and final in [0, 1], got "
                f"{steps}, {warmup} and {final}"
            )
        ramp = max(1, round(warmup * steps))

        def factor(step: int) -> float:
            if step < ramp:
                return (step + 1) / ramp
            progress = min(1.0, (step - ramp) / max(1, steps - ramp))
            return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))

        super().__init__(optimizer, factor)


class DrawSchedule:
    """Which states of a chain are draws: after burn-in, every ``thinning`` steps.

    With a ``cycle`` only the states that it keeps are draws. Its clock is that of the step sizes,
    the sampler's own steps, whatever the lengths of burn-in and of the optimizer's part are.

    Args:
        burn_in: Steps before the first state that can be a draw, the optimizer's included.
        thinning: Steps between draws.
        cycle: Of a cyclical step size, None for none.
        optimizer_steps: Steps before the sampler's first.
        weights: ``"time"`` lets a draw count in averages by the time of the step that made it,
            ``lr`` or its square root (:meth:`~lightning_sgmcmc.Sampler.draw_weight`), as averages
            under decreasing steps need (Li et al. 2016, before Theorem 1); ``"equal"`` lets all
            count alike. ``"auto"`` is by time, and alike for the draws of a cycle and for an
            optimizer's iterates.

    Raises:
        ValueError: If a value lies outside its range.
    """

    def __init__(
        self,
        burn_in: int = 0,
        thinning: int = 1,
        cycle: Cycle | None = None,
        optimizer_steps: int = 0,
        weights: DrawWeights = "auto",
    ) -> None:
        if weights not in get_args(DrawWeights):
            raise ValueError(f"draw_weights must be auto, time or equal, got {weights!r}")
        if burn_in < 0:
            raise ValueError(f"burn_in must not be negative, got {burn_in}")
        if thinning < 1:
            raise ValueError(f"thinning must be at least 1, got {thinning}")
        if optimizer_steps > burn_in:
            raise ValueError(
                f"burn_in = {burn_in} counts the optimizer's {optimizer_steps} steps: it must be "
                "at least as large"
            )
        self.burn_in, self.thinning = burn_in, thinning
        self.cycle, self.optimizer_steps, self.weights = cycle, optimizer_steps, weights

    def resolved_weights(self, iterates: bool) -> Literal["time", "equal"]:
        """Return how draws, or an optimizer's iterates, count in averages."""
        if self.weights == "auto":
            return "equal" if iterates or self.cycle is not None else "time"
        return self.weights

    def keeps(self, step: int) -> bool:
        """Return whether the state after ``step`` steps is a draw."""
        after = step - self.burn_in
        if after <= 0 or after % self.thinning:
            return False
        return self.cycle is None or self.cycle.keeps(step - self.optimizer_steps - 1)

    def count(self, max_steps: int) -> int:
        """Return the number of draws in a run of ``max_steps`` steps."""
        if self.cycle is None:
            return max(0, (max_steps - self.burn_in) // self.thinning)
        return sum(self.keeps(step) for step in range(self.burn_in + 1, max_steps + 1))
