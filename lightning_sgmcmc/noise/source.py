"""What a noise stream asks of a generator."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

#: Odd integers from -127 to 127 have the variance (128^2 - 1) / 3.
MATCHED = math.sqrt(3 / (128**2 - 1))


class Source(ABC):
    """The generators of some chains, a row of numbers for each.

    Attributes:
        width: Numbers in a row that :meth:`normal_` fills, at least the weights of a chain.
    """

    width: int

    @abstractmethod
    def normal_(self, out: Tensor) -> None:
        """Fill [rows, width] with draws from N(0, 1)."""

    @abstractmethod
    def draw_bytes(self) -> Tensor:
        """Draw bytes, all equally likely: int8 [rows, at least width]."""

    def matched_(self, out: Tensor) -> None:
        """Fill [rows, width] with moment-matched increments."""
        out.copy_(self.odd_bytes()).mul_(MATCHED)

    def odd_bytes(self) -> Tensor:
        """Draw odd integers from -127 to 127, all equally likely: int8 [rows, width]."""
        drawn = self.draw_bytes()
        drawn.view(torch.int64).bitwise_or_(0x0101010101010101)
        return drawn[:, : self.width]

    @abstractmethod
    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        """Draw from U[0, 1) in float64, [rows, *shape]."""

    @abstractmethod
    def state(self) -> Tensor:
        """Return a row of int64 for each row of numbers, on the CPU."""

    @abstractmethod
    def load(self, state: Tensor) -> None:
        """Go on where the source that gave ``state`` stood."""
