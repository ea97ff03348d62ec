"""Compiled loops over narrow networks: what float64 computes, and torch where they do not apply."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit, log_softmax, softmax
from torch import Tensor, nn
from torch.nn import functional

from lightning_sgmcmc import SGLD, Categorical
from lightning_sgmcmc.chain.stack import ChainStack
from lightning_sgmcmc.kernels import VARIABLE
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.posterior.fused import WIDEST, fused
from tests.toy import NUM_FEATURES, Toy

pytest.importorskip("numba", reason="numba is in the extra fast")

from lightning_sgmcmc.kernels import networks

CLASSES = 5
STEPS: dict[str, Callable[[Any], Any]] = {
    "identity": lambda z: z,
    "relu": lambda z: np.maximum(z, 0),
    "sigmoid": expit,
    "tanh": np.tanh,
    "silu": lambda z: z * expit(z),
    "softmax": lambda z: softmax(z, -1),
    "log_softmax": lambda z: log_softmax(z, -1),
}


def layers(widths: list[int], steps: list[str], draws: int, bias: bool = True) -> list[Any]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return [
        networks.Layer(2 * normal(draws, m, n) / n**0.5, normal(draws, m) if bias else None, step)
        for (n, m), step in zip(pairwise(widths), steps, strict=True)
    ]


def exact(chain: list[Any], x: Tensor) -> Any:
    y = np.broadcast_to(x.double().numpy(), (len(chain[0].weight), *x.shape))
    for weight, bias, step in chain:
        y = np.einsum("kbj,kij->kbi", y, weight.double().numpy())
        if bias is not None:
            y = y + bias.double().numpy()[:, None]
        y = STEPS[step](y)
    return y


@pytest.mark.parametrize("last", list(STEPS))
@pytest.mark.parametrize("first", ["relu", "sigmoid", "tanh", "silu", "softmax"])
def test_float64_gives_the_same(first: str, last: str) -> None:
    """Whole tiles and a rest, and numbers of units that are no multiples of four."""
    chain = layers([9, 7, 6], [first, last], 3)
    x = torch.randn(2 * networks.TILE + 33, 9, generator=torch.Generator().manual_seed(1))
    found = networks.network(chain, x)
    assert found.shape == (3, len(x), 6)
    np.testing.assert_allclose(found, exact(chain, x), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("widths", "draws", "examples"),
    [([1, 1], 1, 1), ([3, 2], 70, 5), ([4, 8, 12, 3], 130, 300), ([20, 30, 10], 65, 256)],
)
@pytest.mark.parametrize("bias", [True, False])
def test_sizes(widths: list[int], draws: int, examples: int, bias: bool) -> None:
    steps = ["relu"] * (len(widths) - 2) + ["log_softmax"]
    chain = layers(widths, steps, draws, bias)
    x = torch.randn(examples, widths[0], generator=torch.Generator().manual_seed(2))
    np.testing.assert_allclose(networks.network(chain, x), exact(chain, x), rtol=2e-6, atol=2e-6)


def test_large_activations_do_not_overflow() -> None:
    weight = torch.tensor([[[1e4], [-1e4], [0.0]]])
    x = torch.tensor([[1.0], [-1.0], [0.0]])
    for step in ("sigmoid", "tanh", "softmax", "log_softmax", "silu"):
        chain = [networks.Layer(weight, None, step)]
        np.testing.assert_allclose(networks.network(chain, x), exact(chain, x), atol=1e-6)


def test_what_is_not_a_number_stays_so() -> None:
    x = torch.tensor([[torch.nan], [1.0]])
    for step in STEPS:
        chain = layers([1, 4, 2], ["relu", step], 2)
        found = networks.network(chain, x)
        assert found[:, 0].isnan().all(), step
        assert not found[:, 1].isnan().any(), step


def test_the_number_of_threads_changes_no_bit() -> None:
    chain = layers([6, 10, 4], ["tanh", "softmax"], 150)
    x = torch.randn(1500, 6, generator=torch.Generator().manual_seed(3))
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(networks.network(chain, x).clone())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


def net(*last: nn.Module, width: int = 8) -> nn.Sequential:
    """Return a network with an activation of each kind that modules have."""
    return nn.Sequential(
        nn.Linear(NUM_FEATURES, width),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(width, 6, bias=False),
        nn.Identity(),
        nn.Tanh(),
        nn.Linear(6, 4),
        nn.Sigmoid(),
        nn.Linear(4, CLASSES),
        *last,
    )


class Model(Toy):
    """A network, its softmax in several words, and methods that no loop computes."""

    def __init__(self, network: nn.Module | None = None) -> None:
        super().__init__(net=network or net())
        self.register_buffer("scale", torch.tensor(3.0))
        self.eval()

    def outputs(self, batch: Any) -> Tensor:
        return self.net(batch["x"]["left"])

    def probabilities(self, batch: Any) -> Tensor:
        return torch.softmax(self(batch[0]), dim=-1)

    def rectified(self, batch: Any) -> Tensor:
        return functional.relu(functional.silu(self(batch[0]))).softmax(1)

    def both(self, batch: Any) -> tuple[Tensor, Tensor]:
        x, y = batch
        log_p = self(x).log_softmax(-1)
        return log_p.exp() * self.scale, functional.nll_loss(log_p, y, reduction="none")

    def nll(self, batch: Any) -> Tensor:
        return functional.cross_entropy(self(batch[0]), batch[1], reduction="none")

    def added(self, batch: Any) -> Tensor:
        return self(batch[0]) + batch[0].sum(-1, keepdim=True)

    def in_float64(self, batch: Any) -> Tensor:
        return self(batch[0]).softmax(-1, torch.float64)

    def over_examples(self, batch: Any) -> Tensor:
        return self(batch[0]).softmax(0)


class Odd(Model):
    """Methods that are not a chain of layers, or not that alone."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(2.0))

    def twice(self, batch: Any) -> Tensor:
        return self(self(batch[0])[:, :NUM_FEATURES])

    def branching(self, batch: Any) -> Tensor:
        outputs = self(batch[0])
        return -outputs if outputs[0, 0] > 0 else outputs

    def drawn(self, batch: Any) -> Tensor:
        return self(batch[0]) + torch.rand(1)

    def moved(self, batch: Any) -> Tensor:
        return self(batch[0] - self.scale)


