"""What a task says: its likelihood, its predictions, and what a run reports of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from lightning_sgmcmc.metrics import Prediction
from lightning_sgmcmc.target import Batch

if TYPE_CHECKING:  # what stands above a task is named here for its type alone
    from matplotlib.figure import Figure

    from lightning_sgmcmc.chain.chain import Chain
    from lightning_sgmcmc.posterior.kept import KeptDraws


class Report:
    """What a run says of a task: metrics, rows, figures. Everything has a default."""

    #: Held-out sets whose metrics are followed along the draws, for the trace; a choice that is
    #: made by looking at them may only look at ``val``.
    followed: tuple[str, ...] = ("val",)

    def metrics(self, prediction: Prediction, batch: Batch) -> dict[str, float]:
        """Compare a prediction with the examples that it is for.

        Args:
            prediction: Of the ensemble or of one network (``std`` 0 then).
            batch: All examples of the held-out set, in order.

        Returns:
            Names and values for the logger and for ``results.json``.
        """
        return {"nll": float(prediction.nll.mean())}

    def describe(self, kept: KeptDraws) -> dict[str, Any]:
        """Return what a task adds to ``results.json`` under ``task_details``."""
        return {}

    def paper(self) -> dict[str, Any] | None:
        """Return the published numbers that this run stands beside, None if there are none."""
        return None

    def summary(self, results: dict[str, Any]) -> list[tuple[str, str]]:
        """Return the rows, name and value, of the table that a run prints last."""
        ensemble = results["metrics"].get("ensemble", {})
        return [(name, f"{value:.4g}") for name, value in ensemble.items()]

    def figures(self, kept: KeptDraws) -> dict[str, Figure]:
        """Return the task's own figures by name."""
        return {}


class Task(Report, nn.Module):
    """A likelihood and what the ensemble averages, of a network ``net``.

    A subclass defines :meth:`nll` and :meth:`predictive`; everything else has a default. For
    several chains both are pure functions of the batch and the weights that ``torch.func.vmap``
    can follow.
    """

    net: nn.Module
    #: The chain that samples this task's weights, which SGMCMCModule makes.
    chain: Chain
    #: What is kept of its draws, from the start of training on.
    kept: KeptDraws

    def nll(self, batch: Batch) -> Tensor:
        """Return the negative log-likelihood of each example under the current weights, [B]."""
        raise TypeError(f"{type(self).__name__} must define nll(batch)")

    def predictive(self, batch: Batch) -> Tensor:
        """Return what the ensemble averages, [B, ...]."""
        raise TypeError(f"{type(self).__name__} must define predictive(batch)")

    def predictive_and_nll(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return :meth:`predictive` and :meth:`nll` of a held-out batch.

        A task whose two share a forward pass overrides this to make it once.
        """
        return self.predictive(batch), self.nll(batch)

    #: Uniform numbers that :meth:`draw_labels` takes for one example.
    label_uniforms: int = 1

    def draw_labels(self, batch_and_uniforms: tuple[Batch, Tensor]) -> Batch:
        """Return a batch with its labels drawn from the model at the current weights.

        For Fisher metrics with ``labels="model"``.

        Args:
            batch_and_uniforms: A batch, and independent U[0, 1) numbers [B, label_uniforms].
        """
        raise TypeError(f"{type(self).__name__} must define draw_labels((batch, uniforms))")

    def perturb_labels(self, batch: Batch, normal: Callable[[Tensor], Tensor]) -> Batch:
        """Return a batch with its labels moved by a draw of the likelihood's noise.

        For starts ``"randomised_map"``, which are exact draws where the label is a linear function
        of the weights plus Gaussian noise: y + sigma n(x) z.

        Args:
            batch: Examples; what is not a label is returned as it is.
            normal: Returns independent normals shaped like a tensor, with the temperature's root
                for standard deviation.
        """
        raise TypeError(
            f'{type(self).__name__} cannot perturb its labels for starts "randomised_map": define '
            'perturb_labels if their noise is Gaussian, or use "reinitialise"'
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's output."""
        output: Tensor = self.net(x)
        return output

    def on_burn_in_end(self) -> None:
        """Do what a task does once, before C freezes and the first draw can come."""

    def on_draw(self, weight: float) -> None:
        """Do what a task does at every draw that is kept.

        Args:
            weight: The draw's weight in averages.
        """
