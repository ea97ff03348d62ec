"""Metrics of class probabilities against their definitions, worked out by hand or by NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from lightning_sgmcmc.metrics import (
    Categorical,
    agreement,
    class_metrics,
    entropy,
    label_nll,
    out_of_distribution_auroc,
    reliability,
)

P = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.4, 0.35, 0.25], [0.05, 0.05, 0.9]])
Y = torch.tensor([0, 2, 0, 2])
NLL = -P[torch.arange(4), Y].double().log()


def test_metrics_by_hand() -> None:
    found = class_metrics(P.double(), NLL, Y)
    assert found["error_percent"] == 25.0
    assert found["nll"] == pytest.approx(-np.log([0.7, 0.3, 0.4, 0.9]).mean(), rel=1e-6)
    squares = [
        0.3**2 + 0.2**2 + 0.1**2,
        0.1**2 + 0.6**2 + 0.7**2,
        0.6**2 + 0.35**2 + 0.25**2,
        0.05**2 + 0.05**2 + 0.1**2,
    ]
    assert found["brier"] == pytest.approx(np.mean(squares), rel=1e-6)
    # Each example is alone in its bin: |1 - .7|, |0 - .6|, |1 - .4|, |1 - .9|.
    assert found["ece"] == pytest.approx(np.mean([0.3, 0.6, 0.6, 0.1]), rel=1e-6)
    by_hand = -np.mean([sum(p * math.log(p) for p in row) for row in P.tolist()])
    assert found["entropy"] == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int32])
def test_labels_of_any_type_of_whole_numbers(kind: torch.dtype) -> None:
    p = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 1])
    nll = label_nll(p, labels)
    assert class_metrics(p, nll, labels.to(kind)) == class_metrics(p, nll, labels)
    law = Categorical(p.log())
    torch.testing.assert_close(-law.log_density(labels.to(kind)), nll)
    each = torch.vmap(lambda logits: Categorical(logits).log_density(labels.to(kind)))
    torch.testing.assert_close(-each(p.log()[None])[0], nll)


def test_a_probability_that_rounds_above_1_is_no_logit() -> None:
    """Of it all rows would be taken for logits."""
    probabilities = torch.tensor([[1.0, 0.0], [0.8, 0.2], [0.3, 0.7]])
    labels = torch.tensor([0, 0, 0])
    nll = torch.zeros(3)
    plain = class_metrics(probabilities, nll, labels)["ece"]
    probabilities[0, 0] += 1.2e-7
    assert probabilities.max() > 1
    assert class_metrics(probabilities, nll, labels)["ece"] == pytest.approx(plain)
    assert plain == pytest.approx((0.0 + 0.2 + 0.7) / 3)


def test_calibrated_probabilities_have_a_small_calibration_error() -> None:
    """Labels drawn from the probabilities: the error is the bins' sampling error alone.

    The expected error is at most sqrt(bins / (4 N)) = .0061 by Cauchy and Schwarz; the same labels
    against sharpened probabilities have a much larger one.
    """
    generator = torch.Generator().manual_seed(0)
    logits = 1.5 * torch.randn(100_000, 4, generator=generator, dtype=torch.float64)
    p = logits.softmax(1)
    labels = torch.multinomial(p, 1, generator=generator).squeeze(1)
    nll = -p.gather(1, labels[:, None]).squeeze(1).log()
    assert class_metrics(p, nll, labels)["ece"] < 0.0061
    assert class_metrics((3 * logits).softmax(1), nll, labels)["ece"] > 0.1


def test_certain_predictions_share_their_bin_with_nearly_certain_ones() -> None:
    """Half are certain and right for nine in ten, half have .95 and are right: the gaps cancel."""
    p = torch.tensor([[1 - 1e-9, 1e-9]] * 50 + [[0.95, 0.05]] * 50, dtype=torch.float64)
    labels = torch.zeros(100, dtype=torch.long)
    labels[:5] = 1
    assert class_metrics(p, p[:, 0], labels)["ece"] == pytest.approx(0.975 - 0.95)


def test_reliability_agrees_with_an_independent_error_and_counts_everyone() -> None:
    generator = torch.Generator().manual_seed(1)
    p = torch.randn(5_000, 6, generator=generator, dtype=torch.float64).softmax(1)
    labels = torch.randint(0, 6, (5_000,), generator=generator)
    found = reliability(p, labels)
    assert int(found.examples.sum()) == 5_000
    full = found.examples > 0
    gaps = (found.confidence - found.accuracy).abs()[full]
    ece = float((gaps * found.examples[full]).sum() / 5_000)
    assert ece == pytest.approx(class_metrics(p, p[:, 0], labels)["ece"], rel=1e-12)
    # In float32, with a bin of its own for confidences of exactly 1, of which there are none.
    theirs = multiclass_calibration_error(p.float(), labels, 6, n_bins=15)
    assert ece == pytest.approx(float(theirs), abs=1e-5)
    assert bool((found.confidence[full] > found.edges[:-1][full]).all())
    assert bool((found.confidence[full] <= found.edges[1:][full]).all())


def test_certain_and_uniform_predictions_lie_in_the_outer_bins() -> None:
    found = reliability(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([0, 1]), bins=2)
    assert found.examples.tolist() == [1, 1]
    assert found.accuracy.tolist() == [0.0, 1.0]


def test_entropy_at_its_extremes() -> None:
    found = entropy(torch.tensor([[0.25] * 4, [1.0, 0, 0, 0]]))
    assert found[0] == pytest.approx(math.log(4))
    assert found[1] == 0.0


def test_auroc_is_the_probability_of_the_right_order() -> None:
    generator = torch.Generator().manual_seed(2)
    inside = (4 * torch.randn(60, 3, generator=generator)).softmax(1)
    outside = torch.randn(80, 3, generator=generator).softmax(1)
    pairs = entropy(outside)[:, None] - entropy(inside)[None, :]
    by_hand = float(((pairs > 0).double() + 0.5 * (pairs == 0)).mean())
    assert 0.6 < by_hand < 0.99
    assert out_of_distribution_auroc(inside, outside) == pytest.approx(by_hand, abs=1e-6)
    assert out_of_distribution_auroc(outside, inside) == pytest.approx(1 - by_hand, abs=1e-6)


def test_agreement_averages_over_the_pairs_of_chains() -> None:
    means = torch.tensor(
        [[[0.9, 0.1], [0.2, 0.8]], [[0.6, 0.4], [0.7, 0.3]], [[0.9, 0.1], [0.2, 0.8]]]
    )
    found = agreement(means)
    # Chains 0 and 2 are the same; chain 1 differs from both in one class of two.
    assert found["agreement"] == pytest.approx((0.5 + 1 + 0.5) / 3)
    assert found["total_variation"] == pytest.approx((0.4 + 0 + 0.4) / 3, rel=1e-6)


def test_no_bins() -> None:
    with pytest.raises(ValueError, match="at least one bin, got 0"):
        reliability(P, Y, bins=0)
