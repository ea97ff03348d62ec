"""Low-rank adapters: their law, their memory, and what they leave as it is."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightning_sgmcmc import (
    HMC,
    PSGLD,
    SGHMC,
    BatchStream,
    FanInGaussianPrior,
    LowRankLinear,
    add_adapters,
    load_posterior,
)
from lightning_sgmcmc.callbacks import ChainCheckpoint
from lightning_sgmcmc.chain import Chain, Task
from lightning_sgmcmc.chain.schedules import DrawSchedule
from tests.toy import NUM_FEATURES, Toy, ToyData, toy_data, trainer

PRIOR = FanInGaussianPrior()


def mlp(width: int = 8, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(NUM_FEATURES, width), nn.Tanh(), nn.Linear(width, 1))


def adapted(width: int = 8, rank: int = 2, seed: int = 0) -> nn.Module:
    return add_adapters(mlp(width, seed), ["0"], rank=rank, alpha=3.0)


# The layer.


def test_the_layer_is_linear_in_the_sum_of_both_weights() -> None:
    net = add_adapters(nn.Sequential(nn.Linear(6, 5)), ["0"], rank=2, alpha=3.0)
    layer: Any = net[0]
    x = torch.randn(7, 6)
    W = layer.frozen + 1.5 * layer.B @ layer.A
    torch.testing.assert_close(net(x), functional.linear(x, W, layer.bias))
    torch.testing.assert_close(layer.weight, W)
    assert list(net.state_dict()) == ["0.weight", "0.bias", "0.A", "0.B"]
    assert [n for n, p in net.named_parameters() if p.requires_grad] == ["0.A", "0.B"]


def test_the_state_of_the_plain_network_fits() -> None:
    plain, net = mlp(seed=1), adapted()
    missing, unexpected = net.load_state_dict(plain.state_dict(), strict=False)
    assert (sorted(missing), unexpected) == (["0.A", "0.B"], [])
    with torch.no_grad():
        net[0].B.zero_()
    x = torch.randn(5, NUM_FEATURES)
    torch.testing.assert_close(net(x), plain(x))


def test_a_start_is_close_to_the_plain_layer_and_has_both_gradients() -> None:
    torch.manual_seed(0)
    layer = LowRankLinear(nn.Linear(400, 300), rank=8, alpha=16.0)
    x = torch.randn(50, 400)
    moved = (layer(x) - functional.linear(x, layer.frozen, layer.bias)).detach()
    assert moved.std().item() == pytest.approx(0.1 * 16 / 8, rel=0.15)
    layer(x).square().sum().backward()
    assert all(bool(p.grad.count_nonzero()) for p in (layer.A, layer.B))
    assert layer.frozen.grad is None


def test_the_prior_moves_an_output_alike_for_every_width_and_rank() -> None:
    """By (alpha / r) |x| / sqrt(in), from 4,000 draws of A and B a case; error 1.1 % each."""
    generator = torch.Generator().manual_seed(0)
    for inputs, rank, scale in ((10, 2, 1.0), (200, 2, 1.0), (200, 16, 0.5)):
        layer = LowRankLinear(nn.Linear(inputs, 16, bias=False), rank, scale * rank)
        PRIOR.attach([layer.A, layer.B])
        variances = PRIOR.variances([layer.A, layer.B])
        x = torch.randn(inputs, generator=generator)
        draws = [
            torch.randn(4000, *p.shape, generator=generator) * v**0.5
            for p, v in zip((layer.A, layer.B), variances, strict=True)
        ]
        moved = layer.scale * torch.einsum("kr,kri,i->k", draws[1][:, 0], draws[0], x)
        expected = scale * float(x.norm()) / inputs**0.5
        assert float(moved.std()) == pytest.approx(expected, rel=0.06)


def test_weights_of_16_bits_keep_their_type_beside_adapters_of_32() -> None:
    net = add_adapters(mlp().bfloat16(), ["*"], rank=1)
    assert (net[0].A.dtype, net[0].frozen.dtype) == (torch.float32, torch.bfloat16)
    x = torch.randn(4, NUM_FEATURES, dtype=torch.bfloat16)
    assert net(x).dtype == net[0].weight.dtype == torch.bfloat16


def test_modules_that_read_a_weight_see_the_adapter() -> None:
    """Attention reads ``out_proj.weight``, the fused encoder that of ``linear1``, in evaluation."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    net = add_adapters(encoder, ["self_attn.out_proj", "linear1", "linear2"], rank=2)
    x = torch.randn(3, 5, 8)
    trained = net(x)
    with torch.no_grad():
        torch.testing.assert_close(net.eval()(x), trained, atol=1e-5, rtol=1e-5)
        merged = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        merged.load_state_dict(
            {
                n: net.get_submodule(n.rpartition(".")[0]).weight
                if n.rpartition(".")[0] in ("self_attn.out_proj", "linear1", "linear2")
                and n.endswith("weight")
                else t
                for n, t in net.state_dict().items()
                if n.rpartition(".")[2] not in "AB"
            }
        )
        torch.testing.assert_close(merged(x), trained, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": ["none"]}, r"no linear layer is named like 'none': choose among 0, 2"),
        ({"layers": ["1"]}, r"'1' names 1, a Tanh and no nn.Linear: choose among 0, 2"),
        ({"layers": []}, "name the layers"),
        ({"layers": ["2"], "rank": 2}, r"between 1 and 1 for 2, which maps 8 to 1 .*, got 2"),
        ({"layers": ["0"], "rank": 0}, r"between 1 and 3 for 0"),
        ({"layers": ["0"], "rank": 1, "alpha": 0}, "alpha must be positive, got 0"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, Any], message: str) -> None:
    net = mlp()
    with pytest.raises(ValueError, match=message):
        add_adapters(net, **arguments)
    assert all(p.requires_grad for p in net.parameters())
    with pytest.raises(ValueError, match="0 has no size yet"):
        add_adapters(nn.Sequential(nn.LazyLinear(3)), ["0"])


