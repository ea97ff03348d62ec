"""The statistical harness: what every sampler is put through, and the laws that it must follow.

On a Gaussian posterior the integrators here are linear recursions x <- M x + xi + gain e with
xi ~ N(0, Q) and e the noise of the stochastic gradient, where the first d components of x are the
weights. :class:`Law` gives the exact covariance of the weights at any steps, bias of the step
included, so that a factor of two in the noise or the step cannot hide; :class:`Chains` runs a
sampler as thousands of stacked chains, with the metric C that one chain of it has learned.

A new sampler is one line in ``CASES``; a new integrator one function like :func:`langevin`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy import stats
from scipy.linalg import cholesky, solve_discrete_lyapunov, solve_triangular
from torch import Tensor, nn

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
    AveragedLBFGS,
    BlockFisher,
    DecayingRMSProp,
    DiagonalFisher,
    FullFisher,
    NaturalLangevin,
    RMSProp,
    Sampler,
    Target,
)
from lightning_sgmcmc.target import PerExample
from tests.device import DEVICE
from tests.posteriors import LinearRegression, Posterior

#: Probability that one test statistic of a correct sampler falls outside its bounds. Seeds are
#: fixed, so that a red test is a changed chain.
FALSE_ALARM = 1e-6
#: The same as a two-sided bound on a standard normal score.
BOUND = float(stats.norm.isf(FALSE_ALARM / 2))

SCALES = LinearRegression.with_posterior(np.diag([1.0, 0.01]))
CORRELATED = LinearRegression.with_posterior(np.array([[1.0, 0.95], [0.95, 1.0]]))

#: Steps, from draws of the posterior's Gaussian approximation, in which a metric is learned.
LEARNING_STEPS = 8

#: The covariance of N times the gradient noise, as a function of the covariance of the weights.
NoiseLaw = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Law:
    """x <- M x + xi + gain e, xi ~ N(0, Q), e the gradient noise; theta starts stationary.

    Attributes:
        M: Drift [D, D].
        Q: Covariance of the injected noise [D, D].
        gain: How the noise of grad U enters [D, d].
        begin: Makes the covariance [D, D] at the start from the stationary one of theta; None
            where x is theta.
    """

    M: np.ndarray
    Q: np.ndarray
    gain: np.ndarray
    begin: Callable[[np.ndarray], np.ndarray] | None = None

    def stationary(self, noise: NoiseLaw) -> np.ndarray:
        """Return P = M P M' + Q + gain V(P) gain', where the radius of M is below one."""
        assert np.abs(np.linalg.eigvals(self.M)).max() < 1
        d = self.gain.shape[1]
        P = solve_discrete_lyapunov(self.M, self.Q)
        for _ in range(1000):
            old = P
            V = self.gain @ noise(P[:d, :d]) @ self.gain.T
            P = solve_discrete_lyapunov(self.M, self.Q + V)
            if not np.abs(P).max() < 1e12:
                break
            if np.allclose(P, old, rtol=1e-12, atol=0):
                return P
        raise ValueError("the gradient noise makes the chain unstable")

    def start(self, noise: NoiseLaw) -> np.ndarray:
        """Return the covariance that a chain starts with."""
        P = self.stationary(noise)
        if self.begin is None:
            return P
        d = self.gain.shape[1]
        return self.begin(P[:d, :d])

    def advance(self, P: np.ndarray, noise: NoiseLaw) -> np.ndarray:
        """Return the covariance of x one step later."""
        d = self.gain.shape[1]
        return self.M @ P @ self.M.T + self.Q + self.gain @ noise(P[:d, :d]) @ self.gain.T

    def joint(self, times: Sequence[int], noise: NoiseLaw) -> np.ndarray:
        """Return the covariance of theta at several steps after the start, one after another."""
        d = self.gain.shape[1]
        P = self.start(noise)
        factors: list[np.ndarray] = []  # covariances of x now with theta at the times passed
        blocks: list[list[np.ndarray]] = []
        for t in range(times[-1] + 1):
            if t in times:
                factors.append(P[:, :d].copy())
                blocks.append([f[:d] for f in factors])
            P = self.advance(P, noise)
            factors = [self.M @ f for f in factors]
        size = len(times)
        result = np.zeros((size * d, size * d))
        for i in range(size):
            for j in range(i + 1):
                result[i * d : (i + 1) * d, j * d : (j + 1) * d] = blocks[i][j]
                result[j * d : (j + 1) * d, i * d : (i + 1) * d] = blocks[i][j].T
        return result


@dataclass(frozen=True)
class Setting:
    """What a law depends on: A, the Hessian of U, the metric C, h = lr / N, T, N and n."""

    A: np.ndarray
    C: np.ndarray
    h: float
    temperature: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)
    num_data: int = 1
    batch_size: int = 1
    prior_variance: float = np.inf


def langevin(s: Setting) -> Law:
    """Euler-Maruyama: M = I - h C A, Q = 2 h T C, and gradient noise through h C."""
    return Law(np.eye(len(s.A)) - s.h * s.C @ s.A, 2 * s.h * s.temperature * s.C, s.h * s.C)


def baoab(s: Setting) -> Law:
    """B A O A on (theta, w) with the squared time step eta = 2 h / (1 + mu); w ~ N(0, T C)."""
    d, mu = len(s.A), s.options["momentum"]
    eye, zero = np.eye(d), np.zeros((d, d))
    dt = np.sqrt(2 * s.h / (1 + mu))
    B = np.block([[eye, zero], [-dt * s.C @ s.A, eye]])
    A = np.block([[eye, dt / 2 * eye], [zero, eye]])
    O = np.block([[eye, zero], [zero, mu * eye]])  # noqa: E741
    thermal = np.block([[zero, zero], [zero, (1 - mu**2) * s.temperature * s.C]])
    gain = A @ O @ A @ np.vstack([zero, dt * s.C])

    def begin(P: np.ndarray) -> np.ndarray:
        return np.block([[P, zero], [zero, s.temperature * s.C]])

    return Law(A @ O @ A @ B, A @ thermal @ A.T, gain, begin)


def interleaved(s: Setting) -> Law:
    """Langevin chains in turn, x = (theta_t, ..., theta_(t-M+1)), all started at one place."""
    d, memory = len(s.A), s.options["memory"]
    one = langevin(s)
    M, Q = np.eye(memory * d, k=-d), np.zeros((memory * d, memory * d))
    M[:d, -d:], Q[:d, :d] = one.M, one.Q
    gain = np.zeros((memory * d, d))
    gain[:d] = one.gain
    return Law(M, Q, gain, lambda P: np.tile(P, (memory, memory)))


def scoring(s: Setting) -> Law:
    """theta <- theta - (2/gamma) K (grad U / N) + 2 alpha sqrt(T / (gamma N)) K b^(1/2) z.

    SGFS with gamma = 1 + N / (n T), lr = 2 / (gamma (1 + alpha^2)), K^-1 = C^-1 + alpha^2 b, and
    the prior's precision / (gamma N) in K^-1 where it is counted.
    """
    d, N = len(s.A), s.num_data
    gamma = 1 + N / (s.batch_size * s.temperature)
    alpha2 = 2 / (gamma * s.h * N) - 1
    fisher = np.linalg.inv(s.C)
    b = s.options.get("b", fisher)
    b = b * np.eye(d) if np.isscalar(b) else b
    counted = np.eye(d) / (gamma * N * s.prior_variance) if s.options.get("count_prior") else 0
    gain = np.linalg.inv(fisher + alpha2 * b + counted) * 2 / (gamma * N)
    return Law(np.eye(d) - gain @ s.A, alpha2 * gamma * N * s.temperature * gain @ b @ gain, gain)


def invariant(s: Setting) -> Law:
    """Independent draws of N(0, T A^-1): the law at one step of a chain that keeps its target."""
    d = len(s.A)
    return Law(np.zeros((d, d)), s.temperature * np.linalg.inv(s.A), np.zeros((d, d)))


@dataclass(frozen=True)
class Case:
    """A sampler under test.

    Attributes:
        name: Shown by pytest.
        build: Makes the sampler from parameters and the keywords lr, num_data, prior, ...
        law: The recursion that it should follow; ``invariant`` where it is none.
        options: Further keywords for ``build``, which the law sees too.
        order: Weak order of E[theta^2] in lr at fixed options; infinite where there is no bias,
            None where one remains for lr -> 0.
        rows: Number of chains in a test; fewer where a step is dear.
        fraction: Largest step, as a fraction of the stable one, at which ``law`` holds.
    """

    name: str
    build: Callable[..., Sampler]
    law: Callable[[Setting], Law] = langevin
    options: dict[str, Any] = field(default_factory=dict)
    order: float | None = 1.0
    rows: int = 20_000
    fraction: float = 1.0

    @property
    def linear(self) -> bool:
        """Whether the law on a Gaussian is a recursion, and not only a target."""
        return self.law is not invariant


CASES = [
    Case("SGLD", SGLD),
    Case("PSGLD", PSGLD, options={"alpha": 0.9}),
    Case("SGHMC-0", SGHMC, baoab, {"momentum": 0.0}, order=2),
    Case("SGHMC-.9", SGHMC, baoab, {"momentum": 0.9}, order=2),
    Case(
        "SGHMC-.9-RMSProp",
        lambda p, **kw: SGHMC(p, preconditioner=RMSProp(alpha=0.9), **kw),
        baoab,
        {"momentum": 0.9},
        order=2,
    ),
    Case("HASGLD", HASGLD),
    Case("HAMCMC", HAMCMC, interleaved, {"memory": 3}),
    Case("SGLD-DOP", lambda p, **kw: SGLD(p, preconditioner=DiagonalFisher(), **kw)),
    Case("NaturalLangevin", NaturalLangevin),
    Case("SGFS", SGFS, scoring, rows=10_000),
    Case("SGNHT", SGNHT, invariant, {"momentum": 0.9}, order=None, fraction=0.01),
    Case("MCLMC", MCLMC, invariant, order=2, fraction=0.01),
    Case("SMILE", SMILE, invariant, order=2, fraction=0.01),
    Case("HMC", HMC, invariant, {"leapfrog_steps": 4}, order=np.inf, rows=8_000),
]

#: Other ways to hold or learn a metric, for which the laws on Gaussians suffice.
VARIANTS = [
    Case("HASGLD-slots", HASGLD, options={"slots": 3, "memory": 1}, rows=10_000),
    Case("HASGLD-all", HASGLD, options={"slots": None}, rows=4_000),
    Case("HASGLD-prior", HASGLD, options={"prior_in_pairs": True}),
    Case("SGLD-RMSProp-NLD", lambda p, **kw: SGLD(p, preconditioner=DecayingRMSProp(), **kw)),
    Case("NaturalLangevin-model", NaturalLangevin, options={"labels": "model"}),
    Case(
        "SGLD-full", lambda p, **kw: SGLD(p, preconditioner=FullFisher("model"), **kw), rows=5_000
    ),
    Case("SGLD-block", lambda p, **kw: SGLD(p, preconditioner=BlockFisher(), **kw), rows=5_000),
    Case("SGFS-d", SGFS, scoring, {"variant": "diagonal"}),
    Case("SGFS-block", SGFS, scoring, {"variant": "block"}, rows=5_000),
    Case("SGFS-b", SGFS, scoring, {"b": 2.0}, rows=5_000),
    Case("SGFS-prior", SGFS, scoring, {"count_prior": True}, rows=5_000),
]


class Chains:
    """R chains of a sampler on a posterior, as one computation.

    One chain learns C at draws of the posterior's Gaussian approximation; frozen, that C is what
    all R chains get. Where each chain has a data set of its own, C is learned on the first.

    Args:
        case: The sampler.
        posterior: What it samples.
        rows: R.
        fraction: Step size as a fraction of the largest stable one.
        temperature: T.
        seed: Seed of everything.
        batch_size: n of independent minibatches, None for the whole data at every step.
        replacement: Whether these are drawn with replacement.
        noise: Covariance V of Gaussian noise added to the gradient of U, given C.
        dtype: The chains' floating-point type.
        spread: Scale of the draws about the mode at which the metric is learned.
    """

    def __init__(
        self,
        case: Case,
        posterior: Posterior,
        rows: int,
        *,
        fraction: float = 0.5,
        temperature: float = 1.0,
        seed: int = 1,
        batch_size: int | None = None,
        replacement: bool = True,
        noise: Callable[[np.ndarray], np.ndarray] | None = None,
        dtype: torch.dtype = torch.float32,
        spread: float = 1.0,
    ) -> None:
        self.case, self.posterior, self.temperature = case, posterior, temperature
        self.batch_size, self.replacement = batch_size, replacement
        self.generator = torch.Generator().manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        state, self.C = self._learn(seed, spread)
        self.data = posterior.data(dtype, DEVICE)
        self.params: list[Tensor] = [
            torch.zeros(1, 1, dtype=dtype, device=DEVICE, requires_grad=True),
            torch.zeros(1, 1, posterior.dim - 1, dtype=dtype, device=DEVICE, requires_grad=True),
        ]
        self.sampler = self._build(self.params, seed)
        for p in self.params:  # a dense metric of all rows as one chain would not fit
            p.data = p.data.repeat(rows, *[1] * (p.dim() - 1))
        if isinstance(self.sampler.preconditioner, AveragedLBFGS):
            self.sampler.preconditioner.omega = (np.inf, 1.0, 1.0)  # frozen, one C serves all
        self.sampler.stack(one_generator=True)
        target = _target(posterior, self.params, nn.Linear(posterior.dim - 1, 1, device=DEVICE))
        target.use(self.data)
        self.sampler.attach(target)
        like = self.sampler.preconditioner.state_dict()
        self.sampler.preconditioner.load_state_dict(_for_chains(state, like, dtype))
        self.sampler.freeze()
        self._check_metric()
        self.set_step(fraction)
        self.V = None if noise is None else noise(self.C)
        self._root = (
            None
            if self.V is None
            else torch.as_tensor(cholesky(self.V) / posterior.num_data, dtype=dtype, device=DEVICE)
        )

    def set_step(self, fraction: float, hessian: np.ndarray | None = None) -> None:
        """Take a fraction of the largest stable step, where a bound of U's Hessian is known."""
        if hessian is None:
            curvature = self.posterior.largest_curvature(self.C)
        else:
            curvature = np.linalg.eigvals(self.C @ hessian).real.max() / self.posterior.num_data
        self.sampler.set_lr(fraction * self.sampler.max_stable_lr(float(curvature)))

    def _build(self, params: list[Tensor], seed: int) -> Sampler:
        return self.case.build(
            params,
            lr=1e-4,
            num_data=self.posterior.num_data,
            prior=self.posterior.prior,
            temperature=self.temperature,
            seed=seed,
            **self.case.options,
        )

    def _learn(self, seed: int, spread: float) -> tuple[dict[str, Any], np.ndarray]:
        """Return the frozen state of one chain's preconditioner, and its dense C."""
        posterior = self.posterior if self.posterior.x.ndim == 2 else self.posterior.row(0)
        d = posterior.dim
        net = nn.Linear(d - 1, 1, dtype=torch.float64, device=DEVICE)
        params: list[Tensor] = [net.bias, net.weight]
        sampler = self._build(params, seed)
        target, data = _target(posterior, params, net), posterior.data(torch.float64, DEVICE)
        sampler.attach(target)
        target.use(data)
        mode, hessian = posterior.mode()
        root = spread * np.linalg.inv(np.linalg.cholesky(hessian))

        def closure() -> Tensor:
            sampler.zero_grad()
            with target.recording():
                loss = target.mean_nll(target.batch)
                loss.backward()
            return loss.detach()

        for _ in range(LEARNING_STEPS):
            if self.batch_size is not None:
                rows = self.rng.integers(posterior.num_data, size=self.batch_size)
                target.use((data[0][rows], data[1][rows]))
            with torch.no_grad():
                theta = torch.from_numpy(mode + self.rng.standard_normal(d) @ root)
                flat_to(theta, params)
            sampler.step(closure)
        sampler.freeze()
        units = [flat_to(e, [torch.empty_like(p) for p in params]) for e in _eye(d)]
        C = torch.stack([flat_of(sampler.preconditioner.apply_(e)) for e in units], 1).cpu().numpy()
        assert np.allclose(C, C.T, rtol=1e-9)
        assert np.linalg.eigvalsh(C).min() > 0
        return sampler.preconditioner.state_dict(), C

    def _check_metric(self) -> None:
        """Assert that every chain's C is the one that was learned, up to rounding."""
        rounding = torch.finfo(self.params[0].dtype).eps / 2 * np.linalg.cond(self.C)
        for e, column in zip(_eye(self.posterior.dim), self.C.T, strict=True):
            vectors = flat_to(e, [torch.empty_like(p) for p in self.params])
            found = flat_of(self.sampler.preconditioner.apply_(vectors)).double().cpu().numpy()
            expected = np.tile(column, (len(found), 1))
            np.testing.assert_allclose(
                found, expected, rtol=max(1e-4, rounding), atol=1e-6 * self.C.max()
            )

    def law_at(self, A: np.ndarray) -> Law:
        """Return the law that the chain should follow where A is the Hessian of U."""
        p = self.posterior
        h = self.sampler.param_groups[0]["lr"] / p.num_data
        n = self.batch_size or p.num_data
        setting = Setting(
            A,
            self.C,
            h,
            self.temperature,
            self.case.options,
            p.num_data,
            n,
            p.prior_variance,
        )
        return self.case.law(setting)

    @property
    def law(self) -> Law:
        """The law that the chain should follow on a Gaussian posterior."""
        assert isinstance(self.posterior, LinearRegression)
        return self.law_at(self.posterior.precision)

    def noise_law(self) -> NoiseLaw:
        """Return the covariance of the gradient noise that the chains meet."""
        if self.batch_size is not None:
            assert isinstance(self.posterior, LinearRegression)
            return self.posterior.minibatch_noise(self.batch_size, self.replacement)
        V = np.zeros_like(self.C) if self.V is None else self.V
        return lambda P: V

    @property
    def theta(self) -> Tensor:
        """Where the chains are, [R, d]."""
        return flat_of(self.params)

    def set(self, theta: np.ndarray) -> None:
        """Put the chains somewhere, [R, d] or [d]."""
        with torch.no_grad():
            flat_to(torch.from_numpy(np.ascontiguousarray(theta)), self.params)

    def start(self, covariance: np.ndarray) -> None:
        """Draw the starts from a normal about the mode, with the leading block of a covariance."""
        d = self.posterior.dim
        z = self.rng.standard_normal((len(self.params[0]), d))
        self.set(self.posterior.mode()[0] + z @ cholesky(covariance[:d, :d]))

    def _batch(self) -> tuple[Tensor, Tensor]:
        if self.batch_size is None:
            return self.data
        N, R, n = self.posterior.num_data, len(self.params[0]), self.batch_size
        if self.replacement:
            rows = torch.randint(N, (R, n), generator=self.generator)
        else:
            rows = torch.rand(R, N, generator=self.generator).argsort(1)[:, :n]
        rows = rows.to(DEVICE)
        return self.data[0][rows], self.data[1][rows]

    def closure(self) -> Tensor:
        """Fill the gradients of the current minibatch; return the mean losses [R]."""
        theta, batch = self.theta, self._current
        gradient = self.posterior.gradient(theta, batch)
        if self._root is not None:
            z = torch.randn(theta.shape, generator=self.generator, dtype=theta.dtype).to(DEVICE)
            gradient += z @ self._root
        bias, weight = self.params
        bias.grad, weight.grad = gradient[:, :1], gradient[:, None, 1:]
        if self.sampler.batches != "full":
            return torch.zeros(len(theta), device=DEVICE)
        return self.posterior.nll(theta, batch).mean(-1)

    def step(self, steps: int = 1) -> np.ndarray:
        """Take steps and return where the chains then are, [R, d]."""
        for _ in range(steps):
            self._current = self._batch()
            self.sampler.step(self.closure)
        return self.theta.double().cpu().numpy()


