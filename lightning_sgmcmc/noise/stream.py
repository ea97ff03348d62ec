"""A chain's own stream of noise."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from lightning_sgmcmc import kernels
from lightning_sgmcmc.noise.philox import Philox
from lightning_sgmcmc.noise.sfc64 import SFC64
from lightning_sgmcmc.noise.source import MATCHED, Source

Increments = Literal["gaussian", "moment-matched"]
Generator = Literal["sfc64", "philox"]
#: The names of the generators.
GENERATORS: tuple[str, ...] = get_args(Generator)


class NoiseStream:
    """Noise for the tensors of one chain, or of K chains, from generators of its own.

    The stream of a chain is seeded by ``SeedSequence(seed, spawn_key=(chain,))``: replicas of one
    chain draw the same numbers whatever the global seeds are, and different chains draw
    independent ones. With ``num_chains=K`` each tensor carries the chains ``chain, ..., chain +
    K - 1`` along its first axis, and row k gets what chain k alone would have drawn.

    Two generators make them. :class:`~lightning_sgmcmc.noise.sfc64.SFC64` draws one number after
    the other, on a CPU, whose default it is. On any device,
    :class:`~lightning_sgmcmc.noise.philox.Philox` computes each from its place, for all chains at
    once; it is the default on devices that are no CPU.

    Args:
        like: Tensors on one device and of one type; draws have their shapes.
        seed: Seed of the run, not negative.
        chain: Number of the (first) chain.
        num_chains: K, the length of every tensor's first axis; None for a single chain.
        one_generator: Serve all K chains from the first one's generator. They are independent all
            the same, but none can be drawn alone; for thousands of short chains.
        increments: What :meth:`increments` draws.
        generator: ``"sfc64"`` or ``"philox"``; None for the device's default.

    Raises:
        ValueError: If the tensors lie on several devices or have several types, a name is
            unknown, or the generator does not run on the device.
    """

    def __init__(
        self,
        like: Sequence[Tensor],
        seed: int,
        chain: int = 0,
        num_chains: int | None = None,
        one_generator: bool = False,
        increments: Increments = "gaussian",
        generator: Generator | None = None,
    ) -> None:
        if seed < 0:
            raise ValueError(f"seed must not be negative, got {seed}")
        if increments not in get_args(Increments):
            raise ValueError(f"increments must be gaussian or moment-matched, got {increments!r}")
        check_generator(generator)
        if len({(t.device, t.dtype) for t in like}) != 1:
            raise ValueError(
                "a chain's parameters must share one device and one floating-point type, got "
                f"{sorted({f'{t.dtype} on {t.device}' for t in like})}"
            )
        self.device, self.dtype = like[0].device, like[0].dtype
        on_cpu = self.device.type == "cpu"
        if generator == "sfc64" and not on_cpu:
            raise ValueError(f"noise sfc64 is made on a CPU, not on {self.device}: choose philox")
        #: What makes the numbers, ``"sfc64"`` or ``"philox"``.
        self.generator: Generator = generator or ("sfc64" if on_cpu else "philox")
        #: What computes the chain's steps: ``"numba"``, ``"triton"`` or ``"torch"``.
        self.backend = kernels.chosen(self.device, self.dtype)
        #: What :meth:`increments` draws.
        self.kind = increments
        self._chains = num_chains
        rows = 1 if num_chains is None or one_generator else num_chains
        if self.backend == "triton" and rows > 65_535:  # programs along CUDA's second axis
            self.backend = "torch"
        numel = sum(t.numel() for t in like) // rows
        sequences = [np.random.SeedSequence(seed, spawn_key=(chain + i,)) for i in range(rows)]
        self._source: Source
        if self.generator == "sfc64":
            self._source = SFC64(sequences, numel, self.dtype, self.backend)
        else:
            self._source = Philox(sequences, numel, self.device, self.backend)
        width = self._source.width
        self._flat = torch.empty(rows, width, device=self.device, dtype=self.dtype)
        parts = torch.split(self._flat[:, :numel], [t.numel() // rows for t in like], dim=1)
        self._views = [
            (part if rows > 1 else part[0]).view(t.shape)
            for part, t in zip(parts, like, strict=True)
        ]

    @property
    def rows(self) -> int:
        """Number of generators: one for a single chain, and one where it serves all chains."""
        return len(self._flat)

    def normal(self) -> list[Tensor]:
        """Draw z ~ N(0, I).

        Returns:
            One tensor per tensor of ``like``. They are views of a buffer that the next call
            overwrites; the caller may change them in place.
        """
        self._source.normal_(self._flat)
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
        self._source.matched_(self._flat)
        return self._views

    def add_increments_(self, tensors: Sequence[Tensor], scale: float) -> None:
        """Add ``scale`` times :meth:`increments` to tensors shaped like those of the stream."""
        if self.kind == "gaussian" or self.backend == "triton":
            torch._foreach_add_(list(tensors), self.increments(), alpha=scale)
            return
        self._flat.copy_(self._source.odd_bytes())
        torch._foreach_add_(list(tensors), self._views, alpha=scale * MATCHED)

    def matched_bytes(self) -> tuple[Tensor, float]:
        """Draw the moment-matched increments of one chain as bytes.

        Returns:
            int8, at least as many as weights, and a scale: an increment is the scale times the
            byte with its lowest bit set.
        """
        return self._source.draw_bytes()[0], MATCHED

    def place(self) -> tuple[Tensor, int]:
        """Take a vector of noise that a kernel makes itself.

        Returns:
            The generators' keys, int64 [K], or [1] for a single chain and for one generator; and
            the number of the draw (:class:`~lightning_sgmcmc.noise.philox.Philox`).
        """
        assert isinstance(self._source, Philox)
        return self._source.keys, self._source.take()

    def loops_serve(self, *lists: Sequence[Tensor]) -> bool:
        """Return whether compiled loops may take a step over these tensors.

        They serve a single chain whose tensors are contiguous, on a CPU.
        """
        return self.backend == "numba" and self._chains is None and self._alike(lists)

    def kernels_serve(self, *lists: Sequence[Tensor]) -> bool:
        """Return whether Triton's kernels may take a step over these tensors, and make its noise.

        They serve single and stacked chains whose tensors are contiguous, on a GPU.
        """
        return self.backend == "triton" and self.generator == "philox" and self._alike(lists)

    def _alike(self, lists: Sequence[Sequence[Tensor]]) -> bool:
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
        rows = self._source.uniform(shape)
        return rows[0] if len(rows) == 1 else rows

    def state_dict(self) -> dict[str, Any]:
        """Return the generators' states as tensors, loadable with ``weights_only=True``."""
        return {self.generator: self._source.state(), "backend": self.backend}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where the stream that gave ``state`` stood.

        Warns if that chain's steps were computed by another backend, whose normals and steps
        differ by float32's rounding. A state that names none is of torch's.

        Raises:
            ValueError: If the state is that of another generator or another number of chains.
        """
        if self.generator not in state:
            made = next(iter(state))
            remedy = (
                f"set the sampler's noise={made!r}, or use the device that it was made on"
                if made in GENERATORS
                else "this version has no such generator"
            )
            raise ValueError(
                f"the checkpoint's noise stream is of the generator {made}, made by another choice "
                f"or on another kind of device, and this one on {self.device} is of "
                f"{self.generator}, whose numbers differ: {remedy}"
            )
        made = state.get("backend", "torch")
        if made != self.backend:
            warnings.warn(kernels.other_backend(made), stacklevel=2)
        rows = state[self.generator].cpu()
        if len(rows) != len(self._flat):
            raise ValueError(
                f"the checkpoint's noise is that of {len(rows)} chains, not of {len(self._flat)}"
            )
        self._source.load(rows)


def check_generator(name: str | None) -> None:
    """Raise ValueError if there is no generator of this name; None is the device's default."""
    if name is not None and name not in GENERATORS:
        raise ValueError(f"noise must be {' or '.join(GENERATORS)}, got {name!r}")
