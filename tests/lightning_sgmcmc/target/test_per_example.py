"""Sums over per-example gradients against a loop over examples."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional

from lightning_sgmcmc.common.functional import FunctionalCall
from lightning_sgmcmc.target import PerExample
from lightning_sgmcmc.target import per_example as implementation

B, CLASSES = 6, 3


class Sequences(nn.Module):
    """Embedding, linear layers on [B, T, in], and one on the axis of time."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.hidden = nn.Embedding(7, 4), nn.Linear(4, 5)
        self.norm, self.time, self.out = nn.LayerNorm(5), nn.Linear(4, 2), nn.Linear(10, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(torch.tanh(self.hidden(self.embed(x))))
        return self.out(self.time(h.transpose(1, 2)).flatten(1))


class Twice(nn.Module):
    """A layer used twice, one tied to another, and one whose weight is used outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.one, self.two = (nn.Linear(4, 4) for _ in range(3))
        self.two.weight = self.one.weight
        self.outside, self.out = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.twice(torch.tanh(self.twice(x))))
        h = torch.tanh(self.two(torch.tanh(self.one(h))))
        return self.out(torch.tanh(self.outside(h)) @ self.outside.weight)


class TimeFirst(nn.Module):
    """A linear layer whose first axis is time, as long as the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(x.transpose(0, 1))).mean(0))


def two_names() -> nn.Module:
    """A layer that is part of the network twice."""
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(4, CLASSES))


def linear() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 5, bias=False), nn.Linear(5, CLASSES)
    )


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=(1, 0), groups=2),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, (2, 3), padding="same", dilation=(2, 1), bias=False),
        nn.Conv2d(4, 2, 2, padding=1, padding_mode="circular"),
        nn.GroupNorm(1, 2),
        nn.Conv2d(2, CLASSES, (6, 5)),
        nn.Flatten(),
    )


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], int]] = {
    # net, one batch of inputs, how many weights are served by taps
    "linear": (linear, lambda: torch.randn(B, 4), 5),
    "convolutions": (convolutions, lambda: torch.randn(B, 2, 9, 10), 7),
    "sequences": (Sequences, lambda: torch.randint(7, (B, 4)), 6),
    "twice": (Twice, lambda: torch.randn(B, 4), 4),
    "two names": (two_names, lambda: torch.randn(B, 4), 2),
    "time first": (TimeFirst, lambda: torch.randn(B, B, 4), 2),
}
each_net = pytest.mark.parametrize("name", NETS)


