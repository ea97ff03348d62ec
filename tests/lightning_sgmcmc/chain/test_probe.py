"""What a task is refused for before the first step, and what the check leaves as it was."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lightning_sgmcmc import PSGLD, SGHMC, BatchStream, GaussianPrior
from lightning_sgmcmc.baselines import Dropout, Optimized
from lightning_sgmcmc.chain import Chain, checks
from tests.toy import NUM_FEATURES, Toy, ToyData, toy_data, trainer

SAMPLER = partial(SGHMC, lr=1e-3, momentum=0.9, prior=GaussianPrior(4.0))
ONE_NUMBER = r"nll\(batch\) must return one number for each example, shape \[8\] for 8 examples, "
OTHERS = "nll of an example changes with the other examples of its batch"
RANDOM = "changes from one evaluation to the next"


class Layer(nn.Module):
    """A function of activations and of the layer's mode."""

    def __init__(self, function: Callable[[Tensor, bool], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.training)


def net(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(NUM_FEATURES, 4), *layers, nn.Linear(4, 1))


class Squared(Toy):
    """Half the squared residual, put out of shape by ``change``."""

    def __init__(
        self,
        change: Callable[[Tensor], Tensor] = lambda squares: squares.squeeze(-1),
        net: nn.Module | None = None,
        sampler: Any = SAMPLER,
        **chain: Any,
    ) -> None:
        super().__init__(sampler, net, **chain)
        self.change = change

    def nll(self, batch: Any) -> Tensor:
        x, y = batch
        return self.change(0.5 * (self(x) - y.unsqueeze(-1)) ** 2)


class Predicting(Squared):
    """A task whose predictions are put out of shape."""

    def predictive(self, batch: Any) -> Tensor:
        return self.change(self(batch[0]))

    def nll(self, batch: Any) -> Tensor:
        return super(Squared, self).nll(batch)


def without_mean(x: Tensor, training: bool) -> Tensor:
    return x - x.mean(0)


WRONG: dict[str, tuple[Callable[..., Squared], str]] = {
    "one column": (partial(Squared, lambda s: s), ONE_NUMBER + r"got \[8, 1\]: add .squeeze"),
    "a mean": (partial(Squared, lambda s: s.mean()), ONE_NUMBER + r"got \[\]: .*reduction="),
    "several outputs": (
        partial(Squared, lambda s: s.expand(-1, 3)),
        ONE_NUMBER + r"got \[8, 3\]: add \.sum\(-1\) over the outputs",
    ),
    "an image": (
        partial(Squared, lambda s: s[..., None].expand(-1, 2, 3)),
        ONE_NUMBER + r"got \[8, 2, 3\]: add \.flatten\(1\)\.sum\(-1\)",
    ),
    "every pair": (
        partial(Squared, lambda s: s - s.T),
        ONE_NUMBER + r"got \[8, 8\]: \[8, 1\] and \[8\] in one expression",
    ),
    "another axis": (partial(Squared, lambda s: s.T), r"got \[1, 8\]: its first axis"),
    "no tensor": (partial(Squared, lambda s: (s,)), r"nll\(batch\) must return a tensor"),
    "sums over pairs": (partial(Squared, lambda s: (s - s.T).square().sum(-1)), OTHERS),
    "the mean for each": (partial(Squared, lambda s: s.mean().expand(len(s))), OTHERS),
    "divided by B": (partial(Squared, lambda s: s.squeeze(-1) / len(s)), OTHERS),
    "batch statistics": (partial(Squared, net=net(Layer(without_mean))), OTHERS),
    "not finite": (
        partial(Squared, lambda s: s.squeeze(-1) / 0.0),
        r"nll\(batch\) is not finite at the weights that the chain starts from: \d+ of \d+ numbers",
    ),
    "detached": (
        partial(Squared, lambda s: s.detach().squeeze(-1)),
        r"nll\(batch\) does not depend on the sampled weights, net\.weight: its gradient is zero",
    ),
    "constant": (partial(Squared, lambda s: 0.0 * s.squeeze(-1) + 1.0), "does not depend on"),
    "random": (
        partial(Squared, net=net(Layer(lambda x, _: functional.dropout(x, 0.5)))),
        RANDOM,
    ),
    "another model in training": (
        partial(Squared, net=net(Layer(lambda x, training: x * (1 + training)))),
        "not the same in training and in evaluation mode",
    ),
    "a mean prediction": (
        partial(Predicting, lambda f: f.mean()),
        r"predictive\(batch\) must return one row for each example, shape \[8, \.\.\.\] for 8 "
        r"examples, got \[\]",
    ),
    "an infinite prediction": (
        partial(Predicting, lambda f: f / 0.0),
        r"predictive\(batch\) is not finite",
    ),
}


def bound(task: Toy, chains: int = 1, sampling: Any = "reshuffled") -> Chain:
    chain = task.chain
    chain.select()
    chain.place()
    chain.build()
    chain.bind(BatchStream(toy_data(), 16, sampling))
    assert chain.num_chains == chains
    return chain


@pytest.mark.parametrize("chains", [1, 4])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_tasks_are_refused(name: str, chains: int) -> None:
    make, message = WRONG[name]
    chain = bound(make(num_chains=chains), chains)
    with pytest.raises(ValueError, match=message):
        chain.advance(chain.minibatch())
    assert chain.steps == 0


class Returning(nn.Module):
    """Doubles activations once it has come back to training from evaluation."""

    factor = 1.0

    def train(self, mode: bool = True) -> Returning:
        if mode and not self.training:
            self.factor = 2.0
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


@pytest.mark.parametrize("chains", [1, 4])
def test_another_model_after_evaluation_is_refused(chains: int) -> None:
    """As a run is, once its held-out sets have been predicted for the first time."""
    chain = bound(Squared(net=net(Returning()), num_chains=chains), chains)
    with pytest.raises(ValueError, match="not the same in training and in evaluation mode"):
        chain.advance(chain.minibatch())


@pytest.mark.parametrize("loader", [False, True])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "64-true"])
@pytest.mark.parametrize("lr", [1e-3, "auto"])
def test_a_run_is_refused_in_any_precision(
    tmp_path: Path, precision: Any, loader: bool, lr: Any
) -> None:
    class Data(ToyData):
        def train_dataloader(self) -> Any:
            examples = DataLoader(TensorDataset(*toy_data()), batch_size=16)
            return examples if loader else super().train_dataloader()

    def fit(task: Toy) -> None:
        trainer(tmp_path, 3, precision=precision).fit(task, datamodule=Data())

    sampler = partial(SGHMC, lr=lr, momentum=0.9)
    for change, message in ((lambda s: s, ONE_NUMBER), (lambda s: s.mean().expand(len(s)), OTHERS)):
        with pytest.raises(ValueError, match=message):
            fit(Squared(change, sampler=sampler, burn_in=1))
    deep = net(nn.LayerNorm(4), nn.Linear(4, 64), nn.SiLU(), nn.Linear(64, 4))
    right = Squared(net=deep, sampler=sampler, burn_in=1)
    fit(right)
    assert right.chain.steps == 3


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (nn.Dropout(0.1), r"net\.1 \(Dropout\)"),
        (nn.Dropout1d(0.1), r"net\.1 \(Dropout1d\)"),
        (nn.AlphaDropout(0.1), r"net\.1 \(AlphaDropout\)"),
        (nn.MultiheadAttention(4, 1, dropout=0.1), r"net\.1 \(MultiheadAttention\)"),
        (nn.LSTM(4, 4, 2, dropout=0.1), r"net\.1 \(LSTM\)"),
        (nn.Sequential(*(nn.Dropout() for _ in range(5))), r"net\.1\.2 .* and 2 others"),
    ],
)
@pytest.mark.parametrize("chains", [1, 4])
def test_dropout_is_refused_before_any_work(
    tmp_path: Path, layer: nn.Module, named: str, chains: int
) -> None:
    module = Toy(SAMPLER, net(layer), burn_in=1, num_chains=chains)
    with pytest.raises(ValueError, match=f"{named} would draw new masks .* switch dropout off"):
        trainer(tmp_path, 3).fit(module, datamodule=ToyData())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("chains", [1, 4])
