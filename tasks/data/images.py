"""Labelled images of one shape, in memory."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from tasks.data.classes import ClassData, Examples, Transform, standardiser
from tasks.data.download import data_root

Scale = Literal["unit", "126", "standardise"]
_DIVISORS: dict[str, float] = {"unit": 255.0, "126": 126.0}


class ImageData(ClassData):
    """Images [B, C, H, W], or pixels [B, CHW] or projected features [B, d], and their labels.

    A subclass reads the bytes, in :meth:`images`.

    Args:
        root: Folder of data sets; None is $SGMCMC_DATA_ROOT or ``./data``.
        scale: What becomes of a byte b: ``unit``: b / 255; ``126``: b / 126, as the published
            codes of pSGLD and of Bayes by backprop have it; ``standardise``: (b - m) / s with the
            mean and standard deviation of its channel over the training images.
        flatten: Give an image as a vector, channel after channel and row after row, to a net
            that takes vectors.
        projection_dim: d, a random projection of the pixels in place of the image; None for none.
        projection_seed: Seed of that projection.
        ood: A held-out set of other images, in ``extra_dataloaders()["ood"]``. ``rotated``: the
            test images turned counter-clockwise by 90 degrees, with their labels, which needs no
            other file; images that look alike both ways, such as a 0, are in it. A name that the
            subclass adds: that set's test images. True: the first such name.
        **kwargs: As for :class:`~tasks.data.classes.ClassData`: ``num_val``, ``num_train``,
            ``val_from``, ``batch_size``, ``eval_batch_size``, ``sampling``, ``split_seed``.

    Raises:
        ValueError: If a value is unknown or lies outside its range.
    """

    #: C, H, W.
    shape: ClassVar[tuple[int, int, int]]
    #: What ``ood`` may be.
    ood_sets: ClassVar[tuple[str, ...]] = ("rotated",)

    def __init__(
        self,
        root: str | None = None,
        scale: Scale = "unit",
        flatten: bool = False,
        projection_dim: int | None = None,
        projection_seed: int = 0,
        ood: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if scale not in (*_DIVISORS, "standardise"):
            raise ValueError(f"scale must be unit, 126 or standardise, got {scale!r}")
        if projection_dim is not None and not 1 <= projection_dim <= math.prod(self.shape):
            raise ValueError(
                f"projection_dim must lie between 1 and {math.prod(self.shape)}, "
                f"got {projection_dim}"
            )
        self.ood = self.ood_sets[0] if ood is True else (ood or None)
        if self.ood not in (*self.ood_sets, None):
            raise ValueError(f"ood must be {' or '.join(self.ood_sets)}, got {ood!r}")
        self.root, self.scale, self.flatten = data_root(root), scale, flatten
        self.projection_dim, self.projection_seed = projection_dim, projection_seed

    @abstractmethod
    def images(self) -> tuple[Examples, Examples]:
        """Return training and test images [N, C, H, W] as bytes, and their labels."""

    def other_images(self, name: str) -> Examples:
        """Return the images of one of ``ood_sets`` other than ``rotated``."""
        raise NotImplementedError(f"{type(self).__name__} has no images {name!r}")

    def examples(self) -> tuple[Examples, Examples | None]:
        """Read the images.

        Raises:
            ValueError: If they are not of this set's shape.
        """
        train, test = self.images()
        for name, (x, _) in {"training": train, "test": test}.items():
            if x.shape[1:] != self.shape:
                raise ValueError(f"{name} images are of shape {x.shape[1:]}, not {self.shape}")
        return train, test

    def extras(self, test: Examples | None) -> dict[str, Examples]:
        """Return the set that ``ood`` names."""
        if self.ood is None:
            return {}
        if self.ood != "rotated":
            return {"ood": self.other_images(self.ood)}
        assert test is not None
        return {"ood": (np.rot90(test[0], axes=(2, 3)), test[1])}

    def transform(self, train: NDArray[Any]) -> Transform:
        """Return the scaling of bytes, with the projection if one is asked for."""
        shift, scale = np.zeros((1, 1, 1)), np.full((1, 1, 1), _DIVISORS.get(self.scale, 1.0))
        if self.scale == "standardise":
            channels = train.swapaxes(0, 1)
            moments = [(c.mean(dtype=np.float64), c.std(dtype=np.float64)) for c in channels]
            shift, scale = np.array(moments).T.reshape(2, -1, 1, 1)
            scale[scale == 0] = 1.0
        offset, divisor = shift.astype(np.float32), scale.astype(np.float32)

        def pixels(x: NDArray[Any]) -> NDArray[np.float32]:
            result = x.astype(np.float32)
            result -= offset
            result /= divisor
            return result.reshape(len(x), -1) if self.flatten or self.projection_dim else result

        if self.projection_dim is None:
            return pixels
        project = random_projection(pixels(train), self.projection_dim, self.projection_seed)
        return lambda x: project(pixels(x))


def random_projection(train: NDArray[np.float32], dimensions: int, seed: int) -> Transform:
    """Return x -> standardise(x R), R [D, d] of independent N(0, 1) / sqrt(D).

    Mean and variance are those of the projected training examples (Ahn et al. 2012, section
    5.2.2, projects MNIST so to d = 20 and gives neither R nor a scale).

    Args:
        train: Training examples [N, D].
        dimensions: d.
        seed: Seed of R.

    Raises:
        ValueError: If d does not lie between 1 and D.
    """
    features = train.shape[1]
    if not 1 <= dimensions <= features:
        raise ValueError(f"projection_dim must lie between 1 and {features}, got {dimensions}")
    matrix = np.random.default_rng(seed).standard_normal((features, dimensions))
    matrix = (matrix / np.sqrt(features)).astype(np.float32)
    standardise = standardiser(train @ matrix)

    def apply(x: NDArray[Any]) -> NDArray[np.float32]:
        return standardise(x @ matrix)

    return apply
