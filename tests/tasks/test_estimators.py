"""The estimators pass scikit-learn's own checks, and predict by the posterior of their task."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from tasks.estimators import BayesianMLPClassifier, BayesianMLPRegressor
from tests.device import DEVICE

# Most chains here are too short for a verdict.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

WHERE = str(DEVICE)
SHORT: dict[str, Any] = {
    "hidden": (8,), "num_chains": 1, "thinning": 2, "random_state": 0, "device": WHERE,
}  # fmt: skip
CHECKED = [
    BayesianMLPRegressor(**SHORT, optimizer_steps=60, burn_in=64, steps=72),
    BayesianMLPClassifier(**SHORT, optimizer_steps=60, burn_in=64, steps=72),
]


@parametrize_with_checks(CHECKED)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def line(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features in unlike units and y, a linear function of them with noise."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(count, 2)) * [1.0, 50.0] + [3.0, -100.0]
    return x, 40 + 5 * x[:, 0] - 0.02 * x[:, 1] + 4 * generator.normal(size=count)


def by_quadrature(
    x: np.ndarray, y: np.ndarray, new: np.ndarray, noise: Any = "learned"
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of y at new rows, a sum over log sigma of exact Gaussians.

    t = 22 (w z + b) + sigma e with w_i ~ N(0, 1/2), b ~ N(0, 1), log sigma ~ N(0, 9) or
    given, in standardised units.
    """
    centre, scale = x.mean(0), x.std(0, ddof=1)
    phi, at = (np.column_stack([22 * (r - centre) / scale, np.full(len(r), 22)]) for r in (x, new))
    t, prior = (y - y.mean()) / y.std(ddof=1), np.diag([0.5, 0.5, 1.0])
    log_sigmas, found = np.linspace(-3, 2, 400) if noise == "learned" else np.log([noise]), []
    for sigma in np.exp(log_sigmas):
        evidence = stats.multivariate_normal(
            np.zeros(len(t)), phi @ prior @ phi.T + sigma**2 * np.eye(len(t))
        ).logpdf(t)
        covariance = np.linalg.inv(phi.T @ phi / sigma**2 + np.linalg.inv(prior))
        mean = at @ covariance @ phi.T @ t / sigma**2
        found.append((evidence, mean, np.sum(at @ covariance * at, 1) + sigma**2))
    mass = np.array([e for e, *_ in found]) - log_sigmas**2 / 18
    mass = np.exp(mass - mass.max())
    mass /= mass.sum()
    means, variances = (np.array([f[i] for f in found]) for i in (1, 2))
    mean = mass @ means
    deviation = np.sqrt(mass @ (variances + (means - mean) ** 2))
    return y.mean() + y.std(ddof=1) * mean, y.std(ddof=1) * deviation


def test_a_linear_regression_is_the_exact_one(capfd: Any, tmp_path: Any, monkeypatch: Any) -> None:
    """Without hidden layers log sigma alone is sampled; the rest is exact.

    Some 1,000 draws: their error is about 1 % of a deviation, the bounds are five times that. The
    estimator says nothing, leaves no file, and neither uses nor moves the global generators.
    """
    monkeypatch.chdir(tmp_path)
    x, y = line(30)
    new = np.array([[3.0, -100.0], [7.0, 50.0], [-1.0, 0.0]])
    state = np.random.get_state()[1].tolist()  # noqa: NPY002
    model = BayesianMLPRegressor(
        (),
        num_chains=8,
        optimizer_steps=50,
        burn_in=100,
        steps=360,
        thinning=2,
        random_state=1,
        device=WHERE,
    ).fit(x, y)
    short = [
        BayesianMLPRegressor(
            **SHORT | {"random_state": seed}, optimizer_steps=5, burn_in=10, steps=16
        ).fit(x, y)
        for seed in (1, 1, 2)
    ]
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002
    mean, std = model.predict(new, return_std=True)
    exact_mean, exact_std = by_quadrature(x, y, new)
    np.testing.assert_allclose((mean - exact_mean) / exact_std, 0, atol=0.05)
    np.testing.assert_allclose(std, exact_std, rtol=0.05)
    lower, upper = model.predict_interval(new, 0.8)
    z = stats.norm.ppf(0.9)
    np.testing.assert_allclose([lower, upper], [mean - z * std, mean + z * std], rtol=1e-6)
    first, again, other = (estimator.predict(new) for estimator in short)
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()
    assert model.weights_.shape == (8 * 130,)
    assert model.diagnostics_["notes"] == model.diagnostics_["alarms"] == []
    assert model.diagnostics_["predictive"]["deviation_over_true"] == pytest.approx(1, abs=0.02)
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("noise", ["learned", 0.7])
def test_the_prior_is_the_stated_one(noise: Any) -> None:
    """Weights N(0, 1 / fan-in), biases N(0, 1) and log sigma N(0, 9), at random weights."""
    chain = BayesianMLPRegressor((5, 4), noise=noise, num_chains=1)._made(3, 1, 0).chain
    chain.select()
    chain.place()  # without data, so that no layer is integrated out
    chain.build()
    expected, names = 0.0, []
    for name, value in chain.state(0).items():
        value.normal_(generator=torch.Generator(value.device).manual_seed(len(names)))
        variance = 9.0 if name == "log_noise" else 1.0
        if name.endswith("weight"):
            variance /= value.shape[1]
        expected += stats.norm(0, variance**0.5).logpdf(value.cpu().numpy()).sum()
        names.append(name)
    assert len(names) == 6 + (noise == "learned")
    found = chain.sampler.prior.log_density(chain.sampler.params)
    assert float(found.detach()) == pytest.approx(expected, rel=1e-5)


