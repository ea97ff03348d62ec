"""Chains whose state cannot be stacked, run in turn behind one sampler's interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.preconditioners import Preconditioner
from lightning_sgmcmc.samplers.base import Pair, Sampler, Stacked
from lightning_sgmcmc.target import Target


class ChainsInTurn(Sampler):
    """K chains whose gradients are one computation and whose moves are made one after another.

    For samplers whose statistics cannot carry a chain axis (``preconditioner.unstackable`` says
    why). Each chain is a sampler of its own over views of the stacked parameters; drawing, saving
    and everything else goes as for stacked chains.

    Args:
        make: Builds the sampler of one chain from its parameters.
        params: The stacked parameters, pairs of name and tensor [K, ...].

    Raises:
        ValueError: If the prior adapts to its chain.
    """

    def __init__(
        self, make: Callable[[list[Any]], Sampler], params: Sequence[tuple[str, Tensor]]
    ) -> None:
        count = params[0][1].shape[0]
        self.samplers: list[Sampler] = []
        for k in range(count):
            sampler = make([(name, nn.Parameter(p.detach()[k])) for name, p in params])
            sampler.chain += k
            self.samplers.append(sampler)
        first = self.samplers[0]
        if first.prior.adaptive:
            raise ValueError(
                f"{first.prior!r} adapts to its chain, and {first.name} cannot run several "
                "stacked: use one chain a process (--trainer.strategy chains)"
            )
        if first.batches == "full":
            raise ValueError(
                f"{first.name} follows the loss of each chain and cannot run several in turn, as "
                f"{first.preconditioner!r} needs: choose another preconditioner, or one chain a "
                "process (--trainer.strategy chains)"
            )
        super().__init__(
            Stacked(params),
            "auto" if first.auto_lr else first.lr,
            prior=first.prior,
            temperature=first.temperature,
            seed=first.seed,
            chain=first.chain,
            noise=first.generator,
            num_data=first.given_num_data,
        )
        self.absorbs_gradient_noise = first.absorbs_gradient_noise
        self.batches, self.increments = first.batches, first.increments
        self.has_thermostat, self.corrected = first.has_thermostat, first.corrected
        self.iterates = first.iterates
        self.preconditioner = _InTurn([s.preconditioner for s in self.samplers])

    @property
    def name(self) -> str:
        """The name of the chains' sampler."""
        return self.samplers[0].name

    def caveats(self, frozen: bool) -> list[str]:
        """Return what the chains' sampler says of their draws."""
        return self.samplers[0].caveats(frozen)

    @property
    def num_data(self) -> int | None:
        """N, the number of training examples."""
        return self._num_data

    @num_data.setter
    def num_data(self, value: int) -> None:
        for sampler in self.samplers:
            sampler.num_data = value
        self._num_data = int(value)

    def set_first_chain(self, chain: int) -> None:
        """Number the chains from ``chain`` on."""
        super().set_first_chain(chain)
        for k, sampler in enumerate(self.samplers):
            sampler.set_first_chain(chain + k)

    def attach(self, target: Target) -> None:
        """Refuse what needs the target, which is that of all chains at once.

        Raises:
            ValueError: If the sampler needs curvature or per-example gradients.
        """
        needs = self.needs & {"target", "per_example"}
        if needs:
            raise ValueError(
                f"{self.name} needs {' and '.join(sorted(needs))} of one chain and cannot run "
                "several in one process: use one chain a process (--trainer.strategy chains)"
            )
        self.target = target

    @property
    def needs(self) -> frozenset[str]:
        """What the chains need beyond a gradient."""
        return self.samplers[0].needs

    def max_stable_lr(self, eigenvalue: float) -> float:
        """Return the step size at which a chain becomes unstable on a quadratic."""
        return self.samplers[0].max_stable_lr(eigenvalue)

    def variance_bias(self, fraction: float) -> float:
        """Return the bias of the variances at a fraction of the largest stable step."""
        return self.samplers[0].variance_bias(fraction)

    def recursion(self, lr: float) -> tuple[float, float]:
        """Return mu and h of the recursion that a chain's coordinates follow on a quadratic."""
        return self.samplers[0].recursion(lr)

    def counted_noise(self, lr: float) -> float:
        """Return the share of the injected noise that is left to the minibatches."""
        return self.samplers[0].counted_noise(lr)

    def draw_weight(self) -> float:
        """Return the time of a step, the weight of the states that it made."""
        self._follow_lr()
        return self.samplers[0].draw_weight()

    def check_burn_in(self, steps: int) -> None:
        """Raise ValueError if steps of burn-in by the chains themselves are too few to freeze."""
        self.samplers[0].check_burn_in(steps)

    def freeze(self) -> None:
        """Make every chain's C a constant."""
        for sampler in self.samplers:
            sampler.freeze()

    def refresh(self) -> None:
        """Draw anew what every chain carries beside its weights."""
        for sampler in self.samplers:
            sampler.refresh()

    def _check_ready(self) -> None:
        super()._check_ready()
        self._follow_lr()
        for sampler in self.samplers:
            sampler._check_ready()

    def _follow_lr(self) -> None:
        for sampler in self.samplers:
            sampler.param_groups[0]["lr"] = self.lr

    def _advance(self, grads: list[Tensor]) -> Pair | None:
        self._follow_lr()
        pairs = []
        for k, sampler in enumerate(self.samplers):
            pairs.append(sampler._advance([g[k] for g in grads]))
        self._pairs = pairs
        self._count()
        return None if pairs[0] is None else ([], [])

    def show(self, grads: list[Tensor]) -> None:
        """Let every chain's C learn from its gradient without a move."""
        for k, sampler in enumerate(self.samplers):
            sampler.show([g[k] for g in grads])
        self._count()

    def _learn(self, pair: Pair, grads: list[Tensor]) -> None:
        for k, (sampler, own) in enumerate(zip(self.samplers, self._pairs, strict=True)):
            assert own is not None
            sampler._learn(own, [g[k] for g in grads])
        self._count()

    def _count(self) -> None:
        self.implementation = self.samplers[0].implementation
        self.steps_taken = self.samplers[0].steps_taken
        self.gradients = self.samplers[0].gradients

    def formula(self, grads: list[Tensor]) -> None:
        """The chains move themselves."""
        raise AssertionError("the chains move themselves")

    def set_masks(self, masks: Sequence[Tensor] | None) -> None:
        """Hold weights at zero where a mask is zero."""
        super().set_masks(masks)
        for k, sampler in enumerate(self.samplers):
            sampler.set_masks(None if masks is None else [m[k] for m in masks])

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all chains."""
        state = super().state_dict()
        state["chain"]["chains"] = [s.state_dict() for s in self.samplers]
        del state["chain"]["kinds"]  # each chain's own state has them
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue all chains to the bit."""
        super().load_state_dict(state_dict)
        for sampler, state in zip(self.samplers, state_dict["chain"]["chains"], strict=True):
            sampler.load_state_dict(state)


