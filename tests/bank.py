"""Posteriors whose predictive law is known, and chains on them, right and wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Adam

from lightning_sgmcmc import (
    HAMCMC,
    HASGLD,
    HMC,
    MCLMC,
    PSGLD,
    SGFS,
    SGHMC,
    SGLD,
    SGNHT,
    SMILE,
    BatchStream,
    GaussianPrior,
    NaturalLangevin,
)
from lightning_sgmcmc.adaptation import Adaptation, StepSize
from lightning_sgmcmc.chain import Chain, OptimizerBurnIn, Task
from lightning_sgmcmc.chain.schedules import DrawSchedule
from lightning_sgmcmc.diagnostics import MOMENTUM
from lightning_sgmcmc.metrics import Bernoulli
from lightning_sgmcmc.posterior import KeptDraws, diagnose
from lightning_sgmcmc.posterior.held_out import HeldOut

#: Predictive moments of the problems without a closed form.
TRUTHS = Path(__file__).with_name("bank.json")

Array = NDArray[np.float64]
Batch = tuple[Tensor, Tensor]


class Regression(Task):
    """y ~ N(net(x), noise^2)."""

    def __init__(self, net: nn.Module, noise: float) -> None:
        super().__init__()
        self.net, self.noise = net, noise

    def nll(self, batch: Batch) -> Tensor:
        """Return the negative log-likelihood up to a constant, [B]."""
        x, y = batch
        squares: Tensor = (self(x)[:, 0] - y) ** 2
        return squares / (2 * self.noise**2)

    def predictive(self, batch: Batch) -> Tensor:
        """Return net(x), [B, 1]."""
        predicted: Tensor = self(batch[0])
        return predicted


class Classification(Task):
    """P(y = 1) = sigmoid(net(x))."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def law(self, x: Tensor) -> Bernoulli:
        """Return the law of the labels."""
        return Bernoulli(self(x)[:, 0])


class Funnel(Task):
    """v ~ N(0, width^2), x_i ~ N(0, e^v): Neal's funnel; it predicts v."""

    def __init__(self, width: float, dim: int) -> None:
        super().__init__()
        self.width = width
        self.v, self.x = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(dim))

    def nll(self, batch: Batch) -> Tensor:
        """Return the potential, of one example that says nothing, [1]."""
        v = self.v[0]
        inner = (self.x**2).sum() * torch.exp(-v) / 2 + len(self.x) * v / 2
        return (v**2 / (2 * self.width**2) + inner).expand(len(batch[0]))

    def predictive(self, batch: Batch) -> Tensor:
        """Return v, [1, 1]."""
        return self.v.expand(len(batch[0]), 1)


@dataclass(frozen=True)
class Problem:
    """A posterior whose predictive law is known.

    Attributes:
        make: Builds the task.
        data: The training set.
        probes: Held-out inputs, with labels that do not matter.
        variance: The prior's; None for a flat one.
        mean: True predictive mean at the probes, [P].
        deviation: True predictive deviation there, [P].
    """

    name: str
    make: Callable[[], Task]
    data: Batch
    probes: Batch
    variance: float | None
    mean: Array
    deviation: Array