def test_every_draw_that_is_due_is_kept() -> None:
    """Of all steps after burn-in, by each chain, and none of a step beyond."""
    x, y = line(24)
    model = BayesianMLPRegressor(
        **SHORT | {"thinning": 1, "num_chains": 3}, optimizer_steps=5, burn_in=10, steps=16
    ).fit(x, y)
    assert model.weights_.shape == (3 * 6,)
    assert model.weights_.sum() == pytest.approx(1)


@pytest.mark.parametrize("noise", ["learned", 0.7])
def test_minibatches_and_a_noise_that_is_given(noise: Any) -> None:
    """Some 300 correlated draws of all weights, by batches of a third of the rows or by all.

    Means to a tenth of a deviation; deviations to 15 %, of which batches are allowed to add 3 %.
    """
    x, y = line(60)
    new = np.array([[3.0, -100.0], [7.0, 50.0], [-1.0, 0.0]])
    model = BayesianMLPRegressor(
        (), noise=noise, num_chains=4, optimizer_steps=100, burn_in=200, steps=600, thinning=5,
        batch_size=20 if noise == "learned" else None, random_state=0, device=WHERE,
    ).fit(x, y)  # fmt: skip
    mean, std = model.predict(new, return_std=True)
    exact_mean, exact_std = by_quadrature(x, y, new, noise)
    np.testing.assert_allclose((mean - exact_mean) / exact_std, 0, atol=0.1)
    np.testing.assert_allclose(std, exact_std, rtol=0.15)


@pytest.mark.parametrize("optimizer_steps", [0, 20, 60])
def test_chains_that_diverge_say_what_to_do(optimizer_steps: int) -> None:
    """Their step is set where Adam has not come far: the noise's curvature is tiny there."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 3))
    y = x[:, 0] * 2 + 5 + 0.1 * generator.normal(size=40)
    model = BayesianMLPRegressor(
        (), num_chains=2, optimizer_steps=optimizer_steps, burn_in=60, steps=200, thinning=10,
        random_state=0, device=WHERE,
    )  # fmt: skip
    with pytest.raises(ValueError, match="diverged: set burn_in and optimizer_steps higher"):
        model.fit(x, y)


@pytest.mark.parametrize("kind", [BayesianMLPRegressor, BayesianMLPClassifier])
def test_every_step_takes_all_rows_unless_fewer_are_asked_for(kind: Any) -> None:
    x, y = np.zeros((20_001, 1)), np.zeros((20_001, 1))
    streams = [kind(batch_size=size)._stream(x, y) for size in (None, 20_001, 50_000, 100)]
    assert [stream.sampling for stream in streams] == ["full"] * 3 + ["auto"]
    assert [stream.batch_size for stream in streams] == [20_001] * 3 + [100]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"step_fraction": 0.98}, "times too wide"), ({"steps": 250}, "with 5 draws a chain")],
)
def test_draws_that_are_no_sample_are_a_warning(wrong: dict[str, Any], said: str) -> None:
    """Of a logistic regression: a step close to the largest stable one, and too few draws."""
    x, y = line(60)
    right: dict[str, Any] = {
        "hidden": (), "num_chains": 16, "optimizer_steps": 50, "burn_in": 200, "steps": 1600,
        "thinning": 10, "random_state": 0, "device": WHERE,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = BayesianMLPClassifier(**right).fit(x, y > y.mean())
    assert model.diagnostics_["alarms"] == []
    with pytest.warns(ConvergenceWarning, match=said):
        model.set_params(**wrong).fit(x, y > y.mean())
    assert any(said in alarm for alarm in model.diagnostics_["alarms"])


def test_a_noisy_table_is_no_reason_for_an_alarm() -> None:
    """Weights that the data say little of, whose predictions saturate: the verdict knows them."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(40, 3))
    y = x[:, 0] + 1.5 * generator.normal(size=40)
    model = BayesianMLPRegressor(
        (10,), optimizer_steps=200, burn_in=800, steps=2500, thinning=20, random_state=1,
        device=WHERE,
    ).fit(x, y)  # fmt: skip
    assert model.diagnostics_["alarms"] == []
    assert model.diagnostics_["predictive"]["deviation_over_true_error"] < 0.05