@pytest.mark.parametrize("layer", [nn.Dropout(0.0), nn.Dropout(0.5).eval()], ids=["p = 0", "eval"])
@pytest.mark.filterwarnings("ignore:Found 1 module")
def test_dropout_that_is_off_stays_so_through_a_run(
    tmp_path: Path, layer: nn.Module, chains: int
) -> None:
    """The states are those of the network without the layer; held-out sets switch modes."""
    found = []
    for layers in ([layer], [nn.Identity()]):
        torch.manual_seed(0)
        module = Toy(SAMPLER, net(*layers), burn_in=5, num_chains=chains)
        run = trainer(tmp_path / str(len(found)), 20, val_check_interval=4)
        run.fit(module, datamodule=ToyData())
        found.append([module.chain.state(k)["net.0.weight"] for k in range(chains)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


class Words(Toy):
    """y of a word's embedding."""

    def __init__(self, **embedding: Any) -> None:
        table = nn.Embedding(8, 1, **embedding)
        super().__init__(SAMPLER, nn.Sequential(table, nn.Flatten()))

    def nll(self, batch: Any) -> Tensor:
        words, y = batch
        return 0.5 * (self(words).squeeze(-1) - y) ** 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"padding_idx": 0}, r"net.0 \(Embedding\) has padding_idx, with which its gradient"),
        ({"max_norm": 1.0}, r"net.0 \(Embedding\) has max_norm"),
        ({"sparse": True}, r"net.0 \(Embedding\) has sparse gradients"),
    ],
)
def test_embeddings_with_other_gradients_are_refused(given: dict[str, Any], message: str) -> None:
    task = Words(**given)
    with pytest.raises(ValueError, match=message):
        task.select()
    checks.refuse_embeddings(task, set())  # what stays as it is may have them


