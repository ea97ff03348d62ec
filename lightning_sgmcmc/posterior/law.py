"""The posterior predictive law of given inputs, from stored draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_sgmcmc.chain import Task
from lightning_sgmcmc.metrics import Moments
from lightning_sgmcmc.posterior.predict import MEMORY, Load, cut, ensemble, evaluate, num_examples


class PredictiveLaw(Moments):
    """p(y | x, data), the mixture over draws w_k with weights q_k of the task's p(y | x, w_k).

    Mean, deviations and intervals are at hand. :meth:`sample` and :meth:`log_density` are of the
    mixture itself and go through the draws again.

    Args:
        module: The module, whose own weights are left as they are.
        draws: See :class:`~lightning_sgmcmc.posterior.predict.Plan`.
        weights: Their weights, which sum to one, [number of draws], in float64.
        x: What the module's ``law`` takes, [B, ...].
        memory: Working memory: see :class:`~lightning_sgmcmc.posterior.predict.Plan`.
    """

    @torch.no_grad()
    def __init__(
        self,
        module: Task,
        draws: Sequence[Load],
        weights: Tensor,
        x: Any,
        memory: int | str = MEMORY,
    ) -> None:
        law = type(module.law(cut(x, slice(0, 1))))
        found = ensemble(module, draws, weights, "moments", x, memory)
        super().__init__(law, found.mean, found.std, found.noise)
        self._module, self._draws, self._weights = module, draws, weights
        self._x, self._memory = x, memory

    def log_density(self, y: Tensor) -> Tensor:
        """Return log sum_k q_k p(y | x, w_k) of each example's whole target, [B], in nats."""
        log_q = self._weights.log()
        total = torch.empty(0)
        for block in evaluate(self._module, self._draws, "nll", (self._x, y), self._memory):
            nll = block.outputs[0].double()
            if not total.numel():
                total = nll.new_full((num_examples(y),), -torch.inf)
            terms = log_q[block.draws, None].to(nll.device) - nll
            part = block.examples
            total[part] = torch.logaddexp(total[part], terms.logsumexp(0))
        return total

    def sample(self, num: int, generator: torch.Generator | None = None) -> Tensor:
        """Return samples of the mixture, [num, B, ...].

        A sample takes one draw of the weights for all examples, so that it is a sample of their
        joint law. Draws are taken by their weights.

        Args:
            num: Number of samples, positive.
            generator: On the module's device; torch's own if there is none.

        Raises:
            ValueError: If ``num`` is not positive.
            TypeError: If the task states no law.
        """
        if num < 1:
            raise ValueError(f"num must be positive, got {num}")
        q = self._weights if generator is None else self._weights.to(generator.device)
        chosen = torch.multinomial(q, num, replacement=True, generator=generator).cpu()
        used = sorted(set(chosen.tolist()))
        draws, size = [self._draws[i] for i in used], num_examples(self._x)
        samples = torch.empty(0)
        for block in evaluate(self._module, draws, "law_parameters", self._x, self._memory):
            for i, parameters in enumerate(zip(*block.outputs, strict=True), block.draws.start):
                law = self.law(*parameters)
                for place in (chosen == used[i]).nonzero().flatten().tolist():
                    y = law.sample(generator)
                    if not samples.numel():
                        samples = y.new_zeros(num, size, *y.shape[1:])
                    samples[place, block.examples] = y
        return samples