@dataclass(frozen=True)
class Recipe:
    """A chain: sampler, step size, minibatches and lengths.

    Attributes:
        make: Called with the parameters, ``lr`` and ``prior``, returns a sampler.
        lr: Step size; "auto" for ``fraction`` of the largest stable one.
        batch: Examples in a minibatch; None for the whole data.
        optimizer_steps: Of Adam, before the chain.
        bound: On the error of variances that minibatches and step bring; None leaves chains hot.
        gradients: "auto" chooses their kind; None takes plain minibatches.
    """

    make: Callable[..., Any]
    lr: float | Literal["auto"] = "auto"
    fraction: float | Literal["auto"] = "auto"
    batch: int | None = None
    sampling: Literal["auto", "independent", "reshuffled"] = "auto"
    chains: int = 16
    burn_in: int = 400
    draws: int = 100
    thinning: int = 20
    optimizer_steps: int = 0
    starts: Literal["same", "reinitialise", "prior"] = "reinitialise"
    bound: float | None = None
    gradients: Literal["auto"] | None = None
    double: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """What a chain's draws are, and what its run says.

    Attributes:
        deviation: Predictive deviation over the true one, root mean square over the probes.
        mean_error: Error of the predictive mean in true deviations, root mean square.
        diagnostics: Of ``results.json``.
        gradients: Of single examples that a chain used.
        from_draw_to_draw: Minibatch gradients from a draw to the next, on average.
        estimator: How gradients were estimated.
        predictions: [K, D, P].
    """

    deviation: float
    mean_error: float
    diagnostics: dict[str, Any]
    gradients: int
    from_draw_to_draw: float
    estimator: str
    predictions: Array

    @property
    def alarms(self) -> list[str]:
        """What the run says is wrong."""
        found: list[str] = self.diagnostics["alarms"]
        return found

    @property
    def wrong(self) -> bool:
        """Off by more than a tenth in the deviation, or a fifth of a deviation in the mean."""
        return not (abs(self.deviation - 1) <= 0.1 and self.mean_error <= 0.2)

    @property
    def right(self) -> bool:
        """Within a twentieth in the deviation and a tenth of one in the mean."""
        return abs(self.deviation - 1) <= 0.05 and self.mean_error <= 0.1

    @property
    def judged(self) -> str:
        """``"PASSED"`` for a wrong chain without alarm, ``"ACCUSED"`` for a right one with."""
        if self.wrong and not self.alarms:
            return "PASSED"
        if self.right and self.alarms:
            return "ACCUSED"
        return "rightly" if self.wrong or self.right else "either"


def run(problem: Problem, recipe: Recipe) -> Outcome:
    """Run a recipe's chains on a problem and judge them as a run of the command line does."""
    torch.manual_seed(recipe.seed)
    task = problem.make()
    dtype = torch.float64 if recipe.double else torch.float32
    task.to(dtype)
    prior = GaussianPrior(problem.variance) if problem.variance is not None else None
    burn_in = recipe.optimizer_steps + recipe.burn_in
    steps = recipe.optimizer_steps
    optimizer = OptimizerBurnIn(partial(Adam, lr=0.01), steps) if steps else None
    chain = Chain(
        task,
        partial(recipe.make, lr=recipe.lr, prior=prior, seed=recipe.seed),
        DrawSchedule(burn_in, recipe.thinning, None, recipe.optimizer_steps),
        burn_in_optimizer=optimizer,
        gradients=recipe.gradients,
        num_chains=recipe.chains,
        starts="same" if problem.variance is None else recipe.starts,
    )
    task.chain = chain
    chain.select()
    chain.place()
    chain.build()
    data = tuple(t.to(dtype) for t in problem.data)
    probes = tuple(t.to(dtype) for t in problem.probes)
    law = "full" if recipe.batch is None else recipe.sampling
    chain.bind(BatchStream(data, recipe.batch or len(data[0]), law))
    adaptation = Adaptation(chain, StepSize(recipe.fraction, max_gradient_noise=recipe.bound))
    kept = task.kept = KeptDraws(chain, {"test": HeldOut([probes])}, Path(), budget=0)
    adaptation.after_step()
    at_a_draw = []
    while kept.num_draws < recipe.draws:
        chain.advance(chain.minibatch())
        adaptation.after_step()
        if chain.draws.keeps(chain.steps):
            kept.keep()
            at_a_draw.append(chain.num_gradients)
    diagnostics = diagnose(kept, adaptation.stability)
    drawn = kept.probes.trace("predictions")
    scale = (problem.deviation**2).mean()
    ratio = drawn.reshape(-1, drawn.shape[-1]).var(0).mean() / scale
    error = ((drawn.mean((0, 1)) - problem.mean) ** 2).mean() / scale
    return Outcome(
        deviation=float(np.sqrt(ratio)),
        mean_error=float(np.sqrt(error)),
        diagnostics=diagnostics,
        gradients=chain.num_gradients * (recipe.batch or len(data[0])),
        from_draw_to_draw=float(np.diff(at_a_draw).mean()),
        estimator=repr(chain.gradients),
        predictions=drawn,
    )


