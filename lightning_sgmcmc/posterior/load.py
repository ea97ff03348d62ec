"""A finished run as a posterior: the network and its draws, ready to predict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_sgmcmc.metrics import PosteriorEnsemble, Prediction
from lightning_sgmcmc.posterior.draws import Draw, DrawStore
from lightning_sgmcmc.selection import mismatched

if TYPE_CHECKING:
    from lightning_sgmcmc.module import SGMCMCModule


class Posterior:
    """Draws of the weights of a module.

    Args:
        module: The module whose weights were sampled. It is changed by iterating and predicting.
        stores: One opened store a chain.

    Attributes:
        stores: The same.

    Raises:
        ValueError: If there is no draw, or the draws do not fit the module.
    """

    def __init__(self, module: SGMCMCModule, stores: Sequence[DrawStore]) -> None:
        self.module = module.eval()
        self.stores = list(stores)
        self._draws: list[tuple[DrawStore, Draw]] = [(s, d) for s in stores for d in s.draws]
        if not self._draws:
            raise ValueError(
                "the posterior has no draws: was draw_budget 0, or burn-in unfinished?"
            )
        constants = stores[0].load_constants()
        first = stores[0].load(self._draws[0][1])
        given = constants | first
        for name, tensor in [*module.named_buffers(), *module.named_parameters()]:
            if tensor.numel() == 0 and name in given:  # its shape is known from the data only
                tensor.data = tensor.data.new_empty(given[name].shape)
        wrong = mismatched(module.state_dict(), given)
        if wrong:
            raise ValueError(
                f"the draws are of another module: {', '.join(wrong[:5])} "
                f"{'do' if len(wrong) > 1 else 'does'} not match in name or shape"
            )
        module.load_state_dict(given)

    def __len__(self) -> int:
        return len(self._draws)

    @property
    def weights(self) -> Tensor:
        """The draws' normalised weights in averages, [number of draws]."""
        weights = torch.tensor([draw.weight for _, draw in self._draws], dtype=torch.float64)
        return weights / weights.sum()

    def __iter__(self) -> Iterator[SGMCMCModule]:
        """Yield the module with each draw's weights in turn."""
        for store, draw in self._draws:
            self.module.load_state_dict(store.load(draw), strict=False)
            yield self.module

    @torch.no_grad()
    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation over draws of the network's output.

        Args:
            x: What the module's ``forward`` takes, [B, ...].

        Returns:
            Two tensors [B, ...]. The deviation is that of the weights alone, without noise.
        """
        prediction = self._average(lambda module: (module(x), torch.zeros(len(x))))
        return prediction.mean.to(x.dtype), prediction.std.to(x.dtype)

    @torch.no_grad()
    def predictive(self, batch: Any) -> Prediction:
        """Return the ensemble of ``module.predictive`` on a batch, with its log density."""
        return self._average(lambda module: (module.predictive(batch), module.nll(batch)))

    def _average(self, evaluate: Callable[[SGMCMCModule], tuple[Tensor, Tensor]]) -> Prediction:
        """Return the ensemble of outputs and negative log-likelihoods, [B, ...] and [B]."""
        metric: PosteriorEnsemble | None = None
        for weight, module in zip(self.weights.tolist(), self, strict=True):
            output, nll = evaluate(module)
            if metric is None:
                metric = PosteriorEnsemble(len(output), tuple(output.shape[1:])).to(output.device)
            index = torch.arange(len(output), device=output.device)
            metric.update(output, nll.to(output.device), index, weight)
        assert metric is not None
        prediction: Prediction = metric.compute()
        return prediction

    def mean_weights(self) -> dict[str, Tensor]:
        """Return the weighted mean of the weights over draws."""
        mean: dict[str, Tensor] = {}
        for weight, (store, draw) in zip(self.weights.tolist(), self._draws, strict=True):
            for name, tensor in store.load(draw).items():
                part = weight * tensor.double()
                mean[name] = mean[name] + part if name in mean else part
        return {name: tensor.float() for name, tensor in mean.items()}


def load_posterior(run_folder: str | Path, module: SGMCMCModule | None = None) -> Posterior:
    """Open a run's draws.

    Args:
        run_folder: The folder that the run printed last.
        module: The module that was sampled; None builds it from the run's ``config.yaml``.

    Raises:
        FileNotFoundError: If the folder holds no draws, or no config when one is needed.
        ValueError: If the draws do not fit the module.
    """
    folder = Path(run_folder)
    chains = sorted(
        int(path.name.removeprefix("chain")) for path in (folder / "samples").glob("chain*")
    )
    if not chains:
        raise FileNotFoundError(f"{folder} holds no samples/chain<c> folder: no draw was kept")
    if module is None:
        from lightning_sgmcmc.cli import module_from_config

        module = module_from_config(folder / "config.yaml")
    return Posterior(module, [DrawStore.open(folder / "samples", chain) for chain in chains])
