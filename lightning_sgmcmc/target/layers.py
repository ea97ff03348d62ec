"""Per-example gradients of linear and convolution layers from what their taps noted."""

from __future__ import annotations

from math import prod

from torch import Tensor, nn
from torch.nn import functional


class LayerPass:
    """One pass of K chains through a ``Linear`` or ``Conv2d`` layer.

    The gradient of example b's loss is sum_t g[b, t] a[b, t]' for the weight and sum_t g[b, t] for
    the bias, t running over sequence positions or pixels, a the layer's input (patches of it for a
    convolution) and g B times the gradient of the mean loss with respect to its output.

    Args:
        layer: The layer.
        activation: Its input, [K, B, ...].
        gradient: The mean loss's gradient with respect to its output, [K, B, ...].
    """

    def __init__(self, layer: nn.Linear | nn.Conv2d, activation: Tensor, gradient: Tensor) -> None:
        self.layer, self.activation, self.gradient = layer, activation, gradient
        self.examples = gradient.shape[1]
        self._squares: tuple[Tensor, Tensor] | None = None

    @property
    def single(self) -> bool:
        """Whether there is one position, so that weight gradients are outer products g a'."""
        if isinstance(self.layer, nn.Linear):
            return self.activation.dim() == 3
        return self.layer.groups == 1 and prod(self.gradient.shape[3:]) == 1

    def factors(self) -> tuple[Tensor, Tensor]:
        """Return a [K, B, in] and g / B [K, B, out] where :attr:`single`."""
        if isinstance(self.layer, nn.Linear):
            return self.activation, self.gradient
        patches = self._patches(0, self.examples)
        return patches.flatten(2), self.gradient.flatten(2)

    def squares(self) -> tuple[Tensor, Tensor]:
        """Return a^2 and (g / B)^2 where :attr:`single`."""
        if self._squares is None:
            a, g = self.factors()
            self._squares = a.square(), g.square()
        return self._squares

    def gradients(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return the gradients of some examples.

        Returns:
            For the weight [K, stop - start, *weight.shape], for the bias [K, stop - start, out].
        """
        g = self.gradient[:, start:stop] * self.examples
        if isinstance(self.layer, nn.Linear):
            a = self.activation[:, start:stop]
            if a.dim() == 3:
                return g.unsqueeze(-1) * a.unsqueeze(-2), g
            a, g = a.flatten(2, -2), g.flatten(2, -2)
            return g.transpose(-1, -2) @ a, g.sum(-2)
        groups = self.layer.groups
        patches = self._patches(start, stop)  # [K, c, in * k, L]
        g = g.flatten(3)
        g_groups = g.reshape(*g.shape[:2], groups, -1, g.shape[-1])
        a_groups = patches.reshape(*g.shape[:2], groups, -1, g.shape[-1])
        weight = g_groups @ a_groups.transpose(-1, -2)
        return weight.reshape(*g.shape[:2], *self.layer.weight.shape), g.sum(-1)

    def _patches(self, start: int, stop: int) -> Tensor:
        layer = self.layer
        assert isinstance(layer, nn.Conv2d)
        a = self.activation[:, start:stop]
        chains, count = a.shape[:2]
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        padded = functional.pad(a.flatten(0, 1), _padding(layer), mode=mode)
        patches = functional.unfold(
            padded, layer.kernel_size, dilation=layer.dilation, stride=layer.stride
        )
        return patches.view(chains, count, *patches.shape[1:])


def _padding(layer: nn.Conv2d) -> list[int]:
    """Return the padding in the order of ``torch.nn.functional.pad``: left, right, top, bottom."""
    if layer.padding == "valid":
        return [0, 0, 0, 0]
    result: list[int] = []
    for axis in (1, 0):
        if layer.padding == "same":
            total = layer.dilation[axis] * (layer.kernel_size[axis] - 1)
            result += [total // 2, total - total // 2]
        else:
            result += [int(layer.padding[axis])] * 2
    return result


def accumulate_outer_(average: Tensor, g: Tensor, a: Tensor, beta: float, alpha: float) -> None:
    """Add alpha sum_b g_b a_b' to beta average: [K, B, out] and [K, B, in] give [K, out, in]."""
    if not g.dtype == a.dtype == average.dtype:
        g, a = g.to(average.dtype), a.to(average.dtype)
    if average.shape[0] == 1:
        average[0].addmm_(g[0].T, a[0], beta=beta, alpha=alpha)
    else:
        average.baddbmm_(g.transpose(-1, -2), a, beta=beta, alpha=alpha)
