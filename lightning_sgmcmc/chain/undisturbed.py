"""Evaluating a task without a trace in it or in a run's random numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from lightning.pytorch.utilities.seed import isolate_rng

from lightning_sgmcmc.chain.task import Task


@contextmanager
def undisturbed(task: Task) -> Iterator[None]:
    """Leave a task as it is, and torch's, NumPy's and Python's global random numbers.

    Every layer gets back its attributes, its mode among them, and its buffers. What an attribute
    holds is not copied. Compiled networks run as they were written, so that a batch of another
    size does not compile them anew.
    """
    layers = [(layer, dict(vars(layer)), dict(layer._buffers)) for layer in task.modules()]
    values = [(buffer, buffer.clone()) for buffer in task.buffers()]
    device = next(task.parameters()).device
    with ExitStack() as stack:
        stack.enter_context(isolate_rng(include_cuda=False))
        stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled; its import takes 2 s
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in values:
                    buffer.copy_(value)
            for layer, attributes, buffers in layers:
                layer._buffers.update(buffers)
                vars(layer).clear()
                vars(layer).update(attributes)
