"""Calls under other weights, of modules whose weights have several names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_sgmcmc.common.functional import FunctionalCall


class Layers(nn.Module):
    """x W' W' B' B', with W in two layers and B in a layer that has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.first = (nn.Linear(2, 2, bias=False) for _ in range(3))
        self.two.weight = self.one.weight
        self.second = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(self.two(self.one(x))))


@pytest.mark.parametrize("w_name", ["one.weight", "two.weight"])
@pytest.mark.parametrize("b_name", ["first.weight", "second.weight"])
def test_a_weight_may_be_given_by_any_name(w_name: str, b_name: str) -> None:
    module, (x, w, b) = Layers(), torch.randn(3, 2, 2)
    own = dict(module.named_parameters(remove_duplicate=False))
    found = FunctionalCall(module)({w_name: w, b_name: b}, x)
    torch.testing.assert_close(found, x @ w.T @ w.T @ b.T @ b.T)
    assert all(p is own[n] for n, p in module.named_parameters(remove_duplicate=False))
