"""The compiled loops compute what torch's code computes, and say so where bits may differ."""

from __future__ import annotations

import ast
import io
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.polynomial import Chebyshev, Polynomial
from scipy.special import hyp1f1, hyp2f1
from torch import Tensor

from lightning_sgmcmc import (
    HASGLD,
    PSGLD,
    SGHMC,
    SGLD,
    DiagonalFisher,
    GaussianPrior,
    LaplacePrior,
    NaturalLangevin,
    RMSProp,
    Sampler,
    kernels,
)
from lightning_sgmcmc.noise import NoiseStream
from tests.lightning_sgmcmc.problem import N, Problem

pytest.importorskip("numba", reason="numba is in the extra fast")

import numba

from lightning_sgmcmc.kernels import bits, langevin, lbfgs, metrics, networks, normals, threads

F32 = np.float32

Build = Callable[..., Sampler]
FISHER: dict[str, Build] = {
    "SGLD-DiagonalFisher": lambda p, **kw: SGLD(
        p, 1e-3, preconditioner=DiagonalFisher(eps=0.1), **kw
    ),
    "SGLD-DiagonalFisher-floor": lambda p, **kw: SGLD(
        p, 1e-3, preconditioner=DiagonalFisher(eps=0.0, floor=1.0), **kw
    ),
    "NaturalLangevin": lambda p, **kw: NaturalLangevin(p, 1e-3, eps=0.1, **kw),
}
#: Samplers of which every step is one of the loops.
COMPILED: dict[str, Build] = FISHER | {
    "SGLD-DiagonalFisher-matched": lambda p, **kw: SGLD(
        p, 1e-3, increments="moment-matched", preconditioner=DiagonalFisher(eps=0.1), **kw
    ),
    "SGLD-matched": lambda p, **kw: SGLD(p, 1e-2, increments="moment-matched", **kw),
    "SGLD": lambda p, **kw: SGLD(p, 1e-2, **kw),
    "PSGLD": lambda p, **kw: PSGLD(p, 1e-3, eps=0.1, **kw),
    "PSGLD-floor": lambda p, **kw: PSGLD(p, 1e-3, eps=1e-3, floor=0.5, **kw),
    "SGLD-RMSProp-from-a-gradient": lambda p, **kw: SGLD(
        p, 1e-3, preconditioner=RMSProp(eps=0.1, start_at_gradient=True), **kw
    ),
    "SGHMC": lambda p, **kw: SGHMC(p, 1e-2, momentum=0.9, **kw),
    "SGHMC-RMSProp": lambda p, **kw: SGHMC(
        p, 1e-3, momentum=0.9, preconditioner=RMSProp(eps=1e-3, floor=0.5), **kw
    ),
    "HASGLD": lambda p, **kw: HASGLD(p, 1e-2, slots=1, **kw),
    "HASGLD-slots": lambda p, **kw: HASGLD(p, 1e-2, slots=3, memory=3, **kw),
}


@pytest.fixture(autouse=True)
def on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kernels.VARIABLE, raising=False)


