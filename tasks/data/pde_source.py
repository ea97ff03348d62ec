"""Data of ``pde_source``: one permeability, three-spot sources, velocities."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

import pde
from lightning_sgmcmc import OnDisk
from lightning_sgmcmc.chain import Sampling
from pde.datasets.own_problem import own_problem
from tasks.data.download import data_root
from tasks.data.flows import Array, FlowData

#: Forms in which the SPE10 file may lie in ``spe10`` below the folder of data sets.
SPE10_NAMES = ("spe_perm.dat", "spe_perm.dat.xz", "por_perm_case2a.zip")
SPE10_URL = "https://www.spe.org/web/csp/datasets/por_perm_case2a.zip"


def find_spe10() -> Path:
    """Return where the SPE10 file lies below the folder of data sets, or where it should."""
    places = [data_root() / "spe10" / name for name in SPE10_NAMES]
    return next((place for place in places if place.is_file()), places[0])


class PDESourceData(FlowData[pde.Dataset[pde.SourceDataSpec]]):
    """1,500 pairs of source and velocity on one permeability (section 5.3.1 of HASGLD-SA, or own).

    The set is solved once by ``pde`` and kept in ``root``; later runs reuse it. The last fifth of
    the samples, or ``num_test``, are for testing, the others for training, and the last ``num_val``
    of these are held out for validation where a protocol chooses anything. Further pairs set the
    width of conformal bands.

    Args:
        root: Folder of the generated set.
        field: ``channelised``, a seeded synthetic field of SPE10's character, or ``spe10``.
        field_seed: Seed of the synthetic field.
        spe10_file: The official ``spe_perm.dat``, plain, ``.xz`` or in its zip; for ``spe10``.
            None is what lies in ``spe10`` below $SGMCMC_DATA_ROOT or ``./data``.
        layer: SPE10 layer, 1 (top) to 85.
        origin: First SPE10 cell (x, y) of the crop.
        spread: What the 5 of the paper's N(10, 5) is: ``variance`` or ``sd``.
        num_samples: Pairs for training, validation and testing.
        num_test: Pairs for testing; None is a fifth of them.
        num_val: Training pairs that are held out.
        num_calibration: Further pairs, for conformal bands.
        batch_size: Pairs in a minibatch.
        sampling: ``auto``, ``independent``, ``reshuffled`` or ``full`` minibatches.
        in_memory: Whether training pairs are taken into memory; None takes up to 4 GB.
        seed: Seed of the sources.
        own: An own permeability, sides and wells, as for
            :func:`pde.datasets.own_problem.own_problem`.

    Raises:
        ValueError: If a value lies outside its range.
    """

    def __init__(
        self,
        root: str = "data/pde_source",
        field: Literal["channelised", "spe10"] = "channelised",
        field_seed: int = 0,
        spe10_file: str | None = None,
        layer: int = 36,
        origin: tuple[int, int] = (0, 0),
        spread: Literal["variance", "sd"] = "variance",
        num_samples: int = 1500,
        num_test: int | None = None,
        num_val: int = 0,
        num_calibration: int = 0,
        batch_size: int = 64,
        sampling: Sampling = "auto",
        in_memory: bool | None = None,
        seed: int = 0,
        **own: Any,
    ) -> None:
        if num_samples < 10:
            raise ValueError(f"num_samples must be at least 10, got {num_samples}")
        if num_test is None:
            num_test = num_samples // 5
        solved = num_samples + num_calibration
        super().__init__(
            num_samples, num_test, num_val, num_calibration, batch_size, sampling, in_memory
        )
        if field == "spe10" and own.get("permeability") is not None:
            raise ValueError(f"field {field} and permeability {own['permeability']}: give one")
        if field == "spe10" and spe10_file is None:
            spe10_file = str(find_spe10())
        problem = own_problem(**own)
        given = {
            "field": field,
            "field_seed": field_seed,
            "spe10_file": spe10_file,
            "layer": layer,
            "origin": origin,
            "spread": spread,
        }
        self.spec = pde.SourceDataSpec(**(given | problem), num_samples=solved, seed=seed)
        place = (
            f"{field}-{field_seed}"
            if field == "channelised"
            else (f"spe10-{layer}-{origin[0]}-{origin[1]}")
        )
        name = f"{place}-{spread}-{solved}-{seed}"
        if problem:
            named = [problem.get(name) for name in ("permeability_file", "active_file")]
            files = [Path(file).read_bytes() for file in named if file is not None]
            said = json.dumps(self.spec.parameters(), sort_keys=True).encode()
            name = f"own-{hashlib.sha256(b''.join([said, *files])).hexdigest()[:16]}"
        self.path = Path(root) / f"{name}.safetensors"

    def prepare_data(self) -> None:
        """Solve and write the set, unless it is there."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        pde.generate(self.spec, self.path)

    def load(self) -> pde.Dataset[pde.SourceDataSpec]:
        """Open the set."""
        return pde.load(self.path, pde.SourceDataSpec)

    def samples(self, chosen: slice) -> tuple[Array, Array]:
        """Return sources [n, ny, nx] and velocities [n, edges] of some samples."""
        return self.data.source(chosen), np.array(self.data.velocity[chosen])

    def _stored(self, chosen: slice) -> tuple[OnDisk, OnDisk]:
        data, velocity = self.data, OnDisk(self.data.velocity[chosen])
        if data.strengths is None:
            return OnDisk(data.arrays["source"][chosen]), velocity
        strengths = OnDisk(data.strengths[chosen])
        return strengths.map(lambda s: torch.from_numpy(data.source_of(s.numpy()))), velocity

    def least_squares_error(self) -> NDArray[np.float64]:
        """Return the relative L2 errors, [n], of linear least squares from source to velocity.

        The map is linear, or affine where there is flow without any rate, and its inputs span few
        dimensions, so this is exact up to round-off, by the first samples of data on disk too: the
        baseline of any network for this problem.
        """
        source, velocity = next(self.training_blocks())
        varying = np.ptp(source, axis=0) > 0
        affine = self.spec.source == "wells"

        def features(sources: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.pad(sources[:, varying], ((0, 0), (0, int(affine))), constant_values=1.0)

        weights = np.linalg.lstsq(features(source), velocity, rcond=None)[0]
        test_source, test_velocity = self.arrays("test")
        predicted = features(test_source) @ weights
        error: NDArray[np.float64] = np.linalg.norm(predicted - test_velocity, axis=1)
        size: NDArray[np.float64] = np.linalg.norm(test_velocity, axis=1)
        return error / size
