"""Ask SLURM to start a job again, which then continues from its last checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

#: The signal that asks for it, as ``sbatch --signal=USR1@90`` sends it before the time is up.
REQUEUES = signal.SIGUSR1


def requeue(number: int) -> None:
    """Run ``scontrol requeue $SLURM_JOB_ID``, and say what came of it.

    Nothing is done outside a job of SLURM, or for another signal than SIGUSR1: SIGTERM is what
    ``scancel`` sends, and a job that SLURM pre-empts it starts again by itself. SLURM then ends
    the processes of the job. Lightning's own handler for SLURM, which saves in the middle of a
    step, does not come to its turn.

    Args:
        number: The signal's.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if number != REQUEUES or job is None:
        return
    command = ["scontrol", "requeue", job]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        wrong = done.stderr.strip() or f"status {done.returncode}" if done.returncode else None
    except (OSError, subprocess.TimeoutExpired) as error:
        wrong = str(error)
    if wrong is None:
        print(f"SLURM starts job {job} again", file=sys.stderr, flush=True)
    else:
        print(f"warning: '{' '.join(command)}' failed: {wrong}", file=sys.stderr, flush=True)
