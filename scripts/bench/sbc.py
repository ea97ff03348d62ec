"""Simulation-based calibration of the whole command line (Talts et al. 2018, algorithm 1).

Each replicate draws theta from the prior of a linear model and data from its likelihood, runs
``train.py`` on them with minibatches and ``lr: auto``, and counts how many draws lie below theta.
If draws are of the posterior, these ranks are uniform, whatever the step size, the minibatches and
the burn-in did. Quantities are the weights and the prediction at one point; each has a chi-square
test of its ranks in ten bins, and the smallest p-value times their number is the verdict.

    python scripts/bench/sbc.py [--sampler SGHMC] [--replicates 200] [--first 0] [--out FILE]

Options behind ``--`` go to the command line as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from lightning_sgmcmc import BatchStream, Sampler, SGMCMCModule, load_posterior  # noqa: E402
from lightning_sgmcmc.run.cli import main as command_line  # noqa: E402
from tasks.experiments.calibration import uniformity  # noqa: E402

N, D, SIGMA, BATCH = 200, 8, 1.0, 20
CHAINS, DRAWS = 4, 100


class LinearTask(SGMCMCModule):
    """y ~ N(x' theta, 1) with theta ~ N(0, 1) by the sampler's prior."""

    def __init__(self, sampler: Callable[[Iterable[Any]], Sampler], **chain: Any) -> None:
        super().__init__(nn.Linear(D, 1, bias=False), sampler, **chain)

    def nll(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the Gaussian likelihood of each example, [B]."""
        x, y = batch
        nll: Tensor = 0.5 * ((y - self(x)[:, 0]) / SIGMA) ** 2
        return nll

    def predictive(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return x' theta, [B, 1]."""
        result: Tensor = self(batch[0])
        return result


class LinearData(L.LightningDataModule):
    """Data of a replicate: features of unequal scales, and y from a theta of the prior."""

    def __init__(self, replicate: int = 0) -> None:
        super().__init__()
        self.theta, self.x, self.y, self.point = replicate_of(replicate)

    def train_dataloader(self) -> BatchStream:
        """Return the minibatches."""
        return BatchStream((self.x, self.y), BATCH)

    def test_dataloader(self) -> DataLoader[Any]:
        """Return the training examples, whose predictions are looked at."""
        return DataLoader(TensorDataset(self.x, self.y), batch_size=N)


def replicate_of(number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return theta [D], x [N, D], y [N] and one more point [D] of a replicate."""
    rng = np.random.default_rng([number, 0x5BC])
    scales = np.geomspace(0.3, 2.0, D)
    theta = rng.standard_normal(D)
    x = rng.standard_normal((N, D)) * scales
    y = x @ theta + SIGMA * rng.standard_normal(N)
    point = rng.standard_normal(D) * scales
    return tuple(torch.tensor(a, dtype=torch.float32) for a in (theta, x, y, point))  # type: ignore[return-value]


def ranks(number: int, sampler: str, more: list[str], folder: Path) -> list[float]:
    """Run one replicate; return the rank of theta and of the prediction as fractions, [D + 1]."""
    arguments = [
        "--model=sbc.LinearTask",
        "--data=sbc.LinearData",
        f"--data.replicate={number}",
        f"--model.sampler={sampler}",
        "--model.sampler.lr=auto",
        "--model.sampler.prior=GaussianPrior",
        "--model.sampler.prior.variance=1",
        f"--model.num_chains={CHAINS}",
        "--model.starts=prior",
        "--model.burn_in=2000",
        "--model.thinning=200",
        f"--model.draw_budget={DRAWS // CHAINS}",
        f"--trainer.max_steps={2000 + 200 * DRAWS // CHAINS}",
        "--trainer.enable_progress_bar=false",
        "--trainer.enable_model_summary=false",
        "--wandb_project=null",
        "--checkpoint_every=1000000",
        f"--seed_everything={number}",
        f"--out={folder}",
        *more,
    ]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            command_line(ROOT / "configs", arguments)
    except SystemExit:
        print(said.getvalue(), file=sys.stderr)
        raise
    theta, _, _, point = replicate_of(number)
    posterior = load_posterior(folder)
    # [draws, D]; one module takes draw after draw.
    draws = torch.cat([m.get_parameter("net.weight").detach().clone() for m in posterior])
    both = torch.cat([draws, (draws @ point)[:, None]], 1)
    truth = torch.cat([theta, (theta @ point)[None]])
    below: list[float] = (both < truth).double().mean(0).tolist()
    return below


def main() -> None:
    """Run the replicates and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sampler", default="SGHMC")
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first replicate")
    parser.add_argument("--out", type=Path, help="file that the ranks are written to")
    parser.add_argument("more", nargs="*", help="options of the command line, behind --")
    own = parser.parse_args()
    warnings.filterwarnings("ignore")
    found = []
    for number in range(own.first, own.first + own.replicates):
        with tempfile.TemporaryDirectory() as folder:
            found.append(ranks(number, own.sampler, own.more, Path(folder) / "run"))
        if own.out is not None:
            own.out.write_text(json.dumps({"sampler": own.sampler, "ranks": found}) + "\n")
        if (number + 1 - own.first) % 20 == 0:
            print(f"{number + 1 - own.first} replicates", flush=True)
    uniform = uniformity(found, DRAWS)
    print(f"{own.sampler}: {len(found)} replicates, {CHAINS} chains of {DRAWS // CHAINS} draws")
    print("p-values of", D, "weights and the prediction:", np.array2string(uniform.p, precision=3))
    print(
        "spread of the ranks over uniform (1 is calibrated):",
        np.array2string(uniform.spread, precision=2),
    )
    how = "uniform" if uniform.corrected > 0.01 else "NOT uniform"
    print(f"smallest p-value, corrected: {uniform.corrected:.3f} ({how} at 1 %)")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
