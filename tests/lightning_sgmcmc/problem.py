"""A small classification problem in float64 that the tests of the core share."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_sgmcmc import Sampler, Target
from lightning_sgmcmc.target import PerExample
from tests.device import DEVICE

N = 40


class Problem:
    """A net 4-5-3 with tanh, its data, and its closure on minibatches of eight in a fixed order."""

    def __init__(
        self, dtype: torch.dtype = torch.float64, seed: int = 0, device: torch.device = DEVICE
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)
        with torch.no_grad():
            for p in self.net.parameters():
                p.copy_(0.4 * torch.randn(p.shape, generator=generator, dtype=dtype))
        self.net.to(device)
        self.x = torch.randn(N, 4, generator=generator, dtype=dtype).to(device)
        self.y = torch.randint(3, (N,), generator=generator).to(device)
        self.params = list(self.net.parameters())
        self.step_number = 0

    def nll(self, batch: Any) -> Tensor:
        x, y = batch
        return functional.cross_entropy(self.net(x), y, reduction="none")

    def batch(self, step: int) -> Any:
        rows = (torch.arange(8, device=self.y.device) + 8 * step) % N
        return self.x[rows], self.y[rows]

    def target(self, prior: Any = None) -> Target:
        target = Target(self.nll, self.params, N, prior)
        names = [name for name, _ in self.net.named_parameters()]
        target.per_example = PerExample(self.net, names, self.params, self.nll)
        target.draw_labels = self.draw_labels
        return target

    def draw_labels(self, batch: Any, uniforms: Tensor) -> Any:
        """Return the batch with labels that fall where a uniform number meets the model's CDF."""
        with torch.no_grad():
            below = self.net(batch[0]).softmax(-1).cumsum(-1) < uniforms
        return batch[0], below.sum(-1).clamp_max(2)

    def run(self, optimizer: torch.optim.Optimizer, steps: int) -> Tensor:
        """Take steps, return the weights as one vector."""
        for _ in range(steps):
            batch = self.batch(self.step_number)
            if isinstance(optimizer, Sampler) and optimizer.batches == "full":
                batch = (self.x, self.y)
            self.step_number += 1

            recording: Callable[[], Any] = nullcontext
            if isinstance(optimizer, Sampler) and optimizer.target is not None:
                optimizer.target.use(batch)
                if "per_example" in optimizer.needs:
                    recording = optimizer.target.recording

            def closure(batch: Any = batch, recording: Any = recording) -> Tensor:
                optimizer.zero_grad()
                with recording():
                    loss = self.nll(batch).mean()
                    loss.backward()
                return loss

            optimizer.step(closure)
        return self.weights()

    def weights(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.params]).clone()

    def twin(self) -> Problem:
        return copy.deepcopy(self)


Build = Callable[..., Sampler]
