"""Data of ``pde_perm``: random permeabilities and the velocities of the flow through each."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

import pde
from lightning_sgmcmc import OnDisk
from lightning_sgmcmc.chain import Sampling
from pde.datasets.permeability import PRESSURE
from pde.fields.kle import MEANS
from tasks.data.flows import Array, FlowData, Split

#: Pairs that set the width of conformal bands unless told.
CALIBRATION = 300
Spec: TypeAlias = pde.PermeabilityDataSpec | pde.OwnFieldsSpec


class PDEPermData(FlowData[pde.Dataset[Spec]]):
    """1,500 pairs of permeability and velocity (section 5.3.2 of HASGLD-SA, or own).

    The set is solved once by ``pde`` and kept in ``root``; later runs reuse it. The last
    ``num_test`` samples are for testing, and the last ``num_val`` of the others are held out for
    validation where a protocol chooses anything. Further pairs set the width of conformal bands.
    The paper's kappa_0 is not given; 6 is what its errors imply for ``additive`` fields.

    Args:
        root: Folder of the generated sets.
        kind: ``additive``, mean + field, or ``lognormal``, exp(mean + field).
        mean: kappa_0; None is 6 for additive fields and 0 for log-normal ones.
        terms: Karhunen-Loeve modes p.
        lengths: Correlation lengths in x and y.
        variance: Variance of the Gaussian field.
        grid: Cells in each direction.
        num_samples: Pairs for training, validation and testing.
        num_test: Pairs for testing.
        num_val: Training pairs that are held out.
        num_calibration: Further pairs, for conformal bands; None is 300 of random permeabilities,
            and none of own ones.
        batch_size: Pairs in a minibatch.
        sampling: ``auto``, ``independent``, ``reshuffled`` or ``full`` minibatches.
        seed: Seed of the fields.
        in_memory: As for :class:`~tasks.data.flows.FlowData`.
        permeability: File of own permeabilities [n, ny, nx], as for :func:`pde.read_field`, in
            place of random ones; the first ``num_samples + num_calibration`` of them count.
        permeability_name: The array in that file, where it holds several.
        axes: ``yx`` where the file's last axis is x, else ``xy``.
        wells: Table of wells, as for :func:`pde.read_wells`; with own permeabilities.
        lx: Width of the domain, needed beside a file that has none.
        ly: Height of the domain, likewise.
        source: The source f of own permeabilities, the same everywhere.
        side_pressure: Pressures of sides (``left``) and parts of them (``left:0:0.5``), with own
            permeabilities; 1 on the left and 0 on the right by default.
        side_flux: Velocities out of sides and parts of them, with own permeabilities.

    Raises:
        ValueError: If a value lies outside its range, or belongs to own permeabilities alone.
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
        num_calibration: int | None = 0,
        batch_size: int = 64,
        sampling: Sampling = "auto",
        in_memory: bool | None = None,
        seed: int = 0,
        permeability: str | None = None,
        permeability_name: str | None = None,
        axes: Literal["yx", "xy"] = "yx",
        wells: str | None = None,
        lx: float | None = None,
        ly: float | None = None,
        source: float = 0.0,
        side_pressure: dict[str, float] | None = None,
        side_flux: dict[str, float] | None = None,
    ) -> None:
        if num_calibration is None:
            num_calibration = CALIBRATION if permeability is None else 0
        solved = num_samples + num_calibration
        super().__init__(
            num_samples, num_test, num_val, num_calibration, batch_size, sampling, in_memory
        )
        self.spec: Spec
        if permeability is not None:
            self.spec = pde.OwnFieldsSpec.of_file(
                permeability,
                permeability_name,
                axes,
                side_pressure=PRESSURE if side_pressure is None else side_pressure,
                source=source,
                num_samples=solved,
                wells=wells,
                lx=lx,
                ly=ly,
                side_flux=side_flux or {},
            )
            said = json.dumps(self.spec.parameters(), sort_keys=True).encode()
            self.path = Path(root) / f"own-{hashlib.sha256(said).hexdigest()[:16]}.safetensors"
            return
        own = {
            "permeability_name": permeability_name,
            "wells": wells,
            "lx": lx,
            "ly": ly,
            "side_pressure": side_pressure,
            "side_flux": side_flux,
        }
        given = [name for name, value in own.items() if value is not None]
        if given or source or axes != "yx":
            raise ValueError(
                f"{', '.join([*given, *(['source'] if source else [])]) or 'axes'} goes with own "
                "permeabilities: give permeability=FILE too"
            )
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
            num_samples=solved,
            seed=seed,
        )
        x, y = self.spec.lengths
        name = f"{kind}-{mean:g}-{variance:g}-{x:g}-{y:g}-{terms}-{grid}-{solved}-{seed}"
        self.path = Path(root) / f"{name}.safetensors"

    def prepare_data(self) -> None:
        """Solve and write the set, unless it is there."""
        pde.generate(self.spec, self.path)

    def load(self) -> pde.Dataset[Spec]:
        """Open the set."""
        return pde.load(self.path, type(self.spec))

    def samples(self, chosen: slice) -> tuple[Array, Array]:
        """Return permeabilities [n, ny, nx] and velocities [n, edges] of some samples."""
        return np.array(self.data.permeability[chosen]), np.array(self.data.velocity[chosen])

    def _stored(self, chosen: slice) -> tuple[OnDisk, OnDisk]:
        return OnDisk(self.data.permeability[chosen]), OnDisk(self.data.velocity[chosen])

    def coefficients(self, name: Split) -> Array:
        """Return the Karhunen-Loeve coefficients [n, terms] of a split; none of own fields."""
        if isinstance(self.spec, pde.OwnFieldsSpec):
            part = self.split(name)
            return np.empty((part.stop - part.start, 0))
        return np.array(self.data.coefficients[self.split(name)])
