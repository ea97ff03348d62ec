"""What every sampler shares: the scale contract, the noise, masks, freezing and state."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor

from lightning_sgmcmc import steps
from lightning_sgmcmc.noise import Generator, Increments, NoiseStream, check_generator
from lightning_sgmcmc.preconditioners import Identity, Preconditioner
from lightning_sgmcmc.priors import FlatPrior, Prior
from lightning_sgmcmc.samplers.gradients import (
    present_gradients,
    refuse_non_finite,
    refuse_not_finite,
)
from lightning_sgmcmc.samplers.watch import Watch, steps_between_looks
from lightning_sgmcmc.target import Target

#: A move and the change of the gradient along it, or what they start from.
Pair = tuple[list[Tensor], list[Tensor]]


class Stacked(list[Any]):
    """Parameters, or pairs of name and parameter, of K chains along their first axis."""


class Sampler(torch.optim.Optimizer):
    """A Markov chain over the parameters, stepped like an optimizer.

    If ``params`` is :class:`Stacked`, or after :meth:`stack`, the parameters are those of K chains
    along their first axis, which run as one computation.

    ``step(closure)`` takes the gradient of the *mean* negative log-likelihood of a minibatch, by
    calling the closure if there is one and from ``p.grad`` otherwise, and moves every parameter.
    Subclasses say how, in :meth:`formula`; :mod:`lightning_sgmcmc.steps` may take the same step by
    a faster implementation, and does so only while nothing that it stands for is overridden.

    Args:
        params: Parameters or one parameter group, as for any torch optimizer; pairs of name and
            parameter where a prior goes by names.
        lr: Step size on the mean loss, positive; ``"auto"`` leaves it to the training loop, which
            sets it from the curvature (:mod:`lightning_sgmcmc.adaptation.stability`).
        num_data: N, the number of training examples; may be set later, before the first step.
        prior: Prior over the weights; None is a flat one. The sampler works with a copy of it.
        preconditioner: The matrix C; None is the identity. The sampler works with a copy of it.
        temperature: T; 1 samples the posterior, 0 optimises.
        seed: Seed of the chain's own noise, the same on every replica.
        chain: Number of the (first) chain, which selects its noise stream.
        noise: The generator of the chain's noise, ``"sfc64"`` or ``"philox"``; None for the
            device's default, ``"sfc64"`` on a CPU and ``"philox"`` elsewhere.

    Raises:
        ValueError: If a value lies outside its range or there are several parameter groups.
    """

    #: The minibatches for which the chain's law is stated: "independent" where it counts gradient
    #: noise, "full" where it allows none.
    batches: Literal["reshuffled", "independent", "full"] = "reshuffled"
    #: The law holds with the minibatches' noise, which is not to be added to the temperature.
    absorbs_gradient_noise = False
    #: The kinetic energy's mean over all weights is held at T, whatever heats it.
    has_thermostat = False
    #: A Metropolis test makes the law exact at every step size.
    corrected = False
    #: Draws are an optimizer's iterates, which count alike in averages unless told otherwise.
    iterates: bool = False
    #: What noise a step takes.
    increments: Increments = "gaussian"
    #: A step adds the metric's Gamma where the metric has one.
    adds_gamma = False
    # Whether a step goes by what its gradients are, so that the host looks at each.
    _looks_at_once = False

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
        noise: Generator | None = None,
    ) -> None:
        if lr != "auto" and not (isinstance(lr, (int, float)) and lr > 0 and math.isfinite(lr)):
            raise ValueError(f'lr must be a positive number or "auto", got {lr!r}')
        if not (isinstance(temperature, (int, float)) and 0 <= temperature < math.inf):
            raise ValueError(f"temperature must be finite and not negative, got {temperature!r}")
        for what, number in (("seed", seed), ("chain", chain)):
            if number != int(number) or number < 0:
                raise ValueError(f"{what} must be a whole number, not negative, got {number!r}")
        check_generator(noise)
        if not self.adds_gamma and getattr(preconditioner, "gamma_probes", None) is not None:
            raise ValueError(f"{self.name} has no Gamma term: leave gamma_probes at None")
        self.auto_lr = lr == "auto"
        self.chain_dims = int(isinstance(params, Stacked))
        super().__init__(params, {"lr": math.nan if lr == "auto" else float(lr)})
        own = self.param_groups[0]["lr"]  # which a group may state by itself
        if not (self.auto_lr or 0 < own < math.inf):
            raise ValueError(f"lr must be positive and finite, got {own}")
        self.params: list[Tensor] = self.param_groups[0]["params"]
        # Copies: what is attached to these parameters is not another chain's.
        self.prior: Prior = copy.copy(prior) if prior is not None else FlatPrior()
        self.preconditioner: Preconditioner = copy.copy(preconditioner) or Identity()
        self.temperature, self.seed, self.chain = float(temperature), int(seed), int(chain)
        #: The generator that was asked for, None for the device's default.
        self.generator = noise
        self.masks: list[Tensor] | None = None
        self.target: Target | None = None
        self._stream: NoiseStream | None = None
        self._num_data: int | None = None
        #: N where the sampler was given it.
        self.given_num_data = num_data
        #: Examples in a minibatch, 0 where that is not known; the chain sets it.
        self.batch_size = 0
        if num_data is not None:
            self.num_data = num_data
        self.steps_taken = 0
        #: What computed the last move, :data:`~lightning_sgmcmc.steps.FORMULA` or a faster one.
        self.implementation = steps.FORMULA
        #: Minibatch gradients used so far.
        self.gradients = 0
        self._one_generator = False
        self._pair: Any = ()
        self._watch = Watch(self._judge)
        names = self.param_groups[0].get("param_names")
        self.names: list[str] | None = list(names) if names is not None else None
        self._attach()

    def _attach(self) -> None:
        if self.chain_dims:
            lengths = {tuple(p.shape[:1]) for p in self.params}
            if len(lengths) != 1 or () in lengths:
                raise ValueError("stacked chains lie along the first axis of every parameter")
        self.preconditioner.attach(self.params, self.chain_dims)
        if self.chain_dims and self.unstackable:
            raise ValueError(f"{self.name} cannot run stacked chains: {self.unstackable}")
        self.prior.attach(self.params, self.chain_dims, self.names)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take the parameters, which are of one group.

        Raises:
            ValueError: For another group, or an option of a group that no sampler has.
        """
        if self.param_groups:
            raise ValueError(
                "a chain has one parameter group, got another: scale parameters by the "
                "preconditioner, and priors by the prior"
            )
        unknown = sorted(param_group.keys() - {"params", "lr", "initial_lr", "param_names"})
        if unknown:
            raise ValueError(
                f"a parameter group's {', '.join(unknown)} would change nothing: give the "
                "sampler's options as arguments, and a weight decay as a GaussianPrior"
            )
        if self.auto_lr and "lr" in param_group:
            raise ValueError(f'lr is "auto" and {param_group["lr"]} in the group: give one of them')
        super().add_param_group(param_group)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a chain that goes on as this one, of copied parameters, without its hooks."""
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        hooks = ("step", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
        own = {name: value for name, value in self.__dict__.items() if name not in hooks}
        new.__setstate__(copy.deepcopy(own, memo))
        return new

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be pickled.

        Raises:
            TypeError: Always.
        """
        raise TypeError(f"{self.name} cannot be pickled: save its state_dict() and the weights")

    def stack(self, one_generator: bool = False) -> None:
        """Take the first axis of every parameter for K chains, numbered from ``chain`` on.

        Chain k then moves as it would alone, with the noise stream ``chain + k``.
        Parameters given as :class:`Stacked` are so from the start, which spares a metric with a
        matrix over all weights from being made for the K chains as one.

        Args:
            one_generator: Serve the noise of all chains from the first one's generator, for
                thousands of chains none of which needs to run alone.

        Raises:
            ValueError: If the parameters have no common first axis, or the preconditioner cannot
                be stacked (it says why; :class:`ChainsInTurn` runs such chains).
        """
        self.chain_dims, self._one_generator, self._stream = 1, one_generator, None
        self._attach()

    @property
    def unstackable(self) -> str | None:
        """Why chains of this sampler cannot be stacked, None where they can."""
        return self.preconditioner.unstackable

    @property
    def name(self) -> str:
        """The sampler's name."""
        return type(self).__name__

    def caveats(self, frozen: bool) -> list[str]:
        """Return, in words, what the draws are instead of draws of exp(-U/T); nothing by default.

        Args:
            frozen: Whether :meth:`freeze` is called before the first draw.
        """
        return []

    def set_first_chain(self, chain: int) -> None:
        """Number the chain, or the first of stacked chains, before its first step."""
        self.chain, self._stream = chain, None

    @property
    def num_chains(self) -> int | None:
        """K, the number of stacked chains; None for a single one."""
        return self.params[0].shape[0] if self.chain_dims else None

    @property
    def num_parameters(self) -> int:
        """Number of weights of one chain."""
        return sum(p.shape[self.chain_dims :].numel() for p in self.params)

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
        """What the chain needs beyond a gradient.

        ``"second_gradient"`` on the same batch after the move, ``"target"`` for curvature,
        ``"per_example"`` gradients from ``target.per_example``.
        """
        needs = set()
        if self.preconditioner.needs_second_gradient and not self.preconditioner.frozen:
            needs.add("second_gradient")
        if self.preconditioner.needs_target:
            needs.add("target")
        if self.preconditioner.needs_per_example and not self.preconditioner.frozen:
            needs.add("per_example")
        return frozenset(needs)

    def attach(self, target: Target) -> None:
        """Give the sampler what it needs beyond a gradient."""
        self.target = target
        target.uniform = self.uniform
        self.preconditioner.bind(target)

    @property
    def stream(self) -> NoiseStream:
        """The chain's own noise, made on the parameters' device when first used."""
        if self._stream is None or self._stream.device != self.params[0].device:
            state, generator = None, self.generator
            if self._stream is not None:
                state = self._stream.state_dict()
                # Philox makes its numbers on any device, and so goes on where the weights move.
                generator = generator or ("philox" if "philox" in state else None)
            self._stream = NoiseStream(
                self.params,
                self.seed,
                self.chain,
                self.num_chains,
                self._one_generator,
                self.increments,
                generator,
            )
            if state is not None:
                self._stream.load_state_dict(state)
        return self._stream

    def uniform(self, *shape: int) -> Tensor:
        """Draw from U[0, 1) of the chain's own noise, [*shape] or [K, *shape]."""
        return self.stream.uniform(*shape)

    def freeze(self) -> None:
        """Make C and the prior's hyper-parameters constants; call it where burn-in ends."""
        self.preconditioner.freeze()
        self.prior.freeze()

    def check_burn_in(self, steps: int) -> None:
        """Raise ValueError if ``steps`` of burn-in by the sampler itself are too few to freeze."""

    def refresh(self) -> None:
        """Draw anew what the chain carries beside its weights, such as a velocity."""

    @property
    def overdamped(self) -> bool:
        """False: momentum would not serve, or is there."""
        return False

    def max_stable_lr(self, eigenvalue: float) -> float:
        """Return the step size at which the chain becomes unstable on a quadratic.

        Args:
            eigenvalue: lambda_max(C^(1/2) H C^(1/2)), H the Hessian of U/N.
        """
        return 2 / eigenvalue

    def variance_bias(self, fraction: float) -> float:
        """Return by how much the step size inflates the variance along the stiffest direction.

        Args:
            fraction: The step size as a fraction of the largest stable one.

        Returns:
            The relative excess on a Gaussian with exact gradients, an upper bound over all
            directions: f / (1 - f) for Euler-Maruyama.
        """
        return fraction / (1 - fraction)

    def recursion(self, lr: float) -> tuple[float, float]:
        """Return mu and h of the recursion that the chain's coordinates follow on a quadratic.

        A coordinate x with curvature lambda, that gradient noise xi moves, goes, beside its thermal
        part, as x' = (1 + mu - h lambda) x - mu x_before - h xi.

        Args:
            lr: The step size.

        Returns:
            0 and lr, those of Euler-Maruyama.
        """
        return 0.0, lr

    def counted_noise(self, lr: float) -> float:
        """Return the share of the injected noise that is left to the minibatches; 0 by default."""
        return 0.0

    def set_lr(self, lr: float) -> None:
        """Change the step size, also for a scheduler made after this call.

        Raises:
            ValueError: If it is negative or not finite.
        """
        if not 0 <= lr < math.inf:
            raise ValueError(f"lr must be finite and not negative, got {lr}")
        group = self.param_groups[0]
        group["lr"] = group["initial_lr"] = lr

    @property
    def gradients_per_step(self) -> int:
        """Minibatch gradients that a step of the chain takes."""
        return 2 if "second_gradient" in self.needs else 1

    def draw_weight(self) -> float:
        """Return the time of a step, the weight of the state that it made: the step size."""
        return self.lr

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the chain by one step.

        Args:
            closure: Zeroes the gradients, computes the mean NLL of the minibatch, calls backward
                and returns the loss, [] or [K]. Needed where the sampler needs a second gradient.

        Returns:
            What the closure returned at the old weights.

        Raises:
            RuntimeError: If N or the step size is unknown, a closure or target is needed and
                missing, or a gradient is missing, sparse or not finite. Nothing has moved then,
                but on a GPU, where a gradient that is not finite is found some steps later
                (:meth:`look_back`).
            ValueError: If the prior does not fit the parameters; nothing has moved either.
        """
        self._check_ready()
        loss = self._evaluate(closure)
        if "second_gradient" in self.needs and loss is None:
            raise RuntimeError(
                f"{type(self).__name__} needs a second gradient on the same batch: call "
                "step(closure) with a closure that returns the loss"
            )
        pair = self._advance(self._gradients())
        if pair is not None:
            self._evaluate(closure)
            self._learn(pair, self._gradients())
        if self.prior.adaptive and not self.prior.frozen:
            self.prior.update(self.params)
        return loss

    def _check_ready(self) -> None:
        """Raise where a step cannot be taken, before anything is computed."""
        self.prior.check()
        if self._num_data is None:
            raise RuntimeError("num_data is not set: give the number of training examples")
        if math.isnan(self.lr):
            raise RuntimeError('lr="auto" is not decided yet: set a number, or use SGMCMCModule')
        if self.needs & {"target", "per_example"} and self.target is None:
            raise RuntimeError("this sampler needs sampler.attach(target) before its first step")
        _ = self.stream  # made now, so that it refuses mixed types before anything moves

    def _advance(self, grads: list[Tensor]) -> Pair | None:
        """Learn from a gradient and move; return what the second gradient completes, if any."""
        wants_pair = "second_gradient" in self.needs
        if not self.preconditioner.frozen:
            steps.update(self.preconditioner, grads, self.params, self.stream)
        pair = None
        if wants_pair:
            pair = self._start_pair(grads)
        self._move(grads)
        self.steps_taken += 1
        self.gradients += 1
        return pair

    def show(self, grads: list[Tensor]) -> None:
        """Let C learn from a gradient without a move; it counts as one.

        Args:
            grads: The mean likelihood gradient at the current weights.
        """
        steps.update(self.preconditioner, grads, self.params, self.stream)
        self.gradients += 1

    def _start_pair(self, grads: list[Tensor]) -> Pair:
        """Return minus the weights and minus the gradient, in memory kept for it."""
        if not self._pair or self._pair[0][0].device != self.params[0].device:
            self._pair = tuple([torch.empty_like(p) for p in self.params] for _ in range(2))
        moved, change = self._pair
        for source, negative in zip([*self.params, *grads], [*moved, *change], strict=True):
            torch.neg(source, out=negative)
        return moved, change

    def _learn(self, pair: Pair, grads: list[Tensor]) -> None:
        """Show the preconditioner the move and the change of the gradient along it."""
        if self.masks is not None:
            # A pair that reached into masked weights would bend C on the others.
            grads = list(torch._foreach_mul(grads, self.masks))
            self._masked(pair[1])
        steps.observe(self.preconditioner, pair, self.params, grads, self.stream)
        self.gradients += 1

    def _move(self, grads: list[Tensor]) -> None:
        """Take :meth:`formula`'s step, by whatever implementation stands for it."""
        self.implementation = steps.move(self, grads)

    @abstractmethod
    def formula(self, grads: list[Tensor]) -> None:
        """Change the parameters by one step, in plain torch.

        Args:
            grads: The mean likelihood gradient; may be overwritten.
        """

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
        shapes = [p.shape for p in self.params]
        if masks is not None and [m.shape for m in masks] != shapes:
            raise ValueError(
                f"masks must have the shapes of the parameters, {[list(s) for s in shapes]}, got "
                f"{[list(m.shape) for m in masks]}"
            )
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
        """Return the gradients; raises if one is missing, sparse or not finite.

        On a GPU the largest entry of each is left to :meth:`look_back`.
        """
        grads = present_gradients(self.params)
        if self._looks_at_once or steps_between_looks(grads[0].device) == 1:
            if not math.isfinite(float(sum(g.sum() for g in grads))):
                refuse_non_finite(grads, self.names, self._where(self.steps_taken, self.lr))
        else:
            largest = torch.stack(torch._foreach_norm(grads, math.inf))
            self._watch.see(largest, (self.steps_taken, self.lr))
        return grads

    def look_back(self) -> None:
        """Wait for the device, and check the gradients of steps that were not looked at yet.

        On a GPU a step only queues work. The host looks at its gradients within 100 steps, and
        wherever something of the chain is kept: before a draw, in :meth:`state_dict`, and where
        burn-in ends. Until then the chain may have moved on from a gradient that is not finite;
        from then on it raises.

        Raises:
            NonFiniteGradientError: If one was not finite; names the step.
        """
        self._watch.look()

    def _judge(self, largest: Tensor, at: tuple[int, float]) -> None:
        wrong = [not math.isfinite(value) for value in largest.tolist()]
        refuse_not_finite(wrong, self.names, self._where(*at))

    @staticmethod
    def _where(step: int, lr: float) -> str:
        return f"at the sampler's step {step} with step size {lr:.3g}"

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the chain's next step depends on but the weights.

        Its tensors are the chain's own, as of any torch optimizer: copy it if the chain goes on.

        Raises:
            NonFiniteGradientError: If the chain has gone on from one: see :meth:`look_back`.
        """
        self.look_back()
        state = super().state_dict()
        state["chain"] = {
            "steps_taken": self.steps_taken,
            "gradients": self.gradients,
            # Where the weights have moved since, as after a fit on a GPU, its place is still known.
            "noise": (self._stream or self.stream).state_dict(),
            "preconditioner": self.preconditioner.state_dict(),
            "prior": self.prior.state_dict(),
            "masks": self.masks,
            "num_data": self._num_data,
            "sampler": type(self).__name__,
            "kinds": [type(self.preconditioner).__name__, type(self.prior).__name__],
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
        own = [type(self.preconditioner).__name__, type(self.prior).__name__]
        kinds = chain.get("kinds", own)
        if kinds != own:
            raise ValueError(
                f"the state is that of a chain with {' and '.join(kinds)}, not with "
                f"{' and '.join(own)}"
            )
        super().load_state_dict(state_dict)
        self._watch.forget()
        self.params = self.param_groups[0]["params"]
        self.steps_taken = chain["steps_taken"]
        self.gradients = chain["gradients"]
        self._num_data = chain["num_data"]
        self.preconditioner.num_data = chain["num_data"] or 1
        self.stream.load_state_dict(chain["noise"])
        self.preconditioner.load_state_dict(chain["preconditioner"])
        self.prior.load_state_dict(chain["prior"])
        masks = chain["masks"]
        self.masks = None if masks is None else [m.to(self.params[0].device) for m in masks]