def test_an_embedding_is_refused_by_any_of_its_names() -> None:
    """A weight that it shares with a layer before it is sampled under that layer's name."""
    task = Words(padding_idx=0)
    head = nn.Linear(1, 8, bias=False)
    head.weight = task.net[0].weight
    task.net = nn.Sequential(head, task.net[0])
    with pytest.raises(ValueError, match="has padding_idx"):
        checks.refuse_embeddings(task, {"net.0.weight"})


class Recurrent(nn.Module):
    """An LSTM over the features, which vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(1, 2, batch_first=True), nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.cell(x.unsqueeze(-1))[0][:, -1])
        return result


def test_what_vmap_cannot_follow_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"operation that torch\.func\.vmap cannot follow"):
        trainer(tmp_path, 4).fit(Toy(SAMPLER, Recurrent(), num_chains=2), datamodule=ToyData())


def test_own_dropout_is_for_optimizers() -> None:
    """Minimising with masks samples nothing; masks under ``eval()`` count too."""
    for monte_carlo in (False, True):
        own = net(Dropout(0.5, seed=1, monte_carlo=monte_carlo))
        with pytest.raises(ValueError, match=RANDOM):
            bound(Squared(net=own)).check_task()
        bound(Squared(net=own, sampler=partial(Optimized, lr=1e-3))).check_task()
    several = Squared(net=net(nn.Dropout()), sampler=partial(Optimized, lr=1e-3), num_chains=4)
    with pytest.raises(ValueError, match="cannot for several chains as one computation"):
        bound(several, 4).check_task()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_weights_are_refused(dtype: torch.dtype) -> None:
    half = nn.Linear(NUM_FEATURES, 1).to(dtype)
    with pytest.raises(ValueError, match=r"net\.weight is b?float16, whose rounding is larger"):
        bound(Squared(net=half)).check_task()


class Remembering(nn.Module):
    """Layer that keeps what it sees, in an attribute, in a buffer, and in one that it replaces."""

    count: Tensor
    replaced: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] | None = None
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = [len(x)]
        self.count += 1
        self.replaced = self.replaced + 1
        return x


def test_nothing_is_left_behind() -> None:
    memory, frozen = Remembering(), nn.Tanh().eval()
    chain = bound(Squared(net=net(memory, frozen, nn.Tanh())))
    weights = [p.detach().clone() for p in chain.sampler.params]
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)

    def global_numbers() -> tuple[float, float, float]:
        return float(torch.rand(())), np.random.rand(), random.random()  # noqa: NPY002

    expected = global_numbers()
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)
    chain.check_task()
    assert global_numbers() == expected
    assert memory.seen is None
    assert (float(memory.count), float(memory.replaced)) == (0.0, 0.0)
    assert memory.training
    assert not frozen.training
    assert all(torch.equal(p, w) for p, w in zip(chain.sampler.params, weights, strict=True))
    assert all(p.grad is None for p in chain.sampler.params)


def test_it_is_done_once() -> None:
    chain, calls = bound(Squared()), []
    chain.task.register_forward_hook(lambda *_: calls.append(1))
    chain.check_task()
    first = len(calls)
    chain.check_task()
    chain.advance(chain.minibatch())
    assert first > 1
    assert len(calls) == first + 1


@pytest.mark.parametrize("batch", [1, 3])
def test_small_batches_are_no_mistake(batch: int) -> None:
    x, y = (t[:batch] for t in toy_data())
    task = Squared()
    chain = task.chain
    chain.select()
    chain.place()
    chain.build()
    chain.bind(BatchStream((x, y), 1))
    chain.advance(chain.minibatch())
    assert chain.steps == 1


def test_a_mode_of_every_example_is_a_start() -> None:
    """The gradient is zero at the start, and nowhere else."""

    class Pull(Toy):
        def nll(self, batch: Any) -> Tensor:
            return 0.5 * self.net.weight.square().sum().expand(len(batch[0]))

    start = nn.Linear(NUM_FEATURES, 1, bias=False)
    nn.init.zeros_(start.weight)
    bound(Pull(SAMPLER, start)).check_task()


class Doubled(torch.autograd.Function):
    """Has no setup_context, which torch.func asks for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return 2 * grad