def _linear_net(dim: int) -> nn.Module:
    return nn.Linear(dim, 1, bias=False)


def _gaussian(name: str, x: Array, probes: Array, noise: float, variance: float) -> Problem:
    """Return a linear model of the columns of x, whose posterior is Gaussian."""
    rng = np.random.default_rng(1)
    truth = rng.standard_normal(x.shape[1]) * np.sqrt(variance)
    y = x @ truth + noise * rng.standard_normal(len(x))
    covariance = np.linalg.inv(x.T @ x / noise**2 + np.eye(x.shape[1]) / variance)
    mean = covariance @ (x.T @ y) / noise**2
    deviation = np.sqrt(np.einsum("pi,ij,pj->p", probes, covariance, probes))
    return Problem(
        name,
        lambda: Regression(_linear_net(x.shape[1]), noise),
        _batch(x, y),
        _batch(probes, np.zeros(len(probes))),
        variance,
        probes @ mean,
        deviation,
    )


def _batch(x: Array, y: Array) -> Batch:
    return torch.from_numpy(x), torch.from_numpy(y)


def _inputs(rng: np.random.Generator, count: int, dim: int, spread: float) -> Array:
    """Return inputs whose covariance has eigenvalues from 1 down to 1 / spread."""
    scales = np.geomspace(1, spread**-0.5, dim)
    rotation = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    inputs: Array = rng.standard_normal((count, dim)) * scales @ rotation.T
    return inputs


@cache
def linear(dim: int = 10, num_data: int = 400, spread: float = 4.0, noise: float = 1.0) -> Problem:
    """Return a linear regression with correlated inputs."""
    rng = np.random.default_rng(0)
    x = _inputs(rng, num_data + 60, dim, spread)
    return _gaussian("linear", x[:num_data], x[num_data:], noise, 1.0)


@cache
def random_features(count: int = 100, num_data: int = 200, noise: float = 0.5) -> Problem:
    """Return a regression on random ReLU features of a few inputs, mostly flat."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((num_data + 60, 2))
    weights, bias = rng.standard_normal((2, count)), rng.standard_normal(count)
    features = np.maximum(x @ weights + bias, 0) / np.sqrt(count)
    return _gaussian("features", features[:num_data], features[num_data:], noise, 1.0)


@cache
def logistic() -> Problem:
    """Return a logistic regression, with a long HMC run in float64 as its truth."""
    return _with_truth(_logistic())


def _logistic(dim: int = 10, num_data: int = 400) -> Problem:
    rng = np.random.default_rng(4)
    x = _inputs(rng, num_data + 60, dim, 4.0)
    eta = x @ rng.standard_normal(dim) * 1.5
    y = (rng.uniform(size=len(x)) < 1 / (1 + np.exp(-eta))).astype(float)
    return _unmeasured("logistic", lambda: Classification(_linear_net(dim)), x, y, num_data, 1.0)


@cache
def network() -> Problem:
    """Return a regression by a small network, with a long HMC run in float64 as its truth."""
    return _with_truth(_network())


def _network(units: int = 8, num_data: int = 60, noise: float = 0.3) -> Problem:
    rng = np.random.default_rng(5)
    x = rng.uniform(-2, 2, (num_data + 40, 1))
    y = np.sin(2 * x[:, 0]) + noise * rng.standard_normal(len(x))

    def make() -> Task:
        net = nn.Sequential(nn.Linear(1, units), nn.Tanh(), nn.Linear(units, 1))
        return Regression(net, noise)

    return _unmeasured("network", make, x, y, num_data, 1.0)


@cache
def classes() -> Problem:
    """Return two classes apart, by a network whose probabilities are 0 or 1 in most draws."""
    return _with_truth(_classes())


def _classes(dim: int = 8, units: int = 10, num_data: int = 80) -> Problem:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((num_data + 40, dim))
    y = (x @ rng.standard_normal(dim) + x[:, 0] ** 2 / 2 > 0.3).astype(float)

    def make() -> Task:
        net = nn.Sequential(nn.Linear(dim, units), nn.Tanh(), nn.Linear(units, 1))
        return Classification(net)

    return _unmeasured("classes", make, x, y, num_data, 9.0)


@cache
def funnel(width: float = 1.0, dim: int = 3) -> Problem:
    """Return Neal's funnel, narrow enough that a patient chain can follow it."""
    one = (torch.zeros(1, 1), torch.zeros(1))
    return Problem(
        "funnel", lambda: Funnel(width, dim), one, one, None, np.zeros(1), np.full(1, width)
    )