def _target(posterior: Posterior, params: list[Tensor], net: nn.Linear) -> Target:
    """Return the target of one chain whose weights are ``net``'s, or of many."""
    chain_dims = params[0].dim() - 1

    def of_net(batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return posterior.loss(net(x[..., 1:]).squeeze(-1), y)

    def of_chains(batch: tuple[Tensor, Tensor]) -> Tensor:
        return posterior.nll(torch.cat([params[0], params[1].squeeze(-2)], -1), batch)

    target = Target(
        of_chains if chain_dims else of_net,
        params,
        posterior.num_data,
        posterior.prior,
        chain_dims=chain_dims,
    )
    target.per_example = PerExample(
        net, ["bias", "weight"], params, of_net, chain_dims=chain_dims, shared_batch=True
    )
    target.draw_labels = lambda batch, uniforms: (
        batch[0],
        posterior.sample(net(batch[0][..., 1:]).squeeze(-1).detach(), uniforms.squeeze(-1)),
    )
    return target


def flat_of(params: Sequence[Tensor]) -> Tensor:
    """Return bias and weights as one new tensor, [d] or [R, d]."""
    bias, weight = (p.detach() for p in params)
    return torch.cat([bias, weight.squeeze(-2)], -1)


def flat_to(theta: Tensor, params: list[Tensor]) -> list[Tensor]:
    """Fill bias and weights from [d] or [R, d], and return them."""
    params[0].copy_(theta[..., :1])
    params[1].copy_(theta[..., None, 1:])
    return params


def _for_chains(state: Any, like: Any, dtype: torch.dtype) -> Any:
    """Give the tensors of one chain's state the shapes of those of R chains that share it.

    Those without a counterpart in ``like``, a state before any learning, are left to broadcast.
    """
    if isinstance(state, Tensor):
        kept = state.to(dtype) if state.dtype == torch.float64 else state
        return kept.expand(like.shape).clone() if isinstance(like, Tensor) else kept
    if isinstance(state, dict):
        return {k: _for_chains(v, (like or {}).get(k), dtype) for k, v in state.items()}
    if isinstance(state, list | tuple):
        others = like if like is not None and len(like) == len(state) else [None] * len(state)
        return type(state)(_for_chains(v, o, dtype) for v, o in zip(state, others, strict=True))
    return state


def _eye(d: int) -> Tensor:
    return torch.eye(d, dtype=torch.float64)


def check_law(
    case: Case,
    posterior: LinearRegression,
    *,
    steps: int = 200,
    lags: Sequence[int] = (1, 5),
    fraction: float = 0.5,
    **kwargs: Any,
) -> None:
    """Start in stationarity and compare theta at ``steps`` and some lags later with the exact law.

    Args:
        case: The sampler.
        posterior: A Gaussian posterior.
        steps: How long the chains run before the first look.
        lags: Looks after the first; none where the law is only ``invariant``.
        fraction: Step size as a fraction of the largest stable one, capped by the case's.
        **kwargs: As for :class:`Chains`.

    Raises:
        AssertionError: As :func:`assert_normal`.
    """
    chains = Chains(case, posterior, case.rows, fraction=min(fraction, case.fraction), **kwargs)
    chains.start(chains.law.start(chains.noise_law()))
    times = [steps] + [steps + lag for lag in lags if case.linear]
    looks = [chains.step(b - a) for a, b in zip([0, *times], times, strict=False)]
    mean = np.tile(posterior.mean, len(times))
    assert_normal(np.hstack(looks) - mean, chains.law.joint(times, chains.noise_law()))


def check_moments(
    case: Case,
    posterior: LinearRegression,
    *,
    batch_size: int = 4,
    replacement: bool = True,
    stated: bool = True,
    lags: Sequence[int] = (0, 1, 2, 5, 10),
    steps: int = 40,
    seed: int = 5,
) -> None:
    """Run on real minibatches and compare E[theta] and E[theta_t+k theta_t'] = M^k P with the law.

    The step is a large one at which the variance is at most twice the target's, on average over
    the target's whitened coordinates, in which everything is compared.

    Args:
        case: The sampler.
        posterior: A Gaussian posterior.
        batch_size: n.
        replacement: Whether minibatches are drawn with replacement.
        stated: Whether the law takes them to be.
        lags: The lags k.
        steps: Steps over which each chain averages.
        seed: Seed of everything.

    Raises:
        AssertionError: As :func:`assert_close`.
    """
    chains = Chains(
        case, posterior, case.rows, batch_size=batch_size, replacement=replacement, seed=seed
    )
    noise = posterior.minibatch_noise(batch_size, stated)
    d, root = posterior.dim, cholesky(posterior.precision, lower=True)
    for fraction in (0.3, 0.1, 0.03, 0.01):
        chains.set_step(fraction)
        law = chains.law
        try:
            P = law.stationary(noise)
        except ValueError:
            continue
        if np.trace(posterior.precision @ P[:d, :d]) < 2 * d:
            break
    else:
        raise ValueError(f"{case.name} has no step that such minibatches leave stable")
    P = law.start(noise)
    chains.start(P)
    path, expected = [], np.zeros((len(lags), d, d))
    for t in range(steps):
        path.append((chains.step() - posterior.mean) @ root)
        P = law.advance(P, noise)
        for i, lag in enumerate(lags):
            if t < steps - lag:
                later = (np.linalg.matrix_power(law.M, lag) @ P)[:d, :d]
                expected[i] += root.T @ later @ root / (steps - lag)
    z = np.stack(path)
    assert_close(z.mean(0), np.zeros(d), "mean")
    for i, lag in enumerate(lags):
        products = np.einsum("tri,trj->rij", z[lag:], z[: steps - lag]) / (steps - lag)
        assert_close(products, expected[i], f"autocovariance at lag {lag}")


def assert_normal(states: np.ndarray, covariance: np.ndarray) -> None:
    """Assert that rows are independent draws of N(0, covariance), to ``FALSE_ALARM`` a statistic.

    Chi-square on every whitened coordinate, a normal score on every mean and cross product, and
    Kolmogorov-Smirnov on every coordinate: a wrong variance, correlation or shape each shows.
    """
    assert np.isfinite(states).all()
    n, k = states.shape
    white = solve_triangular(cholesky(covariance, lower=True), states.T, lower=True)
    p = {}
    for i in range(k):
        p[f"mean {i}"] = 2 * stats.norm.sf(abs(white[i].sum()) / np.sqrt(n))
        square = (white[i] ** 2).sum()
        p[f"variance {i}"] = 2 * min(stats.chi2.cdf(square, n), stats.chi2.sf(square, n))
        p[f"shape {i}"] = stats.kstest(white[i], "norm").pvalue
        for j in range(i):
            p[f"product {i}, {j}"] = 2 * stats.norm.sf(abs(white[i] @ white[j]) / np.sqrt(n))
    wrong = {name: value for name, value in p.items() if not value > FALSE_ALARM}
    assert not wrong, (
        f"not of the stated law: {wrong}\nexpected covariance\n{covariance}\n"
        f"found\n{np.cov(states.T)}"
    )


def assert_close(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Assert that means over independent chains agree with a number, to ``FALSE_ALARM`` each.

    Args:
        found: One row a chain, [R, ...].
        expected: The mean of every column.
        what: Named in the error.
    """
    score = (found.mean(0) - expected) / (found.std(0) / np.sqrt(len(found)))
    assert (np.abs(score) < BOUND).all(), (
        f"{what}: not of the stated law: {found.mean(0)} is not {expected}, scores {score}"
    )
