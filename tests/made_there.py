"""Puts on the device of ``pytest --device`` what test modules make, and lets them look at it.

A tensor or a network that the code of a test module makes is made on the CPU, from the same random
numbers, and moved; a task or a metric that it makes is moved as a whole, a task again when a run of
it ends. What else the product makes is left where it is, so that a tensor that it forgets to put on
the device still meets one of the other kind. NumPy's view of a tensor, and a comparison by
``torch.equal``, ``torch.allclose`` or ``torch.testing.assert_close``, that a test asks for are of a
copy on the CPU.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MethodWrapperType
from typing import Any
from unittest import mock

import _pytest
import lightning as L
import numpy as np
import scipy
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_map_only

from tests.toy import toy_data

_TESTS = Path(__file__).parent
_LIBRARIES = tuple(str(Path(str(m.__file__)).parent) for m in (torch, np, scipy, _pytest))
_MAKE = _device_constructors()
_NUMPY = {Tensor.numpy, Tensor.__array__}
_RUNS = ("fit", "validate", "test", "predict")
_LOOK = {torch.equal, torch.allclose}


@functools.cache
def _is_a_tests(file: str) -> bool:
    path = Path(file)
    if path.parent == _TESTS:  # the harness puts its tensors where they belong by itself
        return path.name.startswith("test_")
    return _TESTS in path.parents


def _by_a_test() -> bool:
    """Return whether the code that called into torch, NumPy or a task is a test module's."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename.startswith(_LIBRARIES) or frame.f_code is toy_data.__code__:
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return _is_a_tests(frame.f_code.co_filename)


class _MadeThere(TorchFunctionMode):
    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if type(func) is MethodWrapperType:  # an attribute
            return func(*args)
        kwargs = kwargs or {}
        if func in _MAKE and kwargs.get("device") is None and _by_a_test():
            return self._make(func, args, kwargs)
        if func in _NUMPY and _by_a_test():
            return func(args[0].cpu(), *args[1:], **kwargs)
        if func in _LOOK and _by_a_test():
            return func(*tree_map_only(Tensor, Tensor.cpu, args), **kwargs)
        return func(*args, **kwargs)

    def _make(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Return a leaf on the device with the values that it has on the CPU."""
        if "out" in kwargs:
            return func(*args, **kwargs)
        leaf = kwargs.pop("requires_grad", False)
        made: Tensor = func(*args, **kwargs).to(self.device)
        return made.requires_grad_() if leaf else made


#: The device while there is one.
_PUT: list[torch.device] = []


def _kinds(kind: type[nn.Module]) -> Iterator[type[nn.Module]]:
    """Yield the classes of ours with an ``__init__`` of their own that is not replaced yet."""
    make = kind.__dict__.get("__init__")
    ours = kind.__module__.split(".")[0] in ("lightning_sgmcmc", "tasks", "tests")
    if ours and make is not None and not hasattr(make, "puts_whole"):
        yield kind
    for more in kind.__subclasses__():
        yield from _kinds(more)


def _put_whole(kind: type[nn.Module]) -> Any:
    """Return a class's ``__init__`` after which what a test makes of it is on the device."""
    make: Any = kind.__dict__["__init__"]

    @functools.wraps(make)
    def __init__(self: nn.Module, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        make(self, *args, **kwargs)
        if _PUT and type(self).__init__ is __init__ and _by_a_test():
            self.to(_PUT[-1])

    __init__.puts_whole = True  # type: ignore[attr-defined]
    return __init__


@contextmanager
def _tasks_put(device: torch.device) -> Iterator[None]:
    _PUT.append(device)
    with ExitStack() as stack:
        stack.callback(_PUT.pop)
        for kind in _kinds(nn.Module):
            stack.enter_context(mock.patch.object(kind, "__init__", _put_whole(kind)))
        yield


def _back(run: Any) -> Any:
    """Return a method of the Trainer after which the task is where a test had put it."""

    @functools.wraps(run)
    def and_back(self: L.Trainer, *args: Any, **kwargs: Any) -> Any:
        try:
            return run(self, *args, **kwargs)
        finally:
            task = args[0] if args else kwargs.get("model")
            if task is not None and _by_a_test():
                task.to(_PUT[-1])  # Lightning moves it to the CPU at a run's end

    return and_back


@contextmanager
def made_there(device: torch.device) -> Iterator[None]:
    """Put on a device what test modules make."""
    values = functools.partial(torch.testing.assert_close, check_device=False)
    with (
        mock.patch.object(torch.testing, "assert_close", values),
        mock.patch.object(torch, "from_numpy", torch.as_tensor),  # no mode sees the former
        _tasks_put(device),
        mock.patch.multiple(L.Trainer, **{m: _back(getattr(L.Trainer, m)) for m in _RUNS}),
        _MadeThere(device),
    ):
        yield