@pytest.mark.parametrize(
    "change",
    [
        lambda s: Doubled.apply(s).squeeze(-1),
        lambda s: s.squeeze(-1) * (2 if s.sum() > 0 else 1),
        lambda s: s.squeeze(-1) * s.sum().item(),
    ],
    ids=["own function", "control flow", "item"],
)
def test_what_several_chains_cannot_be_one_computation_of(change: Any) -> None:
    with pytest.raises(ValueError, match=r"vmap cannot follow.*use num_chains=1"):
        bound(Squared(change, sampler=SAMPLER, num_chains=2), 2).check_task()


def test_complex_weights_are_refused() -> None:
    class Complex(Toy):
        def nll(self, batch: Any) -> Tensor:
            return (batch[0] @ self.net.weight.T).abs().squeeze(-1)

    linear = nn.Linear(NUM_FEATURES, 1, bias=False, dtype=torch.complex64)
    with pytest.raises(ValueError, match=r"net\.weight is complex: .*torch\.view_as_real"):
        bound(Complex(SAMPLER, linear)).check_task()


def test_a_chain_alone_needs_no_predictions() -> None:
    class Bare(Toy):
        predictive = Toy.__mro__[1].predictive

    task = Bare(partial(PSGLD, lr=1e-3), freeze_preconditioner=False)
    chain = bound(task)
    before, batch = [p.detach().clone() for p in task.parameters()], chain.minibatch()
    nll = float(chain.evaluate("nll", batch).mean().detach())
    chain.advance(batch)
    assert chain.steps == 1
    assert float(chain.last_loss.detach()) == pytest.approx(nll)
    assert not any(torch.equal(a, b) for a, b in zip(before, task.parameters(), strict=True))


def test_held_out_sets_need_predictions(tmp_path: Path) -> None:
    class Bare(Toy):
        predictive = Toy.__mro__[1].predictive

    with pytest.raises(TypeError, match=r"Bare must define law\(x\), or predictive\(batch\)"):
        trainer(tmp_path, 3).fit(Bare(SAMPLER, burn_in=1), datamodule=ToyData())
