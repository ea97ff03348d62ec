"""What a run says of its chains: numbers where they can be said, alarms where they are due."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.signal import lfilter

from lightning_sgmcmc.adaptation import GradientNoise, NoiseTemperature
from lightning_sgmcmc.diagnostics import (
    Alarm,
    ConfigurationalTemperature,
    PredictiveTemperature,
    Remedy,
    Step,
    Temperature,
    ess,
    joint_remedy,
    mean_temperature,
    rhat,
    rhat_limit,
    summarise,
)
from lightning_sgmcmc.diagnostics import alarms as found_alarms


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def known(value: float) -> Temperature:
    """Return a temperature without an error to speak of."""
    return Temperature(value, 1e-3, 0)


def alarms(*args: Any, **kwargs: Any) -> list[str]:
    """Return the texts of the alarms."""
    return [alarm.text for alarm in found_alarms(*args, **kwargs)]


def test_numbers_are_those_of_the_traces_and_plain() -> None:
    weights, predictions = normal(4, 100, 3, 5), normal(4, 100, 7, seed=1)
    predictions[..., 2] = 0.5
    predictions[0, 0, 3] = np.inf
    summary = summarise(weights, predictions, np.arange(100))
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert (summary["num_chains"], summary["draws_per_chain"]) == (4, 100)
    w = np.arange(100.0)
    assert summary["effective_draws"] == pytest.approx(4 * w.sum() ** 2 / (w**2).sum())
    space = summary["weights"]
    assert (space["count"], space["examined"], space["constant"]) == (15, 15, 0)
    assert space["ess_bulk"]["min"] == ess(weights).min()
    assert space["ess_tail"]["median"] == np.median(ess(weights, "tail"))
    assert space["rhat"]["max"] == rhat(weights).max()
    space = summary["predictions"]
    assert (space["count"], space["constant"], space["not_finite"]) == (7, 1, 1)
    assert space["rhat"]["max"] == np.nanmax(rhat(predictions))


def test_many_weights_are_examined_in_part_evenly() -> None:
    weights = normal(2, 20, 5000)
    space = summarise(weights, limit=10)["weights"]
    chosen = np.linspace(0, 4999, 10).astype(int)
    assert (space["count"], space["examined"]) == (5000, 10)
    assert space["ess_bulk"]["max"] == ess(weights[:, :, chosen]).max()


def test_the_limit_is_one_that_chance_does_not_reach() -> None:
    """4,000 mixed short runs each: .1 % of the location parts lie above, no more of the others.

    A bound of 1.05 would call many of them not mixed.
    """
    for chains, draws in ((1, 20), (2, 40), (4, 24)):
        values = rhat(normal(chains, draws, 4000))
        assert (values > rhat_limit(chains, draws)).mean() < 0.005
        assert (values > 1.05).mean() > 0.05
    assert rhat_limit(4, 1000) == 1.05
    assert rhat_limit(4, 3) == float("inf")


def test_mixed_chains_raise_no_alarm() -> None:
    for chains, draws in ((1, 40), (4, 20), (4, 500)):
        for seed in range(5):
            summary = summarise(normal(chains, draws, 30, seed=seed), normal(chains, draws, 50))
            assert alarms(summary, kinetic_temperature=known(1.05)) == []


def test_chains_that_disagree_in_predictions() -> None:
    predictions = normal(4, 100, 50)
    predictions[0, :, :10] += 3
    (text,) = alarms(summarise(normal(4, 100, 3), predictions))
    assert "R-hat of the predictions" in text
    assert "above 1.05 in 20% of them: the chains have not mixed" in text
    assert alarms(summarise(weights=predictions))[0].startswith("R-hat of the weights")
    # Weights that differ where predictions agree are symmetries, no alarm.
    assert alarms(summarise(weights=predictions, predictions=normal(4, 100, 50))) == []


@pytest.mark.parametrize(("phi", "draws"), [(0.8, 200), (0.9, 400)])
def test_r_hat_says_how_much_longer_a_run_has_to_be(phi: float, draws: int) -> None:
    """R-hat^2 - 1 falls as 1/n on autoregressive chains, so the run that the remedy names mixes."""

    def chains(length: int, seed: int) -> np.ndarray:
        noise = normal(4, length, 60, seed=seed) * np.sqrt(1 - phi**2)
        noise[:, 0] /= np.sqrt(1 - phi**2)
        return lfilter([1], [1, -phi], noise, axis=1)

    for seed in range(3):
        summary = summarise(predictions=chains(draws, seed))
        (alarm,) = found_alarms(summary)
        assert alarm.remedy is not None
        factor = alarm.remedy.steps
        assert 2 <= factor < 4
        longer = summarise(predictions=chains(round(factor * draws), seed))
        assert found_alarms(longer) == []
        before, after = (s["predictions"]["rhat"]["q95"] ** 2 - 1 for s in (summary, longer))
        assert factor * after == pytest.approx(before, rel=0.3)


def test_one_chain_that_drifts() -> None:
    drift = normal(1, 100, 30) + np.linspace(0, 10, 100)[None, :, None]
    first, second = alarms(summarise(predictions=drift))
    assert "the two halves of the chain differ: it has not mixed" in first
    assert "a typical one of the predictions rests on" in second
    assert "independent draws out of 100" in second


def test_where_nothing_can_be_said() -> None:
    (text,) = alarms(summarise(predictions=normal(4, 19, 5)))
    assert text == "with 19 draws a chain nothing can be said about mixing: keep 20 or more"
    summary = summarise(predictions=normal(4, 7, 5))
    assert summary["predictions"]["rhat"] is None
    assert len(alarms(summary)) == 1
    (text,) = alarms(summarise(predictions=np.ones((2, 50, 4))))
    assert text == "no prediction changes from draw to draw: the chain does not move"
    predictions = normal(2, 50, 4)
    predictions[0, 3, :2] = np.nan
    (text,) = alarms(summarise(predictions=predictions))
    assert text.startswith("2 of 4 predictions are not finite in some draw: the chain diverged")


@pytest.mark.parametrize(("kinetic", "off"), [(0.89, 1), (0.95, 0), (1.14, 0), (1.3, 1)])
def test_kinetic_temperature(kinetic: float, off: int) -> None:
    summary = summarise(predictions=normal(2, 100, 5))
    found = alarms(summary, temperature=0.1, kinetic_temperature=known(0.1 * kinetic))
    assert len(found) == off
    assert all("kinetic temperature is 0." in text and "stated 0.1" in text for text in found)
    assert alarms(summary, temperature=0.0, kinetic_temperature=known(kinetic)) == []


def test_configurational_temperature() -> None:
    summary = summarise(predictions=normal(2, 100, 5))

    def measured(value: float, error: float) -> list[str]:
        layers = {"net.0.weight": Temperature(2 * value, error, 5), "b": Temperature(value, 1, 1)}
        total = Temperature(value, error, 6)
        return alarms(summary, configurational=ConfigurationalTemperature(total, layers))

    assert measured(1.5, 0.2) == []  # within three standard errors
    assert measured(1.1, 0.001) == []
    (hot,) = measured(1.5, 0.1)
    assert "1.5 +- 0.1" in hot
    assert "hottest: net.0.weight, 3" in hot
    (cold,) = measured(0.5, 0.1)
    assert "not yet explored" in cold
    assert measured(float("nan"), float("nan")) == []


def test_gradient_noise() -> None:
    summary = summarise(predictions=normal(2, 100, 5))
    tensors = {"a": NoiseTemperature(0.1, 0.5), "b": NoiseTemperature(0.6, 0.5)}
    (text,) = alarms(
        summary, temperature=0.5, noise=GradientNoise(NoiseTemperature(0.25, 0.5), tensors)
    )
    assert "adds 50% to the injected noise (most in b: 120%)" in text
    assert "about 0.75 instead of 0.5: multiply the step size by 0.2" in text
    assert alarms(summary, noise=GradientNoise(NoiseTemperature(0.05, 1.0), tensors)) == []


def test_bad_input_is_one_line() -> None:
    with pytest.raises(ValueError, match="give weights, predictions or both"):
        summarise()
    with pytest.raises(ValueError, match=r"got \[\(2, 20\), \(2, 21\)\]"):
        summarise(normal(2, 20, 3), normal(2, 21, 3))
    with pytest.raises(ValueError, match=r"are \[20\] or \[2, 20\], got shape \(21,\)"):
        summarise(normal(2, 20, 3), weights_in_averages=np.ones(21))


def predictive(value: float, error: float, mean: float = 0.0, chance: float = 1.0) -> Any:
    deviation = float(np.sqrt(value))
    spread = error / (2 * max(deviation, 0.5))
    return PredictiveTemperature(
        Temperature(value, error, 6), deviation, spread, mean, chance, 63, 500.0, 0.0
    )


def test_predictions_that_are_too_wide_or_too_narrow() -> None:
    """The alarm names the direction and the size, and a remedy that fits the cause."""
    summary = summarise(predictions=normal(2, 100, 5))
    directions = {"leading": [Temperature(16.0, 0.1, 1)], "random": [Temperature(1.0, 0.1, 1)]}

    def found(measured: Any, **step: Any) -> list[Alarm]:
        return found_alarms(summary, predictive=measured, directions=directions, step=Step(**step))

    assert found(predictive(1.1, 0.01)) == []
    assert found(predictive(1.3, 0.12)) != []  # 1.14 +- .05: cannot be told from 1.2
    (hot,) = found(predictive(1.85, 0.05), batch_share=0.5, fraction=0.1)
    assert "about 1.36 times too wide" in hot.text
    assert "of leading direction 1 16" in hot.text
    assert hot.remedy == Remedy(whole_data=True)
    (hot,) = found(predictive(1.85, 0.05), batch_share=0.01, fraction=0.1)
    assert hot.remedy == Remedy(lr=0.0625, steps=8.0)
    (hot,) = found(predictive(1.2, 0.01), bias=0.2)
    assert "the step is too large" in hot.text
    (apart,) = found(predictive(1.85, 0.05), fraction=0.001)
    assert "the chain has not yet mixed" in apart.text
    assert apart.remedy == Remedy(lr=pytest.approx(100.0))
    (noisy,) = found(predictive(1.85, 0.05), fraction=0.001, batch_share=0.01)
    assert "gradient noise" in noisy.text
    assert noisy.remedy == Remedy(lr=0.0625, steps=8.0)
    (still,) = found(predictive(1.85, 0.05), corrected=True, acceptance=0.01)
    assert still.remedy == Remedy(lr=0.0625)
    (moves,) = found(predictive(1.85, 0.05), corrected=True, acceptance=0.8)
    assert moves.remedy == Remedy(steps=4)
    (cold,) = found(predictive(0.5, 0.02), fraction=0.1)
    assert "only 0.71 times as wide" in cold.text
    assert cold.remedy == Remedy(lr=0.25, steps=4)
    (cold,) = found(predictive(0.5, 0.02), fraction=0.001)
    assert cold.remedy == Remedy(lr=0.25, steps=4)
    (cold,) = found(predictive(0.5, 0.02), thermostat=True, batch_share=0.5, fraction=0.1)
    assert "the thermostat takes the heat of the minibatches' gradient noise" in cold.text
    assert cold.remedy == Remedy(whole_data=True)
    (cold,) = found(predictive(0.5, 0.02), thermostat=True, fraction=0.1)
    assert cold.remedy == Remedy(lr=0.25, steps=4)
    (cold,) = found(predictive(0.5, 0.02), corrected=True)
    assert cold.remedy == Remedy(steps=4)
    (slow,) = found(predictive(1.0, 0.02, mean=0.5, chance=1e-4), fraction=0.001)
    assert "as if their mean were off by 0.5 of their deviations" in slow.text
    assert slow.remedy == Remedy(lr=pytest.approx(100.0))
    assert joint_remedy([hot, slow]).lr == hot.remedy.lr
    unmoved = predictive(1.0, 0.02, mean=0.5, chance=1e-4)
    # What the step and gradient noise bring grows with the step, up to what a remedy aims at.
    (small,) = found(unmoved, fraction=0.001, bias=0.001, noise=0.007, batch_share=0.01)
    assert small.remedy == Remedy(lr=pytest.approx(5.0))
    (small,) = found(unmoved, fraction=0.01, noise=0.021, batch_share=0.01)
    assert small.remedy == Remedy(steps=4)
    measured = GradientNoise(NoiseTemperature(0.021, 1.0), {})
    step = Step(fraction=0.01, batch_share=0.01)
    (small,) = found_alarms(summary, predictive=unmoved, noise=measured, step=step)
    assert small.remedy == Remedy(steps=4)
    (bounded,) = found(unmoved, fraction=0.001, bounded=True, batch_share=0.05)
    assert bounded.remedy == Remedy(whole_data=True)  # a step of 100 times for 20 times the cost
    (bounded,) = found(unmoved, fraction=0.01, bounded=True, batch_share=0.05)
    assert bounded.remedy == Remedy(steps=4)
    # Momentum moves a chain as much faster as it multiplies the noise of minibatches.
    (slow,) = found(unmoved, fraction=0.05, overdamped=True)
    assert slow.remedy == Remedy(lr=2.0, momentum=True)
    assert "take SGHMC with momentum 0.99 in the same metric and multiply" in slow.text
    (slow,) = found(unmoved, fraction=0.25, overdamped=True)
    assert slow.remedy == Remedy(momentum=True)
    assert joint_remedy([slow, hot]) == replace(hot.remedy, momentum=True)
    (slow,) = found(unmoved, fraction=0.25, overdamped=True, batch_share=0.5)
    assert slow.remedy == Remedy(steps=4)
    (unknown,) = found(predictive(1.0, 0.3), fraction=0.25, overdamped=True)
    assert "is known to" in unknown.text
    assert unknown.remedy == Remedy(momentum=True)


def test_a_chain_that_has_nearly_mixed_goes_on_as_it_is() -> None:
    apart = 0.27 * np.array([1.0, -1.0])[:, None, None]
    summary = summarise(predictions=normal(2, 400, 5) + apart)
    (alarm,) = found_alarms(summary, step=Step(fraction=0.25, overdamped=True))
    assert "not mixed" in alarm.text
    assert alarm.remedy is not None
    assert not alarm.remedy.momentum
    assert 2 <= alarm.remedy.steps < 4


@pytest.mark.parametrize(("last", "lr", "steps"), [(2.0, 0.25, 4), (50.0, 1 / 16, 8)])
def test_a_step_beyond_the_largest_stable_one(last: float, lr: float, steps: float) -> None:
    summary = summarise(predictions=normal(4, 100, 7))
    (alarm,) = found_alarms(summary, step=Step(last=last))
    assert alarm.remedy == Remedy(lr=lr, steps=steps)
    assert f"the step is {last:g} times the largest stable one" in alarm.text
    assert not found_alarms(summary, step=Step(last=last, corrected=True))
    assert not found_alarms(summary, step=Step(last=0.99))
    assert not found_alarms(summary, step=Step(last=last), temperature=0.0)


def test_other_temperatures_count_where_that_of_the_predictions_is_not_known() -> None:
    summary = summarise(predictions=normal(2, 100, 5))
    assert alarms(summary, kinetic_temperature=known(9.0), predictive=predictive(1.0, 0.02)) == []
    (text,) = alarms(summary, kinetic_temperature=known(9.0), predictive=predictive(30.0, 25.0))
    assert "kinetic temperature is 9" in text
    (text,) = alarms(summary, kinetic_temperature=known(1.0), predictive=predictive(1.0, 0.5))
    assert "the predictive deviation is known to 25% of the true one only" in text


def test_a_few_weights_are_not_accused_by_chance() -> None:
    """Of two weights and 100 draws chance puts a fifth out of bounds; hot runs are found."""
    heat = np.random.default_rng(0).chisquare(2, (500, 100)) / 2
    summary = summarise(predictions=normal(2, 100, 5))
    means = [mean_temperature(values) for values in heat]
    outside = np.mean([not 0.9 <= mean.value <= 1.15 for mean in means])
    assert 0.15 < outside < 0.3
    accused = [bool(alarms(summary, kinetic_temperature=mean)) for mean in means]
    assert np.mean(accused) < 0.01
    hot = [bool(alarms(summary, kinetic_temperature=mean_temperature(3 * v))) for v in heat]
    assert np.mean(hot) > 0.9


def test_many_short_chains_are_right_together() -> None:
    """An R-hat above the limit in chains that move slowly but agree is no alarm."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((32, 300, 30))
    for t in range(1, 300):
        x[:, t] = 0.85 * x[:, t - 1] + np.sqrt(1 - 0.85**2) * x[:, t]
    summary = summarise(predictions=x)
    assert summary["predictions"]["rhat"]["median"] > 1.02
    assert alarms(summary) == []


def test_a_quantity_that_moves_in_the_middle_draw_alone_is_a_constant_of_both_halves() -> None:
    x = np.zeros((1, 21, 1))
    x[0, 10] = 1
    assert np.isnan([rhat(x), ess(x), ess(x, "tail")]).all()
    found = summarise(predictions=x)
    assert found["predictions"]["constant"] == 1
    assert found["predictions"]["rhat"] is None
