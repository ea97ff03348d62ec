"""What pruned weights save: bytes on disk, and time by sparse products.

Wang, Deng, Lin 2020 prune 30 to 70 % of the weights to save memory and computation, and measure
neither. Draws of a pruned network 784-400-400-10 are stored by ``DrawStore``; a layer's product is
timed in torch's CSR format beside the dense one.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightning_sgmcmc.callbacks import GradualPruning
from lightning_sgmcmc.posterior import DrawStore
from tasks.experiments.experiment import Study

RATES = (0.0, 0.3, 0.5, 0.7, 0.95)
BATCHES, WIDTH, REPEATS, DRAWS = (1, 100, 1000), 1200, 9, 5


def pruned(weight: Tensor, rate: float) -> Tensor:
    """Return a weight without its smallest entries, a bias as it is."""
    (mask,) = GradualPruning(rate, start=0, stop=1).masks([weight], rate)
    return weight * mask


@torch.no_grad()
def on_disk(rate: float) -> tuple[float, float]:
    """Return bytes of draws over those of dense ones, and how far predictions change."""
    torch.manual_seed(0)
    sizes, change = [], 0.0
    x = torch.rand(200, 784)
    for of in (rate, 0.0):
        with tempfile.TemporaryDirectory() as folder:
            store = DrawStore(Path(folder))
            for step in range(DRAWS):
                net = nn.Sequential(
                    nn.Linear(784, 400),
                    nn.ReLU(),
                    nn.Linear(400, 400),
                    nn.ReLU(),
                    nn.Linear(400, 10),
                )
                weights = {k: pruned(p.detach(), of) for k, p in net.named_parameters()}
                store.save(step, weights, 1.0)
                net.load_state_dict(weights)
                expected = net(x)
                net.load_state_dict(DrawStore.open(Path(folder)).load(store.draws[-1]))
                change = max(change, float((net(x) - expected).abs().max()))
            sizes.append(sum(f.stat().st_size for f in store.folder.glob("step_*")))
    return sizes[0] / sizes[1], change


def seconds(product: Callable[[], Tensor]) -> float:
    """Return the median processor time of a product, in one thread."""
    found = []
    for _ in range(12):
        began = time.process_time()
        product()
        found.append(time.process_time() - began)
    return float(np.median(found[2:]))


def ratio(rate: float, batch: int, seed: int) -> float:
    """Return the time of a CSR product over that of the dense one."""
    torch.manual_seed(seed)
    weight, x = pruned(torch.randn(WIDTH, WIDTH), rate), torch.randn(WIDTH, batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls CSR a beta feature
        sparse = weight.to_sparse_csr()
    return seconds(lambda: sparse @ x) / seconds(lambda: weight @ x)


def compute(folder: Path) -> dict[str, Any]:
    """Measure bytes and times at several sparse rates."""
    rows = []
    for rate in RATES:
        size, change = on_disk(rate)
        times = np.array([[ratio(rate, b, seed) for seed in range(REPEATS)] for b in BATCHES])
        rows.append(
            {
                "rate": rate,
                "size": size,
                "change": change,
                "batches": BATCHES,
                "time": times.mean(1).tolist(),
                "time_se": (times.std(1, ddof=1) / np.sqrt(REPEATS)).tolist(),
            }
        )
    return {"rows": rows}


def cells() -> list[Study]:
    """Return the one study."""
    return [Study("pruned", compute)]
