"""The metric and the sampler of docs/own-sampler.md do what the package's own do."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from obabo import OBABO
from shampoo import Shampoo
from torch import Tensor, nn

from lightning_sgmcmc import (
    HMC,
    SGHMC,
    SGLD,
    SGNHT,
    BlockFisher,
    DiagonalFisher,
    GaussianPrior,
    Identity,
    QuasiDiagonalFisher,
    RMSProp,
    Sampler,
    steps,
)
from lightning_sgmcmc.common.vectors import flatten
from tests.harness import CORRELATED, SCALES, Case, Chains, Law, Setting, baoab, check_law, langevin
from tests.lightning_sgmcmc.problem import N, Problem
from tests.toy import NUM_FEATURES, Toy, ToyData, trainer

ROOT = Path(__file__).resolve().parents[1]
Build = Callable[..., Sampler]


def splitting(s: Setting) -> Law:
    """B O B A on (theta, w) with one force, eta = 2 h / (1 + mu); w ~ N(0, T C)."""
    d, mu = len(s.A), s.options["momentum"]
    eye, zero = np.eye(d), np.zeros((d, d))
    dt = np.sqrt(2 * s.h / (1 + mu))
    B = np.block([[eye, zero], [-dt / 2 * s.C @ s.A, eye]])
    A = np.block([[eye, dt * eye], [zero, eye]])
    O = np.block([[eye, zero], [zero, mu * eye]])  # noqa: E741
    thermal = np.block([[zero, zero], [zero, (1 - mu**2) * s.temperature * s.C]])
    gain = A @ np.vstack([zero, (1 + mu) / 2 * dt * s.C])

    def begin(P: np.ndarray) -> np.ndarray:
        return np.block([[P, zero], [zero, s.temperature * s.C]])

    return Law(A @ B @ O @ B, A @ thermal @ A.T, gain, begin)


def with_metric(kind: Build, metric: Callable[[], Any]) -> Build:
    return lambda p, **kw: kind(p, preconditioner=metric(), **kw)


shampoo = partial(Shampoo, every=2)
MU = {"momentum": 0.9}
LAWS = [
    Case("OBABO", OBABO, splitting, MU),
    Case("OBABO-RMSProp", with_metric(OBABO, lambda: RMSProp(alpha=0.9)), splitting, MU),
    Case("OBABO-Quasi", with_metric(OBABO, QuasiDiagonalFisher), splitting, MU),
    Case("OBABO-Block", with_metric(OBABO, BlockFisher), splitting, MU, rows=5_000),
    Case("OBABO-Shampoo", with_metric(OBABO, shampoo), splitting, MU, rows=10_000),
    Case("SGLD-Shampoo", with_metric(SGLD, shampoo), langevin, rows=10_000),
    Case("SGHMC-Shampoo", with_metric(SGHMC, shampoo), baoab, MU, rows=10_000),
]
BUILDS: dict[str, Build] = {
    "OBABO": lambda p, **kw: OBABO(p, 1e-2, momentum=0.9, **kw),
    "OBABO-DiagonalFisher": lambda p, **kw: OBABO(
        p, 1e-3, preconditioner=DiagonalFisher(eps=0.1), **kw
    ),
    "OBABO-Shampoo": lambda p, **kw: OBABO(p, 1e-3, preconditioner=shampoo(), **kw),
    "SGLD-Shampoo": lambda p, **kw: SGLD(p, 1e-3, preconditioner=shampoo(), **kw),
    "SGHMC-Shampoo": lambda p, **kw: SGHMC(p, 1e-3, preconditioner=shampoo(), **kw),
    "SGNHT-Shampoo": lambda p, **kw: SGNHT(p, 1e-3, preconditioner=shampoo(), **kw),
    "HMC-Shampoo": lambda p, **kw: HMC(p, 1e-4, leapfrog_steps=3, preconditioner=shampoo(), **kw),
}


def chain(name: str, problem: Problem, **kw: Any) -> Sampler:
    settings: dict[str, Any] = {"num_data": N, "prior": GaussianPrior(0.5), "seed": 3} | kw
    sampler = BUILDS[name](problem.params, **settings)
    sampler.attach(problem.target(settings["prior"]))
    return sampler


@pytest.mark.parametrize("case", LAWS, ids=lambda c: c.name)
@pytest.mark.parametrize("posterior", [SCALES, CORRELATED], ids=["scales", "correlated"])
def test_they_keep_the_law(case: Case, posterior: Any) -> None:
    """As every sampler's own (tests/lightning_sgmcmc/samplers/test_stationarity.py)."""
    check_law(case, posterior)


def test_they_count_gradient_noise_and_temperature() -> None:
    for case in LAWS[:1] + LAWS[-2:]:
        check_law(case, SCALES, noise=lambda C: np.diag([9.0, 400.0]), steps=50, seed=2)
        check_law(case, SCALES, temperature=0.3, fraction=0.2, steps=50, seed=3)


def test_the_stated_covariance_of_obabo() -> None:
    chains = Chains(LAWS[0], CORRELATED, 1, fraction=0.6)
    A, h = CORRELATED.precision, chains.sampler.lr / CORRELATED.num_data
    eta = 2 * h / 1.9
    found = chains.law.stationary(chains.noise_law())[:2, :2]
    np.testing.assert_allclose(found, np.linalg.inv(A - eta / 4 * A @ A), rtol=1e-8)