def test_a_layer_with_two_names_gets_one_adapter() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.second = nn.Linear(3, 3)

    net: Any = add_adapters(Twice(), ["first"], rank=1)
    assert net.first is net.second


def test_a_network_that_is_one_layer_becomes_its_adapter() -> None:
    layer, x = nn.Linear(4, 2), torch.ones(1, 4)
    net: Any = add_adapters(layer, ["*"], rank=2)
    with torch.no_grad():
        net.A.fill_(1.0)
        net.B.fill_(1.0)
        # B A x is 2 x 4, alpha / r is 1.
        torch.testing.assert_close(net(x), layer(x) + 8)


def test_a_second_call_leaves_the_adapters_of_the_first() -> None:
    net: Any = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    add_adapters(add_adapters(net, ["0"], rank=1), ["2"], rank=2)
    moved = [name for name, p in net.named_parameters() if p.requires_grad]
    assert moved == ["0.A", "0.B", "2.A", "2.B"]


# Its law.


def test_adapters_with_known_factors_follow_the_closed_form() -> None:
    """With A fixed y is linear in B: y ~ N(W x + b + s B A x, sigma^2), B ~ N(0, 1/r).

    HMC on all the data, 64 chains of 30 draws; means and covariances of predictions are compared
    with those of the closed form, within 4 standard errors by chains as independent replicates.
    """
    torch.manual_seed(0)
    rank, noise = 2, 0.5
    module = Toy(net=add_adapters(nn.Sequential(nn.Linear(NUM_FEATURES, 3)), ["0"], rank, 4.0))
    layer: Any = module.net[0]
    y = toy_data(5)[0]  # targets of three outputs
    x = toy_data(0)[0]

    class Outputs(Task):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def nll(self, batch: Any) -> Tensor:
            return 0.5 * ((batch[1] - self(batch[0])) / noise).square().sum(-1)

        def predictive(self, batch: Any) -> Tensor:
            return self(batch[0])

    chain = Chain(
        Outputs(module.net),
        partial(HMC, lr=0.004, leapfrog_steps=8, prior=PRIOR),
        DrawSchedule(burn_in=20),
        num_chains=64,
        sample=["*.B"],
    )
    chain.select(), chain.place(), chain.build()
    assert chain.sampled == ["net.0.B"]
    chain.bind(BatchStream((x, y), len(x), "full"))
    x_new = torch.randn(4, NUM_FEATURES)
    found = []
    for step in range(140):
        chain.advance(chain.minibatch())
        if step >= 20 and step % 4 == 0:
            found.append(chain.evaluate("predictive", (x_new,)).detach().double())
    draws = torch.stack(found, 1).flatten(2).numpy()  # [chains, draws, examples * outputs]

    scale, A = layer.scale, layer.A.detach().double()
    z, z_new = (scale * t.double() @ A.T for t in (x, x_new))
    fixed = lambda t: functional.linear(t, layer.frozen, layer.bias).detach().double()  # noqa: E731
    covariance = torch.linalg.inv(z.T @ z / noise**2 + rank * torch.eye(rank).double())
    B = covariance @ z.T @ (y.double() - fixed(x)) / noise**2  # of each output
    mean = (fixed(x_new) + z_new @ B).flatten().numpy()
    variance = (z_new @ covariance @ z_new.T).diag().repeat_interleave(3).numpy()

    def check(values: np.ndarray, expected: np.ndarray) -> None:
        error = values.std(0, ddof=1) / len(values) ** 0.5
        assert np.all(np.abs(values.mean(0) - expected) < 4 * error), (values.mean(0), expected)

    check(draws.mean(1), mean)
    check(((draws - mean) ** 2).mean(1), variance)
    prior = scale**2 * ((x_new.double() @ A.T) ** 2).sum(-1) / rank
    assert np.all(variance[::3] < 0.5 * prior.numpy())  # the data say something


