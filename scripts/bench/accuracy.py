"""How right predictions are with minibatches and the defaults, and what that costs.

Posteriors whose predictive law is known (those of ``bank.py``), batches of a tenth of the data, 200
steps of Adam, then 16 chains with ``lr: auto`` and its bound of 5 % on variances. Each sampler runs
with ``gradients: auto``, the default, and with plain minibatches, for which ``lr: auto`` has only a
smaller step to keep the bound. The cost is in minibatch gradients for each independent draw of a
typical prediction, and is compared at equal accuracy, as both keep the same bound.

    python scripts/bench/accuracy.py [--only linear logistic] [--seed 0] [--record]

``--record`` keeps it in ``docs/records/accuracy.json``, run by run, and passes over what is there.
A run gets as many steps as its slower kind of gradients needs; all take about ten minutes on a
core.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from lightning_sgmcmc import PSGLD, SGHMC, SGLD, SGNHT, NaturalLangevin  # noqa: E402
from lightning_sgmcmc.common.files import write_beside  # noqa: E402
from tasks.experiments.accuracy import table  # noqa: E402
from tests.bank import Recipe, linear, logistic, network, random_features, run  # noqa: E402

PROBLEMS = {
    "linear": linear, "logistic": logistic, "random features": random_features, "network": network,
}  # fmt: skip
SAMPLERS = (SGLD, PSGLD, SGHMC, SGNHT, NaturalLangevin)
#: Of the kinds of gradients: what the chain is told, and steps from draw to draw.
KINDS: dict[str, tuple[Literal["auto"] | None, int]] = {"auto": ("auto", 40), "plain": (None, 400)}


def measured(problem: str, sampler: Any, kind: str, seed: int) -> dict[str, Any]:
    """Return how right a run's predictions are, and its cost."""
    made, (gradients, thinning) = PROBLEMS[problem](), KINDS[kind]
    recipe = Recipe(
        sampler,
        batch=len(made.data[0]) // 10,
        optimizer_steps=200,
        burn_in=25 * thinning,
        thinning=thinning,
        starts="same",
        bound=0.05,
        gradients=gradients,
        seed=seed,
    )
    began = time.perf_counter()
    outcome = run(made, recipe)
    mixing = outcome.diagnostics["mixing"]["predictions"]
    steps = recipe.optimizer_steps + recipe.burn_in + recipe.draws * recipe.thinning
    sampling = outcome.gradients * recipe.draws * recipe.thinning / steps
    return {
        "deviation": round(outcome.deviation, 4),
        "mean_error": round(outcome.mean_error, 4),
        "alarms": outcome.alarms,
        "lr": outcome.diagnostics["step_size"],
        "gradients_a_step": round(outcome.gradients / steps, 3),
        "independent_draws": round(mixing["ess_bulk"]["median"], 1),
        "cost": round(recipe.chains * sampling / mixing["ess_bulk"]["median"], 1),
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    """Run all, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="+", default=list(PROBLEMS), help="names of problems")
    parser.add_argument("--seed", type=int, default=0, help="of all chains")
    parser.add_argument("--record", action="store_true", help="keep what is found for docs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    path = ROOT / "docs" / "records" / "accuracy.json"
    known = json.loads(path.read_text()) if args.record and path.exists() else {}
    for problem in args.only:
        for sampler in SAMPLERS:
            runs = known.setdefault(problem, {}).setdefault(sampler.__name__, {})
            for kind in KINDS:
                if kind in runs:
                    continue
                runs[kind] = measured(problem, sampler, kind, args.seed)
                print(problem, sampler.__name__, kind, json.dumps(runs[kind]), flush=True)
                if args.record:
                    write_beside(path, json.dumps(known, indent=1) + "\n")
    print("", table(known), sep="\n")


if __name__ == "__main__":
    main()
