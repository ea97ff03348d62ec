"""Bytes a weight that a run holds in memory, in a checkpoint and in a draw, counted on the CPU.

Runs of ``SGMCMCModule`` on networks of two sizes, with two and three chains in a process; the
differences give what a weight of a chain takes, and what a weight takes once a process (the mean
of the draws' weights, the network that the chains share). Memory is that of all tensors between
the gradient and the sampler's step, after the first draw; activations and the temporaries of a step
come on top. Directions that the diagnostics follow are as few as they are for networks of 100
million weights. ``docs/many-machines.md`` says what follows for 1,024 chains.

    python scripts/bench/at_scale.py
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import lightning as L  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from lightning_sgmcmc import (  # noqa: E402
    PSGLD,
    SGHMC,
    SGLD,
    BatchStream,
    GaussianPrior,
    RMSProp,
    Sampler,
    SGMCMCModule,
)
from lightning_sgmcmc.posterior import directions  # noqa: E402

PRIOR = GaussianPrior(variance=1.0)
SAMPLERS: dict[str, Callable[[Any], Sampler]] = {
    "SGLD": partial(SGLD, lr=1e-5, prior=PRIOR),
    "PSGLD": partial(PSGLD, lr=1e-5, prior=PRIOR),
    "SGHMC": partial(SGHMC, lr=1e-5, prior=PRIOR),
    "SGHMC, RMSProp": partial(SGHMC, lr=1e-5, prior=PRIOR, preconditioner=RMSProp()),
}
#: Inputs of the network, and the two widths of its layer.
INPUTS, WIDTHS = 64, (400, 1200)
BURN_IN, THINNING, STEPS = 3, 2, 7


class Wide(SGMCMCModule):
    """Regression by the mean of a wide layer's outputs."""

    def __init__(self, sampler: Callable[[Any], Sampler], width: int, chains: int) -> None:
        net = nn.Linear(INPUTS, width, bias=False)
        super().__init__(net, sampler, burn_in=BURN_IN, thinning=THINNING, num_chains=chains)

    def nll(self, batch: Any) -> Tensor:
        """Return the negative log-likelihood of each example, [B]."""
        residual: Tensor = self.predictive(batch) - batch[1]
        return residual.square() / 2

    def predictive(self, batch: Any) -> Tensor:
        """Return the mean of each example, [B]."""
        outputs: Tensor = self(batch[0])
        mean: Tensor = outputs.mean(-1)
        return mean


class Count(L.Callback):
    """Counts the bytes of all tensors that grow with the network."""

    def __init__(self, size: int) -> None:
        self._size, self.bytes = size, 0
        self._before = _tensors()  # of earlier runs, if something still holds them

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any
    ) -> None:
        """Count after the first draw."""
        if trainer.global_step < BURN_IN + THINNING:
            return
        before = {id(tensor) for tensor in self._before}
        found = [tensor for tensor in _tensors() if id(tensor) not in before]
        found += [p.grad for group in optimizer.param_groups for p in group["params"]]
        storages = {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
            for t in found
            if t.numel() * 8 >= self._size
        }
        self.bytes = sum(storages.values())


def _tensors() -> list[Tensor]:
    gc.collect()
    return [o for o in gc.get_objects() if issubclass(type(o), Tensor)]


def sizes(make: Callable[[Any], Sampler], width: int, chains: int) -> dict[str, int]:
    """Return the bytes of one run in memory, in its checkpoint and in a draw of a chain."""
    torch.manual_seed(0)
    count = Count(INPUTS * width)
    data = [torch.randn(8, INPUTS), torch.randn(8)]
    with tempfile.TemporaryDirectory() as name:
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            max_steps=STEPS,
            default_root_dir=name,
            logger=False,
            callbacks=[count],
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Wide(make, width, chains), BatchStream(data, 2, "independent"))
        folder = Path(name)
        draw = folder / "samples" / "chain0" / f"step_{BURN_IN + THINNING}.safetensors"
        checkpoint = (folder / "checkpoints" / "last.ckpt").stat().st_size
        return {"memory": count.bytes, "checkpoint": checkpoint, "draw": draw.stat().st_size}


def a_weight(make: Callable[[Any], Sampler]) -> dict[str, dict[str, float]]:
    """Return bytes a weight of each chain, and of each process beside it, of every kind."""
    slopes = {}
    for chains in (2, 3):
        small, large = (sizes(make, width, chains) for width in WIDTHS)
        weights = INPUTS * (WIDTHS[1] - WIDTHS[0])
        slopes[chains] = {kind: (large[kind] - small[kind]) / weights for kind in small}
    of_chain = {kind: slopes[3][kind] - slopes[2][kind] for kind in ("memory", "checkpoint")}
    of_process = {kind: slopes[2][kind] - 2 * of_chain[kind] for kind in of_chain}
    return {
        kind: {"chain": round(of_chain[kind], 2), "process": round(of_process[kind], 2)}
        for kind in of_chain
    } | {"draw": {"chain": round(slopes[2]["draw"], 2), "process": 0.0}}


def main() -> None:
    """Count and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--record", type=Path, default=ROOT / "docs" / "records" / "at_scale.json")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.INFO)
    directions._MEMORY = 1
    record = {}
    for name, make in SAMPLERS.items():
        record[name] = a_weight(make)
        print(name, record[name])
    args.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