def measured(problem: Problem, leapfrog_steps: int) -> Problem:
    """Return a problem with the predictive moments of 32 chains of 500 HMC trajectories each."""
    recipe = Recipe(
        partial(HMC, leapfrog_steps=leapfrog_steps),
        chains=32,
        burn_in=300,
        draws=500,
        thinning=1,
        double=True,
        seed=7,
    )
    found = run(problem, recipe).predictions
    flat = found.reshape(-1, found.shape[-1])
    return replace(problem, mean=flat.mean(0), deviation=flat.std(0))


def _unmeasured(
    name: str, make: Callable[[], Task], x: Array, y: Array, num_data: int, variance: float
) -> Problem:
    """Return a problem whose truth is to be measured; the rows after the first are the probes."""
    known, probes = _batch(x[:num_data], y[:num_data]), _batch(x[num_data:], y[num_data:])
    unknown = np.zeros(len(x) - num_data)
    return Problem(name, make, known, probes, variance, unknown, unknown + 1)


def _with_truth(problem: Problem) -> Problem:
    """Return a problem with the moments that ``scripts/bench/bank.py --references`` measured."""
    truth = json.loads(TRUTHS.read_text())[problem.name]
    return replace(problem, mean=np.array(truth["mean"]), deviation=np.array(truth["deviation"]))


def write_truths() -> None:
    """Measure the problems without a closed form by HMC and write their truths."""
    found = {}
    for make, steps in ((_logistic, 15), (_network, 40), (_classes, 60)):
        problem = measured(make(), steps)
        found[problem.name] = {
            "mean": [round(float(v), 5) for v in problem.mean],
            "deviation": [round(float(v), 5) for v in problem.deviation],
        }
    TRUTHS.write_text(json.dumps(found, indent=1) + "\n")


@dataclass(frozen=True)
class Trial:
    """A chain of the bank: a recipe on a problem."""

    name: str
    problem: Callable[[], Problem]
    recipe: Recipe

    @property
    def sampler(self) -> str:
        """The name of its class."""
        name: str = getattr(self.recipe.make, "func", self.recipe.make).__name__
        return name

    def run(self) -> Outcome:
        """Run the chain and judge it."""
        return run(self.problem(), self.recipe)


def remedied(trial: Trial, outcome: Outcome, budget: float) -> list[Outcome]:
    """Run a chain again as its remedies say until no alarm is left.

    Args:
        trial: The chain.
        outcome: Of its first run, with alarms.
        budget: Largest number of gradients of all runs together, over those of the first.

    Returns:
        The outcomes of the further runs.
    """
    recipe, rounds, spent = trial.recipe, [outcome], 0.0
    while rounds[-1].alarms:
        recipe = followed(recipe, rounds[-1].diagnostics)
        steps = recipe.burn_in + recipe.draws * recipe.thinning
        spent += steps / (trial.recipe.burn_in + trial.recipe.draws * trial.recipe.thinning)
        if spent > budget or len(rounds) > 8:
            break
        rounds.append(run(trial.problem(), recipe))
    return rounds[1:] or rounds


