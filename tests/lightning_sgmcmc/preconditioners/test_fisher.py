"""Fisher metrics against dense matrices built from per-example gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_sgmcmc import (
    SGLD,
    BlockFisher,
    DiagonalFisher,
    FullFisher,
    GaussianPrior,
    QuasiDiagonalFisher,
)
from lightning_sgmcmc.common.vectors import flatten, unflatten
from lightning_sgmcmc.preconditioners import Fisher, fisher_dense
from lightning_sgmcmc.target import PerExample, Target
from tests.harness import assert_normal
from tests.lightning_sgmcmc.problem import N, Problem

EPS, BATCH = 1e-3, 8
Build = Callable[..., Fisher]

METRICS: dict[str, Build] = {
    "diagonal": DiagonalFisher,
    "quasi": QuasiDiagonalFisher,
    "full": FullFisher,
    "layer": lambda *a, **kw: BlockFisher(*a, **kw, blocks="layer"),
    "unit": lambda *a, **kw: BlockFisher(*a, **kw, blocks="unit"),
}
each_metric = pytest.mark.parametrize("name", METRICS)


def score_rows(problem: Problem, batch: Any) -> Tensor:
    x, y = batch
    return torch.stack(
        [
            flatten(torch.autograd.grad(problem.nll((x[i : i + 1], y[i : i + 1])), problem.params))
            for i in range(len(x))
        ]
    )


def kept(name: str, problem: Problem) -> np.ndarray:
    """Return which entries of J a metric keeps, [d, d]; 2 where it inverts them as they are."""
    owner, unit, is_bias = [], [], []
    start = 0
    for layer, (w, b) in enumerate(zip(problem.params[::2], problem.params[1::2], strict=True)):
        out, inside = w.shape
        owner += [layer] * (w.numel() + b.numel())
        unit += [start + i // inside for i in range(w.numel())] + [start + i for i in range(out)]
        is_bias += [False] * w.numel() + [True] * out
        start += out
    layers, units, bias = np.array(owner), np.array(unit), np.array(is_bias)
    same_unit = units[:, None] == units
    return {
        "diagonal": np.eye(len(units), dtype=bool),
        "quasi": np.eye(len(units), dtype=bool) | (same_unit & (bias[:, None] ^ bias)),
        "full": np.ones((len(units), len(units)), dtype=bool),
        "layer": layers[:, None] == layers,
        "unit": same_unit,
    }[name]


def dense(metric: Fisher, problem: Problem) -> np.ndarray:
    """Return C, column by column."""
    d = sum(p.numel() for p in problem.params)
    columns = [
        flatten(metric.apply_([t.clone() for t in unflatten(e, problem.params)]))
        for e in torch.eye(d, dtype=torch.float64)
    ]
    return torch.stack(columns, dim=1).numpy()


def trained(metric: Fisher, steps: int = 4, **kw: Any) -> tuple[Problem, SGLD, list[Tensor]]:
    """Take steps, and return the per-example gradients of every minibatch, in order."""
    problem = Problem()
    settings = {"num_data": N, "prior": GaussianPrior(1e-3)} | kw
    sampler = SGLD(problem.params, 1e-3, preconditioner=metric, **settings)
    sampler.attach(problem.target())
    rows = []
    for step in range(steps):
        rows.append(score_rows(problem, problem.batch(step)))
        problem.run(sampler, 1)
    return problem, sampler, rows


def average(rows: list[Tensor], rates: list[float], centred: bool = False) -> np.ndarray:
    J = torch.zeros(rows[0].shape[1], rows[0].shape[1], dtype=torch.float64)
    for G, rate in zip(rows, rates, strict=True):
        if centred:
            J = (1 - rate) * J + rate * torch.cov(G.T)
        else:
            J = (1 - rate) * J + rate * G.T @ G / len(G)
    return J.numpy()


@each_metric
@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ({}, [1.0, 2**-0.5, 3**-0.5, 0.5]),
        ({"power": 1.0}, [1.0, 1 / 2, 1 / 3, 1 / 4]),
        ({"memory": 0.8}, [1.0, 0.2, 0.2, 0.2]),
    ],
)
def test_the_inverse_of_c_is_the_kept_part_of_j(
    name: str, options: dict[str, Any], rates: list[float]
) -> None:
    """C^-1 = J + eps I on the entries that the metric keeps; the prior, strong, is not in it."""
    metric = METRICS[name](eps=EPS, **options)
    # Noise may make J too large to invert.
    problem, sampler, rows = trained(metric, temperature=0.0)
    expected = average(rows, rates) + EPS * np.eye(rows[0].shape[1])
    inverse = np.linalg.inv(dense(sampler.preconditioner, problem))
    mask = kept(name, problem)
    np.testing.assert_allclose(inverse[mask], expected[mask], rtol=1e-8, atol=1e-12)
    if name != "quasi":
        np.testing.assert_allclose(inverse[~mask], 0, atol=1e-10)
    else:  # the Cholesky factor, not J, is zero elsewhere
        order = np.argsort(mask.sum(0) <= 2, kind="stable")  # biases first
        L = np.linalg.cholesky(inverse[np.ix_(order, order)])
        rest = ~mask[np.ix_(order, order)] & np.tri(len(mask), dtype=bool)
        np.testing.assert_allclose(L[rest], 0, atol=1e-10)


@pytest.mark.parametrize("name", ["diagonal", "full", "layer", "unit"])
def test_centred_scores(name: str) -> None:
    """With n - 1 and power 1, J is the mean of the minibatches' covariances."""
    metric = METRICS[name](eps=EPS, power=1.0, centred=True)
    problem, sampler, rows = trained(metric)
    expected = average(rows, [1, 1 / 2, 1 / 3, 1 / 4], centred=True)
    inverse = np.linalg.inv(dense(sampler.preconditioner, problem)) - EPS * np.eye(len(expected))
    mask = kept(name, problem)
    np.testing.assert_allclose(inverse[mask], expected[mask], rtol=1e-7, atol=1e-11)


