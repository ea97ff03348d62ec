"""How good predictive class probabilities are: error, likelihood, Brier score, calibration."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc

#: Bins of confidence, of equal width, as is usual for the calibration error (Guo et al. 2017).
BINS = 15


class Reliability(NamedTuple):
    """Confidence against accuracy in bins of confidence.

    Attributes:
        edges: Edges of the bins, [bins + 1].
        confidence: Mean largest probability of the examples in each bin, NaN where there are none.
        accuracy: Fraction of them that is classified rightly, NaN where there are none.
        examples: Number of them.
    """

    edges: Tensor
    confidence: Tensor
    accuracy: Tensor
    examples: Tensor

    @property
    def error(self) -> float:
        """The expected calibration error, sum over bins of (share) |accuracy - confidence|."""
        gaps = (self.accuracy - self.confidence).abs().nan_to_num()
        return float((gaps * self.examples).sum() / self.examples.sum())


def class_metrics(probabilities: Tensor, nll: Tensor, labels: Tensor) -> dict[str, float]:
    """Measure predictive probabilities against labels.

    Args:
        probabilities: [N, C], each row of which adds up to 1.
        nll: -log p of each example's label, [N].
        labels: [N], 0 to C - 1, of any type of whole numbers.

    Returns:
        ``error_percent``; ``nll``, its mean, in nats; ``brier``, the mean of
        sum_c (p_c - [y = c])^2, from 0 to 2; ``ece``, the expected calibration error with 15 bins;
        ``entropy``, the mean of -sum_c p_c log p_c, in nats.
    """
    labels = labels.long()
    truth = torch.nn.functional.one_hot(labels, probabilities.shape[1])
    wrong = (probabilities.argmax(1) != labels).double()
    return {
        "error_percent": 100 * float(wrong.mean()),
        "nll": float(nll.double().mean()),
        "brier": float((probabilities - truth).square().sum(1).mean()),
        "ece": reliability(probabilities, labels).error,
        "entropy": float(entropy(probabilities).mean()),
    }


def label_nll(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return -log p of each example's label, [N], of probabilities [N, C] and labels [N]."""
    return -probabilities.gather(1, labels.long().reshape(-1, 1)).squeeze(1).log()


def entropy(probabilities: Tensor) -> Tensor:
    """Return -sum_c p_c log p_c in nats, [N], of probabilities [N, C]."""
    result: Tensor = torch.special.entr(probabilities).sum(-1)
    return result


def reliability(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> Reliability:
    """Bin examples by their confidence, the largest probability, as a reliability diagram does.

    Args:
        probabilities: [N, C].
        labels: [N].
        bins: Number of bins of equal width in [0, 1]; each holds its right edge.

    Raises:
        ValueError: If there is no bin.
    """
    if bins < 1:
        raise ValueError(f"a reliability diagram needs at least one bin, got {bins}")
    confidence, predicted = probabilities.double().max(1)
    right = (predicted == labels).double()
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=confidence.device)
    place = (torch.bucketize(confidence, edges) - 1).clamp(0, bins - 1)
    count = torch.bincount(place, minlength=bins)
    none = confidence.new_zeros(bins)
    sums = [none.index_add(0, place, values) / count for values in (confidence, right)]
    return Reliability(edges, sums[0], sums[1], count)


def out_of_distribution_auroc(inside: Tensor, outside: Tensor) -> float:
    """Return how well the predictive entropy tells examples of another kind from those of its own.

    The area under the ROC curve: the probability that a random example of another kind has a
    larger entropy than a random one of its own, ties counted half; .5 is chance.

    Args:
        inside: Probabilities [N, C] for examples of the kind that was trained on.
        outside: Probabilities [M, C] for the others.
    """
    scores = torch.cat([entropy(inside), entropy(outside)])
    labels = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))]).long()
    # torchmetrics takes scores outside [0, 1] for logits: a fixed scale keeps their order.
    scaled = (scores / torch.tensor(inside.shape[1]).log()).clamp(0, 1)
    return float(binary_auroc(scaled, labels.to(scaled.device)))


def agreement(means: Tensor) -> dict[str, float]:
    """Compare the predictions of several chains (Izmailov et al. 2021, section 5).

    Args:
        means: Mean probabilities of each chain's draws, [K, N, C], K > 1.

    Returns:
        Means over the pairs of chains and the examples: ``agreement``, how often their most
        probable classes are the same, and ``total_variation``, sum_c |p_c - q_c| / 2.
    """
    first, second = torch.triu_indices(len(means), len(means), 1)
    top = means.argmax(-1)
    same, apart = [], []
    for i, j in zip(first.tolist(), second.tolist(), strict=True):
        same.append((top[i] == top[j]).double().mean())
        apart.append(0.5 * (means[i] - means[j]).abs().sum(-1).mean())
    return {
        "agreement": float(torch.stack(same).mean()),
        "total_variation": float(torch.stack(apart).mean()),
    }
