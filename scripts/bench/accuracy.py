"""How right predictions are with minibatches and the defaults, and what that costs.

Posteriors whose predictive law is known (those of ``bank.py``), minibatches of a twentieth or a
fiftieth of the data, 200 steps of Adam, then 16 chains with ``lr: auto`` and its bound of 5 % on
variances. Each sampler runs with ``gradients: auto``, the default, and with plain minibatches, for
which ``lr: auto`` has only a smaller step to keep the bound: reshuffled ones, whose noise mostly
cancels in an epoch, and independent ones. The cost is in minibatch gradients for each independent
draw of a typical prediction, and is compared at equal accuracy, as all keep the same bound. Every
draw is kept that it takes for this to be known: a run is repeated with half the steps from draw to
draw until the independent draws are less than a third of all, or every state is kept.

    python scripts/bench/accuracy.py [--only linear logistic] [--kinds auto plain] [--seed 0]
        [--record]

``--record`` keeps it in ``docs/records/accuracy.json``, run by run, and passes over what is there.
All take about two hours on a core.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from lightning_sgmcmc import PSGLD, SGHMC, SGLD, SGNHT, SMILE, FullFisher, NaturalLangevin  # noqa: E402
from lightning_sgmcmc.common.files import write_beside  # noqa: E402
from tasks.experiments.accuracy import table  # noqa: E402
from tests.bank import Problem, Recipe, linear, logistic, network, random_features, run  # noqa: E402

SMALLER = "logistic, batches of a fiftieth"
#: Of each row: the posterior, and how many minibatches the data make.
POSTERIORS: dict[str, tuple[Callable[[], Problem], int]] = {
    "linear": (linear, 20),
    "logistic": (logistic, 20),
    SMALLER: (logistic, 50),
    "random features": (random_features, 20),
    "network": (network, 20),
}


def smile(params: Any, **given: Any) -> SMILE:
    """Return SMILE in the metric that makes the minibatches' noise isotropic."""
    metric = FullFisher(centred=True, power=1.0, eps=1e-6, diagonal_start=True)
    return SMILE(params, preconditioner=metric, **given)


SAMPLERS: dict[str, Any] = {kind.__name__: kind for kind in (SGLD, PSGLD, SGHMC, SGNHT)} | {
    "SMILE": smile,
    "NaturalLangevin": NaturalLangevin,
}
#: A dense matrix for each of 16 chains of 2,000 weights is no comparison of samplers, and SMILE has
#: one kind of gradients alone.
LEFT_OUT = {("random features", "SMILE"), (SMALLER, "SMILE")}
#: Of the kinds of gradients: what the chain is told of them, and how minibatches are drawn.
KINDS: dict[str, tuple[Literal["auto"] | None, Literal["auto", "independent"]]] = {
    "auto": ("auto", "auto"),
    "plain": (None, "auto"),
    "independent": (None, "independent"),
}
#: The most steps from draw to draw, halved as long as draws suffice.
LONGEST = 64
DRAWS = 600


def measured(posterior: str, sampler: Any, kind: str, seed: int) -> dict[str, Any]:
    """Return how right a run's predictions are, and its cost."""
    make, batches = POSTERIORS[posterior]
    made, thinning = make(), LONGEST
    gradients, sampling = KINDS[kind]
    began = time.perf_counter()
    while True:
        recipe = Recipe(
            sampler,
            batch=len(made.data[0]) // batches,
            optimizer_steps=200,
            burn_in=2000,
            draws=DRAWS,
            thinning=thinning,
            starts="same",
            bound=0.05,
            gradients=gradients,
            sampling=sampling,
            seed=seed,
        )
        outcome = run(made, recipe)
        independent = outcome.diagnostics["mixing"]["predictions"]["ess_bulk"]["median"]
        if thinning == 1 or independent < recipe.chains * DRAWS / 3:
            break
        thinning //= 2
    return {
        "gradients": outcome.estimator,
        "deviation": round(outcome.deviation, 4),
        "mean_error": round(outcome.mean_error, 4),
        "alarms": outcome.alarms,
        "lr": outcome.diagnostics["step_size"],
        "thinning": thinning,
        "independent_draws": round(independent, 1),
        "cost": round(recipe.chains * DRAWS * outcome.from_draw_to_draw / independent, 1),
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    """Run all, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="+", default=list(POSTERIORS), help="names of posteriors")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, default=0, help="of all chains")
    parser.add_argument("--record", action="store_true", help="keep what is found for docs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    path = ROOT / "docs" / "records" / "accuracy.json"
    known = json.loads(path.read_text()) if args.record and path.exists() else {}
    for posterior in args.only:
        for name, sampler in SAMPLERS.items():
            if (posterior, name) in LEFT_OUT:
                continue
            runs = known.setdefault(posterior, {}).setdefault(name, {})
            for kind in args.kinds:
                if kind in runs or (name, kind) == ("SMILE", "independent"):
                    continue  # SMILE's plain minibatches are independent
                runs[kind] = measured(posterior, sampler, kind, args.seed)
                print(posterior, name, kind, json.dumps(runs[kind]), flush=True)
                if args.record:
                    write_beside(path, json.dumps(known, indent=1) + "\n")
    print("", table(known), sep="\n")


if __name__ == "__main__":
    main()
