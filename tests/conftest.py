"""How the tests share a machine: a process a core, a thread each."""

import os
from pathlib import Path

import pytest

# Tests run on small tensors, for which a second thread only costs, and each core has a worker.
# PyTorch, NumPy and the processes that tests start read this when they are imported, which is
# later. Tests of threads set their own number.
os.environ["OMP_NUM_THREADS"] = "1"

# Seconds that W&B's own process may take to start; it gives up after 30 else.
for wait in ("WANDB_X_SERVICE_WAIT", "WANDB_INIT_TIMEOUT"):
    os.environ.setdefault(wait, "300")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the options
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Give folders of tests to one worker a core, at most eight; run files in this process.

    ``-n 0`` or ``-p no:xdist`` runs folders in this process too, ``-n 2`` files in two workers.
    """
    option = config.option
    if not config.pluginmanager.hasplugin("xdist") or hasattr(config, "workerinput"):
        return
    if option.numprocesses is None and all(Path(name).is_dir() for name in config.args):
        option.numprocesses, option.dist = "logical", "worksteal"
        option.maxprocesses = option.maxprocesses or 8  # a worker holds about 1 GB
