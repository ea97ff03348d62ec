"""Checks of what networks are built from and called with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
}


def check_name(what: str, name: str, known: Iterable[str]) -> None:
    """Raise ValueError unless a name is known."""
    if name not in known:
        raise ValueError(f"{what} must be one of {', '.join(known)}, got {name!r}")


def check_sizes(**sizes: int | Sequence[int]) -> None:
    """Raise ValueError unless all sizes are positive."""
    for name, size in sizes.items():
        if (min(size) if isinstance(size, Sequence) else size) < 1:
            raise ValueError(f"{name} must be positive, got {size}")


def check_image(image: Sequence[int]) -> None:
    """Raise ValueError unless these are an image's channels, height and width."""
    if len(image) != 3 or min(image) < 1:
        raise ValueError(f"image must be channels, height and width, got {list(image)}")


def check_images(x: Tensor, image: Sequence[int]) -> None:
    """Raise ValueError unless x is [B, channels, height, width] with these sizes."""
    if x.dim() != 4 or tuple(x.shape[1:]) != tuple(image):
        wanted = ", ".join(str(n) for n in image)
        raise ValueError(f"the net takes images [B, {wanted}], got {list(x.shape)}")