def test_rows_and_columns_in_the_opposite_order() -> None:
    """NumPy's views of negative strides are taken as any other array."""
    x, y = line(24)
    given = {**SHORT, "optimizer_steps": 60, "burn_in": 64, "steps": 72}
    model = BayesianMLPRegressor(**given).fit(x[:, ::-1], y)
    plain = BayesianMLPRegressor(**given).fit(x[:, ::-1].copy(), y)
    np.testing.assert_array_equal(model.predict(x[:, ::-1]), plain.predict(x[:, ::-1].copy()))
    np.testing.assert_allclose(model.predict(x[::-1, ::-1])[::-1], plain.predict(x[:, ::-1].copy()))
    BayesianMLPRegressor(**given).fit(x[::-1], y[::-1])


def test_probabilities_of_a_logistic_regression() -> None:
    """Against a sum over a grid: logit = a z + b, a and b ~ N(0, 2), z standardised.

    Sixteen chains give a probability to about .01; the bound is .05.
    """
    generator = np.random.default_rng(3)
    x = generator.normal(size=(25, 1)) * 10 + 30
    y = np.where(generator.uniform(size=25) < 1 / (1 + np.exp(-(x[:, 0] - 30) / 8)), "yes", "no")
    model = BayesianMLPClassifier(
        (),
        num_chains=16,
        optimizer_steps=50,
        burn_in=100,
        steps=500,
        thinning=4,
        random_state=0,
        device=WHERE,
    ).fit(x, y)
    new = np.array([[10.0], [30.0], [45.0]])
    z, at = (x - x.mean()) / x.std(), (new - x.mean()) / x.std()
    a, b = np.meshgrid(*[np.linspace(-6, 6, 200)] * 2)
    sign = np.where(y == "yes", 1, -1)
    logs = -(a**2 + b**2) / 4
    for z_i, s in zip(z[:, 0], sign, strict=True):
        logs -= np.logaddexp(0, -s * (a * z_i + b))
    mass = np.exp(logs - logs.max())
    exact = [float((mass / (1 + np.exp(-(a * t + b)))).sum() / mass.sum()) for t in at[:, 0]]
    assert model.classes_.tolist() == ["no", "yes"]
    np.testing.assert_allclose(model.predict_proba(new)[:, 1], exact, atol=0.05)
    assert model.predict(new).tolist() == ["no", "yes" if exact[1] > 0.5 else "no", "yes"]


def test_noise_that_depends_on_the_input_widens_the_bands_where_it_is_large() -> None:
    """sigma(x) = exp(-2 + x): a factor of 20 between the ends, of which 8 to 50 is found."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-1.5, 1.5, size=(300, 1))
    y = x[:, 0] + np.exp(-2 + x[:, 0]) * generator.normal(size=300)
    model = BayesianMLPRegressor(
        (), noise="input", output_scale=1.0, num_chains=2, optimizer_steps=150, burn_in=200,
        steps=300, thinning=5, random_state=0, device=WHERE,
    ).fit(x, y)  # fmt: skip
    _, std = model.predict([[-1.5], [1.5]], return_std=True)
    assert 8 < std[1] / std[0] < 50


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"burn_in": 15},
            "need 0 <= optimizer_steps <= burn_in <= steps - thinning, got 5, 15 and",
        ),
        (
            {"noise": "residuals"},
            "noise must be a number or one of learned, input, got 'residuals'",
        ),
        ({"hidden": (0,)}, "layers need at least one unit"),
        ({"hidden": 8}, r"hidden must be a sequence such as \(50,\), got 8"),
        ({"hidden": (2.5,)}, r"hidden must hold whole numbers, got \(2.5,\)"),
        ({"noise": None}, "noise must be a number or one of learned, input, got None"),
        ({"steps": 16.5}, "steps must be a whole number, got 16.5"),
    ],
)
def test_wrong_parameters_are_refused_by_fit(wrong: dict[str, Any], message: str) -> None:
    x, y = line(20)
    estimator = BayesianMLPRegressor(**SHORT, optimizer_steps=5, burn_in=10, steps=16)
    with pytest.raises((ValueError, TypeError), match=message):
        estimator.set_params(**wrong).fit(x, y)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_units_that_double_precision_cannot_scale_are_refused(scale: float) -> None:
    """Their deviation is 0 or infinite, so that every feature would become a constant."""
    x = np.random.default_rng(0).normal(size=(40, 2))
    with pytest.raises(ValueError, match="X is too large or too small to be scaled"):
        BayesianMLPClassifier(**SHORT).fit(scale * x, x[:, 0] > 0)
    with pytest.raises(ValueError, match="y is too large or too small to be scaled"):
        BayesianMLPRegressor(**SHORT).fit(x, scale * x[:, 0])
