"""What a task says: its likelihood, its predictions, and what a run reports of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, fx, nn

from lightning_sgmcmc.metrics import Law, Prediction, Unstated
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
            prediction: Of the ensemble or of one network (``epistemic_std`` 0 then).
            batch: All examples of the held-out set, in order.

        Returns:
            Names and values for the logger and for ``results.json``; by default the NLL and what
            the law's :meth:`~lightning_sgmcmc.metrics.Law.scores` has.
        """
        found = {"nll": float(prediction.nll.mean())}
        if issubclass(prediction.law, Unstated):
            return found
        return found | prediction.law.scores(prediction.mean, prediction.std, batch[1])

    def describe(self, kept: KeptDraws) -> dict[str, Any]:
        """Return what a task adds to ``results.json`` under ``task_details``."""
        return {}

    def paper(self) -> dict[str, Any] | None:
        """Return the published numbers that this run stands beside, None if there are none."""
        return None

    def price(self, results: dict[str, Any]) -> dict[str, Any] | None:
        """Return what the run cost beside another way to the same answers, None if there is none.

        It is measured where the run has ended, by its first process.

        Args:
            results: All else of ``results.json``, in which it stands as ``price``.
        """
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

    A subclass defines :meth:`law`, the law of the targets given inputs and weights, from which
    likelihood and predictions follow for batches (x, y). Where the likelihood has no such law, or
    batches are of another kind, it defines :meth:`nll` and :meth:`predictive` instead; predictions
    then have no noise, no intervals and no samples. It may define :meth:`nll` besides a law, where
    there is a cheaper way to compute the same. Everything else has a default. For several chains
    all of them are pure functions of their argument and the weights that ``torch.func.vmap`` can
    follow.
    """

    net: nn.Module
    #: The chain that samples this task's weights, which SGMCMCModule makes.
    chain: Chain
    #: What is kept of its draws, from the start of training on.
    kept: KeptDraws

    def law(self, x: Any) -> Law:
        """Return p(y | x, w), the law of the targets given inputs x and the current weights.

        Args:
            x: Inputs; where batches are dicts, and the task has no law, a batch without targets.
        """
        return Unstated(self.predictive(x if isinstance(x, Mapping) else (x,)))

    @property
    def states_law(self) -> bool:
        """Whether the task defines :meth:`law`."""
        return type(self).law is not Task.law

    @property
    def predicts(self) -> bool:
        """Whether the task defines :meth:`law` or :meth:`predictive`."""
        return self.states_law or type(self).predictive is not Task.predictive

    def nll(self, batch: Batch) -> Tensor:
        """Return the negative log-likelihood of each example under the current weights, [B]."""
        return -self._stated(batch, "nll(batch)").log_density(batch[1])

    def predictive(self, batch: Batch) -> Tensor:
        """Return what the ensemble averages, the mean of the law, [B, ...]."""
        return self._stated(batch, "predictive(batch)").mean

    def _stated(self, batch: Batch, missing: str) -> Law:
        if not self.states_law:
            raise TypeError(f"{type(self).__name__} must define law(x), or {missing}")
        has_inputs = isinstance(batch, (tuple, list, fx.Proxy))  # the last while torch.fx traces
        if not has_inputs:
            raise TypeError(
                f"law(x) is for batches (x, y), got a {type(batch).__name__}: define nll(batch) "
                "and predictive(batch) instead, or train on (x, y)"
            )
        return self.law(batch[0])

    def remark(self, x: Any) -> str | None:
        """Return what is to be said with a prediction for inputs x, None if nothing is.

        That they are of another kind than the training data, for instance.
        """
        return None

    def progress(self) -> dict[str, float]:
        """Return the numbers, by name, that are shown of the last step while the chain runs."""
        return {"nll": float(self.chain.last_loss.mean())}

    def moments(self, x: Any) -> tuple[Tensor, ...]:
        """Return mean and, where the law has one, noise of the law of inputs x."""
        law = self.law(x)
        return (law.mean,) if law.noise is None else (law.mean, law.noise)

    def law_parameters(self, x: Any) -> tuple[Tensor, ...]:
        """Return the tensors that make the law of inputs x."""
        return self.law(x).parameters

    def law_of(self, batch: Batch) -> Law:
        """Return the law of a held-out batch's targets."""
        if not self.states_law:
            return Unstated(self.predictive(batch))
        return self._stated(batch, "predictive(batch)")

    def moments_and_nll(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return :meth:`moments` and, last, the :meth:`nll` of a held-out batch.

        Where the task states a law it is one forward pass.
        """
        law = self.law_of(batch)
        nll = -law.log_density(batch[1]) if self.states_law else self.nll(batch)
        return (law.mean, nll) if law.noise is None else (law.mean, law.noise, nll)

    #: Name of the linear layer that can be integrated out, "net.4" for instance; None for none. A
    #: task that names one defines :meth:`head_targets` and :meth:`head_features`.
    head: str | None = None

    def head_targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return t [N, D] and log s [N] with y_i = shift + s_i t_i, t_i ~ N(W phi_i, sigma_i^2 I).

        Args:
            batch: The whole training set.
        """
        raise TypeError(f"{type(self).__name__} must define head_targets(batch)")

    def head_features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return phi [N, p], 1 last where the head has a bias, and log sigma [] or [N]."""
        raise TypeError(f"{type(self).__name__} must define head_features(batch)")

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
