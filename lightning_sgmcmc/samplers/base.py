"""What every sampler shares: the scale contract, the noise, masks, freezing and state."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.preconditioners import Identity, Preconditioner
from lightning_sgmcmc.priors import FlatPrior, Prior
from lightning_sgmcmc.target import Target


class Sampler(torch.optim.Optimizer):
    """A Markov chain over the parameters, stepped like an optimizer.

    ``step(closure)`` takes the gradient of the *mean* negative log-likelihood of a minibatch, by
    calling the closure if there is one and from ``p.grad`` otherwise, and moves every parameter.
    Subclasses say how, in :meth:`_move`.

    Args:
        params: Parameters or one parameter group, as for any torch optimizer.
        lr: Step size on the mean loss, positive; ``"auto"`` leaves it to the training loop, which
            sets it from the curvature (:mod:`lightning_sgmcmc.stability`).
        num_data: N, the number of training examples; may be set later, before the first step.
        prior: Prior over the weights; None is a flat one.
        preconditioner: The matrix C; None is the identity.
        temperature: T; 1 samples the posterior, 0 optimises.
        seed: Seed of the chain's own noise, the same on every replica.
        chain: Number of the chain, which selects its noise stream.

    Raises:
        ValueError: If a value lies outside its range or there are several parameter groups.
    """

    #: True where the law of the chain counts minibatch noise, so that batches must be independent.
    independent_batches = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Literal["auto"],
        *,
        num_data: int | None = None,
        prior: Prior | None = None,
        preconditioner: Preconditioner | None = None,
        temperature: float = 1.0,
        seed: int = 0,
        chain: int = 0,
    ) -> None:
        if lr != "auto" and not (isinstance(lr, (int, float)) and lr > 0 and math.isfinite(lr)):
            raise ValueError(f'lr must be a positive number or "auto", got {lr!r}')
        if not (temperature >= 0 and math.isfinite(temperature)):
            raise ValueError(f"temperature must be finite and not negative, got {temperature}")
        if seed < 0:
            raise ValueError(f"seed must not be negative, got {seed}")
        self.auto_lr = lr == "auto"
        super().__init__(params, {"lr": math.nan if lr == "auto" else float(lr)})
        if len(self.param_groups) != 1:
            raise ValueError(
                f"a chain has one parameter group, got {len(self.param_groups)}: scale parameters "
                "by the preconditioner, and priors by the prior"
            )
        self.params: list[Tensor] = self.param_groups[0]["params"]
        self.prior: Prior = prior if prior is not None else FlatPrior()
        self.preconditioner: Preconditioner = preconditioner or Identity()
        self.temperature, self.seed, self.chain = float(temperature), int(seed), int(chain)
        self.masks: list[Tensor] | None = None
        self.target: Target | None = None
        self._stream: NoiseStream | None = None
        self._num_data: int | None = None
        if num_data is not None:
            self.num_data = num_data
        self.steps_taken = 0
        #: Minibatch gradients used so far.
        self.gradients = 0
        self.preconditioner.attach(self.params)

    @property
    def num_data(self) -> int | None:
        """N, the number of training examples."""
        return self._num_data

    @num_data.setter
    def num_data(self, value: int) -> None:
        if not value >= 1:
            raise ValueError(f"num_data must be positive, got {value}")
        self._num_data = int(value)
        self.preconditioner.num_data = int(value)

    @property
    def lr(self) -> float:
        """The current step size on the mean loss; NaN while "auto" is undecided."""
        return float(self.param_groups[0]["lr"])

    @property
    def needs(self) -> frozenset[str]:
        """What the chain needs beyond a gradient: ``"second_gradient"``, ``"target"``."""
        needs = set()
        if self.preconditioner.needs_second_gradient and not self.preconditioner.frozen:
            needs.add("second_gradient")
        if self.preconditioner.needs_target:
            needs.add("target")
        return frozenset(needs)

    def attach(self, target: Target) -> None:
        """Give the sampler what it needs beyond a gradient."""
        self.target = target

    @property
    def stream(self) -> NoiseStream:
        """The chain's own noise, made on the parameters' device when first used."""
        if self._stream is None or self._stream.device != self.params[0].device:
            state = self._stream.state_dict() if self._stream is not None else None
            self._stream = NoiseStream(self.params, self.seed, self.chain)
            if state is not None:
                self._stream.load_state_dict(state)
        return self._stream

    def freeze(self) -> None:
        """Make C a constant; call it where burn-in ends."""
        self.preconditioner.freeze()

    def max_stable_lr(self, eigenvalue: float) -> float:
        """Return the step size at which the chain becomes unstable on a quadratic.

        Args:
            eigenvalue: lambda_max(C^(1/2) H C^(1/2)), H the Hessian of U/N.
        """
        return 2 / eigenvalue

    def set_lr(self, lr: float) -> None:
        """Change the step size, also for a scheduler made after this call."""
        group = self.param_groups[0]
        group["lr"] = group["initial_lr"] = lr

    def draw_weight(self) -> float:
        """Return the weight of the current state in averages over draws: the step size."""
        return self.lr

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the chain by one step.

        Args:
            closure: Zeroes the gradients, computes the mean NLL of the minibatch, calls backward
                and returns the loss. Needed where the sampler needs a second gradient.

        Returns:
            What the closure returned at the old weights.

        Raises:
            RuntimeError: If N or the step size is unknown, a closure or target is needed and
                missing, or a parameter has no gradient. Nothing has moved then.
        """
        needs = self.needs
        if self._num_data is None:
            raise RuntimeError("num_data is not set: give the number of training examples")
        if math.isnan(self.lr):
            raise RuntimeError('lr="auto" is not decided yet: set a number, or use SGMCMCModule')
        if "target" in needs and self.target is None:
            raise RuntimeError("this sampler needs sampler.attach(target) before its first step")
        stream = self.stream  # made now, so that it refuses mixed types before anything moves
        loss = self._evaluate(closure)
        if "second_gradient" in needs and loss is None:
            raise RuntimeError(
                f"{type(self).__name__} needs a second gradient on the same batch: call "
                "step(closure) with a closure that returns the loss"
            )
        grads = self._gradients()
        learn = not self.preconditioner.frozen
        if learn:
            self.preconditioner.update(grads)
        if "second_gradient" not in needs:
            self._move(grads)
        else:
            moved = [p.neg() for p in self.params]
            change = [g.neg() for g in grads]
            self._move(grads)
            self._evaluate(closure)
            torch._foreach_add_(moved, self.params)
            torch._foreach_add_(change, self._gradients())
            # A pair that reached into masked weights would bend C on the others.
            self.preconditioner.observe(moved, self._masked(change), stream)
        self.steps_taken += 1
        self.gradients += 2 if "second_gradient" in needs else 1
        return loss

    @abstractmethod
    def _move(self, grads: list[Tensor]) -> None:
        """Change the parameters by one step; ``grads`` may be overwritten."""

    def drift(self, grads: list[Tensor]) -> list[Tensor]:
        """Return C (grad mean NLL + grad(-log p) / N), overwriting ``grads``."""
        assert self._num_data is not None
        self.prior.add_gradient_(grads, self.params, 1 / self._num_data)
        if self.masks is not None:
            torch._foreach_mul_(grads, self.masks)
        return self._masked(self.preconditioner.apply_(grads))

    def noise(self) -> list[Tensor]:
        """Draw from N(0, C), zero on masked weights."""
        return self._masked(self.preconditioner.noise(self.stream))

    def _masked(self, vectors: list[Tensor]) -> list[Tensor]:
        if self.masks is not None:
            torch._foreach_mul_(vectors, self.masks)
        return vectors

    def add_prior_gradient_(self) -> None:
        """Add grad(-log p) / N to ``p.grad``: a torch optimizer then descends U / N."""
        assert self._num_data is not None
        grads = self._gradients()
        self.prior.add_gradient_(grads, self.params, 1 / self._num_data)
        if self.masks is not None:
            torch._foreach_mul_(grads, self.masks)

    @torch.no_grad()
    def set_masks(self, masks: Sequence[Tensor] | None) -> None:
        """Hold weights at zero where a mask is zero, for drift and noise; None lifts all masks."""
        self.masks = (
            None
            if masks is None
            else [m.to(p.device, p.dtype) for m, p in zip(masks, self.params, strict=True)]
        )
        self.apply_masks_()

    @torch.no_grad()
    def apply_masks_(self) -> None:
        """Set masked weights to zero."""
        if self.masks is not None:
            torch._foreach_mul_(self.params, self.masks)

    def _evaluate(self, closure: Callable[[], Any] | None) -> Any:
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    def _gradients(self) -> list[Tensor]:
        grads = [p.grad for p in self.params]
        missing = sum(g is None for g in grads)
        if missing:
            raise RuntimeError(
                f"{missing} of {len(grads)} parameters have no gradient: leave unused parameters "
                "out of the sampler (requires_grad=False)"
            )
        return [g for g in grads if g is not None]

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the chain's next step depends on but the weights."""
        state = super().state_dict()
        state["chain"] = {
            "steps_taken": self.steps_taken,
            "gradients": self.gradients,
            "noise": self.stream.state_dict(),
            "preconditioner": self.preconditioner.state_dict(),
            "masks": self.masks,
            "num_data": self._num_data,
            "sampler": type(self).__name__,
        }
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the chain that gave ``state_dict``, to the bit.

        Raises:
            ValueError: If the state belongs to another kind of sampler.
        """
        state_dict = dict(state_dict)
        chain = state_dict.pop("chain", None)
        kind = chain["sampler"] if chain else "a torch optimizer"
        if chain is None or kind != type(self).__name__:
            raise ValueError(f"the state is that of {kind}, not of {type(self).__name__}")
        super().load_state_dict(state_dict)
        self.params = self.param_groups[0]["params"]
        self.steps_taken = chain["steps_taken"]
        self.gradients = chain["gradients"]
        self._num_data = chain["num_data"]
        self.preconditioner.num_data = chain["num_data"] or 1
        self.stream.load_state_dict(chain["noise"])
        self.preconditioner.load_state_dict(chain["preconditioner"])
        masks = chain["masks"]
        self.masks = None if masks is None else [m.to(self.params[0].device) for m in masks]
