"""Draws of a posterior: the network with each of them, ready to predict."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lightning_sgmcmc.chain import Task
from lightning_sgmcmc.chain.selection import mismatched
from lightning_sgmcmc.common.files import save_tensors
from lightning_sgmcmc.metrics import Prediction
from lightning_sgmcmc.posterior.draws import Draw, DrawStore, open_stores
from lightning_sgmcmc.posterior.law import PredictiveLaw
from lightning_sgmcmc.posterior.predict import (
    MEMORY,
    Load,
    cut,
    ensemble,
    evaluate,
    num_examples,
)


class Posterior:
    """Draws of the weights of a module.

    Args:
        module: The module whose weights were sampled. Iterating changes its weights.
        stores: One opened store a chain.

    Attributes:
        stores: The same.

    Raises:
        ValueError: If there is no draw, or the draws do not fit the module.
    """

    def __init__(self, module: Task, stores: Sequence[DrawStore]) -> None:
        self.module = module.eval()
        self.stores = list(stores)
        self._draws: list[tuple[DrawStore, Draw]] = [(s, d) for s in stores for d in s.draws]
        if not self._draws:
            raise ValueError(
                "the posterior has no draws: was draw_budget 0, or burn-in unfinished?"
            )
        if len({store.constants for store in stores} - {""}) > 1:
            raise ValueError(
                "the chains have different weights or buffers that are not sampled, so that they "
                "are of different posteriors: build the network alike in all processes, by "
                "seed_everything or pretrained weights"
            )
        former = getattr(module, "former_names", {})
        stored = stores[0].load_constants() | stores[0].load(self._draws[0][1])
        given = {former.get(name, name): tensor for name, tensor in stored.items()}
        given.pop(None, None)
        for name, tensor in [*module.named_buffers(), *module.named_parameters()]:
            if name in given and is_lazy(tensor):
                tensor.materialize(given[name].shape)
            elif name in given and (tensor.numel() == 0 or getattr(tensor, "provisional", False)):
                # Its shape is known from the data only.
                tensor.data = tensor.data.new_empty(given[name].shape)
        wrong = mismatched(module.state_dict(), given)
        if wrong:
            raise ValueError(
                f"the draws are of another module: {', '.join(wrong[:5])} "
                f"{'do' if len(wrong) > 1 else 'does'} not match in name or shape"
            )
        module.load_state_dict(given)

    @classmethod
    def from_trainer(cls, trainer: L.Trainer) -> Posterior:
        """Return the posterior of a Trainer's last fit.

        Raises:
            ValueError: If it has fitted no task, or kept no draw.
        """
        task = trainer.lightning_module
        if not isinstance(task, Task) or not hasattr(task, "kept"):
            raise ValueError("the trainer has no draws: fit an SGMCMCModule first")
        return cls.of(task, task.kept.folder.parent)

    @classmethod
    def of(cls, task: Task, run_folder: Path) -> Posterior:
        """Return the posterior of a run's draws, of a copy of its task without the chains.

        Args:
            task: Its weights and its chains are left as they are.
            run_folder: Of the run.

        Raises:
            FileNotFoundError: If the folder holds no draws.
            ValueError: If the draws do not fit the task.
        """
        shared = {id(v): v for k, v in vars(task).items() if not k.startswith("_")}
        stack = task._modules.get("chains")
        if stack is not None:
            shared[id(stack)] = nn.Module()  # the chains' weights
        module = copy.deepcopy(task, shared)
        module._modules.pop("chains", None)
        return cls(module, open_stores(run_folder))

    def __len__(self) -> int:
        return len(self._draws)

    @property
    def weights(self) -> Tensor:
        """The draws' normalised weights in averages, [number of draws]."""
        weights = torch.tensor([draw.weight for _, draw in self._draws], dtype=torch.float64)
        return weights / weights.sum()

    def __iter__(self) -> Iterator[Task]:
        """Yield the module with each draw's weights in turn."""
        for store, draw in self._draws:
            self.module.load_state_dict(store.load(draw), strict=False)
            yield self.module

    @property
    def num_chains(self) -> int:
        """Number of chains."""
        return len(self.stores)

    def chain(self, index: int) -> Posterior:
        """Return the posterior of one chain's draws, to see whether the chains agree.

        Args:
            index: From 0 to ``num_chains - 1``, in the order of ``stores``.

        Raises:
            IndexError: If there is no such chain.
        """
        if not 0 <= index < self.num_chains:
            raise IndexError(f"the posterior has chains 0 to {self.num_chains - 1}, got {index}")
        return Posterior(self.module, [self.stores[index]])

    def predict(self, x: Any, memory: int | str = MEMORY) -> PredictiveLaw:
        """Return the law of the targets of inputs x given the data.

        A warning has the module's ``remark`` on these inputs, where it has one.

        Args:
            x: What the module's ``law`` takes, [B, ...].
            memory: Working memory in bytes, text such as ``"512 MiB"``, or ``"auto"``: see
                :class:`~lightning_sgmcmc.posterior.predict.Plan`.
        """
        said = self.module.remark(x)
        if said is not None:
            warnings.warn(said, stacklevel=2)
        return PredictiveLaw(self.module, self.loads, self.weights, x, memory)

    @torch.no_grad()
    def predictive(self, batch: Any, memory: int | str = MEMORY) -> Prediction:
        """Return what the ensemble predicts for examples with known targets.

        Args:
            batch: What the module's ``nll`` takes.
            memory: As in :meth:`predict`.

        Returns:
            What the module's ``metrics`` takes, with the log density of the targets.
        """
        law = type(self.module.law_of(cut(batch, slice(0, 1))))
        method = "moments_and_nll"
        found = ensemble(self.module, self.loads, self.weights, method, batch, memory, has_nll=True)
        assert found.nll is not None
        return Prediction(law, found.mean, found.std, found.noise, found.nll)

    def predictions(
        self, batch: Any, method: str = "predictive", memory: int | str = MEMORY
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield what each draw predicts, some draws at a time.

        Args:
            batch: What the method takes, B examples.
            method: A method of the module that returns one row per example.
            memory: As in :meth:`predict`; what is yielded comes on top.

        Yields:
            Weights [k], of which those of all draws sum to one, and outputs [k, B, ...].
        """
        size = num_examples(batch)
        parts: list[Tensor] = []
        for block in evaluate(self.module, self.loads, method, batch, memory):
            parts.append(block.outputs[0])
            if block.examples.stop == size:
                yield self.weights[block.draws], torch.cat(parts, 1)
                parts = []

    @property
    def loads(self) -> list[Load]:
        """A function for each draw that reads its weights, in the module's precision."""
        dtypes = {name: weight.dtype for name, weight in self.module.named_parameters()}

        def load(store: DrawStore, draw: Draw) -> dict[str, Tensor]:
            return {n: w.to(dtypes.get(n, w.dtype)) for n, w in store.load(draw).items()}

        return [partial(load, store, draw) for store, draw in self._draws]

    def mean_weights(self) -> dict[str, Tensor]:
        """Return the weighted mean of the weights over draws."""
        mean: dict[str, Tensor] = {}
        for weight, (store, draw) in zip(self.weights.tolist(), self._draws, strict=True):
            for name, tensor in store.load(draw).items():
                part = weight * tensor.double()
                mean[name] = mean[name] + part if name in mean else part
        return {name: tensor.float() for name, tensor in mean.items()}

    def mean_network(self) -> Task:
        """Return a copy of the module whose weights are the posterior mean."""
        module = copy.deepcopy(self.module)
        module.load_state_dict(self.mean_weights(), strict=False)
        return module

    def save_mean_network(self, path: str | Path) -> None:
        """Write the state of the posterior mean's ``net`` as a safetensors file.

        It needs nothing of this package: ``net.load_state_dict(load_file(path))``.
        """
        save_tensors(Path(path), self.mean_network().net.state_dict())
