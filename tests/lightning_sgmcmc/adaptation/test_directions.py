"""Leading directions against a dense eigenvalue problem."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import eigh
from torch import Tensor

from lightning_sgmcmc import GaussianPrior, Identity, Preconditioner, RMSProp, Target
from lightning_sgmcmc.adaptation import leading_directions
from lightning_sgmcmc.adaptation.directions import spectrum
from lightning_sgmcmc.common.vectors import flatten, unflatten

N, D = 40, 12
PRECISION = 0.5


def quadratic(
    rank: int, dtype: torch.dtype = torch.float64, chains: int | None = None
) -> tuple[Target, list[Tensor], np.ndarray]:
    """Return a linear model's target with X of a rank, its weights, and its Hessian of U/N."""
    rng = np.random.default_rng(3)
    X = (
        rng.standard_normal((N, rank))
        @ np.diag(1.3 ** np.arange(rank))
        @ rng.standard_normal((rank, D))
    )
    lead = () if chains is None else (chains,)
    params = [torch.zeros(*lead, n, dtype=dtype).requires_grad_() for n in (5, D - 5)]
    x = torch.tensor(X, dtype=dtype)

    def nll(batch: Tensor) -> Tensor:
        theta = torch.cat(params, dim=-1)
        out: Tensor = 0.5 * (theta @ batch.mT) ** 2
        return out

    target = Target(nll, params, N, GaussianPrior(1 / PRECISION), chain_dims=int(bool(lead)))
    return target, [x], X.T @ X / N + PRECISION / N * np.eye(D)


def metric(params: list[Tensor], chain_dims: int = 0) -> tuple[Preconditioner, np.ndarray]:
    """Return an RMSProp metric that has seen one gradient, and its diagonal."""
    C = RMSProp(alpha=0.0)
    C.attach(params, chain_dims)
    scale = torch.linspace(0.5, 3.0, D, dtype=params[0].dtype)
    parts = [scale[:5], scale[5:]]
    C.update([g.expand(p.shape).clone() for g, p in zip(parts, params, strict=True)])
    return C, 1 / (scale.double().numpy() + 1e-5)


class Dense(Identity):
    """C = a full matrix."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.matrix = matrix

    def apply_(self, vectors: list[Tensor]) -> list[Tensor]:
        return unflatten(self.matrix @ flatten(vectors), vectors)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-3)])
def test_they_are_the_eigenvectors_of_a_dense_matrix(dtype: torch.dtype, tolerance: float) -> None:
    """C H v = lambda v, by SciPy: H v = lambda C^-1 v."""
    target, batches, H = quadratic(D, dtype)
    C, diagonal = metric(target.params)
    found = leading_directions(target, C, batches, 4, iterations=D)
    values, vectors = eigh(H, np.diag(1 / diagonal))
    assert found.eigenvalues.numpy() == pytest.approx(values[::-1][:4], rel=tolerance)
    v, a = found.vectors.double().numpy(), found.covectors.double().numpy()
    assert a == pytest.approx(v / diagonal, rel=1e-2, abs=tolerance * abs(a).max())
    assert a @ v.T == pytest.approx(np.eye(4), abs=tolerance)
    aligned = np.abs(a @ vectors[:, ::-1][:, :4])  # SciPy's are normalised alike
    assert aligned == pytest.approx(np.eye(4), abs=20 * tolerance)


def test_a_space_that_ends_early_goes_on() -> None:
    """Two directions see data; the other ten share one eigenvalue, that of the prior."""
    target, batches, H = quadratic(2)
    found = leading_directions(target, Identity(), batches, D, iterations=D)
    assert found.eigenvalues.numpy() == pytest.approx(np.linalg.eigvalsh(H)[::-1], rel=1e-6)
    assert (found.covectors @ found.vectors.T).numpy() == pytest.approx(np.eye(D), abs=1e-9)


def test_half_the_space_gives_the_leading_ones() -> None:
    """The default number of products finds well separated leading eigenvalues."""
    target, batches, H = quadratic(6)
    found = leading_directions(target, Identity(), batches, 2)
    assert found.eigenvalues.numpy() == pytest.approx(np.linalg.eigvalsh(H)[::-1][:2], rel=1e-6)


def test_stacked_chains_have_directions_of_their_own() -> None:
    """Each chain's directions are those it has alone."""
    target, batches, _ = quadratic(D, chains=2)
    C, _ = metric(target.params, 1)
    assert C.chain_dims == 1
    both = leading_directions(target, C, batches, 3, iterations=D)
    single, batches, _ = quadratic(D)
    alone = leading_directions(single, metric(single.params)[0], batches, 3, iterations=D)
    for k in range(2):
        torch.testing.assert_close(both.eigenvalues[k], alone.eigenvalues)
        torch.testing.assert_close(both.vectors[k].abs(), alone.vectors.abs(), rtol=0, atol=1e-8)