@pytest.fixture
def off(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    def switch(wish: bool) -> None:
        monkeypatch.setenv(kernels.VARIABLE, "off" if wish else "auto")

    return switch


@pytest.fixture
def thread_counts() -> Iterator[tuple[int, ...]]:
    before = torch.get_num_threads()
    yield (1, 2, 3)
    torch.set_num_threads(before)


def chain(build: Build, problem: Problem, **kw: Any) -> Sampler:
    settings: dict[str, Any] = {"num_data": N, "prior": GaussianPrior(0.5, 0.3), "seed": 4} | kw
    sampler = build(problem.params, **settings)
    sampler.attach(problem.target(settings["prior"]))
    return sampler


def compiled_steps(problem: Problem, sampler: Sampler, count: int) -> int:
    """Take steps, and return how many of them were compiled loops."""
    found = 0
    for _ in range(count):
        problem.run(sampler, 1)
        found += sampler.implementation == "numba"
    return found


# The functions


def test_polynomials_interpolate_at_chebyshev_points() -> None:
    def log_rest(f: np.ndarray) -> np.ndarray:
        return hyp2f1(1, 3, 4, -f) / 3  # (log(1 + f) - f + f^2 / 2) / f^3

    def sine_rest(y: np.ndarray) -> np.ndarray:
        return np.pi * np.sinc(np.sqrt(y))

    def exp_rest(r: np.ndarray) -> np.ndarray:
        return hyp1f1(1, 3, r) / 2  # (e^r - 1 - r) / r^2

    half = math.log(2) / 2
    ends = [math.sqrt(0.5) - 1, math.sqrt(2) - 1]
    for rest, found, domain in (
        (log_rest, normals.LOG, ends),
        (sine_rest, normals.SINE, [0, 0.25]),
        (exp_rest, networks.EXP, [-half, half]),
    ):
        fit = Chebyshev.interpolate(rest, len(found) - 1, domain=domain)
        expected = fit.convert(kind=Polynomial).coef
        np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_log_sine_and_exponential_err_by_rounding() -> None:
    """Two units in the last place, also where the logarithm is near 0."""

    @numba.njit(error_model="numpy", fastmath={"contract"})
    def each(x: Any, s: Any, r: Any, logs: Any, sines: Any, exps: Any) -> None:
        for i in range(len(x)):
            logs[i] = normals.log(x[i])
            sines[i] = normals.sine(s[i])
            exps[i] = networks.exp(r[i])

    rng = np.random.default_rng(0)
    x = np.concatenate([2 ** rng.uniform(-64, 0, 200_000), 1 - rng.uniform(0, 1e-3, 200_000)])
    x, s = x.astype(F32), rng.uniform(-0.5, 0.5, 400_000).astype(F32)
    r = rng.uniform(-87, 88, 400_000).astype(F32)
    logs, sines, exps = np.empty_like(x), np.empty_like(x), np.empty_like(x)
    each(x, s, r, logs, sines, exps)
    np.testing.assert_allclose(exps, np.exp(r.astype(float)), rtol=2.4e-7)
    np.testing.assert_allclose(logs, np.log(x.astype(float)), rtol=2.4e-7)
    np.testing.assert_allclose(sines, np.sin(np.pi * s.astype(float)), rtol=2.4e-7)


@pytest.mark.parametrize("words", [1, 1000, 20_001])
def test_bits_are_numpys(words: int) -> None:
    ours, theirs = (np.random.Generator(np.random.SFC64(7)) for _ in range(2))
    for generator in (ours, theirs):
        generator.integers(10, dtype=np.uint32)  # leaves half a word in the state
    found = np.empty(words, dtype=np.int64)
    bits.draw(ours, found)
    expected = theirs.integers(-(2**63), 2**63 - 1, size=words, dtype=np.int64, endpoint=True)
    np.testing.assert_array_equal(found, expected)
    for draw in (lambda g: g.integers(10, dtype=np.uint32), lambda g: g.random()):
        assert draw(ours) == draw(theirs)


def mapped(lengths: np.ndarray, angles: np.ndarray, shift: float) -> np.ndarray:
    """Return what the loop makes of 31-bit radii and 16-bit angles, [2, half]."""
    half = len(lengths)
    words = np.zeros((1, (half + 1) // 2 + (half + 3) // 4), dtype=np.int64)
    words[0, : (half + 1) // 2].view(np.int32)[:half] = lengths
    words[0, (half + 1) // 2 :].view(np.int16)[:half] = angles
    out = torch.empty(1, 2 * half)
    normals.box_muller(torch.from_numpy(words), torch.tensor([[shift]]), out)
    return out.view(2, half).double().numpy()


def exact(lengths: np.ndarray, angles: np.ndarray, shift: float) -> np.ndarray:
    """Return the map in float64 of the float32 numbers u^2 and k + delta that define it."""
    u = lengths.astype(F32)
    square = u * u * F32(2.0**-62) + F32(2.0**-64)
    turns = (angles.astype(F32) + F32(shift)).astype(float) * 2.0**-15 * math.pi
    return np.sqrt(-np.log(square.astype(float))) * np.stack([np.cos(turns), np.sin(turns)])


def test_normals_are_those_of_the_bits() -> None:
    rng = np.random.default_rng(1)
    lengths = rng.integers(-(2**31), 2**31, 300_001).astype(np.int32)
    angles = rng.integers(-(2**15), 2**15, 300_001).astype(np.int16)
    found, expected = mapped(lengths, angles, 0.7), exact(lengths, angles, 0.7)
    assert np.abs(found - expected).max() < 1.5e-6  # 2 units in the last place of 6
    assert np.abs(found).max() < 6.7


def test_tail_and_ends_of_the_bits() -> None:
    """u = 0, the smallest u, and u = 1, at all corners of the angle."""
    lengths = np.array([0, 1, -1, 2, 2**31 - 1, -(2**31)], dtype=np.int32).repeat(5)
    angles = np.array([-(2**15), -(2**14), 0, 2**14, 2**15 - 1] * 6, dtype=np.int16)
    for shift in (0.0, 0.5, 1 - 2.0**-24):
        found, expected = mapped(lengths, angles, shift), exact(lengths, angles, shift)
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, expected, atol=2e-6)
    assert np.abs(mapped(lengths, angles, 0.0)).max() == pytest.approx(math.sqrt(64 * math.log(2)))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 40_001])
@pytest.mark.parametrize("chains", [None, 3])
def test_streams_of_both_backends_agree(size: int, chains: int | None, off: Any) -> None:
    """Normals of every size, of stacked chains too; increments and states to the bit."""
    like = [torch.empty(*([chains] if chains else []), size)]
    for increments, tolerance in (("gaussian", 2e-6), ("moment-matched", 0.0)):
        found = {}
        for wish in (False, True):
            off(wish)
            stream = NoiseStream(like, 4, num_chains=chains, increments=increments)
            assert stream.backend == ("torch" if wish else "numba")
            draws = [stream.increments()[0].clone() for _ in range(3)]
            found[wish] = torch.stack(draws), stream.state_dict()["sfc64"]
        torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=tolerance)
        assert torch.equal(found[0][1], found[1][1])


# Chains


@pytest.mark.parametrize("name", COMPILED)
def test_twenty_steps_are_torchs(name: str, off: Any) -> None:
    """Ten steps while C adapts, ten after; a weight is of size 0.5 and moves by as much."""
    found = []
    for wish in (False, True):
        off(wish)
        problem = Problem(torch.float32)
        sampler = chain(COMPILED[name], problem)
        compiled = compiled_steps(problem, sampler, 10)
        sampler.freeze()
        compiled += compiled_steps(problem, sampler, 10)
        found.append(problem.weights())
        if wish:
            assert not compiled
        elif name.startswith("HASGLD"):  # each operator waits for its first pair
            assert 10 <= compiled < 20
        elif name.startswith("SGHMC"):  # the velocity is drawn by the formula, and after a freeze
            assert compiled == 18
        else:
            assert compiled == 20
    torch.testing.assert_close(*found, rtol=0, atol=3e-6)


@pytest.mark.parametrize("prior", [None, LaplacePrior(0.5)])
@pytest.mark.parametrize("name", COMPILED)
def test_other_priors(name: str, prior: Any, off: Any) -> None:
    found = []
    for wish in (False, True):
        off(wish)
        problem = Problem(torch.float32)
        found.append(problem.run(chain(COMPILED[name], problem, prior=prior), 8))
    torch.testing.assert_close(*found, rtol=0, atol=3e-6)


def test_weights_without_a_sampled_bias(off: Any) -> None:
    """The quasi-diagonal metric is then diagonal on them."""
    found = []
    for wish in (False, True):
        off(wish)
        problem = Problem(torch.float32)
        problem.net[0].bias.requires_grad_(False)
        names, params = zip(
            *[(n, p) for n, p in problem.net.named_parameters() if p.requires_grad], strict=True
        )
        problem.params = list(params)
        sampler = NaturalLangevin(problem.params, 1e-3, eps=0.1, num_data=N)
        target = problem.target()
        target.per_example = type(target.per_example)(
            problem.net, names, problem.params, problem.nll
        )
        sampler.attach(target)
        found.append(problem.run(sampler, 8))
    torch.testing.assert_close(*found, rtol=0, atol=3e-6)


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("case", ["float64", "strided", "masked", "cold"])
def test_other_chains_go_without(name: str, case: str, off: Any) -> None:
    found = []
    for wish in (False, True):
        off(wish)
        problem = Problem(torch.float64 if case == "float64" else torch.float32)
        if case == "strided":
            with torch.no_grad():
                weight = problem.params[0]
                weight.data = weight.data.T.contiguous().T
        sampler = chain(COMPILED[name], problem, temperature=0.0 if case == "cold" else 1.0)
        if case == "masked":
            sampler.set_masks(
                [(torch.arange(p.numel()).view(p.shape) % 3 > 0) for p in problem.params]
            )
        assert compiled_steps(problem, sampler, 5) == 0
        found.append(problem.weights())
    torch.testing.assert_close(*found, rtol=0, atol=0 if case == "float64" else 3e-6)


def test_stacked_chains_take_torchs_steps(off: Any) -> None:
    found = []
    for wish in (False, True):
        off(wish)
        theta = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
        sampler = SGLD([theta], 1e-2, increments="moment-matched", num_data=5)
        sampler.stack()
        for _ in range(4):
            theta.grad = theta.detach().clone()
            sampler.step()
            assert sampler.implementation != "numba"
        found.append(theta.detach())
    assert torch.equal(*found)


def test_a_gradient_that_is_not_finite_is_seen() -> None:
    for value in (math.nan, math.inf, -math.inf):
        theta = torch.zeros(20_000, requires_grad=True)
        sampler = SGLD([theta], 1e-2, num_data=5)
        theta.grad = torch.zeros(20_000)
        theta.grad[12_345] = value
        with pytest.raises(RuntimeError, match="1 of 1 parameters is not finite"):
            sampler.step()
        assert not theta.any()


# Bits


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("frozen", [False, True])
def test_resumes_to_the_bit(name: str, frozen: bool) -> None:
    problem = Problem(torch.float32)
    sampler = chain(COMPILED[name], problem)
    problem.run(sampler, 5)
    if frozen:
        sampler.freeze()
        problem.run(sampler, 2)
    state = through_a_file(sampler.state_dict())
    assert state["chain"]["noise"]["backend"] == "numba"
    other = problem.twin()
    expected = problem.run(sampler, 5)
    resumed = chain(COMPILED[name], other, seed=99)
    resumed.load_state_dict(state)
    assert torch.equal(other.run(resumed, 5), expected)


def test_the_number_of_threads_changes_no_bit(thread_counts: tuple[int, ...]) -> None:
    """Of any loop, on vectors of several pieces."""
    shapes = [(300, 130), (300,), (7, 300), (7,)]

    def drawn(seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [torch.rand(shape, generator=generator) for shape in shapes]

    def flat(seed: int) -> Tensor:
        return torch.cat([t.flatten() for t in drawn(seed)])

    found = []
    for count in thread_counts:
        torch.set_num_threads(count)
        stream = NoiseStream(drawn(0), 1)
        results = [z.clone() for z in stream.normal()]
        theta, g, z, J, x = (drawn(i) for i in range(5))
        odd = (flat(6) * 256).to(torch.uint8).view(torch.int8)
        langevin.identity_(theta, g, odd, 0.1, 0.2, (0.3, 0.4))
        metrics.rmsprop_(J, x, g, 0.9, 0.5)
        langevin.langevin_(theta, g, z, x, 0.1, 0.2, (0.3, 0.4))
        langevin.langevin_(theta, g, z, None, 0.1, 0.2, (0.3, 0.4))
        w = drawn(5)
        for root in (x, None):
            langevin.baoab_(theta, w, g, z, root, 0.1, 0.05, 0.9, 0.2, (0.3, 0.4))
        metrics.rmsprop_(J, x, g, 0.9)
        metrics.rmsprop_root_(x, 0.1, 0.5)
        lists = (theta, g, z, J)
        weights, biases = ([[v[i + k] for v in lists] for i in (0, 2)] for k in (0, 1))
        langevin.quasi_diagonal_(weights, [x[0], x[2]], biases, 0.5, 0.1, 0.2, (0.3, 0.4))
        rows = torch.stack([flat(i) for i in range(7, 11)])
        products = lbfgs.project(theta, g, z, rows, (0.3, 0.4))
        lbfgs.combine_(theta, g, z, rows, np.concatenate(products)[:4], 0.1, 0.2)
        s, y = flat(11), flat(12)
        sums_of = lbfgs.pair((drawn(13), drawn(14)), theta, g, s, y)
        totals = [*map(torch.from_numpy, products), sums_of, s, y]
        found.append([*results, *theta, *g, *w, *J, *x, *totals])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert torch.equal(a, b)


def test_pieces_cover_each_vector_once() -> None:
    lengths, sizes = (3, 20_000, 1, 700), (1, 1, 9000, 40)
    layout = threads.layout(lengths, sizes, (4, 2), (False, True), 3)
    plan = layout.words[np.argsort(layout.words[:, 2])]
    assert layout.firsts[0] == 0
    assert layout.firsts[-1] == len(plan)
    assert (np.diff(layout.firsts) > 0).all()
    for v, (length, size) in enumerate(zip(lengths, sizes, strict=True)):
        mine = plan[plan[:, 3] == v]
        starts = np.concatenate([[0], np.cumsum(mine[:, 0])])
        assert starts[-1] == length
        assert (mine[:, 1] == size).all()
        np.testing.assert_array_equal(mine[:, 4], 4 * size * starts[:-1])
        np.testing.assert_array_equal(mine[:, 5], 2 * starts[:-1])
    np.testing.assert_array_equal(plan[:, 2], np.arange(len(plan)))


def test_a_checkpoint_of_the_other_backend_is_announced(off: Any) -> None:
    states = {}
    for wish in (False, True):
        off(wish)
        problem = Problem(torch.float32)
        sampler = chain(COMPILED["SGLD"], problem)
        problem.run(sampler, 3)
        states[wish] = sampler.state_dict()
        states[wish]["weights"] = problem.weights()
    ends = []
    for wish, message in ((False, "computed by torch alone"), (True, "computed by compiled")):
        off(wish)
        problem = Problem(torch.float32)
        sampler = chain(COMPILED["SGLD"], problem, seed=8)
        with pytest.warns(UserWarning, match=message):
            sampler.load_state_dict(
                {k: states[not wish][k] for k in states[not wish] if k != "weights"}
            )
        problem.step_number = 3
        torch.nn.utils.vector_to_parameters(states[not wish]["weights"], problem.params)
        ends.append(problem.run(sampler, 3))
    torch.testing.assert_close(*ends, rtol=0, atol=3e-6)


def test_a_checkpoint_that_names_no_backend_is_torchs(off: Any) -> None:
    stream = NoiseStream([torch.empty(5)], 0)
    old = {"sfc64": stream.state_dict()["sfc64"]}
    with pytest.warns(UserWarning, match=f"{kernels.VARIABLE}=off goes on to the bit"):
        stream.load_state_dict(old)
    off(True)
    NoiseStream([torch.empty(5)], 0).load_state_dict(old)
    NoiseStream([torch.empty(5, dtype=torch.float64)], 0).load_state_dict(old)


# The choice


def test_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert kernels.chosen(cpu, torch.float32) == "numba"
    assert kernels.chosen(cpu, torch.float64) == "torch"
    cuda = "triton" if find_spec("triton") else "torch"
    with monkeypatch.context() as context:
        context.setattr(kernels, "_launches", lambda device: True)
        assert kernels.chosen(torch.device("cuda"), torch.float32) == cuda
        assert kernels.chosen(torch.device("cuda"), torch.float64) == "torch"
    assert kernels.chosen(torch.device("meta"), torch.float32) == "torch"
    monkeypatch.setattr(kernels, "_installed", lambda name: False)
    assert kernels.chosen(cpu, torch.float32) == "torch"
    assert kernels.chosen(torch.device("cuda"), torch.float32) == "torch"
    monkeypatch.setenv(kernels.VARIABLE, "of")
    with pytest.raises(ValueError, match="must be auto or off, got 'of'"):
        NoiseStream([torch.empty(1)], 0)


def test_a_gpu_on_which_triton_does_not_start_has_torchs_steps() -> None:
    """As one without a C compiler, or none at all, as here."""
    pytest.importorskip("triton")
    nowhere = torch.device("cuda", 63)
    with pytest.warns(UserWarning, match="Triton does not start here, and steps are torch's: "):
        assert kernels.chosen(nowhere, torch.float32) == "torch"


def test_numba_and_triton_are_imported_late() -> None:
    """Only by modules of the folder, which others import in functions alone."""
    root = Path(kernels.__file__).parents[1]
    loops = {f"lightning_sgmcmc.kernels.{p.stem}" for p in (root / "kernels").glob("*.py")}
    loops -= {"lightning_sgmcmc.kernels.__init__"}
    for path in root.rglob("*.py"):
        if path.parent.name == "kernels" and path.stem != "__init__":
            continue
        for node in ast.parse(path.read_text()).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not {n.split(".")[0] for n in names} & {"numba", "llvmlite", "triton"}, path
            assert not set(names) & loops, path


def test_a_second_process_compiles_nothing() -> None:
    code = (
        "from lightning_sgmcmc.kernels import langevin, lbfgs, metrics, normals\n"
        "for e in (normals._box_muller, langevin._identity, langevin._langevin, langevin._baoab,\n"
        "          langevin._quasi_diagonal, lbfgs._project, lbfgs._combine, lbfgs._pair,\n"
        "          metrics._rmsprop, metrics._shifted):\n"
        "    assert e.cache_hits == 1, e\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)


def test_no_folder_for_a_cache_costs_seconds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core import caching

    from lightning_sgmcmc.kernels.compiler import cached
    from pde.darcy.multifrontal_simd import compile_

    for kind in vars(caching).values():
        if isinstance(kind, type) and hasattr(kind, "_locator_classes"):
            monkeypatch.setattr(kind, "_locator_classes", [])

    def half(x: np.ndarray) -> None:
        x[0] /= 2

    vector = numba.float64[::1]
    with pytest.warns(UserWarning, match="set NUMBA_CACHE_DIR"):
        ours = cached(lambda cache: numba.njit((vector,), cache=cache)(half))
    x = np.array([3.0])
    for function in (ours, compile_(half, vector)):
        function(x)
    assert x[0] == 0.75
    with pytest.raises(numba.core.errors.TypingError):
        cached(lambda cache: numba.njit((numba.types.string,), cache=False)(half))