def batch(size: int = 31) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(size, NUM_FEATURES, generator=generator)
    return x, torch.randint(CLASSES, (size,), generator=generator)


def draws_of(module: nn.Module, count: int = 3) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    named = dict(module.named_parameters())
    return [
        {name: torch.randn(p.shape, generator=generator) for name, p in named.items()}
        for _ in range(count)
    ]


METHODS = (
    "forward", "outputs", "probabilities", "rectified", "both", "nll", "added", "in_float64",
    "over_examples",
)  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_methods_of_a_perceptron_are_fused(method: str) -> None:
    module, data = Model(), batch()
    given: Any = data
    if method in ("forward", "outputs"):
        given = data[0] if method == "forward" else {"x": {"left": data[0]}, "label": "none"}
    draws = draws_of(module)
    loops = fused(module, method, draws[0], given)
    assert loops is not None
    with torch.no_grad():
        found = loops(ChainStack(module, draws), given)
        for k, draw in enumerate(draws):
            module.load_state_dict(draw, strict=False)
            expected = getattr(module, method)(given)
            pairs = zip(found, expected, strict=True) if method == "both" else [(found, expected)]
            for one, other in pairs:
                torch.testing.assert_close(one[k], other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("last", [nn.Softmax(-1), nn.LogSoftmax(1), nn.SiLU()])
def test_a_last_module_is_fused(last: nn.Module) -> None:
    module, (x, _) = Model(net(last)), batch()
    (draw,) = draws_of(module, 1)
    loops = fused(module, "forward", draw, x)
    assert loops is not None
    module.load_state_dict(draw, strict=False)
    found = loops(ChainStack(module, [draw]), x)[0]
    torch.testing.assert_close(found, module(x), rtol=1e-5, atol=1e-6)


def test_what_else_is_sampled_is_not_left_out() -> None:
    """The slope is a weight beside the network's chain: loops that knew nothing of it would err."""
    module = Odd()
    (draw,) = draws_of(module, 1)
    assert fused(module, "probabilities", draw, batch()) is None
    del draw["slope"]
    assert fused(module, "probabilities", draw, batch()) is not None


@pytest.mark.parametrize("method", ["twice", "branching", "drawn", "moved"])
def test_other_methods_are_not_chains(method: str) -> None:
    module = Odd()
    (draw,) = draws_of(module, 1)
    del draw["slope"]
    assert fused(module, method, draw, batch()) is None


class Tied(nn.Module):
    """A layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(NUM_FEATURES, NUM_FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x).relu())


class Cubed(nn.Linear):
    """Not a linear layer, though it is one by inheritance."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) ** 3


@pytest.mark.parametrize(
    "network",
    [
        Tied(),
        net(width=WIDEST + 1),
        nn.Sequential(nn.Linear(NUM_FEATURES, 3), nn.GELU(), nn.Linear(3, 2)),
        nn.Sequential(Cubed(NUM_FEATURES, 2)),
        nn.Sequential(nn.Unflatten(1, (1, -1)), nn.Conv1d(1, 2, 1), nn.Flatten()),
    ],
    ids=["tied", "wide", "other activation", "other layer", "convolution"],
)
def test_other_networks_are_not_fused(network: nn.Module) -> None:
    module, (x, _) = Model(network), batch()
    assert fused(module, "forward", draws_of(module)[0], x) is None


def test_where_numba_is_not_to_be_used_torch_is(monkeypatch: pytest.MonkeyPatch) -> None:
    module, (x, _) = Model(), batch()
    (draw,) = draws_of(module, 1)
    assert fused(module, "forward", draw, x) is not None
    assert fused(module, "forward", {n: w.double() for n, w in draw.items()}, x) is None
    assert fused(module, "forward", draw, x.double()) is None
    assert fused(module, "forward", draw, x[:, :-1]) is None
    assert fused(module, "forward", draw, x[:, None]) is None
    module.net.train()  # its dropout draws
    assert fused(module, "forward", draw, x) is None
    module.eval()
    hook = module.net[0].register_forward_hook(lambda module, args, output: 2 * output)
    assert fused(module, "forward", draw, x) is None
    hook.remove()
    monkeypatch.setenv(VARIABLE, "off")
    assert fused(module, "forward", draw, x) is None


class Stated(SGMCMCModule):
    """States its law alone."""

    def law(self, x: Tensor) -> Categorical:
        return Categorical(self.net(x))


@pytest.mark.parametrize("method", ["predictive", "nll", "moments_and_nll"])
def test_methods_that_follow_from_a_law_are_served(method: str) -> None:
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    task = Stated(net, partial(SGLD, lr=1e-3)).eval()
    draw = {name: p.detach() for name, p in task.named_parameters()}
    batch = (torch.randn(31, 5), torch.randint(CLASSES, (31,)))
    assert fused(task, method, draw, batch) is not None