def test_the_largest_magnitudes_are_leading() -> None:
    """Of a diagonal Hessian with negative entries, whose signs stay."""
    values = torch.tensor([1.0, -5.0, 3.0, -0.5, 4.0, 2.0], dtype=torch.float64)
    theta = torch.ones(6, dtype=torch.float64, requires_grad=True)
    target = Target(lambda batch: 0.5 * batch @ theta**2, [theta], 1)
    found = leading_directions(target, Identity(), [values[None]], 3, iterations=6)
    assert found.eigenvalues.tolist() == pytest.approx([-5.0, 4.0, 3.0])
    assert found.vectors.abs().numpy() == pytest.approx(np.eye(6)[[1, 4, 2]], abs=1e-9)


def test_masked_weights_take_no_part() -> None:
    """The eigenvalues are those of the matrix without these rows and columns."""
    target, batches, H = quadratic(D)
    keep = np.ones(D)
    keep[[0, 7]] = 0
    mask = torch.tensor(keep)
    found = leading_directions(
        target, Identity(), batches, 3, iterations=D, masks=[mask[:5], mask[5:]]
    )
    part = H[np.ix_(keep > 0, keep > 0)]
    assert found.eigenvalues.numpy() == pytest.approx(np.linalg.eigvalsh(part)[::-1][:3], rel=1e-9)
    assert found.vectors[:, [0, 7]].abs().max() == 0


def test_masked_weights_take_no_part_under_a_dense_metric() -> None:
    """C and H without these rows and columns, by SciPy: H v = lambda C^-1 v."""
    target, batches, H = quadratic(D)
    root = np.random.default_rng(5).standard_normal((D, D))
    C = root @ root.T + np.eye(D)
    keep = np.ones(D)
    keep[[0, 7]] = 0
    masks = [torch.tensor(keep)[:5], torch.tensor(keep)[5:]]
    metric = Dense(torch.tensor(C))
    found = leading_directions(target, metric, batches, 3, iterations=D, masks=masks)
    free = np.ix_(keep > 0, keep > 0)
    expected = eigh(H[free], np.linalg.inv(C[free]), eigvals_only=True)[::-1][:3]
    assert found.eigenvalues.numpy() == pytest.approx(expected, rel=1e-9)
    assert found.vectors[:, [0, 7]].abs().max() == 0


@pytest.mark.parametrize("chains", [None, 2])
def test_the_spectrum_of_a_covector(chains: int | None) -> None:
    """Gauss quadrature: moments up to 2 n - 1 exactly, and H^-1 from all products."""
    target, batches, H = quadratic(D, chains=chains)
    C, diagonal = metric(target.params, int(chains is not None))
    rows = np.random.default_rng(1).standard_normal((chains or 1, D))
    a = torch.tensor(rows if chains else rows[0])

    def sums(iterations: int, power: int, flat: float = 0.0) -> np.ndarray:
        theta, w = spectrum(target, C, batches, a, iterations=iterations, flat=flat)
        assert theta.shape[-1] == iterations + bool(flat)
        return np.atleast_1d((w * theta**power).sum(-1).numpy())

    curvatures = eigh(H, np.diag(1 / diagonal), eigvals_only=True)
    below, above = curvatures[0] / curvatures[-1] / 2, 2 * curvatures[0] / curvatures[-1]
    for power in range(7):
        exact = [row @ np.diag(diagonal) @ np.linalg.matrix_power(H * diagonal, power) @ row
                 for row in rows]  # fmt: skip
        exact /= (rows**2 * diagonal).sum(-1)
        assert sums(3, power, below) == pytest.approx(exact, rel=1e-9)
        if power < 6:
            assert sums(3, power) == pytest.approx(exact, rel=1e-9)
    inverse = np.einsum("ki,ij,kj->k", rows, np.linalg.inv(H), rows)
    inverse /= (rows**2 * diagonal).sum(-1)
    for flat in (0.0, below, above):  # the space ends, or has gone lower
        assert sums(D, -1, flat) == pytest.approx(inverse, rel=1e-6)
    # From both sides where it has not been resolved.
    assert (sums(3, -1) < 0.99 * inverse).all()
    assert (sums(3, -1, below) > 1.01 * inverse).all()


