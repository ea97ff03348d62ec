"""Split conformal bands: their guarantee, exactly, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from lightning_sgmcmc.metrics import Conformal, Moments, Normal

COUNT, RUNS = 19, 40_000


def moments(mean: torch.Tensor, std: torch.Tensor) -> Moments:
    """Return a prediction whose total deviation is ``std``."""
    return Moments(Normal, mean, torch.zeros_like(mean), std.square())


@pytest.mark.parametrize(("probability", "rank"), [(0.5, 10), (0.9, 18), (0.92, 19), (0.95, 19)])
def test_coverage_is_exactly_that_of_the_theorem(probability: float, rank: int) -> None:
    """P(cover) = rank / (n + 1) over calibration sets and examples, however wrong the model is.

    Every output is a run of its own: errors are Cauchy, the predicted deviation is unrelated noise.
    Five standard errors: a false alarm in 1.7 million tests.
    """
    generator = torch.Generator().manual_seed(int(1000 * probability))
    shape = (COUNT + 1, RUNS)
    y = torch.empty(shape, dtype=torch.float64).cauchy_(generator=generator)
    std = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1
    mean = torch.full_like(y, 0.3)
    bands = Conformal(moments(mean[1:], std[1:]), y[1:])
    lower, upper = bands.interval(moments(mean[:1], std[:1]), probability)
    held = ((lower <= y[:1]) & (y[:1] <= upper)).double().mean()
    expected = rank / (COUNT + 1)
    assert abs(float(held) - expected) < 5 * (expected * (1 - expected) / RUNS) ** 0.5


def test_an_error_that_is_not_a_number_widens_the_band() -> None:
    y = torch.arange(1.0, 20.0, dtype=torch.float64)[:, None]
    law = moments(torch.zeros_like(y), torch.ones_like(y))
    assert Conformal(law, y).factor(0.5).item() == 10
    y[:9] = torch.nan
    assert Conformal(law, y).factor(0.5).item() == 19
    assert not Conformal(law, y).factor(0.9).isfinite()


def test_a_score_that_is_not_known_holds_everything() -> None:
    """An error where the predicted deviation is 0 is infinitely many deviations, of size 0."""
    zero = torch.zeros(9, 1, dtype=torch.float64)
    law = moments(zero, zero)
    assert Conformal(law, zero + 1).metrics(law, zero + 1)["coverage_90"] == 1


def test_bands_that_follow_a_difficulty_hold_examples_of_another_kind() -> None:
    """Errors of three times the size, of which the deviation knows nothing and the difficulty does.

    Five standard errors of 200 calibration examples and 40,000 outputs.
    """
    generator = torch.Generator().manual_seed(0)
    size = torch.rand(400, 1, generator=generator, dtype=torch.float64) + 0.5
    size[200:] *= 3
    y = size * torch.randn(400, 200, generator=generator, dtype=torch.float64)
    law = moments(torch.zeros_like(y[200:]), torch.ones_like(y[200:]))  # the same of all
    difficulty = 7 * size[:, 0]  # in any unit
    plain = Conformal(law, y[:200])
    following = Conformal(law, y[:200], difficulty[:200])
    assert plain.metrics(law, y[200:])["coverage_90"] < 0.6
    found = following.metrics(law, y[200:], difficulty=difficulty[200:])
    expected = 181 / 201
    error = (expected * (1 - expected) * (1 / 201 + 1 / 200) / 200) ** 0.5
    assert found["coverage_90"] == pytest.approx(expected, abs=5 * error)
    half = following.half_width(law, 0.9, difficulty[200:])
    lower, upper = following.interval(law, 0.9, difficulty[200:])
    torch.testing.assert_close(upper - lower, 2 * half)
    torch.testing.assert_close(half[3] / half[0], size[203, 0].expand(200) / size[200, 0])


def test_factor_is_the_order_statistic_of_each_output() -> None:
    y = torch.tensor([[3.0, 0.0], [1.0, 0.0], [-2.0, 0.0], [0.5, -1.0]])
    prediction = moments(
        torch.zeros(4, 2).double(), torch.tensor([[1.0, 2.0]]).expand(4, 2).double()
    )
    bands = Conformal(prediction, y)
    assert bands.factor(0.2).tolist() == [0.5, 0.0]
    assert bands.factor(0.6).tolist() == [2.0, 0.0]
    assert bands.factor(0.8).tolist() == [3.0, 0.5]


def test_metrics_count_each_output() -> None:
    generator = torch.Generator().manual_seed(3)
    y = torch.randn(400, 50, generator=generator, dtype=torch.float64)
    zero, one = torch.zeros_like(y[:200]), torch.ones_like(y[:200])
    bands = Conformal(moments(zero, one), y[:200])
    found = bands.metrics(moments(zero, one), y[200:])
    half = y[:200].abs().sort(0).values[180]  # ceil(201 * .9) = 181
    shares = (y[200:].abs() <= half).double().mean(0)
    assert found["coverage_90"] == pytest.approx(float(shares.mean()))
    assert found["coverage_90_output_p05"] == pytest.approx(float(shares.quantile(0.05)))
    inside = (shares >= 0.85) & (shares <= 0.95)
    assert found["outputs_90_held_85_to_95"] == pytest.approx(float(inside.double().mean()))
    assert found["width_90"] == pytest.approx(float(2 * half.mean()))


@pytest.mark.parametrize("count", [8, 9, 18, 19])
def test_a_level_needs_p_over_1_minus_p_calibration_examples(count: int) -> None:
    """Nine for 90 % and nineteen for 95 %; with one less there is no band."""
    y = torch.arange(1.0, count + 1.0, dtype=torch.float64)[:, None]
    law = moments(torch.zeros_like(y), torch.ones_like(y))
    found = Conformal(law, y).metrics(law, y)
    needed = {"coverage_50": 1, "coverage_90": 9, "coverage_95": 19}
    assert needed.keys() & found.keys() == {name for name, n in needed.items() if n <= count}


def test_an_output_that_is_never_wrong_has_a_band_of_no_width() -> None:
    zero = torch.zeros(30, 1, dtype=torch.float64)
    bands = Conformal(moments(zero, zero), zero)
    lower, upper = bands.interval(moments(zero, zero), 0.9)
    assert torch.equal(lower, upper)


def test_refuses_what_is_too_few_or_does_not_fit() -> None:
    zero, one = torch.zeros(8, 1).double(), torch.ones(8, 1).double()
    bands = Conformal(moments(zero, one), zero)
    with pytest.raises(ValueError, match=r"8 calibration examples .* at least 9 are needed"):
        bands.factor(0.9)
    assert "coverage_90" not in bands.metrics(moments(zero, one), zero)
    with pytest.raises(ValueError, match=r"\(0, 1\)"):
        bands.factor(1.0)
    with pytest.raises(ValueError, match="had no difficulty"):
        bands.interval(moments(zero, one), 0.5, one[:, 0])
    with pytest.raises(ValueError, match="had a difficulty"):
        Conformal(moments(zero, one), zero, one[:, 0]).interval(moments(zero, one), 0.5)
    with pytest.raises(ValueError, match=r"shape \[8, 1\], expected one for each of the 8"):
        Conformal(moments(zero, one), zero, one)
    for wrong in (0.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="positive and finite"):
            Conformal(moments(zero, one), zero, wrong * one[:, 0])
    with pytest.raises(ValueError, match=r"shape \[8\], their prediction \[8, 1\]"):
        Conformal(moments(zero, one), zero[:, 0])
