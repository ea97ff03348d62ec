"""The verdicts of runs on posteriors whose predictive law is known.

One row a chain: its predictive deviation over the true one and the error of its predictive mean in
true deviations, what the run estimates of the former, and whether it was judged rightly. A chain
is wrong where the deviation is off by more than 10 % or the mean by more than .2; right where they
are within 5 % and .1; between the two either verdict serves. With ``--remedies`` every accused
chain is run again as its remedy says, until no alarm is left or the budget is spent.

    python scripts/bench/bank.py [--only linear network] [--remedies] [--seed 1] [--record]

``--record`` keeps what it finds in ``docs/records/bank/seedS.json``, chain by chain, of which
docs/diagnostics.md has the sums, and passes over chains that are there.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from lightning_sgmcmc.common.files import write_beside  # noqa: E402
from tasks.experiments.verdicts import table  # noqa: E402
from tests.bank import BANK, Outcome, Trial, remedied, write_truths  # noqa: E402

#: Gradients of the remedied runs over those of the first one.
BUDGET = 300.0


def found(outcome: Outcome) -> dict[str, Any]:
    """Return what a record keeps of a chain."""
    return {
        "deviation": round(outcome.deviation, 4),
        "mean_error": round(outcome.mean_error, 4),
        "alarms": len(outcome.alarms),
        "right": outcome.right,
        "wrong": outcome.wrong,
    }


def row(trial: Trial, outcome: Outcome, seconds: float) -> str:
    """Return a trial's row of the table."""
    says = outcome.diagnostics.get("predictive", {})
    estimate = (
        f"{says['deviation_over_true']:.3f} +- {says['deviation_over_true_error']:.3f}"
        if says
        else "-"
    )
    return (
        f"{trial.name:<38}{outcome.deviation:>9.3f}{outcome.mean_error:>7.2f}  {estimate:>17}"
        f"{len(outcome.alarms):>7}  {outcome.judged:<8}{seconds:>6.1f}"
    )


def tried(trial: Trial, remedies: bool, verbose: bool) -> dict[str, Any]:
    """Run a chain, print how it was judged, and follow its remedies."""
    start = time.perf_counter()
    outcome = trial.run()
    print(row(trial, outcome, time.perf_counter() - start), flush=True)
    if verbose:
        print(*(f"    {text}" for text in outcome.alarms), sep="\n")
    result = {"sampler": trial.sampler} | found(outcome)
    if remedies and outcome.alarms:
        rounds = remedied(trial, outcome, BUDGET)
        last = rounds[-1]
        cost = sum(o.gradients for o in rounds) / max(outcome.gradients, 1)
        state = "cured" if not last.alarms else "STILL ACCUSED"
        print(
            f"    {state} after {len(rounds)} rounds, {cost:.1f} times the gradients: "
            f"dev {last.deviation:.3f}, mean {last.mean_error:.2f} ({last.judged})",
            flush=True,
        )
        result["remedied"] = found(last) | {"rounds": len(rounds), "cost": round(cost, 1)}
    return result


def main() -> None:
    """Print the table and the totals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of trials")
    parser.add_argument("--remedies", action="store_true", help="follow the remedies")
    parser.add_argument("--seed", type=int, default=0, help="of all chains")
    parser.add_argument("--record", action="store_true", help="keep what is found for docs")
    parser.add_argument("--verbose", action="store_true", help="print the alarms")
    parser.add_argument("--references", action="store_true", help="measure the truths anew by HMC")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    if args.references:
        write_truths()
    path = ROOT / "docs" / "records" / "bank" / f"seed{args.seed}.json"
    known = json.loads(path.read_text()) if args.record and path.exists() else {}
    print(
        f"{'chain':<38}{'dev':>9}{'mean':>7}  {'estimated':>17}{'alarms':>7}  {'judged':<8}{'s':>6}"
    )
    for trial in (t for t in BANK if any(part in t.name for part in args.only)):
        if trial.name in known:
            continue
        seeded = replace(trial, recipe=replace(trial.recipe, seed=args.seed))
        known[trial.name] = tried(seeded, args.remedies, args.verbose)
        if args.record:
            path.parent.mkdir(exist_ok=True)
            write_beside(path, json.dumps(known, indent=1) + "\n")
    print("", table({path.stem: known}), sep="\n")


if __name__ == "__main__":
    main()
