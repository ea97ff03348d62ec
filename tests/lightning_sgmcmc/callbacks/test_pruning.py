"""Pruned weights are zero from then on, and the rest is a chain on the smaller network."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import nn

from lightning_sgmcmc import HASGLD, PSGLD, SGHMC, GaussianPrior, load_posterior
from lightning_sgmcmc.callbacks import GradualPruning
from lightning_sgmcmc.chain.burn_in import OptimizerBurnIn
from tests.toy import NUM_FEATURES, Toy, ToyData, trainer

PRIOR = GaussianPrior(variance=4.0)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(NUM_FEATURES, 20), nn.Tanh(), nn.Linear(20, 1))


@pytest.mark.parametrize("scope", ["layer", "network"])
@pytest.mark.parametrize(
    "sampler",
    [
        partial(PSGLD, lr=1e-3, prior=PRIOR),
        partial(HASGLD, lr=0.05, prior=PRIOR),
        partial(SGHMC, lr=1e-3, prior=PRIOR),
    ],
    ids=["psgld", "hasgld", "sghmc"],
)
def test_pruned_weights_stay_zero_in_every_draw(tmp_path: Path, sampler: Any, scope: Any) -> None:
    burn_in = OptimizerBurnIn(partial(torch.optim.Adam, lr=1e-2), 20)
    module = Toy(sampler, net(), burn_in=40, thinning=2, burn_in_optimizer=burn_in)
    pruning = GradualPruning(0.6, start=5, stop=30, every=5, scope=scope)
    trainer(tmp_path, 60, [pruning]).fit(module, datamodule=ToyData())
    masks = None
    for draw in load_posterior(tmp_path, Toy(net=net())):
        weights = [p for p in draw.parameters() if p.dim() > 1]
        zero = [p == 0 for p in weights]
        if masks is not None:
            assert all(torch.equal(a, b) for a, b in zip(masks, zero, strict=True))
        masks = zero
        pruned = sum(int(z.sum()) for z in zero)
        total = sum(p.numel() for p in weights)
        assert pruned == pytest.approx(0.6 * total, abs=1)
        if scope == "layer":
            assert all(int(z.sum()) == round(0.6 * z.numel()) for z in zero)
        assert all(bool((p != 0).all()) for p in draw.parameters() if p.dim() == 1)


def test_an_optimizer_does_not_move_pruned_weights(tmp_path: Path) -> None:
    """They are zero after each of its steps from the first pruning on, whatever Adam remembers."""
    pruned: list[int] = []

    class Count(L.Callback):
        def on_train_batch_end(self, run: L.Trainer, module: Any, *args: Any) -> None:
            pruned.append(sum(int((p == 0).sum()) for p in module.net.parameters()))

    burn_in = OptimizerBurnIn(partial(torch.optim.Adam, lr=1e-2), 12)
    sampler = partial(PSGLD, lr=1e-3, prior=PRIOR)
    module = Toy(sampler, net(), burn_in=15, burn_in_optimizer=burn_in)
    pruning = GradualPruning(0.5, start=0, stop=8, every=4)
    trainer(tmp_path, 16, [pruning, Count()]).fit(module, datamodule=ToyData())
    middle = round(0.5 * (1 - 0.5**3) * 60) + round(0.5 * (1 - 0.5**3) * 20)
    assert pruned == [0] * 3 + [middle] * 4 + [40] * 9


def test_the_smallest_weights_go_first() -> None:
    weight = torch.tensor([[0.1, -3.0, 0.2, 5.0, -0.05]])
    bias = torch.tensor([1e-9])
    masks = GradualPruning(0.5, 0, 10).masks([weight, bias], 0.4)
    assert masks[0].tolist() == [[0, 1, 1, 1, 0]]
    assert masks[1].tolist() == [1]


def test_rate_grows_along_the_cubic() -> None:
    pruning = GradualPruning(0.8, start=10, stop=30)
    assert pruning.rate_at(10) == 0
    assert pruning.rate_at(20) == pytest.approx(0.8 * (1 - 0.5**3))
    assert pruning.rate_at(30) == pruning.rate_at(99) == pytest.approx(0.8)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
def test_rate_outside_its_range_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="sparse rate must lie in"):
        GradualPruning(rate, 0, 10)


def test_pruning_after_burn_in_is_refused(tmp_path: Path) -> None:
    module = Toy(burn_in=10)
    with pytest.raises(ValueError, match="pruning must end before draws"):
        trainer(tmp_path, 20, [GradualPruning(0.5, 0, 15)]).fit(module, datamodule=ToyData())


@pytest.mark.parametrize("memory", [1, 2])
def test_a_masked_metric_is_that_of_the_smaller_problem(memory: int) -> None:
    """At T = 0 a chain with masked weights moves as one that never had them."""
    rng = torch.Generator().manual_seed(0)
    root = torch.randn(6, 6, generator=rng, dtype=torch.float64)
    hessian = root @ root.T + torch.eye(6, dtype=torch.float64)
    start = torch.randn(6, generator=rng, dtype=torch.float64)
    ends = []
    for free in (slice(0, 6), slice(0, 4)):
        weight = start[free].clone()
        if free.stop == 6:
            weight[4:] = 0
        weight.requires_grad_()
        a = hessian[free, free]
        sampler = HASGLD([weight], lr=0.3, memory=memory, num_data=1, temperature=0.0)
        if free.stop == 6:
            sampler.set_masks([torch.tensor([1.0, 1, 1, 1, 0, 0], dtype=torch.float64)])

        def closure(weight: torch.Tensor = weight, a: torch.Tensor = a) -> torch.Tensor:
            weight.grad = None
            loss = 0.5 * weight @ a @ weight
            loss.backward()
            return loss

        for _ in range(15):
            # The first metric is scaled by the whole gradient; start both from the same one.
            sampler.preconditioner._count = max(sampler.preconditioner._count, 1)
            sampler.step(closure)
        ends.append(weight.detach()[:4])
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-10, atol=1e-12)
