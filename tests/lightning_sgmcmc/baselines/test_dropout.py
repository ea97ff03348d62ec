"""Dropout: the law of its masks, where they come from, and predictions that average over them."""

from __future__ import annotations

import itertools
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_sgmcmc import GaussianPrior
from lightning_sgmcmc.baselines import Dropout, Optimized, mc_dropout_predictions
from tests.lightning_sgmcmc.baselines.common import assert_same, draws, fit, keeper
from tests.toy import NOISE, NUM_FEATURES, Toy, toy_data

PRIOR = GaussianPrior(4.0)


def net(seed: int = 0, **kw: Any) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(NUM_FEATURES, 6), Dropout(0.3, **kw), nn.Tanh(), nn.Linear(6, 1))


def masks(layer: Dropout, calls: int, *shape: int) -> list[Tensor]:
    return [layer(torch.ones(shape)) > 0 for _ in range(calls)]


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_law_of_the_masks(p: float) -> None:
    """400 masks of 1,000: frequencies and dependence within five standard errors."""
    layer = Dropout(p, seed=1)
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    zeros = []
    for _ in range(400):
        y = layer(x)
        zeros.append(y == 0)
        torch.testing.assert_close(y[~zeros[-1]], x[~zeros[-1]] / (1 - p))
    z = torch.stack(zeros).double() - p
    variance = p * (1 - p)
    assert abs(float(z.mean())) < 5 * math.sqrt(variance / z.numel())
    for products in (z[1:] * z[:-1], z[:, 1:] * z[:, :-1]):
        assert abs(float(products.mean())) < 5 * variance / math.sqrt(products.numel())


