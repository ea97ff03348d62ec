"""NLD's RMSProp metric against the printed recursion, and the chain of it against its law."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_sgmcmc import SGLD, DecayingRMSProp, GaussianPrior
from lightning_sgmcmc.noise import NoiseStream
from tests.harness import assert_normal

D = torch.float64


def attached(d: int = 4, **arguments: object) -> DecayingRMSProp:
    preconditioner = DecayingRMSProp(**arguments)
    preconditioner.attach([torch.zeros(d, dtype=D)])
    return preconditioner


def diagonal(preconditioner: DecayingRMSProp, d: int = 4) -> Tensor:
    return preconditioner.apply_([torch.ones(d, dtype=D)])[0]


@pytest.mark.parametrize("delay", [0, 3])
def test_c_by_algorithm_2(delay: int) -> None:
    """D_ii <- (1 - gamma_t) D_ii + gamma_t g_i^2 from D = 1; C_ii = (D_ii + eps)^-1/2."""
    generator = torch.Generator().manual_seed(0)
    grads = torch.randn(7, 4, generator=generator, dtype=D)
    preconditioner = attached(eps=1e-4, delay=delay)
    assert diagonal(preconditioner).numpy() == pytest.approx((1 + 1e-4) ** -0.5)
    expected = np.ones(4)
    for t, g in enumerate(grads.numpy(), start=1):
        preconditioner.update([torch.from_numpy(g)])
        gamma = 1 / np.sqrt(t + delay)
        expected = (1 - gamma) * expected + gamma * g**2
        C = (expected + 1e-4) ** -0.5
        np.testing.assert_allclose(diagonal(preconditioner).numpy(), C, rtol=1e-12)
    v = torch.randn(4, generator=generator, dtype=D)
    energy = float(preconditioner.inverse_norm([v]))
    assert energy == pytest.approx(float((v.numpy() ** 2 / C).sum()), rel=1e-12)


def test_noise_has_the_fourth_root() -> None:
    """xi_i = (D_ii + eps)^-1/4 N(0, 1), whose covariance is C."""
    preconditioner = attached(2)
    preconditioner.update([torch.tensor([0.3, 20.0], dtype=D)])
    stream = NoiseStream([torch.zeros(2, dtype=D)], 0)
    draws = np.stack([preconditioner.noise(stream)[0].numpy().copy() for _ in range(5000)])
    assert_normal(draws, np.diag(diagonal(preconditioner, 2).numpy()))


def test_a_resumed_metric_is_the_same_to_the_bit() -> None:
    first, second = attached(delay=3), attached(delay=3)
    g = torch.tensor([0.1, 1.0, 2.0, 3.0], dtype=D)
    first.update([g])
    second.load_state_dict(first.state_dict())
    for metric in (first, second):
        metric.update([g.flip(0)])
    assert torch.equal(diagonal(first), diagonal(second))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"eps": 0.0}, "eps must be positive"),
        ({"power": 0.0}, "power must lie in"),
        ({"delay": -1}, "delay must not be negative"),
        ({"delay": float("nan")}, "delay must not be negative"),
    ],
)
def test_values_outside_their_range_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DecayingRMSProp(**arguments)


def test_a_step_at_which_an_unused_weight_would_diverge_is_refused() -> None:
    """After the first zero gradient C = eps^-1/2 = 100; lr C / (N v) = 2 is the limit."""
    preconditioner = attached(1)
    preconditioner.update([torch.zeros(1, dtype=D)])
    preconditioner.check(0.19, 10, 1.0)
    with pytest.raises(ValueError, match=r"lower lr below 0\.2"):
        preconditioner.check(0.2, 10, 1.0)


def test_the_unused_weight_of_any_tensor_counts() -> None:
    """C = 100 of the first of three weights alone: lr C / (N v) = 2 at lr = .04."""
    preconditioner = DecayingRMSProp(eps=1e-4)
    preconditioner.attach([torch.zeros(2), torch.zeros(1), torch.zeros(0)])
    grads = [torch.tensor([0.0, 10.0]), torch.tensor([5.0]), torch.zeros(0)]
    preconditioner.update(grads)  # D = g^2
    preconditioner.check(lr=0.039, num_data=10, prior_precision=5.0)
    with pytest.raises(ValueError, match="is at least 2"):
        preconditioner.check(lr=0.041, num_data=10, prior_precision=5.0)


def test_sgld_takes_it() -> None:
    theta = torch.ones(3, requires_grad=True)
    prior = GaussianPrior(1.0)
    sampler = SGLD([theta], 0.01, num_data=10, prior=prior, preconditioner=DecayingRMSProp())
    theta.grad = torch.tensor([0.1, 1.0, 10.0])
    sampler.step()
    C = sampler.preconditioner.apply_([torch.ones(3)])[0]
    expected = (torch.tensor([0.01, 1.0, 100.0]) + 1e-4) ** -0.5
    torch.testing.assert_close(C, expected)
