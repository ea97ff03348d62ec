"""What lets any network into any task: sizes from the data, and an early check of shapes."""

from __future__ import annotations

from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from lightning_sgmcmc.callbacks.draws import training_stream
from lightning_sgmcmc.module import SGMCMCModule
from tasks.nets.normalisation import calibrate, needs_calibration

Data = TypeVar("Data")

#: Training examples from which frozen normalisation takes its statistics, in four batches.
CALIBRATION = 2000


@runtime_checkable
class TakesSizes(Protocol):
    """A network that leaves sizes to the data. Every class with this method is one.

    The parameters concerned exist from the start, without elements or as lazy layers of torch have
    them. So ``load_posterior`` finds them and gives them the shapes of the stored draws.
    """

    def take_sizes(self, inputs: int, outputs: int) -> None:
        """Take the sizes that are still open, and give the layers concerned their weights.

        Args:
            inputs: Length of an input's first axis: features of a vector, channels of an image.
            outputs: Numbers that the network must give for an example.

        Raises:
            ValueError: If a size is set already and is another one.
        """


@runtime_checkable
class TakesGrid(Protocol):
    """A network for fields that leaves the grid to the data. Every class with this method is one.

    Parameters of a shape that the grid decides have the attribute ``provisional``, so that
    ``load_posterior`` gives them the shapes of the stored draws.
    """

    def take_grid(self, nx: int, ny: int) -> None:
        """Take another grid, and draw the weights of the layers concerned anew.

        Args:
            nx: Cells in x.
            ny: Cells in y.

        Raises:
            ValueError: If the network cannot take such a grid.
        """


def run_data(module: SGMCMCModule, kind: type[Data]) -> Data:
    """Return the run's data module.

    Raises:
        TypeError: If it is not of the kind that the task needs.
    """
    data = module.trainer.datamodule  # type: ignore[attr-defined]
    if not isinstance(data, kind):
        needed = f"{type(module).__name__} needs {kind.__name__}"
        raise TypeError(f"{needed}, got {type(data).__name__}")
    return data


def training_set(module: SGMCMCModule) -> tuple[Tensor, Tensor] | None:
    """Return inputs and targets of the training set, None if it is not in a ``BatchStream``."""
    stream = training_stream(module.trainer)
    if stream is None:
        return None
    x, y = stream.tensors
    return x, y


@torch.no_grad()
def fit_network(net: nn.Module, x: Tensor, outputs: int, what: str = "outputs") -> None:
    """Fit a network to the data, and refuse one of other shapes.

    A network that has ``take_sizes`` is called with its sizes (:class:`TakesSizes`), frozen
    normalisation takes its statistics, and torch's lazy layers take their shapes.

    Args:
        net: Any network from [B, ...] to [B, outputs].
        x: Training inputs as the network sees them, the first ``CALIBRATION`` or fewer.
        outputs: Numbers that it must give for an example.
        what: What these are, for the error.

    Raises:
        ValueError: If it does not take the inputs, or gives another shape.
    """
    like = next(net.parameters(), x)
    x = x.to(like.device, like.dtype if x.is_floating_point() else x.dtype)
    if isinstance(net, TakesGrid) and x.ndim == 4:
        net.take_grid(x.shape[-1], x.shape[-2])
    if isinstance(net, TakesSizes):
        before = {name for name, _ in net.named_parameters()}
        net.take_sizes(x.shape[1], outputs)
        added = [name for name, _ in net.named_parameters() if name not in before]
        if added:
            raise ValueError(
                f"{type(net).__name__}.take_sizes adds the parameters {', '.join(added)}, which "
                "stored draws would not find: make them in __init__, lazy or without elements"
            )
    if needs_calibration(net):
        calibrate(net, torch.tensor_split(x, -(-len(x) // (CALIBRATION // 4))))
    examples = x[:2]
    taken, wanted = list(examples.shape), [len(examples), outputs]
    modes = [(part, part.training) for part in net.modules()]
    net.eval()
    try:
        shape = list(net(examples).shape)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"the network does not take two examples {taken} of the data ({reason}): it must give "
            f"{wanted} for them"
        ) from error
    finally:
        for part, training in modes:
            part.training = training
    if shape != wanted:
        raise ValueError(
            f"the network gives {shape} for two examples {taken}, but the data have {outputs} "
            f"{what}: it must give {wanted}"
        )
