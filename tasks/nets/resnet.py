"""The ResNet of depth 20 for small images, normalised so that it can be sampled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from tasks.nets import normalisation as norms
from tasks.nets.arguments import check_image, check_images, check_name

Normalisation = Literal["frn", "frozen"]
Activation = Literal["relu", "tlu", "silu"]
Shortcut = Literal["identity", "projection"]

_NORMS = {"frn": norms.FilterResponseNorm2d, "frozen": norms.FrozenBatchNorm2d}
_ACTIVATIONS = ("relu", "tlu", "silu")
_SHORTCUTS = ("identity", "projection")


class ResNet20(nn.Module):
    """Images [B, C, H, W] to logits [B, classes] (He, Zhang, Ren, Sun 2016, section 4.2).

    A 3x3 convolution, three stages of three blocks with ``width``, 2 ``width`` and 4 ``width``
    channels, of which the second and third halve the image, the mean over the pixels and a dense
    layer. A block is a(n(conv(a(n(conv(x))))) + shortcut(x)) with normalisation n and activation
    a. Convolutions are 3x3, without bias if not asked for, and start as torch draws them.

    Batch normalisation by the batch's own statistics cannot be used: an example's likelihood
    would depend on the rest of its minibatch, so that no product of likelihoods and no posterior
    is defined. Instead n is

    - ``"frn"``: filter response normalisation, by which Izmailov et al. 2021 sampled a ResNet-20;
    - ``"frozen"``: batch normalisation by statistics that
      :func:`~tasks.nets.normalisation.calibrate` fixes before the chain, an affine map. The
      posterior is that of the network with these statistics. A forward without them is an error.

    Scales and shifts are sampled with both.

    Parameters with 3 channels, 10 classes and width 16: 269,722 with identity shortcuts (option
    A: every other pixel, and zeros in the new channels), which He et al. use on CIFAR; 272,474
    with projections (option B: a normalised 1x1 convolution where the number of channels changes),
    which many public versions have. The activation ``"tlu"`` adds 688 thresholds.

    The network that Izmailov et al. 2021 sampled by HMC has 274,042: projections, the activation
    ``"silu"``, ``bias`` and ``thresholds``. Theirs pads an image that it halves on one side only.

    Args:
        classes: Number of classes.
        image: Channels, height and width of the images, of 4x4 pixels at least.
        width: Channels of the first stage.
        normalisation: ``"frn"`` or ``"frozen"``.
        activation: ``"relu"``; ``"tlu"``, max(x, tau) with sampled tau; or ``"silu"``, which is
            smooth. By default ``"tlu"`` with ``"frn"``, as Singh and Krishnan 2020 advise, and
            ``"relu"`` with ``"frozen"``.
        shortcut: ``"identity"`` or ``"projection"``.
        bias: Add a bias a channel to every convolution.
        thresholds: Take max(x, tau), with one sampled tau a channel, after every normalisation.

    Raises:
        ValueError: If a number lies outside its range or a name is unknown.
    """

    def __init__(
        self,
        classes: int = 10,
        image: tuple[int, int, int] = (3, 32, 32),
        width: int = 16,
        normalisation: Normalisation = "frn",
        activation: Activation | None = None,
        shortcut: Shortcut = "identity",
        bias: bool = False,
        thresholds: bool = False,
    ) -> None:
        super().__init__()
        check_image(image)
        if min(image[1:]) < 4:
            raise ValueError(
                f"image must have 4x4 pixels to be halved twice, got {image[1]}x{image[2]}"
            )
        if min(classes, width) < 1:
            raise ValueError(f"classes and width must be positive, got {classes} and {width}")
        check_name("normalisation", normalisation, _NORMS)
        if activation is None:
            activation = "tlu" if normalisation == "frn" else "relu"
        check_name("activation", activation, _ACTIVATIONS)
        check_name("shortcut", shortcut, _SHORTCUTS)
        self.image, self.normalisation = tuple(image), normalisation

        def convolution(before: int, after: int, stride: int = 1, kernel: int = 3) -> nn.Sequential:
            layers: list[nn.Module] = [
                nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=bias),
                _NORMS[normalisation](after),
            ]
            return nn.Sequential(*layers, *[norms.ThresholdedLinear(after)] * thresholds)

        self.stem = convolution(image[0], width).append(_activation(activation, width))
        blocks, before = [], width
        for stage in range(3):
            for number in range(3):
                after = width * 2**stage
                stride = 2 if stage and not number else 1
                blocks.append(_Block(before, after, stride, convolution, activation, shortcut))
                before = after
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, classes].

        Raises:
            ValueError: If x is not [B, C, H, W] with the sizes of ``image``.
            RuntimeError: If frozen normalisation has no statistics yet.
        """
        check_images(x, self.image)
        features: Tensor = self.blocks(self.stem(x)).mean((-2, -1))
        logits: Tensor = self.head(features)
        return logits


class _Block(nn.Module):
    """Two normalised convolutions and a way around them."""

    def __init__(
        self,
        before: int,
        after: int,
        stride: int,
        convolution: Callable[..., nn.Sequential],
        activation: Activation,
        shortcut: Shortcut,
    ) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *convolution(before, after, stride),
            _activation(activation, after),
            *convolution(after, after),
        )
        self.shortcut: nn.Module
        if before == after:
            self.shortcut = nn.Identity()
        elif shortcut == "identity":
            self.shortcut = _Subsample(stride, after - before)
        else:
            self.shortcut = convolution(before, after, stride, kernel=1)
        self.activation = _activation(activation, after)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.activation(self.residual(x) + self.shortcut(x))
        return result


class _Subsample(nn.Module):
    """Every ``stride``-th pixel, and zeros in ``extra`` more channels."""

    def __init__(self, stride: int, extra: int) -> None:
        super().__init__()
        self.stride, self.extra = stride, extra

    def forward(self, x: Tensor) -> Tensor:
        kept = x[..., :: self.stride, :: self.stride]
        return functional.pad(kept, (0, 0, 0, 0, 0, self.extra))


def _activation(name: Activation, channels: int) -> nn.Module:
    if name == "tlu":
        return norms.ThresholdedLinear(channels)
    return nn.ReLU() if name == "relu" else nn.SiLU()
