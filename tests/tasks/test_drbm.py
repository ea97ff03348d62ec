"""The discriminative RBM: its closed form is the sum over all states of its hidden units."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from tasks.nets.drbm import DiscriminativeRBM


def enumerated(net: DiscriminativeRBM, x: Tensor) -> Tensor:
    """Return log p(y | x) [B, C] by adding exp(-E) over every state of the hidden units."""
    states = torch.tensor(list(product([0.0, 1.0], repeat=len(net.c))), dtype=x.dtype)
    rows = []
    for example in x:
        joint = torch.empty(len(net.d), len(states), dtype=x.dtype)
        for y in range(len(net.d)):
            for k, h in enumerate(states):
                energy = -(h @ net.W @ example) - net.c @ h - net.d[y] - h @ net.U[:, y]
                joint[y, k] = -energy
        rows.append(joint.logsumexp(1) - joint.flatten().logsumexp(0))
    return torch.stack(rows)


@pytest.mark.parametrize("scale", [1.0, 15.0, 400.0])
@torch.no_grad()
def test_logits_are_the_sum_over_hidden_states(scale: float) -> None:
    """The larger scales reach pre-activations at which exp alone, or a cut-off, is wrong."""
    torch.manual_seed(0)
    net = DiscriminativeRBM(features=3, hidden=5, classes=4).double()
    for parameter in net.parameters():
        parameter.normal_(0, scale)
    x = torch.randn(3, 3, dtype=torch.float64)
    found = net(x).log_softmax(-1)
    torch.testing.assert_close(found, enumerated(net, x), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_softplus_is_exact_between_its_branches() -> None:
    """One hidden unit at z = 21 of one class: the log-odds are log(1 + e^21) - log(1 + e^0)."""
    net = DiscriminativeRBM(features=1, hidden=1, classes=2).double()
    for parameter in net.parameters():
        parameter.zero_()
    net.U[0, 0] = 21.0
    first, second = net(torch.zeros(1, 1, dtype=torch.float64))[0]
    wanted = 21.0 + torch.log1p(torch.tensor(-21.0, dtype=torch.float64).exp())
    wanted -= torch.tensor(2.0, dtype=torch.float64).log()
    torch.testing.assert_close(first - second, wanted, rtol=0, atol=1e-13)


def test_kdd_network_has_the_papers_parameters() -> None:
    net = DiscriminativeRBM(features=40, hidden=41, classes=23)
    assert sum(p.numel() for p in net.parameters()) == 40 * 41 + 41 * 23 + 41 + 23 == 2647


def test_start_is_uniform_within_its_bounds() -> None:
    """Kolmogorov-Smirnov on 1,640 and 943 numbers; false alarm 2e-6, were it unseeded."""
    torch.manual_seed(3)
    net = DiscriminativeRBM(features=40, hidden=41, classes=23)
    first = net.W.detach().clone()
    net.reset_parameters()
    assert not torch.equal(first, net.W)
    for weight in (net.W.detach(), net.U.detach()):
        u = (weight.flatten().sort().values * 41**0.5 + 1) / 2
        assert u.min() >= 0
        assert u.max() <= 1
        grid = (torch.arange(len(u)) + 0.5) / len(u)
        assert (u - grid).abs().max() < 2.7 / len(u) ** 0.5
    assert not net.c.any()
    assert not net.d.any()


@pytest.mark.parametrize(("features", "hidden", "classes"), [(0, 1, 1), (1, 0, 1), (1, 1, -2)])
def test_empty_machines_are_refused(features: int, hidden: int, classes: int) -> None:
    with pytest.raises(ValueError, match=f"must be positive, got {features}, {hidden} and"):
        DiscriminativeRBM(features, hidden, classes)


@pytest.mark.parametrize("shape", [(2, 5), (4,), (2, 1, 4)])
def test_other_features_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"takes features \[B, 4\], got"):
        DiscriminativeRBM(4, 2, 3)(torch.zeros(shape))
