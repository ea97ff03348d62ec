"""NumPy's SFC64, a sequential generator for the CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_sgmcmc.kernels import Backend
from lightning_sgmcmc.noise.source import Source

# The number of words above which a compiled loop is worth passing the generator's state to it.
_MANY = 2**14


class SFC64(Source):
    """A generator a row, whose float32 normals are made of few bits and few passes over memory.

    They come by the Box-Muller map

        z1 = sqrt(-2 log u) cos(2 pi v),   z2 = sqrt(-2 log u) sin(2 pi v)

    with 31-bit u, which reaches 6.6 standard deviations, and v = (k + delta) / 2^16 with 16-bit k
    and one delta ~ U[0, 1) a draw: every number is normal, and every polynomial in a draw of
    degree below 2^16 has its exact mean. It costs half of ``Tensor.normal_``, and less in the
    compiled loops of :mod:`lightning_sgmcmc.kernels`, whose normals differ from torch's by
    rounding. Other types use NumPy's ziggurat.

    Args:
        sequences: The seed of each row.
        numel: Weights of a chain.
        dtype: Of the numbers.
        backend: What computes the bits and the map.
    """

    def __init__(
        self,
        sequences: Sequence[np.random.SeedSequence],
        numel: int,
        dtype: torch.dtype,
        backend: Backend,
    ) -> None:
        rows = len(sequences)
        self._generators = [np.random.Generator(np.random.SFC64(s)) for s in sequences]
        self._single, self._backend = dtype == torch.float32, backend
        self._half = (numel + 1) // 2
        self.width = 2 * self._half
        self._cosine = torch.empty(rows, self._half, dtype=dtype)
        self._words = torch.empty(rows, 0, dtype=torch.int64)
        self._shift = torch.empty(rows, 1, dtype=dtype)
        self._tiny = torch.tensor(2.0**-64, dtype=dtype)

    def normal_(self, out: Tensor) -> None:
        """Fill [rows, width] with draws from N(0, 1)."""
        if self._single:
            self._box_muller(out)
            return
        for row, generator in zip(out, self._generators, strict=True):
            row.copy_(torch.from_numpy(generator.standard_normal(self.width)))

    def draw_bytes(self) -> Tensor:
        """Draw bytes, all equally likely: int8 [rows, at least width]."""
        return self._bits((self.width + 7) // 8).view(torch.int8)

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        """Draw from U[0, 1) in float64, [rows, *shape]."""
        return torch.stack([torch.as_tensor(g.random(shape)) for g in self._generators])

    def _bits(self, words: int) -> Tensor:
        """Draw 64-bit words for every row; the loops write them into memory that is used again."""
        if self._backend == "numba" and words > _MANY:
            from lightning_sgmcmc.kernels.bits import draw

            if self._words.shape[1] != words:
                self._words = torch.empty(len(self._generators), words, dtype=torch.int64)
            for generator, row in zip(self._generators, self._words.numpy(), strict=True):
                draw(generator, row)
            return self._words
        rows: list[NDArray[np.int64]] = [
            g.integers(-(2**63), 2**63 - 1, size=words, dtype=np.int64, endpoint=True)
            for g in self._generators
        ]
        return torch.from_numpy(rows[0][None] if len(rows) == 1 else np.stack(rows))

    def _box_muller(self, out: Tensor) -> None:
        half, cosine = self._half, self._cosine
        words = (half + 1) // 2  # of 64 bits, for the radii; half as many serve the angles
        bits = self._bits(words + (half + 3) // 4)
        shift = self._shift
        shift.numpy()[:, 0] = [g.random() for g in self._generators]
        if self._backend == "numba":
            from lightning_sgmcmc.kernels.normals import box_muller

            box_muller(bits, shift, out)
            return
        radius, angle = out[:, :half], out[:, half:]
        radius.copy_(bits[:, :words].view(torch.int32)[:, :half])
        # u^2 = (integer / 2^31)^2 keeps its relative precision near 0, where the tail is; the
        # summand below it keeps log u finite.
        torch.addcmul(self._tiny, radius, radius, value=2.0**-62, out=radius)
        radius.log_().neg_().sqrt_()
        angle.copy_(bits[:, words:].view(torch.int16)[:, :half])
        angle.add_(shift).mul_(math.pi * 2.0**-15)
        torch.cos(angle, out=cosine)
        angle.sin_().mul_(radius)
        radius.mul_(cosine)

    def state(self) -> Tensor:
        """Return the generators' states, int64 [rows, 6]."""
        states = []
        for generator in self._generators:
            state = generator.bit_generator.state
            words = np.asarray(state["state"]["state"], dtype=np.uint64).view(np.int64)
            rest = np.array([state["has_uint32"], state["uinteger"]], dtype=np.int64)
            states.append(np.concatenate([words, rest]))
        return torch.from_numpy(np.stack(states))

    def load(self, state: Tensor) -> None:
        """Go on where the generators that gave ``state`` stood."""
        for generator, row in zip(self._generators, state.numpy(), strict=True):
            generator.bit_generator.state = {
                "bit_generator": "SFC64",
                "state": {"state": row[:4].view(np.uint64)},
                "has_uint32": int(row[4]),
                "uinteger": int(row[5]),
            }