@each_metric
def test_noise_has_covariance_c(name: str) -> None:
    """4,000 draws of 8 coordinates against C: chi-square, KS, cross products at 1e-6 each."""
    metric = METRICS[name](eps=0.1)
    problem, sampler, _ = trained(metric)
    C = dense(sampler.preconditioner, problem)
    some = np.array([0, 1, 5, 20, 24, 26, 35, 40])
    draws = [
        flatten(sampler.preconditioner.noise(sampler.stream)).numpy()[some] for _ in range(4000)
    ]
    assert_normal(np.stack(draws), C[np.ix_(some, some)])


@each_metric
def test_inverse_noise_has_covariance_of_the_inverse(name: str) -> None:
    """As above, at an eps that leaves what ties weights to biases large."""
    metric = METRICS[name](eps=1e-2)
    problem, sampler, _ = trained(metric)
    inverse = np.linalg.inv(dense(sampler.preconditioner, problem))
    some = np.array([0, 1, 5, 20, 24, 26, 35, 40])
    draws = [
        flatten(sampler.preconditioner.inverse_noise(sampler.stream)).numpy()[some]
        for _ in range(4000)
    ]
    assert_normal(np.stack(draws), inverse[np.ix_(some, some)])


@each_metric
def test_inverse_norm(name: str) -> None:
    metric = METRICS[name](eps=EPS)
    problem, sampler, _ = trained(metric)
    v = torch.randn(43, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = v.numpy() @ np.linalg.solve(dense(sampler.preconditioner, problem), v.numpy())
    found = sampler.preconditioner.inverse_norm(unflatten(v, problem.params))
    assert float(found) == pytest.approx(expected, rel=1e-9)


@each_metric
def test_floor_is_relative_to_the_mean_of_the_diagonal(name: str) -> None:
    metric = METRICS[name](eps=0.0, floor=0.3)
    problem, sampler, rows = trained(metric)
    J = average(rows, [1.0, 2**-0.5, 3**-0.5, 0.5])
    expected = np.diag(J) + 0.3 * np.diag(J).mean()
    found = np.diag(np.linalg.inv(dense(sampler.preconditioner, problem)))
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@each_metric
def test_freeze_keeps_c_and_needs_nothing(name: str) -> None:
    metric = METRICS[name](eps=EPS)
    problem, sampler, _ = trained(metric)
    before = dense(sampler.preconditioner, problem)
    sampler.freeze()
    assert sampler.needs == frozenset()
    problem.run(sampler, 3)
    np.testing.assert_array_equal(dense(sampler.preconditioner, problem), before)


@each_metric
def test_before_the_first_minibatch_c_is_the_identity(name: str) -> None:
    problem, _, _ = trained(METRICS[name](), steps=0)
    metric = METRICS[name]()
    metric.attach(problem.params)
    metric.bind(problem.target())
    np.testing.assert_array_equal(dense(metric, problem), np.eye(43))


@each_metric
def test_labels_of_the_model_give_the_fisher_matrix(name: str) -> None:
    """J over many draws of labels on all data is E_x sum_y p(y|x) g g', to 6 standard errors.

    The diagonal's entries are compared (43 of them, 1e-7 in all), the uniforms being the chain's
    own.
    """
    problem = Problem()
    metric = METRICS[name]("model", eps=1e-12, power=1.0)
    sampler = SGLD(problem.params, 1e-9, num_data=N, preconditioner=metric)
    metric, target = sampler.preconditioner, problem.target()
    sampler.attach(target)
    target.use((problem.x, problem.y))
    probabilities = problem.net(problem.x).softmax(-1).detach()
    exact, fourth = np.zeros(43), np.zeros(43)
    for label in range(3):
        y = torch.full_like(problem.y, label)
        rows = score_rows(problem, (problem.x, y))
        exact += (probabilities[:, label, None] * rows**2).mean(0).numpy()
        fourth += (probabilities[:, label, None] * rows**4).mean(0).numpy()
    grads = [torch.zeros_like(p) for p in problem.params]
    draws = 150
    for _ in range(draws):
        with target.recording():
            problem.nll(target.batch).mean().backward()
        with torch.no_grad():
            metric.update(grads)
    if name in ("full", "layer", "unit"):
        found = np.diag(np.linalg.inv(dense(metric, problem)))
    else:
        found = metric._flat[0].numpy()
    error = np.sqrt(fourth / (draws * N))
    assert (np.abs(found - exact) < 6 * error).all()
    with_data = (score_rows(problem, (problem.x, problem.y)) ** 2).mean(0).numpy()
    assert (np.abs(found - with_data) > 6 * error).any()


def test_labels_of_the_model_need_a_task_that_draws_them() -> None:
    problem = Problem()
    sampler = SGLD(problem.params, 1e-3, num_data=N, preconditioner=DiagonalFisher(labels="model"))
    target = problem.target()
    target.draw_labels = None
    sampler.attach(target)
    before = problem.weights()
    with pytest.raises(RuntimeError, match=r"need a task with draw_labels\(batch, uniforms\)"):
        problem.run(sampler, 1)
    assert torch.equal(problem.weights(), before)


def test_a_target_without_statistics_is_refused() -> None:
    problem = Problem()
    sampler = SGLD(problem.params, 1e-3, num_data=N, preconditioner=FullFisher())
    sampler.attach(Target(problem.nll, problem.params, N))
    before = problem.weights()
    with pytest.raises(RuntimeError, match="give it a target with per_example"):
        problem.run(sampler, 1)
    assert torch.equal(problem.weights(), before)


def test_a_full_fisher_too_large_for_memory_says_how_large() -> None:
    """d = 10^7 float32: three matrices of 4e14 bytes, refused before anything is allocated."""
    weight = nn.Parameter(torch.zeros(10_000, 1000))
    with pytest.raises(ValueError, match=r"takes 1,200,000,000,000,000 bytes .* are free: use"):
        SGLD([weight], 0.1, preconditioner=FullFisher())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": -1.0}, "eps must be positive, or floor"),
        ({"eps": 0.0}, "eps must be positive, or floor"),
        ({"eps": float("inf")}, "eps must be positive, or floor, and finite"),
        ({"labels": "sampled"}, "labels must be data or model, got 'sampled'"),
        ({"power": 1.5}, r"power must lie in \[0, 1\], got 1.5"),
        ({"memory": 1.0}, r"memory must lie in \[0, 1\), got 1.0"),
    ],
)
@each_metric
def test_options_out_of_range(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        METRICS[name](**options)


def test_unknown_blocks() -> None:
    with pytest.raises(ValueError, match="blocks must be layer or unit, got 'row'"):
        BlockFisher(blocks="row")


def test_low_rank_updates_keep_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 5 low-rank updates and none fresh, C is what a fresh factor of J gives."""
    monkeypatch.setattr(fisher_dense, "_LOW_RANK", 1)  # n = 8 is less than d = 43
    metric = FullFisher(eps=1e-2, memory=0.9, centred=True)
    problem, sampler, rows = trained(metric, steps=6)
    state = sampler.preconditioner.state_dict()
    assert state["since_fresh"][0] == 5
    J = average(rows, [1.0] + [0.1] * 5, centred=True)
    # eps decays with the old J until the next fresh factor.
    expected = J + 1e-2 * 0.9**5 * np.eye(43)
    np.testing.assert_allclose(
        np.linalg.inv(dense(sampler.preconditioner, problem)), expected, rtol=1e-6, atol=1e-9
    )


def test_a_frozen_metric_and_its_inverse_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where low-rank updates have shrunk eps, freezing makes C = (J + eps I)^-1 again."""
    monkeypatch.setattr(fisher_dense, "_LOW_RANK", 1)
    problem, sampler, rows = trained(FullFisher(eps=1e-2, memory=0.9, centred=True), steps=6)
    metric = sampler.preconditioner
    metric.freeze()
    C = dense(metric, problem)
    expected = average(rows, [1.0] + [0.1] * 5, centred=True) + 1e-2 * np.eye(43)
    np.testing.assert_allclose(np.linalg.inv(C), expected, rtol=1e-6, atol=1e-9)
    v = problem.weights()
    norm = metric.inverse_norm(unflatten(v, problem.params))
    assert norm is not None
    assert float(norm) == pytest.approx(v.numpy() @ np.linalg.solve(C, v.numpy()), rel=1e-6)


@each_metric
def test_stacked_chains_have_metrics_of_their_own(name: str) -> None:
    """Two stacked chains learn what each learns alone."""
    build = METRICS[name]
    problem, twins = Problem(), [Problem(seed=1), Problem(seed=2)]
    names = [n for n, _ in problem.net.named_parameters()]
    stacked = [
        torch.stack([q.detach() for q in pair]).requires_grad_()
        for pair in zip(*(t.params for t in twins), strict=True)
    ]
    metric = build(eps=EPS)
    metric.attach(stacked, 1)
    stats = PerExample(problem.net, names, stacked, problem.nll, chain_dims=1)
    target = Target(problem.nll, stacked, N, chain_dims=1)
    target.per_example = stats
    metric.bind(target)
    batch = tuple(torch.stack([t.batch(0)[i] for t in twins]) for i in range(2))
    with stats.recording(batch):
        outputs = torch.func.vmap(lambda w, x: torch.func.functional_call(problem.net, w, (x,)))(
            dict(zip(names, stacked, strict=True)), batch[0]
        )
        functional.cross_entropy(outputs.flatten(0, 1), batch[1].flatten()).mul(2).backward()
    with torch.no_grad():
        metric.update([p.grad for p in stacked])
        found = metric.apply_([torch.ones_like(p) for p in stacked])
    for k, twin in enumerate(twins):
        alone = build(eps=EPS)
        alone.attach(twin.params)
        own = twin.target()
        alone.bind(own)
        own.use(twin.batch(0))
        with own.recording():
            twin.nll(own.batch).mean().backward()
        with torch.no_grad():
            alone.update([p.grad for p in twin.params])
            expected = alone.apply_([torch.ones_like(p) for p in twin.params])
        for f, e in zip(found, expected, strict=True):
            assert torch.allclose(f[k], e, rtol=1e-8)


@pytest.mark.parametrize("kind", [DiagonalFisher, QuasiDiagonalFisher])
def test_the_floor_of_a_stacked_chain_is_of_its_own_diagonal(kind: Build) -> None:
    """Two chains, one of squares ten thousand times as large."""
    squares = [torch.tensor([[1.0, 2.0], [1e4, 3e4]]), torch.tensor([[[3.0]], [[2e4]]])]
    metric: Any = kind(eps=0.25, floor=0.5)
    metric.attach([torch.zeros(2, 2), torch.zeros(2, 1, 1)], 1)
    state = {"squares": squares, "updates": 1, "batch_size": 4}
    metric.load_state_dict(metric.state_dict() | state)
    floors = 0.25 + 0.5 * torch.tensor([2.0, 2e4])
    torch.testing.assert_close(metric.inverse()[0], squares[0] + floors[:, None])
    torch.testing.assert_close(metric.inverse()[1], squares[1] + floors[:, None, None])


class Fit:
    """A linear layer of one output, squared errors as its likelihood, and a metric that sees it."""

    def __init__(
        self,
        metric: Fisher,
        width: int,
        bias: bool = False,
        dtype: torch.dtype = torch.float64,
        **shared: Any,
    ) -> None:
        torch.manual_seed(0)
        self.net, self.metric = nn.Linear(width, 1, bias=bias, dtype=dtype), metric
        self.params = list(self.net.parameters())
        self.target = Target(self.nll, self.params, 100)
        names = [name for name, _ in self.net.named_parameters()]
        self.target.per_example = PerExample(self.net, names, self.params, self.nll, **shared)
        metric.attach(self.params)
        metric.bind(self.target)

    def nll(self, batch: Any) -> Tensor:
        return 0.5 * (self.net(batch[0])[:, 0] - batch[1]) ** 2

    def see(self, x: Tensor, y: Tensor) -> None:
        self.target.use((x, y))
        self.net.zero_grad()
        with self.target.recording():
            self.nll((x, y)).mean().backward()
        with torch.no_grad():
            self.metric.update([p.grad for p in self.params])

    def times(self, *v: Tensor) -> list[Tensor]:
        """Return C v."""
        return self.metric.apply_([part.clone() for part in v])

    def C(self, width: int) -> Tensor:  # noqa: N802
        """Return C of a layer without biases."""
        return torch.stack([self.times(e[None])[0][0] for e in torch.eye(width).double()])


def minibatches(count: int, n: int, width: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    both = torch.randn(count, n, width + 1, generator=generator, dtype=torch.float64)
    return [(each[:, 1:], each[:, 0]) for each in both]


def test_ranks_that_share_a_minibatch_have_the_unbiased_covariance_too() -> None:
    """One rank that reduces over itself alone, against one that does not reduce."""
    one = Fit(FullFisher(eps=0.1, centred=True), 4)
    shared = Fit(FullFisher(eps=0.1, centred=True), 4, reduce=lambda tensors: None)
    v = torch.ones(1, 4).double()
    for x, y in minibatches(3, 5, 4):
        one.see(x, y)
        shared.see(x, y)
        torch.testing.assert_close(shared.times(v), one.times(v))
        torch.testing.assert_close(shared.metric.inverse_norm([v]), one.metric.inverse_norm([v]))


def test_the_shifted_solve_scales_what_is_added_to_the_diagonal_too() -> None:
    """(scale (J + damping) + shift)^-1 by torch, J from the metric's own C."""
    fit = Fit(FullFisher(eps=0.5, floor=2.0), 4)
    for x, y in minibatches(3, 5, 4):
        fit.see(x, y)
    shift = torch.tensor([1.0, 0.0, 3.0, 0.5]).double()
    v = torch.tensor([1.0, -2.0, 0.5, 4.0]).double()
    expected = torch.linalg.solve(3.0 * torch.linalg.inv(fit.C(4)) + torch.diag(shift), v)
    metric: Any = fit.metric
    found = metric.solve_shifted([v[None].clone()], 3.0, [shift[None]])[0][0]
    torch.testing.assert_close(found, expected)


def test_low_rank_updates_lose_at_most_half_of_eps() -> None:
    """A weight whose input is always zero has C between 1 / eps and 2 / eps at any time."""
    fit = Fit(FullFisher(eps=0.01, memory=0.9), 40)
    unit = torch.zeros(1, 40).double()
    unit[0, 7] = 1.0
    low_rank = 0
    for x, y in minibatches(40, 2, 40):
        x[:, 7] = 0.0
        fit.see(x, y)
        C = float(fit.times(unit)[0][0, 7])
        assert 100 * (1 - 1e-9) <= C <= 200 * (1 + 1e-9)
        low_rank += C > 101
    assert low_rank > 10


@pytest.mark.parametrize("floor", [0.0, 1e-15])
def test_rounding_leaves_no_weight_without_what_is_added(floor: float) -> None:
    """One example: J has rank one, so that each s_i is eps, below the rounding of J here."""
    metric = QuasiDiagonalFisher(eps=1e-4, floor=floor)
    fit = Fit(metric, 50, bias=True, dtype=torch.float32)
    x = 100 * torch.randn(1, 50, generator=torch.Generator().manual_seed(2))
    fit.see(x, torch.tensor([1000.0]))
    smallest = 1e-4 + 0.9 * floor * float(metric.squares[0].mean())
    assert bool((metric.inverse()[0] >= smallest).all())
    assert bool(torch.isfinite(metric.root()[0]).all())


@each_metric
def test_a_metric_that_returns_to_its_start_is_the_identity(name: str) -> None:
    metric = METRICS[name]()
    fit = Fit(metric, 3, bias=True)
    start = copy.deepcopy(metric.state_dict())
    for x, y in minibatches(2, 4, 3):
        fit.see(x, y)
    v = [torch.tensor([[1.0, 2.0, 3.0]]).double(), torch.tensor([4.0]).double()]
    assert not torch.allclose(fit.times(*v)[0], v[0])
    metric.load_state_dict(start)
    torch.testing.assert_close(fit.times(*v), v)


def test_a_root_between_two_factors_is_resumed_to_the_bit() -> None:
    fits = [Fit(FullFisher(eps=0.01, memory=0.9), 40) for _ in range(2)]
    v, seen = torch.ones(1, 40).double(), minibatches(8, 2, 40)
    for batch in seen[:4]:
        fits[0].see(*batch)
    fits[1].metric.load_state_dict(fits[0].metric.state_dict())
    assert torch.equal(fits[0].times(v)[0], fits[1].times(v)[0])
    for batch in seen[4:]:
        for fit in fits:
            fit.see(*batch)
        assert torch.equal(fits[0].times(v)[0], fits[1].times(v)[0])


def test_a_diagonal_start_counts_as_one_minibatch() -> None:
    """J = (diag S_1 + S_1) / 2, and then (diag S_1 + S_1 + S_2) / 3 for a plain average."""
    fit = Fit(FullFisher(eps=0.01, power=1.0, diagonal_start=True), 4)
    total, eye = torch.zeros(4, 4).double(), torch.eye(4).double()
    for i, (x, y) in enumerate(minibatches(2, 3, 4)):
        fit.see(x, y)
        g = (fit.net(x)[:, 0] - y).detach()[:, None] * x
        S = g.mT @ g / 3
        total += S if i else S + torch.diag(S.diagonal())
        torch.testing.assert_close(fit.C(4), torch.linalg.inv(total / (i + 2) + 0.01 * eye))
