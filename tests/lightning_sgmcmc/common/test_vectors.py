"""Lists as vectors and back."""

from __future__ import annotations

import torch

from lightning_sgmcmc.common.vectors import dot, flatten, unflatten


def test_round_trip_and_views() -> None:
    tensors = [torch.randn(2, 3), torch.randn(()), torch.randn(4)]
    vector = flatten(tensors)
    parts = unflatten(vector, tensors)
    assert all(torch.equal(a, b) for a, b in zip(parts, tensors, strict=True))
    vector.zero_()
    assert not any(part.any() for part in parts)
    assert tensors[0].any()


def test_dot_keeps_leading_axes() -> None:
    x, y = torch.randn(5, 7), torch.randn(5, 7)
    assert torch.allclose(dot(x, y), (x * y).sum(-1, keepdim=True), atol=1e-5)