def test_each_chain_has_a_spectrum_of_its_own() -> None:
    """Of chains of other curvatures; the space of the first one ends at once, and no other does."""
    values = torch.linspace(1, 10, 8, dtype=torch.float64)
    batch = torch.stack([100 * values, values])[:, None]
    theta = torch.ones(2, 8, dtype=torch.float64, requires_grad=True)
    target = Target(
        lambda batch: 0.5 * (batch @ (theta**2).unsqueeze(-1))[..., 0], [theta], 1, chain_dims=1
    )
    C = Identity()
    C.attach([theta], 1)
    a = torch.eye(8, dtype=torch.float64)[:2].clone()
    a[1] = torch.arange(1, 9)
    found, w = spectrum(target, C, [batch], a, iterations=4, flat=0.02)
    assert float((w * found)[0].sum()) == pytest.approx(100.0)
    exact = float((a[1] ** 2 / values).sum() / (a[1] ** 2).sum())
    for power in range(8):
        moment = float((a[1] ** 2 * values**power).sum() / (a[1] ** 2).sum())
        assert float((w * found**power)[1].sum()) == pytest.approx(moment, rel=1e-9)
    assert float(found[1].min()) == pytest.approx(0.02 * float(found[1].max()), rel=0.1)
    assert exact < float((w / found)[1].sum()) < 1.1 * exact


def test_a_space_that_has_gone_lower_is_taken_as_it_is() -> None:
    """Nothing is put at a curvature between those that were found."""
    target, batches, _ = quadratic(D)
    a = torch.tensor(np.random.default_rng(1).standard_normal(D))
    found, w = spectrum(target, Identity(), batches, a, iterations=6)
    lowest = float(found.min() / found.max())
    for flat in (2 * lowest, 0.5):
        higher, parts = spectrum(target, Identity(), batches, a, iterations=6, flat=flat)
        assert float((parts / higher).sum()) == pytest.approx(float((w / found).sum()), rel=1e-9)


def test_the_spectrum_of_nothing_is_a_random_ones() -> None:
    target, batches, H = quadratic(D)
    theta, w = spectrum(target, Identity(), batches, torch.zeros(D, dtype=torch.float64))
    assert theta.numpy() == pytest.approx(np.linalg.eigvalsh(H), rel=1e-6)
    assert float(w.sum()) == pytest.approx(1.0)


def test_rounding_does_not_grow_from_product_to_product() -> None:
    """All 60 eigenvalues of a spectrum without gaps, in float32 and a dense metric."""
    rng = np.random.default_rng(0)
    size = 60
    X = rng.standard_normal((400, size))
    root = rng.standard_normal((size, size)) / size**0.5 + np.eye(size)
    C = torch.tensor(root @ root.T, dtype=torch.float32)
    theta = torch.zeros(size, requires_grad=True)
    x = torch.tensor(X, dtype=torch.float32)
    target = Target(lambda batch: 0.5 * (batch @ theta) ** 2, [theta], 400)
    metric = Dense(C)
    metric.attach([theta])
    found = leading_directions(target, metric, [x], size, iterations=size)
    values = eigh(X.T @ X / 400, np.linalg.inv(C.double().numpy()), eigvals_only=True)
    assert found.eigenvalues[:40].numpy() == pytest.approx(values[::-1][:40], rel=1e-3)
    unit = found.covectors @ found.vectors.T
    assert unit.numpy() == pytest.approx(np.eye(size), abs=1e-3)
