"""Tests run on small tensors, for which a second thread only costs, and on machines under load."""

import os

import torch

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start
torch.set_num_threads(1)

# Seconds that W&B's own process may take to start; it gives up after 30 else.
for wait in ("WANDB_X_SERVICE_WAIT", "WANDB_INIT_TIMEOUT"):
    os.environ.setdefault(wait, "300")
