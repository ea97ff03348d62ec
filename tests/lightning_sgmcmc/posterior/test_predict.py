"""Predicting with stacked draws: the loop's answer, within memory, from draws of any type."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from lightning_sgmcmc.kernels import VARIABLE
from lightning_sgmcmc.metrics import PosteriorEnsemble, Prediction
from lightning_sgmcmc.posterior import DrawStore, Posterior, predict
from lightning_sgmcmc.posterior.layout import ExamplesLast
from tests.toy import NUM_FEATURES, Toy

CLASSES, WIDTH = 4, 6


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(NUM_FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))


class Classifier(Toy):
    """Softmax of a net's outputs."""

    def __init__(self, network: nn.Module | None = None) -> None:
        super().__init__(net=network or net())
        self.passes = 0

    def nll(self, batch: Any) -> Tensor:
        return functional.cross_entropy(self(batch[0]), batch[1], reduction="none")

    def predictive(self, batch: Any) -> Tensor:
        self.passes += 1
        return torch.softmax(self(batch[0]), -1)


class Branching(Classifier):
    """What it computes depends on a value, which vmap cannot follow."""

    def predictive(self, batch: Any) -> Tensor:
        logits = self(batch[0])
        return torch.softmax(-logits if logits[0, 0] > 0 else logits, -1)


def batch(size: int = 23, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, NUM_FEATURES, generator=generator)
    return x, torch.randint(CLASSES, (size,), generator=generator)


def posterior(
    folder: Path,
    module: Classifier,
    chains: tuple[int, ...] = (7, 6),
    dtype: str = "float32",
) -> Posterior:
    """Draws of random weights, each of another weight in averages."""
    generator = torch.Generator().manual_seed(1)
    stores = []
    for chain, count in enumerate(chains):
        store = DrawStore(folder, chain, dtype)
        store.save_constants({})
        for step in range(count):
            weights = {
                name: torch.randn(p.shape, generator=generator)
                for name, p in module.named_parameters()
            }
            store.save(step, weights, 1.0 / (1 + step + chain))
        stores.append(DrawStore.open(folder, chain))
    return Posterior(module, stores)


@torch.no_grad()
def looped(draws: Posterior, data: Any) -> Prediction:
    """Draw by draw, with the metric that runs use."""
    metric = PosteriorEnsemble(len(data[0]), (CLASSES,))
    for weight, module in zip(draws.weights.tolist(), draws, strict=True):
        index = torch.arange(len(data[0]))
        metric.update(module.predictive(data), module.nll(data), index, weight)
    prediction: Prediction = metric.compute()
    return prediction


