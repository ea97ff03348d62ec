"""Tests run on small tensors, for which a second thread only costs."""

import os

import torch

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start
torch.set_num_threads(1)
