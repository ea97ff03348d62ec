"""Classification by any network, with what is asked of predictive class probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import functional

from lightning_sgmcmc.callbacks.report.figures import new_figure
from lightning_sgmcmc.metrics import (
    Categorical,
    Prediction,
    agreement,
    class_metrics,
    entropy,
    label_nll,
    out_of_distribution_auroc,
    reliability,
)
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.posterior import KeptDraws
from lightning_sgmcmc.posterior.held_out import MEASURED, TRAINING
from tasks.networks import CALIBRATION, fit_network, training_set

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Batch = tuple[Tensor, Tensor]

ROWS = {
    "error_percent": ("error", "{:.2f} %"),
    "nll": ("negative log-likelihood", "{:.4f}"),
    "brier": ("Brier score", "{:.4f}"),
    "ece": ("expected calibration error", "{:.4f}"),
}


class Classification(SGMCMCModule):
    """p(y = c | x, w) = softmax(net(x))_c, with batches x [B, ...] and y [B] in 0, ..., C - 1.

    The ensemble averages probabilities. Extra sets of the data are taken for examples of another
    kind: a run says how well the predictive entropy tells them from the test set. One named
    ``train`` holds training examples, on which a run is measured too.

    Args:
        net: Any network from x [B, ...] to logits [B, C]. It takes from the training examples what
            it leaves open, see :func:`~tasks.networks.fit_network`.
        sampler: Called with the parameters.
        **chain: Arguments of :class:`~lightning_sgmcmc.module.SGMCMCModule`.
    """

    followed = ("val", "test")

    def setup(self, stage: str) -> None:
        """Fit the network to the data, and refuse one of other shapes, before any work.

        Raises:
            ValueError: If the network gives no logits [B, C] for the data's C classes.
        """
        examples = training_set(self) if stage == "fit" else None
        if examples is not None:
            x, y = examples
            data = self.trainer.datamodule  # type: ignore[attr-defined]
            classes = getattr(data, "num_classes", None) or int(y.max()) + 1
            fit_network(self.net, x[:CALIBRATION], classes, "classes")
        super().setup(stage)

    def law(self, x: Tensor) -> Categorical:
        """Return the law of the labels."""
        return Categorical(self(x))

    def moments_and_nll(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return probabilities [B, C] and -log p(y | x, w) [B] by one softmax."""
        x, y = batch
        log_p = self(x).log_softmax(-1)
        return log_p.exp(), functional.nll_loss(log_p, y.long(), reduction="none")

    def draw_labels(self, batch_and_uniforms: tuple[Batch, Tensor]) -> Batch:
        """Return the batch with y drawn from the model."""
        (x, y), uniforms = batch_and_uniforms
        below = self.predictive((x, y)).cumsum(-1) <= uniforms[:, :1]
        return x, below[:, :-1].sum(-1)

    def metrics(self, prediction: Prediction, batch: Batch) -> dict[str, float]:
        """Return error in percent, NLL, Brier score, calibration error and mean entropy."""
        return class_metrics(prediction.mean, prediction.nll, batch[1])

    def describe(self, kept: KeptDraws) -> dict[str, Any]:
        """Return what each chain alone predicts, how far chains agree, and what others look like.

        ``class_names`` has the names of the classes in the order of their probabilities, ``inputs``
        a table's columns of features with the ``mean`` and ``scale`` that standardise these,
        ``trace`` the error of the ensemble so far at the ``steps`` of its draws.
        With several chains ``chains`` has the ``agreement`` and ``total_variation`` of their
        ensembles, and ``metrics``, those of each chain's own ensemble, lists of K numbers: the
        chains are then as many repetitions of one run with other seeds. ``out_of_distribution``
        has for each extra held-out set the ``auroc`` with which the predictive entropy tells its
        examples from the measured ones, and their mean ``entropy``. ``train`` has the metrics of
        ensemble, posterior mean and last draw on the training examples of an extra set ``train``.
        """
        result: dict[str, Any] = {}
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if names := getattr(data, "class_names", ()):
            result["class_names"] = list(names)
        if inputs := getattr(data, "inputs", None):
            result["inputs"] = inputs
        if not kept.num_draws:
            return result
        measured = self._measured(kept)
        if measured is None:
            return result
        means = kept.chain_means(measured)
        if means is not None:
            result["chains"] = agreement(means) | {
                "metrics": _each(means, kept.held_out[measured].examples[1])
            }
        inside = kept.ensemble(measured).mean
        key = f"{measured}/ensemble_error_percent"
        history = kept.history
        result["trace"] = {
            "steps": [int(row["step"]) for row in history],
            "error_percent": [row[key] for row in history],
        }
        if TRAINING in kept.held_out:
            examples = kept.held_out[TRAINING].examples
            result["train"] = {
                "ensemble": self.metrics(kept.ensemble(TRAINING), examples),
                "posterior_mean": kept.measure_mean(TRAINING),
                "last": kept.measure_network(TRAINING),
            }
        others = _of_another_kind(kept)
        if others:
            result["out_of_distribution"] = {}
        for name in others:
            outside = kept.ensemble(name).mean
            result["out_of_distribution"][name] = {
                "auroc": out_of_distribution_auroc(inside, outside),
                "entropy": float(entropy(outside).mean()),
            }
        return result

    def summary(self, results: dict[str, Any]) -> list[tuple[str, str]]:
        """Return rows of the table that a run prints last."""
        ensemble = results["metrics"].get("ensemble", {})
        rows = [
            (f"{label}, ensemble of draws", form.format(ensemble[name]))
            for name, (label, form) in ROWS.items()
            if name in ensemble
        ]
        for kind, label in (("last", "last draw"), ("posterior_mean", "posterior-mean network")):
            if kind in results["metrics"]:
                values = results["metrics"][kind]
                text = f"{values['error_percent']:.2f} %, NLL {values['nll']:.4f}"
                rows.append((f"error, {label}", text))
        details = results["task_details"]
        if "train" in details:
            values = details["train"]["ensemble"]
            text = f"{values['error_percent']:.2f} %, NLL {values['nll']:.4f}"
            rows.append(("error, ensemble of draws, training examples", text))
        if "chains" in details:
            found = details["chains"]
            text = f"{100 * found['agreement']:.2f} %, {found['total_variation']:.4f} apart"
            rows.append(("chains agree on", text))
        for name, found in details.get("out_of_distribution", {}).items():
            rows.append((f"AUROC of the entropy, {name}", f"{found['auroc']:.4f}"))
        return rows

    def figures(self, kept: KeptDraws) -> dict[str, Figure]:
        """Return the reliability diagram, learning curve, weights and entropies."""
        found = {"weights": self._weights_figure()}
        name = self._measured(kept)
        if name is not None and kept.num_draws:
            found["reliability"] = self._reliability_figure(kept, name)
            found["error"] = self._error_figure(kept, name)
            if _of_another_kind(kept):
                found["entropy"] = self._entropy_figure(kept, name)
        return found

    def paper(self) -> dict[str, Any] | None:
        """Return what is published on the data set."""
        return getattr(self.trainer.datamodule, "paper", None)  # type: ignore[attr-defined]

    @staticmethod
    def _measured(kept: KeptDraws) -> str | None:
        return next((name for name in ("test", "val") if name in kept.held_out), None)

    def _reliability_figure(self, kept: KeptDraws, name: str) -> Figure:
        labels = kept.held_out[name].examples[1].cpu()
        found = reliability(kept.ensemble(name).mean.cpu(), labels)
        edges, confidence, accuracy, examples = (values.numpy() for values in found)
        middles = (edges[:-1] + edges[1:]) / 2
        figure = new_figure(5, 6)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        upper.plot([0, 1], [0, 1], color="0.6", lw=1, label="calibrated")
        upper.plot(confidence, accuracy, "ko-", lw=1.5, ms=4, label="ensemble")
        upper.set(ylabel=f"accuracy, {name} set", ylim=(-0.02, 1.02))
        upper.legend(frameon=False)
        lower.bar(middles, examples, width=0.9 / len(middles), color="0.5")
        lower.set(xlabel="confidence, largest probability", ylabel="examples", yscale="log")
        return figure

    def _error_figure(self, kept: KeptDraws, name: str) -> Figure:
        figure = new_figure(7, 4)
        axes = figure.subplots()
        history = kept.history
        steps = [row["step"] for row in history]
        axes.plot(steps, [row[f"{name}/ensemble_error_percent"] for row in history], "k-")
        axes.set(xlabel="step", ylabel=f"error of the ensemble so far, {name} set, %")
        return figure

    def _entropy_figure(self, kept: KeptDraws, name: str) -> Figure:
        figure = new_figure(6, 4)
        axes = figure.subplots()
        styles = iter(("-", "--", ":", "-."))
        for held in (name, *_of_another_kind(kept)):
            values = entropy(kept.ensemble(held).mean).cpu().numpy()
            axes.hist(values, 50, density=True, histtype="step", ls=next(styles, "-"), label=held)
        axes.set(xlabel="predictive entropy, nats", ylabel="density", yscale="log")
        axes.legend(frameon=False)
        return figure

    def _weights_figure(self) -> Figure:
        figure = new_figure(6, 4)
        axes = figure.subplots()
        matrices = [(n, w) for n, w in self.chain.state(0).items() if w.dim() > 1]
        for n, w in matrices:
            values = w.flatten().cpu().numpy()
            axes.hist(values, 100, density=True, histtype="step", label=n)
        axes.set(xlabel="weight, last draw", ylabel="density", yscale="log")
        if 0 < len(matrices) <= 8:
            axes.legend(frameon=False, fontsize="small")
        return figure


def _of_another_kind(kept: KeptDraws) -> list[str]:
    """Return the names of the held-out sets that hold examples of another kind."""
    return sorted(set(kept.held_out) - {*MEASURED, TRAINING})


def _each(means: Tensor, labels: Tensor) -> dict[str, list[float]]:
    """Return the metrics of each chain's mean probabilities [K, N, C], lists of K numbers."""
    rows = [class_metrics(p, label_nll(p, labels), labels) for p in means]
    return {name: [row[name] for row in rows] for name in rows[0]}
