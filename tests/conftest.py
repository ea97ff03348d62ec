"""How the tests share a machine, a process a core and a thread each, and on which device."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

if TYPE_CHECKING:
    import torch

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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--device``."""
    parser.addoption(
        "--device",
        choices=("cpu", "cuda", "fake"),
        default="cpu",
        help="where chains run: tests that take a device run there, and the others not at all; "
        "fake is a GPU that keeps its tensors in the CPU's memory",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Tell the modules of tests the device, and hide GPUs from tests of the CPU."""
    chosen = os.environ["SGMCMC_TEST_DEVICE"] = config.getoption("--device")
    if chosen != "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if chosen != "cpu":
        from hypothesis import settings

        settings.register_profile("device", deadline=None)  # a device takes a while to start
        settings.load_profile("device")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, on another device than the CPU, what does not take one."""
    if config.getoption("--device") == "cpu":
        return
    from tests.device import why_not_there

    for item in items:
        reason = why_not_there(item.path, test_of(item))
        if reason:
            item.add_marker(pytest.mark.skip(reason=f"not on this device: {reason}"))


def test_of(item: pytest.Item) -> str:
    """Return the name of a test without its parameters."""
    return getattr(item, "originalname", item.name)


@contextmanager
def on_the_device(config: pytest.Config, path: Path, test: str = "") -> Iterator[None]:
    """Let a test module's chains and data be on the device, which may be a fake GPU."""
    chosen = config.getoption("--device")
    if chosen == "cpu":
        yield
        return
    from lightning_sgmcmc.samplers import watch  # the package before the fake
    from tests.device import DEVICE, LOOKED_AT_AT_ONCE, MADE_THERE, name_of
    from tests.fake_gpu import fake_gpu
    from tests.made_there import made_there

    with ExitStack() as stack:
        if chosen == "fake":
            stack.enter_context(fake_gpu())
        if name_of(path) in MADE_THERE:
            stack.enter_context(made_there(DEVICE))
        if f"{name_of(path)}::{test}" in LOOKED_AT_AT_ONCE:
            stack.enter_context(mock.patch.dict(watch._STEPS, cuda=1))
        yield


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Put what a module makes when it is imported on the device."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    with on_the_device(collector.config, collector.path):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run a test, with its fixtures, on the device."""
    with on_the_device(item.config, item.path, test_of(item)):
        return (yield)


@pytest.fixture
def device() -> torch.device:
    """Where a test is to put its tensors."""
    from tests.device import DEVICE

    return DEVICE
