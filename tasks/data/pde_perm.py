"""Data of ``pde_perm``: random permeabilities and the velocities of the flow through each."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

import pde
from lightning_sgmcmc.chain import Sampling
from pde.fields.kle import MEANS
from tasks.data.flows import Array, FlowData, Split


class PDEPermData(FlowData[pde.PermeabilityDataset]):
    """1,500 pairs of permeability and velocity (section 5.3.2 of HASGLD-SA).

    The set is solved once by ``pde`` and kept in ``root``; later runs reuse it. The last
    ``num_test`` samples are for testing, and the last ``num_val`` of the others are held out for
    validation where a protocol chooses anything. The paper's kappa_0 is not given; 6 is what its
    errors imply for ``additive`` fields.

    Args:
        root: Folder of the generated sets.
        kind: ``additive``, mean + field, or ``lognormal``, exp(mean + field).
        mean: kappa_0; None is 6 for additive fields and 0 for log-normal ones.
        terms: Karhunen-Loeve modes p.
        lengths: Correlation lengths in x and y.
        variance: Variance of the Gaussian field.
        grid: Cells in each direction.
        num_samples: Pairs in all.
        num_test: Pairs for testing.
        num_val: Training pairs that are held out.
        batch_size: Pairs in a minibatch.
        sampling: ``auto``, ``independent``, ``reshuffled`` or ``full`` minibatches.
        seed: Seed of the fields.

    Raises:
        ValueError: If a value lies outside its range.
    """

    def __init__(
        self,
        root: str = "data/pde_perm",
        kind: Literal["additive", "lognormal"] = "additive",
        mean: float | None = None,
        terms: int = 64,
        lengths: tuple[float, float] = (0.2, 0.3),
        variance: float = 2.0,
        grid: int = 50,
        num_samples: int = 1500,
        num_test: int = 200,
        num_val: int = 0,
        batch_size: int = 64,
        sampling: Sampling = "auto",
        seed: int = 0,
    ) -> None:
        super().__init__(num_samples, num_test, num_val, batch_size, sampling)
        if mean is None:
            mean = MEANS.get(kind, 0.0)  # the specification refuses other kinds
        self.spec = pde.PermeabilityDataSpec(
            nx=grid,
            ny=grid,
            kind=kind,
            mean=mean,
            variance=variance,
            lengths=lengths,
            terms=terms,
            num_samples=num_samples,
            seed=seed,
        )
        x, y = self.spec.lengths
        name = f"{kind}-{mean:g}-{variance:g}-{x:g}-{y:g}-{terms}-{grid}-{num_samples}-{seed}"
        self.path = Path(root) / f"{name}.safetensors"

    def prepare_data(self) -> None:
        """Solve and write the set, unless it is there."""
        pde.generate_permeabilities(self.spec, self.path)

    def load(self) -> pde.PermeabilityDataset:
        """Open the set."""
        return pde.load_permeabilities(self.path)

    def arrays(self, name: Split) -> tuple[Array, Array]:
        """Return permeabilities [n, ny, nx] and velocities [n, edges] of a split."""
        chosen = self.split(name)
        return np.array(self.data.permeability[chosen]), np.array(self.data.velocity[chosen])

    def coefficients(self, name: Split) -> Array:
        """Return the Karhunen-Loeve coefficients [n, terms] of a split."""
        return np.array(self.data.coefficients[self.split(name)])