class _InTurn(Preconditioner):
    """The preconditioners of K chains, each applied to its own row."""

    def __init__(self, parts: Sequence[Preconditioner]) -> None:
        self.parts = list(parts)
        self.adaptive = parts[0].adaptive
        self.needs_second_gradient = parts[0].needs_second_gradient
        super().__init__()
        self.chain_dims = 1

    def attach(self, params: Sequence[Tensor], chain_dims: int = 0) -> None:
        """Leave the parts as they are: each is attached to its own chain."""
        self.chain_dims = chain_dims

    @property
    def frozen(self) -> bool:
        """Whether C is a constant."""
        return self.parts[0].frozen

    @frozen.setter
    def frozen(self, value: bool) -> None:
        for part in self.parts:
            part.frozen = value

    @property
    def horizon(self) -> int:
        """That of each chain's C."""
        return self.parts[0].horizon

    @property
    def expected_eigenvalue(self) -> float:
        """That of each chain's C."""
        return self.parts[0].expected_eigenvalue

    def update(self, grads: Sequence[Tensor]) -> None:
        """Show each chain its gradient."""
        for k, part in enumerate(self.parts):
            part.update([g[k] for g in grads])

    def apply_(self, vectors: list[Tensor]) -> list[Tensor]:
        """Return C times ``vectors``, chain by chain."""
        rows = [part.apply_([v[k].clone() for v in vectors]) for k, part in enumerate(self.parts)]
        return [torch.stack(parts) for parts in zip(*rows, strict=True)]

    def noise(self, stream: NoiseStream) -> list[Tensor]:
        """Noise is each chain's own."""
        raise AssertionError("the chains draw their own noise")

    def freeze(self) -> None:
        """Keep every C as it is."""
        for part in self.parts:
            part.freeze()

    def check(self, lr: float, num_data: int, prior_precision: float) -> None:
        """Check every chain's C."""
        for part in self.parts:
            part.check(lr, num_data, prior_precision)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the chains' samplers keep it."""
        return {"frozen": self.frozen}

    def __repr__(self) -> str:
        return repr(self.parts[0])
