"""A GPU for machines without one: ``--device fake``.

Tensors that a program puts on ``cuda`` are kept in the memory of the CPU, with a note on their
storage that says so. What a real GPU refuses is refused: an operation on tensors of both devices
(but for single numbers), and NumPy's view of a tensor that is not on the CPU. Values, autograd and
``vmap`` are those of the CPU, so that every test can run; what differs by rounding on a GPU, or by
its generators, is not seen.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import MethodWrapperType
from typing import Any
from unittest import mock

import torch
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from lightning_sgmcmc import kernels
from lightning_sgmcmc.noise import philox

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")

# By the address of every storage that a tensor on the GPU has. A weak reference keeps the address
# from reuse, so that what is found here is meant.
_ON_GPU: dict[int, StorageWeakRef] = {}
#: How many there may be before those whose storage is gone are dropped.
_MOST = [10_000]
_DEVICE, _IS_CUDA = Tensor.device.__get__, Tensor.is_cuda.__get__  # type: ignore[attr-defined]
# These take tensors of both devices.
_MIX = (
    "aten::copy_",
    "aten::_foreach_copy_",
    "aten::_to_copy",
    "aten::index.Tensor",
    "aten::set_.source_Tensor",
    "aten::_has_compatible_shallow_copy_type",
)


def _beneath(tensor: Tensor) -> Tensor:
    """Return the plain tensor that ``vmap`` has wrapped."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def on_gpu(tensor: Tensor) -> bool:
    """Return whether a tensor counts as one of the GPU."""
    tensor = _beneath(tensor)
    if tensor.layout != torch.strided:
        return False
    return _storage(tensor)._cdata in _ON_GPU


def _storage(tensor: Tensor) -> Any:
    if is_lazy(tensor):  # refuses to be asked
        with torch._C.DisableTorchFunctionSubclass():
            return tensor.untyped_storage()
    return tensor.untyped_storage()


def put(tensor: Tensor, gpu: bool) -> Tensor:
    """Let a tensor of its own memory count as one of a device."""
    storage = _storage(_beneath(tensor))
    if not gpu:
        _ON_GPU.pop(storage._cdata, None)
    elif storage._cdata not in _ON_GPU:
        _note(storage)
    return tensor


def _note(storage: Any) -> None:
    if len(_ON_GPU) >= _MOST[0]:
        for address in [a for a, known in _ON_GPU.items() if known.expired()]:
            del _ON_GPU[address]
        _MOST[0] = max(10_000, 2 * len(_ON_GPU))
    _ON_GPU[storage._cdata] = StorageWeakRef(storage)


def _tensors(*trees: Any) -> list[Tensor]:
    """Return the tensors among the leaves of lists, tuples and dictionaries."""
    found: list[Tensor] = []
    for tree in trees:
        if isinstance(tree, Tensor):
            found.append(tree)
        elif isinstance(tree, (list, tuple)):
            found += _tensors(*tree)
        elif isinstance(tree, dict):
            found += _tensors(*tree.values())
    return found


@functools.cache
def _name(func: Any) -> str:
    return f"{func._schema.name}.{func._schema.overload_name}".removesuffix(".")


#: Arguments of the calls in hand: what a call on tensors of the GPU makes is there, too.
_INSIDE: list[Any] = [()]


class _Propagate(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What is computed from tensors of the GPU is on the GPU."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled beneath, and the wrapper would cost as much as the rest

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = _tensors(args, kwargs)
        gpu = [on_gpu(t) for t in given]
        name = _name(func)
        result = func(*args, **(kwargs or {}))
        if name in _MIX:
            if name in ("aten::index.Tensor", "aten::_to_copy"):
                put(result, gpu[:1] == [True])  # a number comes as such
            return result
        if any(gpu) or (not given and any(map(on_gpu, _tensors(_INSIDE[-1])))):
            if not all(gpu) and any(t.dim() for g, t in zip(gpu, given, strict=True) if not g):
                raise RuntimeError(f"{name}: expected all tensors to be on one device, got {gpu}")
            for output in _tensors(result):
                if output.layout == torch.strided:
                    put(output, True)
        return result


def _is_cuda(device: Any) -> bool:
    if isinstance(device, int):
        return True
    return torch.device(device).type == "cuda"


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device) or (
        isinstance(value, str) and value.split(":")[0] in ("cpu", "cuda")
    )