def test_cold_obabo_is_sgd_with_momentum() -> None:
    ours, theirs = Problem(), Problem()
    sampler = OBABO(ours.params, 0.05, momentum=0.9, num_data=N, temperature=0.0)
    found = ours.run(sampler, 50)
    expected = theirs.run(torch.optim.SGD(theirs.params, 0.05, momentum=0.9), 50)
    assert torch.allclose(found, expected, rtol=1e-11, atol=1e-13)


def test_shampoo_is_one_matrix_on_both_sides_of_a_draw() -> None:
    """S S' = C, C^-1 belongs to C, and C has the eigenvalues of L^-1/4 and R^-1/4."""
    problem = Problem()
    sampler = chain("SGLD-Shampoo", problem)
    problem.run(sampler, 6)
    metric: Any = sampler.preconditioner
    d = problem.weights().numel()

    def columns(map_: Callable[[list[Tensor]], list[Tensor]]) -> Tensor:
        found = []
        for e in torch.eye(d, dtype=torch.float64):
            parts = torch.split(e, [p.numel() for p in problem.params])
            vectors = [v.view(p.shape).clone() for v, p in zip(parts, problem.params, strict=True)]
            found.append(flatten(map_(vectors)))
        return torch.stack(found, 1)

    class Fixed:
        def __init__(self, z: list[Tensor]) -> None:
            self.increments = lambda: z

    C, S = columns(metric.apply_), columns(lambda v: metric.noise(Fixed(v)))
    torch.testing.assert_close(S @ S.mT, C, rtol=1e-9, atol=1e-12)
    assert float(torch.linalg.eigvalsh(C).min()) > 0
    v = [torch.randn_like(p) for p in problem.params]
    expected = flatten(v) @ torch.linalg.solve(C, flatten(v))
    torch.testing.assert_close(metric.inverse_norm(v), expected.double(), rtol=1e-8, atol=0)
    L, R = (m + metric.eps * torch.eye(len(m)).to(m) for m in metric.averages[:2])
    weights = problem.params[0].numel()
    kron = torch.kron(torch.linalg.eigvalsh(L), torch.linalg.eigvalsh(R)).pow(-1 / 4)
    found = torch.linalg.eigvalsh(C[:weights, :weights])
    torch.testing.assert_close(found, kron.sort().values, rtol=1e-4, atol=0)


#: ``SGNHT`` refuses masks under a metric that ties weights together.
RESUMES = [
    (name, when)
    for name in BUILDS
    for when in ("start", "adapting", "frozen", "masked")
    if (name, when) != ("SGNHT-Shampoo", "masked")
]


@pytest.mark.parametrize(("name", "when"), RESUMES)
def test_they_resume_to_the_bit(name: str, when: str) -> None:
    problem = Problem()
    sampler = chain(name, problem)
    if when != "start":
        problem.run(sampler, 5)
    if when == "masked":
        sampler.set_masks([(torch.arange(p.numel()).view(p.shape) % 3 > 0) for p in sampler.params])
        problem.run(sampler, 1)
    if when == "frozen":
        sampler.freeze()
        problem.run(sampler, 2)
    file = io.BytesIO()
    torch.save(sampler.state_dict(), file)
    file.seek(0)
    other = problem.twin()
    expected = problem.run(sampler, 5)
    resumed = chain(name, other, seed=99)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other.run(resumed, 5), expected)


@pytest.mark.parametrize("name", ["OBABO", "OBABO-Shampoo", "SGLD-Shampoo", "SGNHT-Shampoo"])
def test_stacked_chains_go_where_each_goes_alone(name: str) -> None:
    starts = [torch.randn(3, 4, 2, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)]

    def run(params: list[Tensor], chain: int, stacked: bool) -> list[Tensor]:
        params = [p.clone().requires_grad_() for p in params]
        sampler = BUILDS[name](params, num_data=10, seed=5, chain=chain)
        if stacked:
            sampler.stack()
        for i in range(8):
            if i == 5:
                sampler.freeze()
            for p in params:
                p.grad = (p.detach() * 0.3).sin()
            sampler.step()
        return [p.detach() for p in params]

    together = run(starts, 0, True)
    for k in range(3):
        alone = run([s[k] for s in starts], k, False)
        for a, b in zip(alone, together, strict=True):
            torch.testing.assert_close(a, b[k], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("metric", [Identity, RMSProp, Shampoo])
@pytest.mark.parametrize("chains", [1, 3])
def test_a_run_chooses_their_step(tmp_path: Path, metric: Any, chains: int) -> None:
    """``lr: auto``, burn-in, K chains and draws, under the Trainer."""
    sampler = partial(OBABO, lr="auto", prior=GaussianPrior(4.0), preconditioner=metric())
    net = nn.Sequential(nn.Linear(NUM_FEATURES, 8), nn.Tanh(), nn.Linear(8, 1))
    module = Toy(sampler, net, burn_in=20, thinning=5, num_chains=chains)
    trainer(tmp_path, 40).fit(module, datamodule=ToyData())
    made: Any = module.chain.sampler
    assert 0 < made.lr < float("inf")
    assert made.preconditioner.frozen
    assert made.implementation == steps.FORMULA
    files = list((tmp_path / "samples").rglob("step_*.safetensors"))
    assert len(files) == 4 * chains


def test_the_page_shows_the_files_as_they_stand() -> None:
    text = (ROOT / "docs" / "own-sampler.md").read_text()
    shown = re.findall(r"```python\n(.*?)```", text, re.S)
    for name in ("shampoo", "obabo"):
        assert (ROOT / "docs" / "examples" / f"{name}.py").read_text() in shown
