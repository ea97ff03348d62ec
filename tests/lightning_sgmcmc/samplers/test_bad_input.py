"""Wrong input is one clear error before the weights are touched."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightning_sgmcmc import HMC, MCLMC, SGLD, GaussianPrior, Sampler
from lightning_sgmcmc.samplers import NonFiniteGradientError, Stacked
from tests.lightning_sgmcmc.problem import N, Problem
from tests.toy import NUM_FEATURES, Toy, ToyData, trainer


def test_sparse_gradients_are_refused() -> None:
    table = nn.Embedding(5, 2, sparse=True)
    sampler = SGLD(table.parameters(), 0.1, num_data=N)
    before = table.weight.detach().clone()

    def closure() -> torch.Tensor:
        sampler.zero_grad()
        loss = table(torch.tensor([1, 3])).square().mean()
        loss.backward()
        return loss

    with pytest.raises(RuntimeError, match="1 of 1 parameters have sparse gradients"):
        sampler.step(closure)
    assert torch.equal(table.weight, before)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("named", [True, False])
def test_gradients_that_are_not_finite_are_refused(value: float, named: bool) -> None:
    problem = Problem()
    params = list(problem.net.named_parameters()) if named else problem.params
    sampler = SGLD(params, 0.1, num_data=N)
    before = problem.weights()
    for p in problem.params:
        p.grad = torch.zeros_like(p)
    problem.params[1].grad[2] = value
    expected = "first: 0.bias" if named else "first: number 1"
    with pytest.raises(NonFiniteGradientError, match=rf"1 of 4 parameters .*{expected}"):
        sampler.step()
    assert torch.equal(problem.weights(), before)


def test_infinite_gradients_that_cancel_are_seen() -> None:
    theta = torch.zeros(2, requires_grad=True)
    theta.grad = torch.tensor([float("inf"), -float("inf")])
    with pytest.raises(NonFiniteGradientError):
        SGLD([theta], 0.1, num_data=1).step()
    theta.grad = torch.tensor([3e38, 3e38])  # finite, though their sum is not
    SGLD([theta], 1e-30, num_data=1, temperature=0.0).step()


def test_stacked_parameters_need_one_first_axis() -> None:
    params = [torch.zeros(3, 2, requires_grad=True), torch.zeros(4, requires_grad=True)]
    with pytest.raises(ValueError, match="along the first axis of every parameter"):
        SGLD(Stacked(params), 0.1)


def test_num_data_smaller_than_the_batch(tmp_path: Path) -> None:
    module = Toy(partial(SGLD, lr=1e-3), burn_in=1, num_data=10)
    with pytest.raises(ValueError, match="num_data = 10 is smaller than the batch of 16"):
        trainer(tmp_path, 5).fit(module, datamodule=ToyData())


@pytest.mark.parametrize("kind", [HMC, MCLMC])
def test_some_need_the_whole_data(tmp_path: Path, kind: type[Sampler]) -> None:
    module = Toy(partial(kind, lr=1e-3, prior=GaussianPrior(4.0)), burn_in=1)
    with pytest.raises(ValueError, match=r'MC needs the gradient of the whole data.*"full"'):
        trainer(tmp_path, 5).fit(module, datamodule=ToyData(sampling="reshuffled"))


def measured_step(tmp_path: Path, lr: float) -> None:
    net = nn.Linear(NUM_FEATURES, 1, bias=False)
    module = Toy(partial(SGLD, lr=lr, prior=GaussianPrior(4.0)), net, burn_in=3)
    trainer(tmp_path, 5).fit(module, datamodule=ToyData(64, "full"))
    assert module.adaptation.stability["largest_stable_lr"] == pytest.approx(
        exact_limit(), rel=0.02
    )


def exact_limit() -> float:
    """2 / lambda_max of the Hessian of U/N of the toy's linear regression."""
    from tests.toy import NOISE, NUM_DATA, toy_data

    x = toy_data()[0].double()
    hessian = x.T @ x / NOISE**2 / NUM_DATA + torch.eye(NUM_FEATURES) / 4 / NUM_DATA
    return 2 / float(torch.linalg.eigvalsh(hessian).max())


def test_a_step_beyond_the_stable_one_is_announced(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="exceeds the largest stable step"):
        measured_step(tmp_path / "large", 1.01 * exact_limit())
    measured_step(tmp_path / "small", 0.5 * exact_limit())  # warnings are errors


def test_an_adapted_step_beyond_the_stable_one_is_a_note(tmp_path: Path, caplog: Any) -> None:
    """It does not diverge, and burn-in may have been too short to adapt in."""
    made = partial(MCLMC, lr=2.5 * exact_limit(), prior=GaussianPrior(4.0))
    module = Toy(partial(made, target_energy_variance=1e9), burn_in=3)
    with caplog.at_level("INFO"):
        trainer(tmp_path, 5).fit(module, datamodule=ToyData(64, "full"))
    assert module.adaptation.stability["fraction"] > 1
    assert "exceeds the largest stable step" in caplog.text
    assert "burn in for longer, or lower target_energy_variance" in caplog.text


def test_an_automatic_step_states_its_bias(tmp_path: Path) -> None:
    """A tenth of the limit inflates the stiffest variance by 1/9: P = 1 / (a (1 - f))."""
    module = Toy(partial(SGLD, lr="auto", prior=GaussianPrior(4.0)), burn_in=3, step_fraction=0.1)
    trainer(tmp_path, 5).fit(module, datamodule=ToyData(64, "full"))
    assert module.chain.sampler.lr == pytest.approx(0.1 * exact_limit(), rel=0.02)
    assert module.adaptation.stability["variance_bias"] == pytest.approx(1 / 9, rel=1e-6)