def test_gradients_pass_where_entries_do() -> None:
    layer = Dropout(0.5, seed=3)
    x = torch.randn(50, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert torch.equal(x.grad, 2.0 * (y.detach() != 0))


def test_evaluation_is_the_identity_and_counts_apart() -> None:
    x = torch.randn(8, 40)
    layer, other = Dropout(0.5, seed=5), Dropout(0.5, seed=5, monte_carlo=True)
    first = masks(layer, 1, 40)
    assert torch.equal(first[0], masks(other, 1, 40)[0])
    layer.eval()
    other.eval()
    assert layer(x) is x
    assert not torch.equal(other(x), other(x))
    layer.train()
    other.train()
    for a, b in zip(masks(layer, 3, 40), masks(other, 3, 40), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, first[0])


def test_masks_are_a_function_of_key_and_calls() -> None:
    layer = Dropout(0.5)
    masks(layer, 3, 60)
    state, before = layer.state_dict(), torch.get_rng_state()
    state = {name: value.clone() for name, value in state.items()}
    expected = masks(layer, 2, 60)
    assert torch.equal(torch.get_rng_state(), before)
    other = Dropout(0.5)
    assert not torch.equal(other.key, layer.key)  # from the global generator, like weights
    assert not torch.equal(masks(other, 4, 60)[3], expected[0])
    other.load_state_dict(state)
    assert all(torch.equal(a, b) for a, b in zip(masks(other, 2, 60), expected, strict=True))
    torch.manual_seed(7)
    again = Dropout(0.5)
    torch.manual_seed(7)
    assert torch.equal(again.key, Dropout(0.5).key)


@pytest.mark.parametrize("monte_carlo", [False, True])
def test_a_run_resumes_to_the_bit(tmp_path: Path, monte_carlo: bool) -> None:
    def module(seed: int = 0) -> Toy:
        make = partial(Optimized, lr=0.02, optimizer=torch.optim.Adam, prior=PRIOR)
        return Toy(make, net(seed, monte_carlo=monte_carlo), burn_in=4, thinning=5)

    whole = fit(module(), tmp_path / "whole", 24)
    fit(module(), tmp_path / "parts", 10, every=5)
    parts = fit(module(9), tmp_path / "parts", 24, resume=True)  # other weights, another key
    assert_same(draws(tmp_path / "whole"), draws(tmp_path / "parts"))
    assert torch.equal(keeper(whole).ensemble("test").mean, keeper(parts).ensemble("test").mean)
    other = Toy(
        partial(Optimized, lr=0.02, optimizer=torch.optim.Adam, prior=PRIOR),
        net(seed=0),
        burn_in=23,
    )
    other.net[1].key += 1
    fit(other, tmp_path / "other", 24)
    (found,) = draws(tmp_path / "other").values()
    expected = draws(tmp_path / "whole")["samples/chain0/step_24.safetensors"]
    assert not torch.allclose(found["net.0.weight"], expected["net.0.weight"], atol=1e-3)


def linear(p: float = 0.4) -> Toy:
    torch.manual_seed(1)
    return Toy(net=nn.Sequential(Dropout(p, seed=2), nn.Linear(NUM_FEATURES, 1)))


def test_mc_predictions_are_averages_over_all_masks() -> None:
    """Mean, deviation and predictive density by enumeration of the 8 masks, 5 errors of 4,000."""
    p, num, module = 0.4, 4000, linear()
    x, y = toy_data(3, 5)
    weight, bias = (t.detach().double() for t in module.net[1].parameters())
    rows, chances = [], []
    for kept in itertools.product((0.0, 1.0), repeat=NUM_FEATURES):
        mask = torch.tensor(kept, dtype=torch.float64)
        rows.append((x * mask / (1 - p)) @ weight[0] + bias)
        chances.append(math.prod(1 - p if k else p for k in kept))
    f, chance = torch.stack(rows), torch.tensor(chances, dtype=torch.float64)
    mean = chance @ f
    variance = chance @ (f - mean) ** 2
    density = torch.exp(-0.5 * ((y - f) / NOISE) ** 2) / math.sqrt(2 * math.pi * NOISE**2)
    found = mc_dropout_predictions(module, (x, y), num)
    assert ((found.mean - mean).abs() < 5 * (variance / num).sqrt()).all()
    fourth = chance @ (f - mean) ** 4
    error = ((fourth - variance**2) / num).sqrt()
    assert ((found.epistemic_std**2 - variance).abs() < 5 * error).all()
    spread = (chance @ density**2 - (chance @ density) ** 2).sqrt()
    assert (((-found.nll).exp() - chance @ density).abs() < 5 * spread / math.sqrt(num)).all()


def test_mc_predictions_leave_the_module_alone() -> None:
    module, batch = linear(), toy_data(3, 5)
    module.train()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    first = mc_dropout_predictions(module, batch, 3, seed=4)
    assert module.training
    module.net[1].eval()
    mc_dropout_predictions(module, batch, 1)
    assert module.training
    assert not module.net[1].training
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert torch.equal(mc_dropout_predictions(module, batch, 3, seed=4).mean, first.mean)
    assert not torch.equal(mc_dropout_predictions(module, batch, 3, seed=5).mean, first.mean)
    one = mc_dropout_predictions(module, batch, 1)
    constant = 0.5 * math.log(2 * math.pi * NOISE**2)
    exact = 0.5 * ((batch[1] - one.mean) / NOISE) ** 2 + constant  # nll saw the same masks
    torch.testing.assert_close(one.nll, exact, rtol=1e-5, atol=1e-5)
    module.eval()
    x = batch[0]
    assert torch.equal(module(x), module.net[1](x))


def test_layers_have_masks_of_their_own() -> None:
    torch.manual_seed(0)
    module = Toy(net=nn.Sequential(Dropout(0.5), Dropout(0.5), nn.Linear(NUM_FEATURES, 1)))
    first, second = module.net[0], module.net[1]
    assert not torch.equal(*(masks(layer, 1, 100)[0] for layer in (first, second)))
    with first.predicting(0, 0), second.predicting(0, 0):
        assert not torch.equal(*(masks(layer, 1, 100)[0] for layer in (first, second)))
        a, b = masks(first, 2, 100)
        assert not torch.equal(a, b)


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"p must lie in \[0, 1\), got 1.0"):
        Dropout(1.0)
    with pytest.raises(ValueError, match="seed must not be negative, got -1"):
        Dropout(seed=-1)
    with pytest.raises(ValueError, match="num must be positive, got 0"):
        mc_dropout_predictions(linear(), toy_data(), 0)
    with pytest.raises(ValueError, match=r"Toy has no lightning_sgmcmc.baselines.Dropout"):
        mc_dropout_predictions(Toy(), toy_data(), 2)
    make = partial(Optimized, lr=0.02, prior=PRIOR)
    with pytest.raises(RuntimeError, match="Dropout draws no masks for several chains"):
        fit(Toy(make, net(), num_chains=2), tmp_path, 3)
