"""The verdicts of runs on posteriors whose predictive law is known.

One row a chain: its predictive deviation over the true one and the error of its predictive mean in
true deviations, what the run estimates of the former, and whether it was judged rightly. A chain
is wrong where the deviation is off by more than 10 % or the mean by more than .2; right where they
are within 5 % and .1; between the two either verdict serves. With ``--remedies`` every accused
chain is run again as its remedy says, until no alarm is left or the budget is spent.

    python scripts/bench/bank.py [--only linear network] [--remedies]
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from tests.bank import BANK, Outcome, Trial, remedied, write_truths

#: Gradients of the remedied runs over those of the first one.
BUDGET = 300.0


def judged(outcome: Outcome) -> str:
    """Return ``"PASSED"`` for a wrong chain without alarm, ``"ACCUSED"`` for a right one with."""
    if outcome.wrong and not outcome.alarms:
        return "PASSED"
    if outcome.right and outcome.alarms:
        return "ACCUSED"
    return "rightly" if outcome.wrong or outcome.right else "either"


def row(trial: Trial, outcome: Outcome, seconds: float) -> str:
    """Return a trial's row of the table."""
    found = outcome.diagnostics.get("predictive", {})
    estimate = (
        f"{found['deviation_over_true']:.3f} +- {found['deviation_over_true_error']:.3f}"
        if found
        else "-"
    )
    return (
        f"{trial.name:<38}{outcome.deviation:>9.3f}{outcome.mean_error:>7.2f}  {estimate:>17}"
        f"{len(outcome.alarms):>7}  {judged(outcome):<8}{seconds:>6.1f}"
    )


def main() -> None:
    """Print the table and the totals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of trials")
    parser.add_argument("--remedies", action="store_true", help="follow the remedies")
    parser.add_argument("--verbose", action="store_true", help="print the alarms")
    parser.add_argument("--references", action="store_true", help="measure the truths anew by HMC")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    if args.references:
        write_truths()
    print(
        f"{'chain':<38}{'dev':>9}{'mean':>7}  {'estimated':>17}{'alarms':>7}  {'judged':<8}{'s':>6}"
    )
    counts = {"PASSED": 0, "ACCUSED": 0, "rightly": 0, "either": 0}
    wrong = right = cured = accused = 0
    for trial in (t for t in BANK if any(part in t.name for part in args.only)):
        start = time.perf_counter()
        outcome = trial.run()
        print(row(trial, outcome, time.perf_counter() - start), flush=True)
        counts[judged(outcome)] += 1
        wrong, right = wrong + outcome.wrong, right + outcome.right
        if args.verbose:
            print(*(f"    {text}" for text in outcome.alarms), sep="\n")
        if args.remedies and outcome.alarms:
            accused += 1
            rounds = remedied(trial, outcome, BUDGET)
            last = rounds[-1]
            cost = sum(o.gradients for o in rounds) / max(outcome.gradients, 1)
            cured += not last.alarms
            state = "cured" if not last.alarms else "STILL ACCUSED"
            print(
                f"    {state} after {len(rounds)} rounds, {cost:.1f} times the gradients: "
                f"dev {last.deviation:.3f}, mean {last.mean_error:.2f} ({judged(last)})",
                flush=True,
            )
    print(f"wrong: {wrong}, passed: {counts['PASSED']}")
    print(f"right: {right}, accused: {counts['ACCUSED']}; between: {counts['either']}")
    if args.remedies:
        print(f"remedies followed: {accused}, ended the alarm: {cured}")


if __name__ == "__main__":
    main()
