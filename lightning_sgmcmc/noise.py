"""The only owner of random generators: one stream of noise a chain and device."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_sgmcmc import kernels

Increments = Literal["gaussian", "moment-matched"]

# Odd integers from -127 to 127 have the variance (128^2 - 1) / 3.
_MATCHED = math.sqrt(3 / (128**2 - 1))
# The number of words above which a compiled loop is worth passing the generator's state to it.
_MANY = 2**14


class NoiseStream:
    """Noise for the tensors of one chain, or of K chains, from generators of its own.

    The stream of a chain is seeded by ``SeedSequence(seed, spawn_key=(chain,))``: replicas of one
    chain draw the same numbers whatever the global seeds are, and different chains draw
    independent ones. With ``num_chains=K`` each tensor carries the chains ``chain, ..., chain +
    K - 1`` along its first axis, and row k gets what chain k alone would have drawn.

    On the CPU, float32 normals come from SFC64 bits by the Box-Muller map

        z1 = sqrt(-2 log u) cos(2 pi v),   z2 = sqrt(-2 log u) sin(2 pi v)

    with 31-bit u, which reaches 6.6 standard deviations, and v = (k + delta) / 2^16 with 16-bit k
    and one delta ~ U[0, 1) a draw: every number is normal, and every polynomial in a draw of
    degree below 2^16 has its exact mean. It costs half of ``Tensor.normal_``, being made of few
    bits and few passes over memory, and less in the compiled loops of
    :mod:`lightning_sgmcmc.kernels`, whose normals differ from torch's by rounding. Other CPU types
    use NumPy's ziggurat; other devices use their own ``torch.Generator``.

    Args:
        like: Tensors on one device and of one type; draws have their shapes.
        seed: Seed of the run, not negative.
        chain: Number of the (first) chain.
        num_chains: K, the length of every tensor's first axis; None for a single chain.
        one_generator: Serve all K chains from the first one's generator. They are independent all
            the same, but none can be drawn alone; for thousands of short chains.
        increments: What :meth:`increments` draws.

    Raises:
        ValueError: If the tensors lie on several devices or have several types, or a name is
            unknown.
    """

    def __init__(
        self,
        like: Sequence[Tensor],
        seed: int,
        chain: int = 0,
        num_chains: int | None = None,
        one_generator: bool = False,
        increments: Increments = "gaussian",
    ) -> None:
        if seed < 0:
            raise ValueError(f"seed must not be negative, got {seed}")
        if increments not in ("gaussian", "moment-matched"):
            raise ValueError(f"increments must be gaussian or moment-matched, got {increments!r}")
        if len({(t.device, t.dtype) for t in like}) != 1:
            raise ValueError(
                "a chain's parameters must share one device and one floating-point type, got "
                f"{sorted({f'{t.dtype} on {t.device}' for t in like})}"
            )
        self.device, self.dtype = like[0].device, like[0].dtype
        #: What computes the chain's steps, ``"numba"`` or ``"torch"``.
        self.backend = kernels.chosen(self.device, self.dtype)
        #: What :meth:`increments` draws.
        self.kind = increments
        self._chains = num_chains
        rows = 1 if num_chains is None or one_generator else num_chains
        numel = sum(t.numel() for t in like) // rows
        self._half = (numel + 1) // 2
        self._flat = torch.empty(rows, 2 * self._half, device=self.device, dtype=self.dtype)
        parts = torch.split(self._flat[:, :numel], [t.numel() // rows for t in like], dim=1)
        self._views = [
            (part if rows > 1 else part[0]).view(t.shape)
            for part, t in zip(parts, like, strict=True)
        ]
        sequences = [np.random.SeedSequence(seed, spawn_key=(chain + i,)) for i in range(rows)]
        self._numpy: list[np.random.Generator] = []
        self._torch: list[torch.Generator] = []
        if self.device.type == "cpu":
            self._numpy = [np.random.Generator(np.random.SFC64(s)) for s in sequences]
            self._cosine = torch.empty(rows, self._half, dtype=self.dtype)
            self._words = torch.empty(rows, 0, dtype=torch.int64)
            self._shift = torch.empty(rows, 1, dtype=self.dtype)
            self._tiny = torch.tensor(2.0**-64, dtype=self.dtype)
        else:
            for sequence in sequences:
                generator = torch.Generator(self.device)
                generator.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))
                self._torch.append(generator)

    def normal(self) -> list[Tensor]:
        """Draw z ~ N(0, I).

        Returns:
            One tensor per tensor of ``like``. They are views of a buffer that the next call
            overwrites; the caller may change them in place.
        """
        if self._torch:
            for row, generator in zip(self._flat, self._torch, strict=True):
                row.normal_(generator=generator)
        elif self.dtype == torch.float32:
            self._box_muller()
        else:
            for row, source in zip(self._flat, self._numpy, strict=True):
                row.copy_(torch.from_numpy(source.standard_normal(self._flat.shape[1])))
        return self._views

    def increments(self) -> list[Tensor]:
        """Draw the noise of a step: z ~ N(0, I), or numbers that share its low moments.

        ``"moment-matched"`` increments are independent with mean 0, variance 1 and third moment 0
        and take 128 values, the midpoints of (-sqrt(3), sqrt(3)) cut into as many parts. With them
        the Euler scheme keeps its weak order 1 (Kloeden and Platen 1992, section 14.1), at a
        fraction of the cost of normals.

        Returns:
            As :meth:`normal`.
        """
        if self.kind == "gaussian":
            return self.normal()
        if self._torch:
            for row, generator in zip(self._flat, self._torch, strict=True):
                row.random_(0, 128, generator=generator)
            self._flat.mul_(2).sub_(127)
        else:
            self._flat.copy_(self._odd_bytes())
        self._flat.mul_(_MATCHED)
        return self._views

    def add_increments_(self, tensors: Sequence[Tensor], scale: float) -> None:
        """Add ``scale`` times :meth:`increments` to tensors shaped like those of the stream."""
        if self.kind == "gaussian" or self._torch:
            torch._foreach_add_(list(tensors), self.increments(), alpha=scale)
            return
        self._flat.copy_(self._odd_bytes())
        torch._foreach_add_(list(tensors), self._views, alpha=scale * _MATCHED)

    def _odd_bytes(self) -> Tensor:
        """Draw odd integers from -127 to 127, all equally likely."""
        numel = self._flat.shape[1]
        bits = self._bits((numel + 7) // 8)
        bits |= 0x0101010101010101
        return bits.view(torch.int8)[:, :numel]

    def matched_bytes(self) -> tuple[Tensor, float]:
        """Draw the moment-matched increments of one chain as bytes.

        Returns:
            int8, at least as many as weights, and a scale: an increment is the scale times the
            byte with its lowest bit set.
        """
        bits = self._bits((self._flat.shape[1] + 7) // 8)
        return bits.view(torch.int8)[0], _MATCHED

    def loops_serve(self, *lists: Sequence[Tensor]) -> bool:
        """Return whether compiled loops may take a step over these tensors.

        They serve a single chain whose tensors are contiguous.
        """
        if self.backend == "torch" or self._chains is not None:
            return False
        return all(
            t.is_contiguous() and t.dtype == self.dtype and t.device == self.device
            for tensors in lists
            for t in tensors
        )

    def uniform(self, *shape: int) -> Tensor:
        """Draw from U[0, 1) in float64, for choices that replicas must share.

        Returns:
            Shape [*shape], or [K, *shape] for K chains.
        """
        if self._chains is not None and len(self._flat) == 1:  # one generator for all
            shape = (self._chains, *shape)
        if self._torch:
            rows = [
                torch.rand(shape, generator=g, device=self.device, dtype=torch.float64)
                for g in self._torch
            ]
        else:
            rows = [torch.as_tensor(g.random(shape)) for g in self._numpy]
        return rows[0] if len(rows) == 1 else torch.stack(rows)

    def _bits(self, words: int) -> Tensor:
        """Draw 64-bit words for every row; the loops write them into memory that is used again."""
        if self.backend == "numba" and words > _MANY:
            from lightning_sgmcmc.kernels.bits import draw

            if self._words.shape[1] != words:
                self._words = torch.empty(len(self._flat), words, dtype=torch.int64)
            for generator, row in zip(self._numpy, self._words.numpy(), strict=True):
                draw(generator, row)
            return self._words
        rows: list[NDArray[np.int64]] = [
            g.integers(-(2**63), 2**63 - 1, size=words, dtype=np.int64, endpoint=True)
            for g in self._numpy
        ]
        return torch.from_numpy(rows[0][None] if len(rows) == 1 else np.stack(rows))

    def _box_muller(self) -> None:
        half, cosine = self._half, self._cosine
        words = (half + 1) // 2  # of 64 bits, for the radii; half as many serve the angles
        bits = self._bits(words + (half + 3) // 4)
        shift = self._shift
        shift.numpy()[:, 0] = [g.random() for g in self._numpy]
        if self.backend == "numba":
            from lightning_sgmcmc.kernels.normals import box_muller

            box_muller(bits, shift, self._flat)
            return
        radius, angle = self._flat[:, :half], self._flat[:, half:]
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

    def state_dict(self) -> dict[str, Any]:
        """Return the generators' states as tensors, loadable with ``weights_only=True``."""
        if self._torch:
            return {"generator": torch.stack([g.get_state() for g in self._torch])}
        states = []
        for generator in self._numpy:
            state = generator.bit_generator.state
            words = np.asarray(state["state"]["state"], dtype=np.uint64).view(np.int64)
            rest = np.array([state["has_uint32"], state["uinteger"]], dtype=np.int64)
            states.append(np.concatenate([words, rest]))
        return {"sfc64": torch.from_numpy(np.stack(states)), "backend": self.backend}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where the stream that gave ``state`` stood.

        Warns if that chain's steps were computed by the other backend, whose normals and steps
        differ by float32's rounding. A state that names none is of torch's.

        Raises:
            ValueError: If the state comes from another kind of device, whose numbers differ, or
                from another number of chains.
        """
        kind = "generator" if self._torch else "sfc64"
        if kind not in state:
            raise ValueError(
                f"the checkpoint's noise stream ({next(iter(state))}) was made on another kind of "
                f"device than {self.device}; an exact resume needs the same kind"
            )
        if state.get("backend", "torch") != self.backend:
            warnings.warn(kernels.other_backend(self.backend), stacklevel=2)
        rows = state[kind].cpu()
        if len(rows) != len(self._flat):
            raise ValueError(
                f"the checkpoint's noise is that of {len(rows)} chains, not of {len(self._flat)}"
            )
        for generator, row in zip(self._torch, rows, strict=False):
            generator.set_state(row)
        for source, row in zip(self._numpy, rows.numpy(), strict=False):
            source.bit_generator.state = {
                "bit_generator": "SFC64",
                "state": {"state": row[:4].view(np.uint64)},
                "has_uint32": int(row[4]),
                "uinteger": int(row[5]),
            }
