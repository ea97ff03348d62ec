"""Data of ``darcy_pressure``: permeabilities of two values and the pressure of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

import pde
from lightning_sgmcmc.chain import Sampling
from tasks.data.flows import Array, FlowData, Split

Spec: TypeAlias = pde.FnoDataSpec | pde.PdebenchDataSpec


class DarcyPressureData(FlowData[pde.Dataset[Any]]):
    """Pairs of permeability and pressure, of the law of FNO's Darcy set or of PDEBench's.

    The set is solved once by ``pde`` and kept in ``root``; later runs reuse it. The last
    ``num_test`` samples are for testing, and the last ``num_val`` of the others are held out.
    Further pairs set the width of conformal bands.

    Args:
        root: Folder of the generated sets.
        kind: ``fno``, 12 or 3 at nodes with source 1, or ``pdebench``, 1 or .1 on cells.
        grid: Nodes or cells in each direction; None is the set's own, 85 or 128.
        every: The solver's steps from node to node, of ``fno`` alone; None is 5.
        beta: The source, of ``pdebench`` alone; None is 1.
        num_samples: Pairs for training, validation and testing.
        num_test: Pairs for testing.
        num_val: Training pairs that are held out.
        num_calibration: Further pairs, for conformal bands.
        symmetric: Train on every field in all eight positions of the square. Source and boundary
            are symmetric, so that the pressure of a turned field is the pressure turned: these are
            eight solutions, and count as eight examples.
        batch_size: Pairs in a minibatch.
        sampling: ``auto``, ``independent``, ``reshuffled`` or ``full`` minibatches.
        seed: Seed of the fields.

    Raises:
        ValueError: If a value lies outside its range, or belongs to the other kind.
    """

    def __init__(
        self,
        root: str = "data/darcy_pressure",
        kind: Literal["fno", "pdebench"] = "fno",
        grid: int | None = None,
        every: int | None = None,
        beta: float | None = None,
        num_samples: int = 1250,
        num_test: int = 200,
        num_val: int = 50,
        num_calibration: int = 0,
        symmetric: bool = True,
        batch_size: int = 16,
        sampling: Sampling = "auto",
        seed: int = 0,
    ) -> None:
        sizes = num_samples, num_test, num_val, num_calibration
        super().__init__(*sizes, batch_size, sampling, in_memory=True)
        if kind not in ("fno", "pdebench"):
            raise ValueError(f"kind must be one of fno, pdebench, got {kind!r}")
        self.symmetric = symmetric
        sides: dict[str, Any] = {} if grid is None else {"nx": grid, "ny": grid}
        solved = num_samples + num_calibration
        how: dict[str, Any] = {"num_samples": solved, "seed": seed, "save_pressure": True}
        self.spec: Spec
        if kind == "fno":
            if beta is not None:
                raise ValueError(f"beta = {beta} goes with kind=pdebench: the source of fno is 1")
            self.spec = pde.FnoDataSpec(**sides, every=5 if every is None else every, **how)
            own = f"{self.spec.every}"
        else:
            if every is not None:
                raise ValueError(f"every = {every} goes with kind=fno: pdebench keeps all cells")
            self.spec = pde.PdebenchDataSpec(**sides, beta=1.0 if beta is None else beta, **how)
            own = f"{self.spec.beta:g}"
        name = f"{kind}-{self.spec.nx}-{own}-{solved}-{seed}.safetensors"
        self.path = Path(root) / name

    def prepare_data(self) -> None:
        """Solve and write the set, unless it is there."""
        pde.generate(self.spec, self.path)

    def load(self) -> pde.Dataset[Any]:
        """Open the set."""
        return pde.load(self.path, type(self.spec))

    def samples(self, chosen: slice) -> tuple[Array, Array]:
        """Return permeabilities [n, ny, nx] and pressures [n, ny nx] of some samples."""
        permeability, pressure = (
            np.array(self.data.arrays[name][chosen]) for name in ("permeability", "pressure")
        )
        return permeability, pressure.reshape(-1, self.spec.grid.num_cells)

    def arrays(self, name: Split) -> tuple[Array, Array]:
        """Return permeabilities [n, ny, nx] and pressures [n, ny nx] of a split."""
        permeability, pressure = super().arrays(name)
        if name == "train" and self.symmetric:
            pressure = all_positions(pressure.reshape(permeability.shape))
            pressure = pressure.reshape(-1, self.spec.grid.num_cells)
            permeability = all_positions(permeability)
        return permeability, pressure


def all_positions(fields: Array) -> Array:
    """Return fields [n, m, m] in the eight positions of the square, [8 n, m, m]."""
    turned = [np.rot90(fields, k, (-2, -1)) for k in range(4)]
    return np.concatenate([*turned, *(np.swapaxes(t, -2, -1) for t in turned)])