# Its runs.


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [
            t.untyped_storage().nbytes() // t.element_size()
            for t in tree_leaves(result)
            if isinstance(t, Tensor)
        ]
        self.numbers = max(self.numbers, *sizes, 0)
        return result


def test_chains_share_the_base() -> None:
    """No operation of a step returns K times the numbers of the base."""
    width, chains = 256, 8
    net = nn.Sequential(
        nn.Linear(NUM_FEATURES, width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, 1),
    )
    module = Toy(net=add_adapters(net, ["2"], rank=2))
    chain = Chain(module, partial(SGHMC, lr=1e-3, prior=PRIOR), DrawSchedule(), num_chains=chains)
    chain.select(), chain.place(), chain.build()
    chain.bind(BatchStream(toy_data(), 8))
    assert list(chain.stack.names) == ["net.2.A", "net.2.B"]
    assert sum(w.numel() for w in chain.stack.weights) == chains * 2 * 2 * width
    chain.advance(chain.minibatch())
    with Largest() as seen:
        chain.advance(chain.minibatch())
    assert seen.numbers == width * width  # the base itself, as a view


@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("sampler", [partial(SGHMC, lr=2e-3), partial(PSGLD, lr="auto")])
def test_draws_hold_adapters_alone_and_go_on_after_a_stop(
    tmp_path: Path, chains: int, sampler: Any
) -> None:
    def module() -> Toy:
        return Toy(partial(sampler, prior=PRIOR), adapted(), burn_in=4, num_chains=chains)

    whole = module()
    base = {n: p.clone() for n, p in whole.net.named_parameters() if not p.requires_grad}
    trainer(tmp_path / "whole", 16).fit(whole, datamodule=ToyData())
    trainer(tmp_path / "two", 10, [ChainCheckpoint(5)]).fit(module(), datamodule=ToyData())
    again = module()
    trainer(tmp_path / "two", 16, [ChainCheckpoint(5)]).fit(
        again, datamodule=ToyData(), ckpt_path=str(tmp_path / "two" / "checkpoints" / "last.ckpt")
    )
    for name, value in base.items():
        assert torch.equal(dict(whole.net.named_parameters())[name], value)
    stored = [load_posterior(tmp_path / run, Toy(net=adapted(seed=9))) for run in ("whole", "two")]
    for ours, theirs in zip(stored[0].loads, stored[1].loads, strict=True):
        a, b = ours(), theirs()
        assert list(a) == list(b) == ["net.0.A", "net.0.B"]
        assert all(torch.equal(a[n], b[n]) for n in a)
    starts = {
        tuple(stored[0].chain(k).loads[0]()["net.0.B"].flatten().tolist()) for k in range(chains)
    }
    assert len(starts) == chains
    prediction = stored[0].predictive(toy_data(3, 5))
    mean = torch.stack([net.predictive(toy_data(3, 5)) for net in stored[0]]).double().mean(0)
    torch.testing.assert_close(prediction.mean, mean, rtol=1e-5, atol=1e-5)
    assert float(prediction.epistemic_std.min()) > 0
