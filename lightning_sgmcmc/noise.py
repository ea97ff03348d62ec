"""The only owner of random generators: one stream of Gaussian noise a chain and device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


class NoiseStream:
    """Standard normal increments z for a list of tensors, from a generator of its own.

    The stream of a chain is seeded by ``SeedSequence(seed, spawn_key=(chain,))``: replicas of one
    chain draw the same numbers whatever the global seeds are, and different chains draw
    independent ones. On the CPU, float32 numbers come from SFC64 bits by the Box-Muller map

        z1 = sqrt(-2 log u) cos(2 pi v),   z2 = sqrt(-2 log u) sin(2 pi v)

    with 31-bit u, which reaches 6.6 standard deviations, and v = (k + delta) / 2^16 with 16-bit k
    and one delta ~ U[0, 1) a draw: every number is normal, and every polynomial in a draw of
    degree below 2^16 has its exact mean. It costs half of ``Tensor.normal_``, being made of few
    bits and few passes over memory. Other CPU types use NumPy's ziggurat; other devices use their
    own ``torch.Generator``.

    Args:
        like: Tensors on one device and of one type; draws have their shapes.
        seed: Seed of the run, not negative.
        chain: Number of the chain.

    Raises:
        ValueError: If the tensors lie on several devices or have several types.
    """

    def __init__(self, like: Sequence[Tensor], seed: int, chain: int = 0) -> None:
        if seed < 0:
            raise ValueError(f"seed must not be negative, got {seed}")
        if len({(t.device, t.dtype) for t in like}) != 1:
            raise ValueError(
                "a chain's parameters must share one device and one floating-point type, got "
                f"{sorted({f'{t.dtype} on {t.device}' for t in like})}"
            )
        self.device, self.dtype = like[0].device, like[0].dtype
        sequence = np.random.SeedSequence(seed, spawn_key=(chain,))
        numel = sum(t.numel() for t in like)
        self._half = (numel + 1) // 2
        self._flat = torch.empty(2 * self._half, device=self.device, dtype=self.dtype)
        sizes = [t.numel() for t in like]
        parts = torch.split(self._flat[:numel], sizes)
        self._views = [part.view(t.shape) for part, t in zip(parts, like, strict=True)]
        self._numpy: np.random.Generator | None = None
        self._torch: torch.Generator | None = None
        if self.device.type == "cpu":
            self._numpy = np.random.Generator(np.random.SFC64(sequence))
            self._cosine = torch.empty(self._half, dtype=self.dtype)
            self._tiny = torch.tensor(2.0**-64, dtype=self.dtype)
        else:
            self._torch = torch.Generator(self.device)
            self._torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))

    def normal(self) -> list[Tensor]:
        """Draw z ~ N(0, I).

        Returns:
            One tensor per tensor of ``like``. They are views of a buffer that the next call
            overwrites; the caller may change them in place.
        """
        if self._numpy is None:
            self._flat.normal_(generator=self._torch)
        elif self.dtype == torch.float32:
            self._box_muller(self._numpy)
        else:
            flat = self._numpy.standard_normal(self._flat.numel())
            self._flat.copy_(torch.from_numpy(flat))
        return self._views

    def uniform(self) -> float:
        """Draw one number from U[0, 1), for discrete choices that replicas must share."""
        if self._numpy is not None:
            return float(self._numpy.random())
        return float(torch.rand((), generator=self._torch, device=self.device))

    def _box_muller(self, generator: np.random.Generator) -> None:
        half, cosine = self._half, self._cosine
        words = (half + 1) // 2  # of 64 bits, for the radii; half as many serve the angles
        bits = torch.from_numpy(
            generator.integers(
                -(2**63), 2**63 - 1, size=words + (half + 3) // 4, dtype=np.int64, endpoint=True
            )
        )
        radius, angle = self._flat[:half], self._flat[half:]
        radius.copy_(bits[:words].view(torch.int32)[:half])
        # u^2 = (integer / 2^31)^2 keeps its relative precision near 0, where the tail is; the
        # summand below it keeps log u finite.
        torch.addcmul(self._tiny, radius, radius, value=2.0**-62, out=radius)
        radius.log_().neg_().sqrt_()
        angle.copy_(bits[words:].view(torch.int16)[:half])
        angle.add_(generator.random()).mul_(math.pi * 2.0**-15)
        torch.cos(angle, out=cosine)
        angle.sin_().mul_(radius)
        radius.mul_(cosine)

    def state_dict(self) -> dict[str, Any]:
        """Return the generator's state as tensors, loadable with ``weights_only=True``."""
        if self._torch is not None:
            return {"generator": self._torch.get_state()}
        assert self._numpy is not None
        state = self._numpy.bit_generator.state
        words = np.asarray(state["state"]["state"], dtype=np.uint64).view(np.int64)
        rest = np.array([state["has_uint32"], state["uinteger"]], dtype=np.int64)
        return {"sfc64": torch.from_numpy(np.concatenate([words, rest]))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where the stream that gave ``state`` stood.

        Raises:
            ValueError: If the state comes from another kind of device, whose numbers differ.
        """
        kind = "generator" if self._torch is not None else "sfc64"
        if kind not in state:
            raise ValueError(
                f"the checkpoint's noise stream ({', '.join(state)}) was made on another kind of "
                f"device than {self.device}; an exact resume needs the same kind"
            )
        if self._torch is not None:
            self._torch.set_state(state[kind].cpu())
            return
        assert self._numpy is not None
        words = state[kind].cpu().numpy()
        self._numpy.bit_generator.state = {
            "bit_generator": "SFC64",
            "state": {"state": words[:4].view(np.uint64)},
            "has_uint32": int(words[4]),
            "uinteger": int(words[5]),
        }