class _Devices(TorchFunctionMode):
    """Says where a tensor is, and moves it."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if type(func) is MethodWrapperType:  # an attribute
            if func == _DEVICE:
                return CUDA if on_gpu(args[0]) else CPU
            return on_gpu(args[0]) if func == _IS_CUDA else func(*args)
        kwargs = dict(kwargs or {})
        if func in (Tensor.numpy, Tensor.__array__) and on_gpu(args[0]):
            raise TypeError("can't convert a tensor of the GPU to numpy: copy it to the host first")
        if func is Tensor.__deepcopy__:
            return put(func(*args, **kwargs), on_gpu(args[0]))
        if func is Tensor.cpu:
            return _moved(args[0], False)
        if func is Tensor.cuda:
            return _moved(args[0], True)
        if func is Tensor.to:
            return self._to(*args, **kwargs)
        if func is Tensor.pin_memory:  # asks the driver
            return args[0]
        if func is Tensor.tolist and on_gpu(args[0]):
            return _moved(args[0], False).tolist()
        device = kwargs.get("device")
        if device is None:
            _INSIDE.append((args, kwargs))
            try:
                return func(*args, **kwargs)
            finally:
                _INSIDE.pop()
        kwargs["device"] = CPU
        result = func(*args, **kwargs)
        shared = any(t is result or _same_memory(t, result) for t in _tensors(args))
        return put(result.clone() if shared else result, _is_cuda(device))

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        gpu = on_gpu(tensor)
        if args and isinstance(args[0], Tensor):
            gpu, args = on_gpu(args[0]), (args[0].dtype, *args[1:])
        given = [*args, kwargs.pop("device", None), kwargs.pop("dtype", None)]
        devices = [a for a in given if _is_device(a)]
        if devices:
            gpu = _is_cuda(devices[0])
        dtype = next((a for a in given if isinstance(a, torch.dtype)), tensor.dtype)
        kwargs.pop("non_blocking", None)
        return _moved(tensor.to(dtype=dtype, **kwargs), gpu)


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return _beneath(a).untyped_storage()._cdata == _beneath(b).untyped_storage()._cdata


def _moved(tensor: Tensor, gpu: bool) -> Tensor:
    if on_gpu(tensor) == gpu:
        return tensor
    with torch._C.DisableTorchFunction():
        copy = put(tensor.clone(), gpu)
    return copy.as_subclass(type(tensor)) if is_lazy(tensor) else copy


def _location(storage: Any) -> str | None:
    """Return where a storage is to be restored when it is read from a file."""
    return "fake:0" if storage._cdata in _ON_GPU else None


def _restored(storage: Any, location: str) -> Any:
    """Return a storage that was read, on the device that it was on, None if it is not of here."""
    if location != "fake:0":
        return None
    _note(storage)
    return storage


torch.serialization.register_package(1, _location, _restored)


def _generator(device: Any = "cpu") -> torch.Generator:
    return _Generator("cpu")


_Generator = torch.Generator


def _philox4x32(counter: Any, key: Any) -> Any:
    """Make the words beneath the fake, as a kernel would: it would see each of 140 operations."""
    given = _tensors(counter, key)
    if len(set(map(on_gpu, given))) != 1:
        return _words(counter, key)
    gpu = on_gpu(given[0])
    with torch._C.DisableTorchFunction(), _disable_current_modes():  # type: ignore[no-untyped-call]
        words = _words(counter, key)
    for word in _tensors(words):
        put(word, gpu)
    return words


_words = philox.philox4x32


#: How many fakes surround what runs.
_DEPTH = [0]


@contextmanager
def _deeper() -> Iterator[None]:
    _DEPTH[0] += 1
    try:
        yield
    finally:
        _DEPTH[0] -= 1


@contextmanager
def _no_kernels() -> Iterator[None]:
    """Set one variable; ``patch.dict`` would take back what fixtures set of others."""
    before = os.environ.get(kernels.VARIABLE)
    os.environ[kernels.VARIABLE] = "off"
    try:
        yield
    finally:
        os.environ.pop(kernels.VARIABLE)
        if before is not None:
            os.environ[kernels.VARIABLE] = before


@contextmanager
def fake_gpu() -> Iterator[None]:
    """Let ``cuda`` be a device for a while."""
    with (
        _deeper(),
        _no_kernels(),  # a kernel needs a driver,
        mock.patch.object(kernels, "_installed", return_value=False),  # also where a test asks
        mock.patch.object(philox, "philox4x32", _philox4x32),
        mock.patch.object(torch, "Generator", _generator),
        mock.patch.object(torch.nn.RNNBase, "flatten_parameters"),  # cuDNN's
        mock.patch.object(torch.cuda, "mem_get_info", return_value=(2**32, 2**33)),
        mock.patch.object(torch.cuda, "get_device_name", return_value="a fake GPU"),
        mock.patch.object(torch.cuda, "get_rng_state", return_value=torch.empty(0)),
        mock.patch.object(torch.cuda, "set_rng_state"),
        _Propagate(),
        _Devices(),
    ):
        yield


class FakeAccelerator(CPUAccelerator):
    """Lets a Trainer put its module and batches on the fake GPU."""

    def setup_device(self, device: torch.device) -> None:
        """There is nothing to set up."""

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        """Return the one device."""
        return [CUDA]


_FOR_GOOD = ExitStack()


def fake_trainer_settings() -> dict[str, Any]:
    """Return the settings with which a Trainer runs on the fake GPU.

    A process that a test started has the fake from here to its end.
    """
    if not _DEPTH[0]:
        _FOR_GOOD.enter_context(fake_gpu())
    strategy = SingleDeviceStrategy(device=CUDA)
    return {"accelerator": FakeAccelerator(), "strategy": strategy, "devices": 1}
