"""Convolutional networks with pooling and dense layers, as pSGLD's experiments have."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from tasks.nets.arguments import check_image, check_images


class ConvNet(nn.Module):
    """Images [B, C, H, W] to logits [B, classes].

    For each number of ``channels`` a convolution, ReLU and 2x2 max pooling of stride 2; then for
    each number of ``hidden`` a dense layer and ReLU; then a dense layer to the logits. A pooling
    drops the last row or column of an odd side.

    The networks of Li, Chen, Carlson and Carin 2016 are

    ============  =================  ==========  =============  ===========
    experiment    ``channels``       ``hidden``  ``image``      parameters
    ============  =================  ==========  =============  ===========
    MNIST, text   (32, 64)           (200, 200)  (1, 28, 28)    1,374,506
    MNIST, app.   (32, 64)           (500,)      (1, 28, 28)    3,257,606
    CIFAR-10      (32, 32, 64)       (500,)      (3, 32, 32)    1,652,838
    ============  =================  ==========  =============  ===========

    with 5x5 kernels. The paper does not give the padding; the default, 4, is that of the authors'
    code and lets every pixel meet every weight of a kernel ("full" convolution). Of the CIFAR
    network it says "a similar 3-layer CNN with 32-32-64 channels" and nothing of dense layers;
    the one of 500 units is that of the appendix's MNIST network, to which the sentence refers.

    Args:
        channels: Output channels of the convolutions.
        kernel: Side of their kernels.
        padding: Zeros around the image, from 0 ("valid") to kernel - 1 ("full"); kernel // 2 keeps
            an odd kernel's image its size.
        hidden: Units of the dense layers before the last; none goes straight to the logits.
        image: Channels, height and width of the images.
        classes: C, the number of classes.

    Raises:
        ValueError: If a number lies outside its range, or the image is too small for the layers.
    """

    def __init__(
        self,
        channels: Sequence[int] = (32, 64),
        kernel: int = 5,
        padding: int = 4,
        hidden: Sequence[int] = (200, 200),
        image: tuple[int, int, int] = (1, 28, 28),
        classes: int = 10,
    ) -> None:
        super().__init__()
        check_image(image)
        if not channels or min((*channels, *hidden, classes, kernel)) < 1:
            raise ValueError(
                f"one convolution at least, and positive sizes are needed, got channels = "
                f"{list(channels)}, kernel = {kernel}, hidden = {list(hidden)}, classes = {classes}"
            )
        if not 0 <= padding < kernel:
            raise ValueError(f"padding must lie in [0, {kernel - 1}], got {padding}")
        self.image = tuple(image)
        depth, height, width = image
        parts: list[nn.Module] = []
        for number, wide in enumerate(channels, 1):
            height, width = ((side + 2 * padding - kernel + 1) // 2 for side in (height, width))
            if min(height, width) < 1:
                raise ValueError(
                    f"nothing is left of an image of {image[1]}x{image[2]} pixels after layer "
                    f"{number} of {len(channels)}: use fewer layers, more padding or a smaller "
                    "kernel"
                )
            parts += [nn.Conv2d(depth, wide, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
            depth = wide
        parts.append(nn.Flatten())
        sizes = [depth * height * width, *hidden, classes]
        for m, n in pairwise(sizes):
            parts += [nn.Linear(m, n), nn.ReLU()]
        self.layers = nn.Sequential(*parts[:-1])

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, classes].

        Raises:
            ValueError: If x is not [B, C, H, W] with the sizes of ``image``.
        """
        check_images(x, self.image)
        logits: Tensor = self.layers(x)
        return logits