class Likelihood(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def nll(self, batch: Any) -> Tensor:
        return functional.cross_entropy(self.net(batch["x"]), batch["y"], reduction="none")

    forward = nll


def make(name: str, seed: int = 0) -> tuple[Likelihood, dict[str, Any], int]:
    torch.manual_seed(seed)
    build, inputs, tapped = NETS[name]
    x = inputs()
    x = x.double() if x.is_floating_point() else x
    batch = {"x": x, "y": torch.randint(CLASSES, (B,)), "scale": 2.0}
    return Likelihood(build().double()), batch, tapped


def cut(batch: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    return {k: v[start:stop] if isinstance(v, Tensor) else v for k, v in batch.items()}


def statistics(model: Likelihood, **kw: Any) -> PerExample:
    names, params = zip(*model.named_parameters(), strict=True)
    return PerExample(model, names, params, model.nll, **kw)


def record(stats: PerExample, model: Likelihood, batch: Any) -> PerExample:
    with stats.recording(batch):
        model.nll(batch).mean().backward()
    return stats


def looped(model: Likelihood, batch: dict[str, Any]) -> list[list[Tensor]]:
    """Return the gradients of each example, by autograd, one example at a time."""
    params = list(model.parameters())
    return [
        list(torch.autograd.grad(model.nll(cut(batch, i, i + 1)).sum(), params)) for i in range(B)
    ]


def close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make chunks of examples smaller than the batch, and not of its divisors."""
    monkeypatch.setattr(implementation, "_CHUNK", 1200)


@each_net
def test_sums_equal_a_loop_over_examples(name: str) -> None:
    model, batch, tapped = make(name)
    stats = record(statistics(model), model, batch)
    rows = looped(model, batch)
    flat = torch.stack([torch.cat([g.reshape(-1) for g in row]) for row in rows])
    close(stats.matrix(), flat)
    for i, square in enumerate(stats.squares()):
        close(square, torch.stack([row[i] ** 2 for row in rows]).mean(0))
    products = stats.bias_products()
    pairs = [(w, b) for w, b in stats.units if b is not None]
    assert len(products) == len(pairs) > 1
    for (w, b), product in zip(pairs, products, strict=True):
        expected = [row[w] * row[b].view(-1, *[1] * (row[w].dim() - 1)) for row in rows]
        close(product, torch.stack(expected).mean(0))
    assert len(stats._layer_of) == tapped
    assert stats.count == B


@each_net
def test_the_gradient_is_the_same_with_taps(name: str) -> None:
    model, batch, _ = make(name)
    record(statistics(model), model, batch)
    expected = torch.autograd.grad(model.nll(batch).mean(), list(model.parameters()))
    for p, g in zip(model.parameters(), expected, strict=True):
        assert torch.equal(p.grad, g)
    assert not any(m._forward_hooks for m in model.modules())


@each_net
@pytest.mark.parametrize("shared", [False, True])
def test_stacked_chains_equal_separate_ones(name: str, shared: bool) -> None:
    model, batch, tapped = make(name)
    names = [n for n, _ in model.named_parameters()]
    chains = 2 if shared else B  # as many as examples, so that axes could be confused
    params = [
        torch.randn(chains, *p.shape, dtype=p.dtype).mul_(0.5).requires_grad_()
        for p in model.parameters()
    ]
    others = [make(name, seed=k)[1] for k in range(chains)]
    stacked = {k: torch.stack([o[k] for o in others]) for k in ("x", "y")}
    data = batch if shared else {**stacked, "scale": 2.0}
    stats = PerExample(model, names, params, model.nll, chain_dims=1, shared_batch=shared)
    with stats.recording(data):
        dims = {"x": 0, "y": 0, "scale": None}
        losses = vmap(FunctionalCall(model), in_dims=(0, None if shared else dims))(
            dict(zip(names, params, strict=True)), data
        )
        losses.mean(-1).sum().backward()
    for k in range(chains):
        with torch.no_grad():
            for p, stack in zip(model.parameters(), params, strict=True):
                p.copy_(stack[k])
        alone = record(statistics(model), model, batch if shared else others[k])
        close(stats.matrix()[k], alone.matrix())
        for together, separate in zip(stats.squares(), alone.squares(), strict=True):
            close(together[k], separate)
        for together, separate in zip(stats.bias_products(), alone.bias_products(), strict=True):
            close(together[k], separate)
    assert len(stats._layer_of) == tapped


@each_net
def test_two_ranks_see_the_whole_batch(name: str) -> None:
    """Half batches, averaged by ``reduce``, give what one process sees of the whole."""
    model, batch, _ = make(name)
    whole = record(statistics(model), model, batch)
    first = statistics(model)
    record(first, model, cut(batch, B // 2, B))
    other = first.squares(), first.bias_products()

    def averaging(values: list[Tensor]) -> Callable[[list[Tensor]], None]:
        def reduce(tensors: list[Tensor]) -> None:
            for tensor, value in zip(tensors, values, strict=True):
                tensor.add_(value.view_as(tensor)).div_(2)

        return reduce

    for values, method in zip(other, ("squares", "bias_products"), strict=True):
        half = statistics(model, reduce=averaging(values), world_size=2)
        record(half, model, cut(batch, 0, B // 2))
        assert half.count == B
        for found, expected in zip(getattr(half, method)(), getattr(whole, method)(), strict=True):
            close(found, expected)


def test_averages_are_moved_not_replaced() -> None:
    model, batch, _ = make("sequences")
    stats = record(statistics(model), model, batch)
    fresh, products = stats.squares(), stats.bias_products()
    averages = [torch.ones_like(s) for s in fresh]
    stats.accumulate_squares_(averages, 0.7, 0.4)
    for average, square in zip(averages, fresh, strict=True):
        close(average, 0.7 + 0.4 * square)
    averages = [torch.ones_like(p) for p in products]
    stats.accumulate_bias_products_(averages, 0.7, 0.4)
    for average, product in zip(averages, products, strict=True):
        close(average, 0.7 + 0.4 * product)


def test_some_weights_alone() -> None:
    """A bias without its weight, and a layer that is not sampled."""
    model, batch, _ = make("convolutions")
    names = ["net.5.bias", "net.2.weight"]
    own = dict(model.named_parameters())
    stats = record(PerExample(model, names, [own[n] for n in names], model.nll), model, batch)
    rows = looped(model, batch)
    order = list(own)
    for name, square in zip(names, stats.squares(), strict=True):
        i = order.index(name)
        close(square, torch.stack([row[i] ** 2 for row in rows]).mean(0))
    assert stats.units == [(1, None)]


def test_batch_norm_in_training_mode_is_named() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES)).double()
    model = Likelihood(net)
    batch = make("linear")[1]
    stats = statistics(model)
    with pytest.raises(RuntimeError, match=r"net\.1 \(BatchNorm1d\) in training mode"):
        record(stats, model, batch)
    net.eval()
    with torch.no_grad():
        net[1].running_mean.normal_()
    record(stats, model, batch)
    rows = looped(model, batch)
    for i, square in enumerate(stats.squares()):
        close(square, torch.stack([row[i] ** 2 for row in rows]).mean(0))


class Branching(nn.Module):
    """A layer with weights whose forward asks the data which way to go."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x if float(x.detach().sum()) > 0 else self.scale * x.square()


def branching() -> tuple[Likelihood, dict[str, Any]]:
    """Return a net whose branch is the same for every example."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), Branching(), nn.Linear(4, CLASSES)).double()
    with torch.no_grad():
        net[0].weight.abs_()
        net[0].bias.abs_()
    batch = make("linear")[1]
    return Likelihood(net), {**batch, "x": batch["x"].abs()}


def test_a_layer_that_nothing_serves_is_named() -> None:
    model, batch = branching()
    stats = record(statistics(model), model, batch)
    message = r"no per-example gradients of net\.1 \(Branching\): its activations"
    with pytest.raises(RuntimeError, match=message):
        stats.squares()


def test_such_a_layer_does_not_hinder_the_others() -> None:
    """Linear layers beside it are served if its own weights are not sampled."""
    model, batch = branching()
    model.net[1].requires_grad_(False)
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    params = [p for p in model.parameters() if p.requires_grad]
    stats = record(PerExample(model, names, params, model.nll), model, batch)
    rows = [torch.autograd.grad(model.nll(cut(batch, i, i + 1)).sum(), params) for i in range(B)]
    for i, square in enumerate(stats.squares()):
        close(square, torch.stack([row[i] ** 2 for row in rows]).mean(0))


def test_nothing_recorded_is_an_error() -> None:
    model, batch, _ = make("linear")
    stats = statistics(model)
    with pytest.raises(RuntimeError, match=r"run the forward and the backward pass inside"):
        stats.squares()
    record(stats, model, batch)
    stats.squares()
    stats.clear()
    assert not stats.recorded
    with pytest.raises(RuntimeError, match=r"run the forward and the backward pass inside"):
        stats.squares()


def test_a_copied_network_keeps_its_own_statistics() -> None:
    """Statistics of a deep copy are of the copy's weights."""
    model, batch, _ = make("linear")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for p in twin.parameters():
            p.mul_(1.5)
    stats = record(statistics(twin), twin, batch)
    expected = torch.stack([torch.cat([g.reshape(-1) for g in row]) for row in looped(twin, batch)])
    close(stats.matrix(), expected)
