"""Compare states of samplers and optimizers."""

from __future__ import annotations

from typing import Any

import torch


def assert_alike(found: Any, expected: Any, exact: bool = False, path: str = "state") -> None:
    """Compare two states: the same structure, and values to rounding, or to the bit."""
    assert type(found) is type(expected), path
    if isinstance(expected, torch.Tensor):
        assert found.shape == expected.shape, path
        assert found.dtype == expected.dtype, path
        if exact or not expected.is_floating_point():
            assert torch.equal(found, expected), path
        else:
            torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-4, msg=path)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), path
        for key, value in expected.items():
            assert_alike(found[key], value, exact, f"{path}.{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), path
        for i, value in enumerate(expected):
            assert_alike(found[i], value, exact, f"{path}.{i}")
    else:
        assert found == expected, path