def followed(recipe: Recipe, diagnostics: dict[str, Any]) -> Recipe:
    """Return the recipe that a run's remedy makes of its own; a longer run is thinned more."""
    remedy = diagnostics["remedy"]
    factor, lr = remedy["steps"], remedy["lr"]
    if remedy["momentum"]:
        recipe = replace(recipe, make=partial(SGHMC, momentum=MOMENTUM))
    recipe = replace(
        recipe,
        burn_in=round(recipe.burn_in * factor),
        thinning=round(recipe.thinning * max(1.0, factor / 2)),
        draws=round(recipe.draws * min(factor, 2.0)),
        batch=None if remedy["whole_data"] else recipe.batch,
    )
    target = getattr(recipe.make, "keywords", {}).get("target_energy_variance")
    if target is not None:
        return replace(recipe, make=partial(MCLMC, target_energy_variance=target * lr**3))
    if recipe.lr == "auto":
        fraction = diagnostics["stability"]["step_fraction"]
        return replace(recipe, fraction=min(fraction * lr, 0.5))
    return replace(recipe, lr=recipe.lr * lr)


def _bank() -> list[Trial]:
    """Return the trials, several of every sampler."""

    def hmc(steps: int, **rest: Any) -> Recipe:
        return Recipe(partial(HMC, leapfrog_steps=steps), thinning=1, burn_in=100, **rest)

    def in_turn(make: Any, fraction: float, thinning: int, batch: int | None = None) -> Recipe:
        """Return few chains, as they run in turn."""
        return Recipe(make, fraction=fraction, batch=batch, chains=4, draws=200, thinning=thinning)

    found: dict[str, tuple[Callable[[], Problem], Recipe]] = {
        # Right: whole data, or little gradient noise; long enough for what the run says of them.
        "linear, SGLD": (linear, Recipe(SGLD, fraction=0.05)),
        "linear, PSGLD": (linear, Recipe(PSGLD, fraction=0.05, burn_in=1000, thinning=30)),
        "linear, SGHMC": (linear, Recipe(SGHMC)),
        "linear, SGNHT": (linear, Recipe(SGNHT)),
        "linear, NaturalLangevin": (linear, Recipe(NaturalLangevin, fraction=0.05, burn_in=1000)),
        "linear, HASGLD": (linear, in_turn(HASGLD, 0.05, 40)),
        "linear, HAMCMC": (linear, in_turn(HAMCMC, 0.05, 60)),
        "linear, HMC": (linear, hmc(20)),
        "linear, MCLMC": (linear, Recipe(MCLMC)),
        "linear, SMILE": (linear, Recipe(SMILE, batch=40, fraction=0.002, thinning=50)),
        "linear, SGFS": (linear, Recipe(SGFS, lr=0.04, batch=40, thinning=30)),
        "linear, SGLD, little noise": (linear, Recipe(SGLD, batch=100, fraction=0.02, thinning=80)),
        "logistic, SGLD": (logistic, Recipe(SGLD, fraction=0.05, thinning=80)),
        "logistic, PSGLD": (logistic, Recipe(PSGLD, fraction=0.05, thinning=120)),
        "logistic, SGHMC": (logistic, Recipe(SGHMC)),
        "logistic, SGNHT": (logistic, Recipe(SGNHT)),
        "logistic, HMC": (logistic, hmc(20)),
        "logistic, MCLMC": (logistic, Recipe(MCLMC)),
        "logistic, SGHMC, little noise": (
            logistic,
            Recipe(SGHMC, batch=100, fraction=0.002, thinning=60),
        ),
        "features, SGHMC": (random_features, Recipe(SGHMC, thinning=50)),
        "features, HMC": (random_features, hmc(60)),
        "network, SGHMC": (network, Recipe(SGHMC, thinning=120, burn_in=2000)),
        "network, MCLMC": (network, Recipe(MCLMC, thinning=50, burn_in=2000, draws=200)),
        "network, HMC": (network, hmc(60)),
        "classes, SGHMC": (classes, Recipe(SGHMC, fraction=0.25, thinning=50, burn_in=2000)),
        "classes, MCLMC": (classes, Recipe(MCLMC, thinning=30, burn_in=2000)),
        "classes, HMC": (classes, hmc(40)),
        "funnel, SGHMC": (funnel, Recipe(SGHMC, fraction=0.05, thinning=30, draws=600)),
        # Steps that are too large.
        "linear, SGLD, large step": (linear, Recipe(SGLD, fraction=0.7)),
        "linear, PSGLD, large step": (linear, Recipe(PSGLD, fraction=0.7)),
        "logistic, NaturalLangevin, large step": (logistic, Recipe(NaturalLangevin, fraction=0.7)),
        "funnel, SGLD, large step": (funnel, Recipe(SGLD, fraction=0.3)),
        "network, MCLMC, large step": (
            network,
            Recipe(
                partial(MCLMC, target_energy_variance=0.3), thinning=25, burn_in=1000, draws=200
            ),
        ),
        "classes, MCLMC, large step": (
            classes,
            Recipe(partial(MCLMC, target_energy_variance=0.3), thinning=25, burn_in=1000),
        ),
        # Gradient noise.
        "linear, SGLD, noise": (linear, Recipe(SGLD, batch=5)),
        "linear, SGHMC, noise": (linear, Recipe(SGHMC, batch=20)),
        "linear, SGHMC, some noise": (linear, Recipe(SGHMC, batch=20, fraction=0.01)),
        "linear, HASGLD, noise": (linear, in_turn(HASGLD, 0.3, 12, 10)),
        "linear, HAMCMC, noise": (linear, in_turn(HAMCMC, 0.3, 12, 10)),
        "linear, SGNHT, noise": (linear, Recipe(SGNHT, batch=10)),
        "linear, SMILE, reshuffled": (
            linear,
            Recipe(SMILE, batch=10, fraction=0.05, sampling="reshuffled"),
        ),
        "linear, SGFS, reshuffled": (linear, Recipe(SGFS, lr=0.1, batch=40, sampling="reshuffled")),
        "logistic, SGHMC, noise": (logistic, Recipe(SGHMC, batch=20, fraction=0.2)),
        "logistic, PSGLD, noise": (logistic, Recipe(PSGLD, batch=5, fraction=0.3)),
        "logistic, SGNHT, noise": (logistic, Recipe(SGNHT, batch=10)),
        "features, SGHMC, noise": (random_features, Recipe(SGHMC, batch=20)),
        "features, SGHMC, some noise": (
            random_features,
            Recipe(SGHMC, batch=20, fraction=0.02, thinning=50),
        ),
        "network, SGHMC, noise": (network, Recipe(SGHMC, batch=10, burn_in=2000)),
        "network, PSGLD, noise": (network, Recipe(PSGLD, batch=5, fraction=0.3, burn_in=2000)),
        "classes, SGHMC, noise": (
            classes,
            Recipe(SGHMC, batch=5, fraction=0.25, thinning=20, burn_in=1000),
        ),
        # Too slow: cold, stuck or not mixed.
        "linear, SGLD, cold": (
            linear,
            Recipe(SGLD, fraction=0.001, starts="same", optimizer_steps=300, burn_in=100),
        ),
        "logistic, SGHMC, cold": (
            logistic,
            Recipe(SGHMC, fraction=1e-5, starts="same", optimizer_steps=300, burn_in=100),
        ),
        "linear, SGLD, stuck": (linear, Recipe(SGLD, fraction=1e-6, starts="same")),
        "logistic, PSGLD, stuck": (logistic, Recipe(PSGLD, fraction=1e-6, starts="same")),
        "linear, HMC, stuck": (
            linear,
            Recipe(partial(HMC, leapfrog_steps=1, target_acceptance=None), lr=20.0, thinning=1),
        ),
        "linear, SGLD, not mixed": (linear, Recipe(SGLD, fraction=0.001, starts="prior")),
        "features, SGLD, not mixed": (random_features, Recipe(SGLD)),
        "network, SGLD, not mixed": (network, Recipe(SGLD, fraction=0.02)),
        "classes, SGLD, not mixed": (classes, Recipe(SGLD, fraction=0.05)),
        "funnel, SGHMC, short": (funnel, Recipe(SGHMC, fraction=0.001)),
    }
    return [Trial(name, problem, recipe) for name, (problem, recipe) in found.items()]


#: Chains of every sampler, right and wrong.
BANK = _bank()
