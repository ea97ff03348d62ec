"""How a chain estimates the gradient of the mean negative log-likelihood from a minibatch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_sgmcmc.common.arguments import shown
from lightning_sgmcmc.common.vectors import per_chain
from lightning_sgmcmc.target.potential import Batch, Target

#: Yields this process's share of the whole data, in batches.
WholeData = Callable[[], Iterator[Batch]]


class GradientEstimator:
    """An unbiased estimate of the gradient of the mean NLL of the data, from a minibatch.

    It is the minibatch's gradient at the chain's weights plus :meth:`correction`, a vector of mean
    zero over minibatches. A chain works with a copy of the estimator that it is given.
    """

    #: Whether the estimator needs a pass over the data, hence a
    #: :class:`~lightning_sgmcmc.BatchStream`.
    needs_whole_data = False
    #: Whether the estimate is the gradient of all the data, without noise.
    exact = False

    def __init__(self) -> None:
        #: Minibatch gradients computed besides those at the chain's weights.
        self.evaluations = 0

    def bind(self, target: Target, whole_data: WholeData, cost: int) -> None:
        """Take the chain's target and data.

        Args:
            target: The potential.
            whole_data: Yields this process's share of the data, in batches no larger than its
                share of a minibatch.
            cost: Minibatches that a pass over the data counts for.
        """

    def prepare(
        self, step: int, start: int, burn_in: int, masks: Sequence[Tensor] | None = None
    ) -> None:
        """Do what is due before a gradient is estimated; nothing if it has been done.

        Args:
            step: Steps that the chain has taken.
            start: Steps of the burn-in optimizer, after which the sampler takes over.
            burn_in: Steps after which burn-in ends.
            masks: Zero where a weight is held at zero; None where none is.
        """

    def correction(self, batch: Batch) -> list[Tensor] | None:
        """Return what to add to the gradient of a minibatch, averaged over ranks; None for 0."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return everything that later estimates depend on."""
        return {"evaluations": self.evaluations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state, also that of another kind of estimator."""
        self.evaluations = state["evaluations"]

    def __repr__(self) -> str:
        return shown(self)


class Minibatch(GradientEstimator):
    """The minibatch's gradient as it is, the default."""


class ControlVariate(GradientEstimator):
    """The minibatch's gradient less its value at a fixed centre, plus the whole data's there.

    With G the gradient of the mean NLL of all N examples, G_B that of a minibatch B of n, and c
    the centre,

        g(theta) = G_B(theta) - G_B(c) + G(c).

    Its mean is G(theta). For independent minibatches its covariance is that over examples i of
    grad_i(theta) - grad_i(c), divided by n: zero at the centre, and it grows with the squared
    distance from it. At a few posterior deviations from the centre it is far below the plain
    minibatch's noise; far away it is above it.

    The centre is where the sampler takes over from the burn-in optimizer. From a mode, the chain's
    mean squared distance is half that from a draw, so the centre stays there, unless the potential
    is lower where burn-in ends: the optimizer then had not arrived, and the centre moves to the
    chain, once. Without an optimizer, the sampler burns in on plain minibatches, and the centre is
    where burn-in ends. Each of K chains has a centre of its own. G(c) is computed where the centre
    is taken, and again where burn-in ends: from there on the likelihood's constants (a noise scale
    that follows the residuals) and the masks no longer change.

    A step costs two gradients of its minibatch, G(c) as much as a pass over the data.

    Source: Baker, Fearnhead, Fox, Nemeth 2019, whose SGLD-CV is ``SGLD`` with it.
    """

    needs_whole_data = True

    def __init__(self) -> None:
        super().__init__()
        self.centre: list[Tensor] | None = None
        self.gradient: list[Tensor] = []
        self.since = 0

    def bind(self, target: Target, whole_data: WholeData, cost: int) -> None:
        """Take the chain's target and data.

        Raises:
            ValueError: If the likelihood has random layers.
        """
        self._target, self._whole_data, self._cost = target, whole_data, cost
        batch = next(whole_data())
        with torch.no_grad():
            first, second = target.nll(batch), target.nll(batch)
        if not torch.allclose(first, second, rtol=1e-3, equal_nan=True):
            raise ValueError(
                f"{type(self).__name__} needs the same loss of the same examples at the same "
                "weights, and this one changes from one evaluation to the next: take dropout and "
                "other random layers out, or use plain minibatches"
            )
        if self.centre is not None:
            device = target.params[0].device
            self.centre = [c.to(device) for c in self.centre]
            self.gradient = [g.to(device) for g in self.gradient]

    def prepare(
        self, step: int, start: int, burn_in: int, masks: Sequence[Tensor] | None = None
    ) -> None:
        """Take the centre, or choose it anew, where that is due."""
        if step < self._first(start, burn_in):
            return
        if self.centre is None or self._moves(step, burn_in):
            centre = [p.detach().clone() for p in self._target.params]
            self.centre, (self.gradient, _) = centre, self._measured(centre)
        elif self.since < burn_in <= step:
            self.follow(masks)
        else:
            return
        self.since = step

    def _first(self, start: int, burn_in: int) -> int:
        """Return the step before which there is no centre."""
        return start or burn_in

    def _moves(self, step: int, burn_in: int) -> bool:
        """Return whether the centre moves to where the chain is after ``step`` steps."""
        return False

    def follow(self, masks: Sequence[Tensor] | None = None) -> None:
        """Keep the centre or move it to the chain, wherever the potential is lower.

        Args:
            masks: Zero where a weight is held at zero; None where none is.
        """
        assert self.centre is not None
        here = [p.detach().clone() for p in self._target.params]
        if masks is not None:
            torch._foreach_mul_(self.centre, list(masks))
        gradient, potential = self._measured(here)
        old_gradient, old_potential = self._measured(self.centre)
        lower = potential < old_potential
        for old, new in zip(self.centre + old_gradient, here + gradient, strict=True):
            old.copy_(torch.where(per_chain(lower, old), new, old))
        self.gradient = old_gradient

    def _measured(self, weights: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """Return the gradient of all the data, and U, at some weights."""
        target = self._target
        gradient = [torch.zeros_like(w) for w in weights]
        nll = weights[0].new_zeros(weights[0].shape[: target.chain_dims], dtype=torch.float64)
        count = torch.zeros_like(nll)
        with target.holding(weights), torch.enable_grad():
            for batch in self._whole_data():
                each = target.nll(batch)
                grads = torch.autograd.grad(each.sum(), target.params)
                torch._foreach_add_(gradient, grads)
                nll += each.detach().double().sum(-1)
                count += each.shape[-1]
            log_prior = target.prior.log_density(target.params).detach()
        # Averages over ranks: each has summed over its own examples.
        target.reduced([*gradient, nll, count])
        torch._foreach_div_(gradient, float(count.max()))
        self.evaluations += self._cost
        return gradient, target.num_data * nll / count - log_prior

    def correction(self, batch: Batch) -> list[Tensor] | None:
        """Return G(c) - G_B(c), None where there is no centre yet."""
        if self.centre is None:
            return None
        with self._target.holding(self.centre):
            grads = self._target.gradient(batch)
        return list(torch._foreach_sub(self.gradient, grads))

    def state_dict(self) -> dict[str, Any]:
        """Return the centre and the gradient there."""
        own = {"centre": self.centre, "gradient": self.gradient, "since": self.since}
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the centre of a state, with none yet where it has none."""
        super().load_state_dict(state)
        self.centre = state.get("centre")
        self.gradient, self.since = state.get("gradient", []), state.get("since", 0)


class FullGradient(ControlVariate):
    """The gradient of all the data at every step, from where a control variate takes its centre.

    It is the minibatch's gradient plus G(theta) - G_B(theta), and has no noise. A step costs a pass
    over the data and two gradients of its minibatch. A run that has it from the start is cheaper on
    a :class:`~lightning_sgmcmc.BatchStream` with ``sampling="full"``; this one is for a chain that
    burns in on minibatches.
    """

    exact = True

    def __init__(self) -> None:
        super().__init__()
        self.active = False

    def prepare(
        self, step: int, start: int, burn_in: int, masks: Sequence[Tensor] | None = None
    ) -> None:
        """Start where the sampler takes over, or where burn-in ends."""
        self.active = step >= self._first(start, burn_in)

    def correction(self, batch: Batch) -> list[Tensor] | None:
        """Return G(theta) - G_B(theta), None where that is not due yet."""
        if not self.active:
            return None
        gradient, _ = self._measured([p.detach().clone() for p in self._target.params])
        return list(torch._foreach_sub(gradient, self._target.gradient(batch)))


class SVRG(ControlVariate):
    """A control variate whose centre follows the chain: stochastic variance-reduced gradients.

    The estimate is :class:`ControlVariate`'s. The centre moves to the chain's weights every so
    many steps, from the sampler's first on, in burn-in too, and where burn-in ends.

    A step costs two gradients of its minibatch, a new centre as much as one pass over the data:
    at ``recentre`` = N/n, as many steps as a pass has minibatches, three gradients a step.

    Sources: Johnson and Zhang 2013; for Langevin dynamics Dubey et al. 2016 (SVRG-LD).

    Args:
        recentre: Steps between two centres.

    Raises:
        ValueError: If ``recentre`` is not positive.
    """

    def __init__(self, recentre: int) -> None:
        super().__init__()
        if recentre < 1:
            raise ValueError(f"recentre must be at least 1, got {recentre}")
        self.recentre = int(recentre)

    def _first(self, start: int, burn_in: int) -> int:
        return start

    def _moves(self, step: int, burn_in: int) -> bool:
        return step - self.since >= self.recentre or self.since < burn_in <= step
