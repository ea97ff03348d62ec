"""Directions of weight space and of predictions that are followed, for verdicts on predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from lightning_sgmcmc.adaptation import Directions, leading_directions
from lightning_sgmcmc.chain import Chain
from lightning_sgmcmc.common.vectors import dot, flatten, joined_mask, rows, unflatten
from lightning_sgmcmc.diagnostics import FEWEST_CHAINS
from lightning_sgmcmc.noise import NoiseStream
from lightning_sgmcmc.posterior.held_out import (
    PROBES,
    evaluating,
    probed,
    probed_outputs,
    undisturbed_law,
)
from lightning_sgmcmc.posterior.predict import cut
from lightning_sgmcmc.preconditioners import Preconditioner
from lightning_sgmcmc.target import Batch
from lightning_sgmcmc.target.hessian import differentiate_again, math_attention

#: Directions that are followed: the stiffest ones, random ones, and combinations of predictions.
LEADING, RANDOM, COMBINATIONS = 6, 4, 6
# Numbers that all vectors may take together.
_MEMORY = 2**26
_SOLVER_STEPS = 8
_SOLVED = 1e-4
# Gradients from one draw to the next for each combination, and each second derivative of the sum
# over all predictions, that every draw evaluates; the most of the latter, and random combinations
# of all predictions for their spread.
_GRADIENTS_EACH, _BENDS, _SPREADS = 12, 4, 2

#: What is noted of each draw: see :meth:`FollowedDirections.record`.
TRACES = (
    "coordinates", "forces", "values", "fixed_forces", "exact_variances",
    "moving_forces", "spreads", "bends", "sums",
)  # fmt: skip
#: Fields of :class:`FollowedDirections` that all chains share.
SHARED = ("combinations", "centre", "deviations")


@dataclass(frozen=True)
class FollowedDirections:
    """Directions that are fixed where burn-in ends, of K chains.

    Leading and random directions are vectors v_i with covectors a_i, a_i' v_i = 1: the
    eigenvectors of C H of largest eigenvalues, and v = C z for normal z, H the Hessian of U/N.

    Combinations u_j' f of predictions f with Jacobian J have two vector fields each: the constant
    v_j close to H^-1 a_j / N, a_j = J' u_j where the directions were fixed, and
    v_j(theta) = M J(theta)' u_j / N with the constant

        M = sum_i v_i v_i' / lambda_i + rest * (C - sum_i v_i v_i'),

    i over the leading directions, and 0 for 1 / lambda_i where lambda_i is not positive. The first
    is for predictions that are linear in the weights. One field more is for all predictions f_p,

        V(theta) = sum_p (f_p - c_p) M grad h(f_p) / (N s_p^2),

    c_p and s_p their means and deviations over the chains where the directions were fixed, and
    h(f) = f. Of probabilities h is the :meth:`logit <lightning_sgmcmc.metrics.Law.logit>`, since
    along grad f_p the few draws with probabilities away from 0 and 1 would have most of both sums,
    and s_p = 1, since they are on one scale.

    Attributes:
        vectors: v_i, [K, m, d].
        covectors: a_i, [K, m, d].
        eigenvalues: Of the leading directions, [K, l], the first ones of the m.
        solutions: The constant v_j, [K, q, d].
        variances: a_j' v_j, the variance of u_j' f at T = 1 to first order, [K, q].
        rest: Of M, [K].
        combinations: u_j, [q, P], of predictions in their deviations, where chains tell them.
        centre: c_p, [P].
        deviations: s_p, [P].
    """

    vectors: Tensor
    covectors: Tensor
    eigenvalues: Tensor
    solutions: Tensor
    variances: Tensor
    rest: Tensor
    combinations: Tensor
    centre: Tensor
    deviations: Tensor

    @property
    def leading(self) -> int:
        """How many of the m are leading directions."""
        return self.eigenvalues.shape[-1]

    def record(self, chain: Chain, gradient: Sequence[Tensor], probes: Batch) -> dict[str, Tensor]:
        """Return what a draw leaves, in float64 on the CPU.

        Args:
            chain: The chain, at the draw.
            gradient: grad U there.
            probes: The examples whose predictions count, as for :func:`find_directions`.

        Returns:
            ``coordinates`` a_i' theta and ``forces`` v_i' grad U, [K, m]; ``values`` u_j' f and
            ``fixed_forces`` v_j' grad U, [K, q]; of the first combinations ``moving_forces``
            v_j(theta)' grad U, ``spreads`` u_j' J v_j(theta) and ``bends``, an unbiased estimate
            of the divergence of v_j(theta), tr(M grad^2 (u_j' f)) / N, [K, n]; ``sums``, [K, 3],
            are V' grad U and unbiased estimates of the two parts of V's divergence,
            sum_p (f_p - c_p) tr(M grad^2 h(f_p)) / (N s_p^2) and sum_p grad f_p' M grad h(f_p) /
            (N s_p^2). Where a head is integrated out, f is its mean, and ``exact_variances`` are
            those of u_j' f given theta, which the head's own draws bring, [K, q].
        """
        dims, params = chain.sampler.chain_dims, chain.sampler.params
        theta = rows(params, dims)
        force = rows(gradient, dims)
        spacing = chain.draws.thinning * chain.sampler.gradients_per_step
        values, moving = self._predictions(chain, force, probes, spacing // _GRADIENTS_EACH)
        found = {
            "coordinates": _products(self.covectors, theta),
            "forces": _products(self.vectors, force),
            "values": values,
            "fixed_forces": _products(self.solutions, force),
        } | moving
        if chain.head is not None:
            found["exact_variances"] = _head_variances(chain, probes, self.combinations)
        return {kind: value.double().cpu() for kind, value in found.items()}

    def _predictions(
        self, chain: Chain, force: Tensor, probes: Batch, paid: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return u_j' f, and what :meth:`record` notes of the fields that move.

        Args:
            chain: The chain, at the draw.
            force: grad U there, [K, d].
            probes: The examples whose predictions count.
            paid: Combinations for which the gradients since the last draw pay.
        """
        sampler, target = chain.sampler, chain.target
        assert target is not None
        dims, params = sampler.chain_dims, sampler.params
        free = _free(chain)
        generator = torch.Generator().manual_seed(chain.steps)

        def signs(count: int) -> Tensor:
            return (2.0 * torch.randint(0, 2, (count,), generator=generator) - 1).to(force)

        def field(a: Tensor) -> Tensor:
            return self._metric(sampler.preconditioner, params, dims, a) * free / target.num_data

        def gradient(sums: Tensor, *, graph: bool = True) -> Tensor:
            found = torch.autograd.grad(
                sums, params, retain_graph=True, create_graph=graph, materialize_grads=True
            )
            return rows(found, dims) * free

        def bend(a: Tensor) -> Tensor:
            z = signs(free.shape[-1]).expand_as(force) * free
            return _second(a, field(z), z, params, dims)

        found: dict[str, list[Tensor]] = {kind: [] for kind in TRACES[-4:]}
        with math_attention(), torch.enable_grad():
            flat = _predictions(chain, probes)
            combined = flat @ self.combinations.to(flat).mT
            values = combined.detach()
            if not combined.requires_grad:
                return values, {}
            for j in range(max(1, min(len(self.combinations), paid))):
                a = gradient(combined[:, j].sum())
                if j == 0 and not differentiate_again([a]):
                    return values, {}  # no divergence: the fields that do not move are left
                v = field(a.detach())
                found["moving_forces"].append((v * force).sum(-1))
                found["spreads"].append((v * a.detach()).sum(-1))
                # Signs of its own for each combination: their noise has nothing in common.
                found["bends"].append(bend(a))
            scale = self.deviations.to(flat)
            weights = (flat.detach() - self.centre.to(flat)) / scale**2
            logits = _logits(chain, probes, flat)
            a = gradient((weights * (flat if logits is None else logits)).sum())
            bends = [bend(a) for _ in range(max(1, min(_BENDS, paid)))]
            if logits is not None:
                (slopes,) = torch.autograd.grad(logits.sum(), flat, retain_graph=True)
                scale = scale * slopes.rsqrt()
            each = [
                gradient((flat * (signs(scale.shape[-1]) / scale)).sum(), graph=False)
                for _ in range(_SPREADS)
            ]
            spreads = [(field(e) * e).sum(-1) for e in each]
            found["sums"] = [
                (field(a.detach()) * force).sum(-1),
                torch.stack(bends).mean(0),
                torch.stack(spreads).mean(0),
            ]
        return values, {kind: torch.stack(r, -1) for kind, r in found.items()}

    def _metric(
        self, preconditioner: Preconditioner, params: Sequence[Tensor], dims: int, a: Tensor
    ) -> Tensor:
        """Return M times covectors [K, d]."""
        whole = preconditioner.apply_joined(a if dims else a[0], params).reshape(a.shape)
        leading = self.vectors[:, : self.leading]
        part = (leading @ a.unsqueeze(-1)).squeeze(-1)
        values = self.eigenvalues.to(part)
        inverse = torch.where(values > 0, 1 / values, torch.zeros_like(values))
        rest = self.rest.to(a).unsqueeze(-1)
        weights = part * (inverse - rest)
        return rest * whole + (weights.unsqueeze(-2) @ leading).squeeze(-2)

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything, as tensors."""
        return asdict(self)


Vector = Callable[[Tensor], Tensor]


def _predictions(chain: Chain, probes: Batch) -> Tensor:
    """Return the predictions that combinations count, [K, P]."""
    with evaluating(chain.task):
        if chain.head is not None:  # its own spread is exact, and no temperature of the chain
            columns = probed_outputs(chain.head.outputs)
            predictions = chain.head.expected(chain.minibatch(0), probes, columns)
        else:
            predictions = chain.evaluate("predictive", probes)
    return probed(predictions if chain.sampler.chain_dims else predictions[None])


def _logits(chain: Chain, probes: Batch, predictions: Tensor) -> Tensor | None:
    """Return the logits of predictions that are probabilities, None of others."""
    return undisturbed_law(chain.task, cut(probes, slice(0, 1))).logit(predictions)


@torch.no_grad()
def examples_needed(chain: Chain, probes: Batch) -> int:
    """Return how many examples of a batch give ``PROBES`` predictions."""
    with evaluating(chain.task):
        whole = chain.evaluate("predictive", probes)
    one: Tensor = whole[0, 0] if chain.sampler.chain_dims else whole[0]
    outputs = one.reshape(-1)[probed_outputs(one.numel())].numel()
    return -(-PROBES // max(1, outputs))


def find_directions(chain: Chain, batches: Sequence[Batch], probes: Batch) -> FollowedDirections:
    """Return the directions to follow, from a chain's weights and C as they stand.

    The solution v of H v = a starts from its part in the leading directions and goes on by
    conjugate gradients with C as preconditioner, few steps, to the first direction of negative
    curvature. Temperatures are right for any v; the closer v is, the more of them is about
    predictions.

    Args:
        chain: The chain, bound to its data.
        batches: Equally large minibatches that stand for the data.
        probes: Examples whose predictions count, the same for all chains and processes.
    """
    target, sampler = chain.target, chain.sampler
    assert target is not None
    # First: all processes take part, whatever fails later.
    centre, deviations = _centre_and_deviations(chain, probes)
    dims, params, metric = sampler.chain_dims, sampler.params, sampler.preconditioner
    free = _free(chain)
    free = free if dims else free[0]

    def apply(covector: Tensor) -> Tensor:
        return metric.apply_joined(covector, params) * free

    def curvature(vector: Tensor) -> Tensor:
        return flatten(target.curvature(unflatten(vector, params, dims), batches), dims) * free

    size = int(free.reshape(-1, free.shape[-1]).sum(-1).min())
    part = min(1.0, _MEMORY / (free.numel() * (2 * LEADING + 2 * RANDOM + COMBINATIONS)))
    count = [max(1, int(n * part)) for n in (LEADING, RANDOM, COMBINATIONS)]
    with torch.no_grad():
        leading = leading_directions(
            target, metric, batches, min(count[0], size), masks=sampler.masks
        )
        vectors, covectors = [leading.vectors], [leading.covectors]
        stream = NoiseStream(params, seed=1)
        for _ in range(count[1]):
            z = flatten([x.clone() for x in stream.normal()], dims) * free
            v = apply(z)
            scale = dot(z, v).rsqrt()
            covectors.append((z * scale).unsqueeze(-2))
            vectors.append((v * scale).unsqueeze(-2))
        with math_attention(), torch.enable_grad():
            flat = _predictions(chain, probes)
            generator = torch.Generator().manual_seed(0)
            combinations = torch.randn(
                count[2], flat.shape[1], generator=generator, dtype=torch.float64
            )
            combinations = combinations / deviations
            sums = (flat @ combinations.to(flat).mT).sum(0)
            gradients = [
                flatten(
                    list(torch.autograd.grad(s, params, retain_graph=True, materialize_grads=True)),
                    dims,
                )
                for s in (sums if sums.requires_grad else ())
            ]
        solutions, variances, rests = [], [], []
        for a in gradients:
            a = a * free
            v, rest = _solve(a, apply, curvature, leading)
            known = (dot(a, v) > 0) & torch.isfinite(dot(a, v))
            v = torch.where(known, v, apply(a)) / target.num_data
            solutions.append(v)
            variances.append(dot(a, v)[..., 0])
            rests.append(rest)
        # The softest leading direction's where nothing is left, or the rest curves downwards.
        rest = leading.eigenvalues.abs().amin(-1).reciprocal().to(free.dtype)
        if rests:
            # By a quantile, which torch finds in the same way every time on a GPU too.
            median = torch.stack(rests, -1).nanquantile(0.5, -1, interpolation="lower")
            rest = torch.where(torch.isfinite(median) & (median > 0), median, rest)
    shape = (free.shape[0] if dims else 1, -1)

    def chains(tensors: list[Tensor]) -> Tensor:
        return torch.cat(tensors, dim=-2).reshape(shape[0], -1, free.shape[-1])

    nothing = free.new_zeros(shape[0], 0)
    return FollowedDirections(
        chains(vectors),
        chains(covectors),
        leading.eigenvalues.reshape(shape),
        torch.stack(solutions, -2).reshape(shape[0], -1, free.shape[-1])
        if solutions
        else free.new_zeros(shape[0], 0, free.shape[-1]),
        torch.stack(variances, -1).reshape(shape) if variances else nothing,
        rest.reshape(shape[0]),
        combinations,
        centre,
        deviations,
    )


@torch.no_grad()
def _centre_and_deviations(chain: Chain, probes: Batch) -> tuple[Tensor, Tensor]:
    """Return the mean of all chains' predictions, and how far they are apart, [P] each.

    The latter is one of probabilities, and where few chains leave it unknown. It stands for the
    posterior deviations, the part that an exact head's own draws bring included. Chains may agree
    on a prediction for a while, so that none is less than half of the root mean square.
    """

    def of_all(values: Tensor) -> Tensor:
        own = values.double()
        return torch.from_numpy(chain.processes.of_all_chains(own.cpu().numpy(), own.device))

    every = of_all(_predictions(chain, probes))
    centre = every.mean(0)
    if len(every) < FEWEST_CHAINS or _logits(chain, probes, centre) is not None:
        return centre, torch.ones_like(centre)
    variance = every.var(0)
    if chain.head is not None:
        of_each = torch.eye(every.shape[-1], dtype=torch.float64)
        variance += of_all(_head_variances(chain, probes, of_each)).mean(0)
    least = 0.25 * variance.mean()
    return centre, variance.clamp_min(least).sqrt() if least > 0 else torch.ones_like(variance)


def _head_variances(chain: Chain, probes: Batch, combinations: Tensor) -> Tensor:
    """Return the variances of combinations of predictions that the head's own draws bring."""
    assert chain.head is not None
    columns = len(range(chain.head.outputs)[probed_outputs(chain.head.outputs)])
    examples = -(-combinations.shape[1] // columns)
    missing = examples * columns - combinations.shape[1]
    factors = torch.nn.functional.pad(combinations, (0, missing))
    with evaluating(chain.task):
        found = chain.head.variances(
            chain.minibatch(0),
            cut(probes, slice(0, examples)),
            factors.reshape(len(factors), examples, columns),
        )
    return found if chain.sampler.chain_dims else found[None]


def _free(chain: Chain) -> Tensor:
    """Return 1 for the weights that move and 0 for masked ones, [K, d]."""
    sampler = chain.sampler
    free = joined_mask(sampler.params, sampler.masks, sampler.chain_dims)
    return free if sampler.chain_dims else free[None]


def _products(vectors: Tensor, flat: Tensor) -> Tensor:
    return (vectors @ flat.detach().unsqueeze(-1)).squeeze(-1)


def _second(a: Tensor, pushed: Tensor, z: Tensor, params: Sequence[Tensor], dims: int) -> Tensor:
    """Return z' (grad a) pushed of each chain, a a gradient with a graph, [K]."""
    inner = (a * pushed).sum()
    if not inner.requires_grad:
        return z.new_zeros(len(z))
    grads = torch.autograd.grad(inner, params, retain_graph=True, materialize_grads=True)
    return (rows(grads, dims) * z).sum(-1)


def _solve(
    a: Tensor, apply: Vector, curvature: Vector, leading: Directions
) -> tuple[Tensor, Tensor]:
    """Return v with H v close to a, [d] or [K, d], and the inverse curvature of the rest of a.

    See :func:`find_directions`. The latter is r' C r / (C r)' H C r of the residual r of the part
    of v in the leading directions, [] or [K]; NaN where it is not positive.
    """
    part = torch.linalg.vecdot(leading.vectors, a.unsqueeze(-2))
    values = leading.eigenvalues.to(a.dtype)
    part = torch.where(values > 0, part / values, torch.zeros_like(part))
    v = (part.unsqueeze(-2) @ leading.vectors).squeeze(-2)
    first = dot(a, apply(a))
    residual = a - curvature(v)
    step = apply(residual)
    square = dot(residual, step)
    rest = torch.full_like(square, torch.nan)
    going = torch.ones_like(square, dtype=torch.bool)
    for i in range(_SOLVER_STEPS):
        image = curvature(step)
        curved = dot(step, image)
        if i == 0:
            rest = torch.where(curved > 0, square / curved, rest)
        going = going & (curved > 0) & (square > _SOLVED * first)
        if not bool(going.any()):
            break
        length = torch.where(going, square / curved, torch.zeros_like(square))
        v = v + length * step
        residual = residual - length * image
        scaled = apply(residual)
        new = dot(residual, scaled)
        step = scaled + torch.where(going, new / square, torch.zeros_like(square)) * step
        square = new
    return v, rest[..., 0]