@pytest.fixture(params=["auto", "off"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the compiled loops, where Numba is installed, and without."""
    monkeypatch.setenv(VARIABLE, request.param)
    monkeypatch.setattr(predict, "_FUSE_FROM", 0)


def test_a_little_work_is_not_traced(tmp_path: Path) -> None:
    """Tracing calls the method once, and once only where loops then take over."""
    pytest.importorskip("numba", reason="numba is in the extra fast")
    draws = posterior(tmp_path, Classifier(), chains=(100,))
    weights = sum(p.numel() for p in draws.module.parameters())
    enough = -(-predict._FUSE_FROM // (100 * weights))
    for size, passes in ((enough - 1, 3), (enough, 1)):
        draws.module.passes = 0
        predict.Plan(draws.module, draws.loads, "predictive", batch(size))
        assert draws.module.passes == passes


def small_tiles(monkeypatch: Any, draws: int, examples: int) -> None:
    monkeypatch.setattr(predict, "_tile", lambda *args: (draws, examples))


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("tile", [(1, 23), (4, 23), (4, 5), (13, 1), (1, 7), (100, 100)])
def test_the_loops_answer_in_tiles_of_any_size(
    tmp_path: Path, monkeypatch: Any, tile: tuple[int, int]
) -> None:
    draws = posterior(tmp_path, Classifier())
    expected = looped(draws, batch())
    small_tiles(monkeypatch, *tile)
    found = draws.predictive(batch())
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-6, atol=0)
    torch.testing.assert_close(found.epistemic_std, expected.epistemic_std, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(found.nll, expected.nll, rtol=1e-6, atol=1e-7)


@pytest.mark.usefixtures("backend")
def test_mean_and_deviation_of_what_the_ensemble_averages(tmp_path: Path) -> None:
    draws = posterior(tmp_path, Classifier())
    x = batch()[0]
    with torch.no_grad():
        outputs = torch.stack([module(x).softmax(-1) for module in draws]).double().numpy()
    found = draws.predict(x)
    weights = draws.weights.numpy()
    expected = np.average(outputs, axis=0, weights=weights)
    spread = np.sqrt(np.average((outputs - expected) ** 2, axis=0, weights=weights))
    np.testing.assert_allclose(found.mean, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.epistemic_std, spread, rtol=1e-5)


@pytest.mark.usefixtures("backend")
def test_predictions_of_each_draw_in_order(tmp_path: Path, monkeypatch: Any) -> None:
    draws = posterior(tmp_path, Classifier())
    with torch.no_grad():
        expected = torch.stack([module.predictive(batch()) for module in draws])
    small_tiles(monkeypatch, 5, 10)
    groups = list(draws.predictions(batch()))
    assert [len(weights) for weights, _ in groups] == [5, 5, 3]
    torch.testing.assert_close(torch.cat([w for w, _ in groups]), draws.weights)
    torch.testing.assert_close(
        torch.cat([outputs for _, outputs in groups]), expected, rtol=2e-6, atol=1e-8
    )


def test_a_chain_of_its_own(tmp_path: Path) -> None:
    draws = posterior(tmp_path, Classifier(), chains=(3, 2))
    whole = draws.predictive(batch()).mean
    parts = [draws.chain(c) for c in range(draws.num_chains)]
    assert [len(part) for part in parts] == [3, 2]
    # Weights of the two chains: 1 + 1/2 + 1/3 and 1/2 + 1/3.
    shares = [11 / 16, 5 / 16]
    means = [part.predictive(batch()).mean for part in parts]
    torch.testing.assert_close(
        whole, shares[0] * means[0] + shares[1] * means[1], rtol=1e-6, atol=0
    )
    with pytest.raises(IndexError, match="chains 0 to 1, got 2"):
        draws.chain(2)


def test_the_module_keeps_its_weights(tmp_path: Path) -> None:
    draws = posterior(tmp_path, Classifier())
    before = {name: p.clone() for name, p in draws.module.state_dict().items()}
    draws.predictive(batch())
    assert all(torch.equal(before[n], p) for n, p in draws.module.state_dict().items())


def test_what_vmap_cannot_follow_is_looped_over(tmp_path: Path) -> None:
    draws = posterior(tmp_path, Branching())
    data = batch()
    expected = looped(draws, data)
    with pytest.warns(UserWarning, match="one by one, because vmap cannot follow Branching: "):
        found = draws.predictive(data)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-6, atol=0)


@pytest.mark.usefixtures("backend")
def test_what_vmap_cannot_follow_after_the_network_is_looped_over(tmp_path: Path) -> None:
    class Counting(Classifier):
        def predictive(self, batch: Any) -> Tensor:
            p = super().predictive(batch)
            return p + 0 * torch.nonzero(p).sum()

    draws = posterior(tmp_path, Counting())
    expected = looped(draws, batch())
    with pytest.warns(UserWarning, match="one by one, because vmap cannot follow Counting: "):
        found = draws.predictive(batch())
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-6, atol=0)


def test_an_error_of_the_modules_own_is_told(tmp_path: Path) -> None:
    draws = posterior(tmp_path, Classifier())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        draws.predictive((torch.zeros(3, NUM_FEATURES + 1), torch.zeros(3, dtype=torch.long)))


def test_a_method_without_rows_is_refused(tmp_path: Path) -> None:
    class Mean(Classifier):
        def predictive(self, batch: Any) -> Tensor:
            return self(batch[0]).mean(0)

    draws = posterior(tmp_path, Mean())
    with pytest.raises(ValueError, match=r"must return one row for each of 23 .*\[4\]"):
        draws.predictive(batch())


class _Peak:
    """Most bytes of activations and stacked weights that live at once, by torch's profiler."""

    def __enter__(self) -> _Peak:
        self._profile = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        )
        self._profile.__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        self._profile.__exit__(*args)
        changes = [
            event.nbytes()
            for event in self._profile.profiler.kineto_results.events()
            if event.name() == "[memory]"
        ]
        self.bytes = int(np.cumsum(changes).max())


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    ("wide", "size", "memory"), [(400, 40, 2**21), (8, 4000, 2**20), (60, 600, 2**19)]
)
def test_the_peak_stays_below_the_budget(tmp_path: Path, wide: int, size: int, memory: int) -> None:
    """What torch allocates at once, without the sums that make up the answer."""
    network = nn.Sequential(nn.Linear(NUM_FEATURES, wide), nn.ReLU(), nn.Linear(wide, wide))
    network.append(nn.Linear(wide, CLASSES))
    draws = posterior(tmp_path, Classifier(network))
    data = batch(size)
    unbounded = draws.predictive(data, memory="4 GiB")
    with _Peak() as peak:
        found = draws.predictive(data, memory=memory)
    answer = 8 * size * (6 * CLASSES + 4)
    assert memory / 50 < peak.bytes < memory + answer
    torch.testing.assert_close(found.mean, unbounded.mean, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("draws", "weights", "constant", "each", "size", "cpu"),
    [
        (100, 7_520, 0, 500, 10_000, True),
        (100, 3_825_680, 4_000, 10_000, 10_000, True),
        (100, 3_825_680, 4_000, 10_000, 10_000, False),
        (5, 10, 10**8, 10**7, 300, True),
        (24, 2_200_000, 0, 8_000_000, 5_000, True),
        (1, 10, 0, 0, 1, True),
    ],
)
def test_tiles_fit(
    draws: int, weights: int, constant: int, each: int, size: int, cpu: bool
) -> None:
    budget = 2**29
    k, b = predict._tile(budget, weights, constant, each, size, draws, cpu)
    assert 1 <= k <= draws
    assert 1 <= b <= size
    assert k * (weights + constant + each * b) <= budget
    # Nothing larger would do: with another example the budget or the caches would overflow.
    limit = min(budget - k * weights, predict._CACHE) if cpu else budget - k * weights
    assert b == size or k * (constant + each * (b + 1)) > limit
    if cpu and k == 1:  # the caches do not cut a pass of a deep network to single examples
        assert b >= min(size, predict._FEWEST, (budget - weights - constant) // max(each, 1))


def test_memory_too_small_for_one_draw(tmp_path: Path) -> None:
    draws = posterior(tmp_path, Classifier())
    with pytest.raises(ValueError, match=r"one draw and one example take .* raise it"):
        draws.predictive(batch(), memory=100)


@pytest.mark.parametrize(
    ("given", "bytes_"), [(7, 7), ("512 MiB", 2**29), ("1.5kb", 1500), ("2GiB", 2**31)]
)
def test_amounts_of_memory(given: int | str, bytes_: int) -> None:
    assert predict.parse_memory(given) == bytes_


@pytest.mark.parametrize("given", [0, -1, "much", "3 TB", "1.2.3 MB", ""])
def test_no_amounts_of_memory(given: int | str) -> None:
    with pytest.raises(ValueError, match='memory must be "auto", bytes or text'):
        predict.parse_memory(given)


def test_memory_is_half_of_what_a_gpu_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the allocator keeps for later counts as left: it would shrink from call to call."""
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 9000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 700)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 300)
    assert predict.working_memory("auto", cuda) == 700
    assert predict.working_memory("2 KiB", cuda) == 2048
    assert predict.working_memory("auto", torch.device("cpu")) == 2**29


class Hungry(Classifier):
    """Runs out of memory where it is given more than ``limit`` examples."""

    limit = 8

    def predictive(self, batch: Any) -> Tensor:
        if len(batch[0]) > self.limit:
            raise torch.OutOfMemoryError
        return super().predictive(batch)


def test_a_gpu_with_less_memory_than_it_said_takes_half_as_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_tiles(monkeypatch, 5, 16)
    draws, data = posterior(tmp_path, Hungry()), batch()
    plan = predict.Plan(draws.module, draws.loads, "predictive", data)
    parts = [part for part, _ in plan.outputs(plan.stack([load() for load in draws.loads]), data)]
    assert [(p.start, p.stop) for p in parts] == [(0, 8), (8, 16), (16, 23)]

    found = draws.predictive(data)
    monkeypatch.setattr(Hungry, "limit", 23)
    torch.testing.assert_close(found.mean, looped(draws, data).mean)

    monkeypatch.setattr(Hungry, "limit", 4)  # half of the half, which is not tried
    with pytest.raises(torch.OutOfMemoryError):
        draws.predictive(data)


def test_batches_are_cut_by_their_structure() -> None:
    data = {"x": torch.arange(6), "pair": (torch.arange(12).view(6, 2), "label")}
    assert predict.num_examples(data) == 6
    found = predict.cut(data, slice(2, 4))
    assert found["x"].tolist() == [2, 3]
    assert found["pair"][0].tolist() == [[4, 5], [6, 7]]
    assert found["pair"][1] == "label"
    with pytest.raises(ValueError, match=r"got lengths \[2, 3\]"):
        predict.num_examples((torch.zeros(2), torch.zeros(3)))


def test_joined_batches_keep_their_structure() -> None:
    class Pair(NamedTuple):
        x: Tensor
        y: Any

    rows = torch.arange(6.0).reshape(3, 2)
    batches = [Pair(rows[part], [{"t": rows[part, 0]}, "name"]) for part in (slice(2), slice(2, 3))]
    whole = predict.joined(batches)
    assert isinstance(whole, Pair)
    assert torch.equal(whole.x, rows)
    assert torch.equal(whole.y[0]["t"], rows[:, 0])
    assert whole.y[1] == "name"


@pytest.mark.usefixtures("backend")
def test_bfloat16_draws_predict_within_their_rounding(tmp_path: Path) -> None:
    """Rounding moves each weight by at most 2^-8 of itself, and with it outputs and softmax.

    With |dW| <= e |W| entry by entry, e = 2^-8, a layer's outputs move by at most
    |W| |dx| + e (|W| (|x| + |dx|) + |b|); ReLU passes no more on. Logits that move by at most d
    each move no probability by more than a factor exp(2 d), so that p (exp(2 d) - 1) bounds a
    draw's change, averaged over draws the ensemble's; 1e-6 is float32's own.
    """
    exact = posterior(tmp_path / "float32", Classifier())
    rounded = posterior(tmp_path / "bfloat16", Classifier(), dtype="bfloat16")
    data = batch()
    e, bound = 2.0**-8, torch.zeros(len(data[0]), CLASSES, dtype=torch.float64)
    for weight, module in zip(exact.weights.tolist(), exact, strict=True):
        x, moved = data[0].double(), torch.zeros_like(data[0], dtype=torch.float64)
        for layer in module.net:
            if isinstance(layer, nn.Linear):
                W, b = layer.weight.detach().double(), layer.bias.detach().double()
                sizes = (x.abs() + moved) @ W.abs().T + b.abs()
                x, moved = x @ W.T + b, moved @ W.abs().T + e * sizes
            else:
                x = x.relu()
        largest = moved.max(-1, keepdim=True).values
        bound += weight * torch.softmax(x, -1) * torch.expm1(2 * largest)
    error = (rounded.predictive(data).mean - exact.predictive(data).mean).abs()
    assert (error <= bound + 1e-6).all()
    assert (error > bound / 100).any()  # the bound is of the error's size, the draws are rounded


def test_the_mean_network_stands_alone(tmp_path: Path) -> None:
    draws = posterior(tmp_path, Classifier())
    total = {name: torch.zeros_like(p) for name, p in draws.module.net.named_parameters()}
    for weight, module in zip(draws.weights.tolist(), draws, strict=True):
        for name, p in module.net.named_parameters():
            total[name] += weight * p.detach()
    mean = draws.mean_network()
    draws.save_mean_network(tmp_path / "mean.safetensors")
    alone = net()
    alone.load_state_dict(load_file(tmp_path / "mean.safetensors"))
    for name, p in alone.named_parameters():
        torch.testing.assert_close(p.detach(), total[name], rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        assert torch.equal(alone(batch()[0]), mean(batch()[0]))
    # A network of its own: iterating over draws leaves it alone.
    for _ in draws:
        pass
    assert torch.equal(mean.net[0].weight, alone[0].weight)


@pytest.mark.parametrize("classes", [2, 10, 15, 16, 40])
def test_softmax_of_few_classes_is_softmax(classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    x = 3 * torch.randn(5, 200, classes, generator=generator)
    labels = torch.randint(classes, (200,), generator=generator)
    of_classes = torch.arange(1.0, classes + 1)
    calls = [
        lambda: torch.softmax(x, -1),
        lambda: x.softmax(dim=2),
        lambda: functional.softmax(x, 1),
        lambda: functional.log_softmax(x, -1).exp(),
        lambda: functional.log_softmax(x, -1, dtype=torch.float64),
        lambda: x.softmax(-1, torch.float64),
        lambda: functional.cross_entropy(x[0], labels, reduction="none"),
        lambda: functional.cross_entropy(x[1], labels, weight=of_classes),
        lambda: functional.cross_entropy(input=x[1], target=labels, reduction="sum"),
        lambda: functional.cross_entropy(x[2], labels, label_smoothing=0.1),
        lambda: functional.cross_entropy(x[2], x[3].softmax(-1)),
        lambda: functional.cross_entropy(x[2], labels % 2, ignore_index=1),
    ]
    for call in calls:
        expected = call()
        with ExamplesLast():
            found = call()
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)
        assert found.is_contiguous()


def test_cross_entropy_reduces_over_a_middle_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []
    reduce = torch.log_softmax
    monkeypatch.setattr(
        torch, "log_softmax", lambda x, dim: shapes.append(x.shape) or reduce(x, dim)
    )
    with ExamplesLast():
        functional.cross_entropy(torch.zeros(7, 3), torch.zeros(7, dtype=torch.long))
    assert shapes == [(3, 7)]


def test_a_linear_layer_of_one_output_is_a_vector() -> None:
    x, weights = torch.randn(9, 3), torch.randn(4, 3)
    with ExamplesLast(stacked=True):
        found = torch.func.vmap(lambda w: functional.linear(x, w))(weights)
    torch.testing.assert_close(found, weights @ x.T)


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_of_stacked_draws(bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, 3, generator=generator)
    weights = torch.randn(4, 5, 3, generator=generator)
    shifts = torch.randn(4, 5, generator=generator) if bias else torch.zeros(4, 5)

    def layer(w: Tensor, b: Tensor) -> Tensor:
        return functional.linear(x, w, b if bias else None)

    with ExamplesLast(stacked=True):
        found = torch.func.vmap(layer)(weights, shifts)
    expected = torch.einsum("kij,bj->kbi", weights, x) + shifts[:, None]
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("backend")
def test_a_mean_of_ones_is_not_above_1() -> None:
    for count in range(2, 61):
        weights = 1 / torch.arange(1.0, count + 1)
        found = predict._moments(weights, torch.ones(count, 7))
        assert torch.equal(found[0], torch.ones(7))
        assert torch.equal(found[1], torch.zeros(7))


def test_draws_predict_in_the_precision_of_the_module(tmp_path: Path) -> None:
    draws = posterior(tmp_path, Classifier().double())
    x, labels = batch()
    found = draws.predictive((x.double(), labels))
    expected = posterior(tmp_path / "single", Classifier()).predictive((x, labels))
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_types_are_averaged_in_a_longer_one(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """Of two blocks of draws; float64's averages to the rounding of float32."""
    generator = torch.Generator().manual_seed(0)
    f = torch.rand(5, 4, 2, generator=generator).to(dtype)
    weights = torch.tensor([0.1, 0.2, 0.05, 0.25, 0.4], dtype=torch.float64)
    parts = [predict.Block(s, slice(0, 4), (f[s],)) for s in (slice(0, 3), slice(3, 5))]
    monkeypatch.setattr(predict, "evaluate", lambda *_: iter(parts))
    found = predict.ensemble(Classifier(), [], weights, "moments", torch.zeros(4, 1))
    mean = np.average(f.double().numpy(), axis=0, weights=weights)
    squares = np.average((f.double().numpy() - mean) ** 2, axis=0, weights=weights)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(found.std, np.sqrt(squares), rtol=1e-5)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("step", [1, 2])
def test_moments_in_any_order_in_memory(dtype: torch.dtype, step: int) -> None:
    values = torch.randn(6, 4, 5, 2000, generator=torch.Generator().manual_seed(0)).to(dtype)
    weights = torch.tensor([0.2, 0.1, 0.5, 0.3, 0.01, 2.0], dtype=dtype)[::step].contiguous()
    exact = values[::step].double().numpy()
    mean = np.average(exact, axis=0, weights=weights)
    squares = np.tensordot(weights.double().numpy(), (exact - mean) ** 2, 1)
    for order in ((0, 1, 2, 3), (0, 3, 1, 2), (0, 2, 3, 1), (0, 3, 2, 1)):
        lying = values.permute(order).contiguous()
        back = lying.permute(*(order.index(axis) for axis in range(4)))[::step]
        found = predict._moments(weights, back)
        np.testing.assert_allclose(found[0], mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found[1], squares, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:draws are evaluated one by one")
@pytest.mark.parametrize("weights", [(1.0, 3.0, 0.0), (0.0, 1.0, 3.0)])
def test_a_draw_without_weight_changes_nothing(tmp_path: Path, weights: tuple[float, ...]) -> None:
    """As a schedule that ends at 0 gives it; draws are evaluated one by one here."""
    module, store = Branching(), DrawStore(tmp_path)
    store.save_constants({})
    for step, weight in enumerate(weights):
        draw = {name: torch.randn(p.shape) for name, p in module.named_parameters()}
        store.save(step, draw, weight)
    found = Posterior(module, [DrawStore.open(tmp_path)])
    x = batch()
    rows = torch.stack([task.predictive(x).detach().double() for task in found])
    q = torch.tensor(weights, dtype=torch.float64)[:, None, None] / sum(weights)
    mean = (q * rows).sum(0)
    predicted = found.predictive(x)
    torch.testing.assert_close(predicted.mean, mean)
    deviation = (q * (rows - mean) ** 2).sum(0).sqrt()
    torch.testing.assert_close(predicted.epistemic_std, deviation)
