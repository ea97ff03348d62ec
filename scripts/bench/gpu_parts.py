"""What ``scripts/bench/gpu.py`` measures: a function a part, from a device to plain values."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import chains as many
import torch
import yaml
from predict import Network
from torch import Tensor, nn
from torch.nn import functional

from lightning_sgmcmc import PSGLD, SGHMC, SGLD, SGNHT, BatchStream, GaussianPrior, Sampler
from lightning_sgmcmc.chain import ChainStack, starts
from lightning_sgmcmc.posterior.predict import Load, ensemble
from lightning_sgmcmc.samplers import Stacked
from tasks.nets.cnn import ConvNet
from tasks.nets.encoder_decoder import EncoderDecoder
from tasks.nets.mlp import MLP
from tasks.nets.resnet import ResNet20

ROOT = Path(__file__).resolve().parents[2]
Step = Callable[[], None]
N = 50_000
PRIOR = GaussianPrior(1.0)
SAMPLERS: dict[str, Callable[[Any], Sampler]] = {
    "SGLD": lambda p: SGLD(p, 1e-4, num_data=N, prior=PRIOR),
    "PSGLD": lambda p: PSGLD(p, 1e-5, num_data=N, prior=PRIOR),
    "SGHMC": lambda p: SGHMC(p, 1e-4, num_data=N, prior=PRIOR),
    "SGNHT": lambda p: SGNHT(p, 1e-4, num_data=N, prior=PRIOR),
}


class Classifier(nn.Module):
    """A network with the likelihood of classes."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def nll(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the negative log-likelihood of each example, [B]."""
        return functional.cross_entropy(self.net(batch[0]), batch[1], reduction="none")


def images(count: int, side: int, channels: int) -> tuple[Tensor, Tensor]:
    """Return random images and classes."""
    return torch.randn(count, channels, side, side), torch.randint(10, (count,))


def optimizer_step(net: nn.Module, batch: Any, optimizer: torch.optim.Optimizer) -> Step:
    """Return a whole step on one minibatch: gradients, and the optimizer's or sampler's own."""
    module = Classifier(net)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = module.nll(batch).mean()
        torch.autograd.backward(loss)
        return loss

    def step() -> None:
        optimizer.step(closure)

    return step


def stacked_step(
    net: nn.Module,
    data: tuple[Tensor, Tensor],
    batch_size: int,
    count: int,
    make: Callable[[Any], Sampler],
    device: torch.device,
    autocast: bool = False,
) -> Step:
    """Return a whole step of ``count`` chains as one computation, each on its own minibatches."""
    module = Classifier(net).to(device)
    names = [name for name, _ in module.named_parameters()]
    stream = BatchStream(list(data), batch_size, "independent")
    stream.bind(device, 0, num_chains=count)
    first = starts(module, names, "reinitialise", 0, range(count), PRIOR)
    stack = ChainStack(module, first).to(device)
    sampler = make(Stacked(zip(names, stack.weights, strict=True)))
    taken = 0

    def step() -> None:
        nonlocal taken
        batch = stream.at(taken)
        taken += 1

        def closure() -> Tensor:
            sampler.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
                loss: Tensor = stack.evaluate("nll", batch, True).mean(-1)
            torch.autograd.backward(loss.sum())
            return loss

        sampler.step(closure)

    return step


def seconds(step: Step, count: int, device: torch.device) -> float:
    """Return the time of a step: of the clock on a GPU, of the processor on a CPU."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = clock()
    for _ in range(count):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (clock() - began) / count


def rounds(
    steps: dict[str, Step], count: int, block: int, device: torch.device
) -> dict[str, list[float]]:
    """Return the times of interleaved blocks of steps, after some to warm up."""
    for step in steps.values():
        for _ in range(min(block, 10)):
            step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(count):
        for name, step in steps.items():
            times[name].append(seconds(step, block, device))
    return times


def ratio(times: dict[str, list[float]], name: str, reference: str) -> float:
    """Return the median over rounds of one time over another."""
    pairs = zip(times[name], times[reference], strict=True)
    return statistics.median(a / b for a, b in pairs)


def steps(device: torch.device, short: bool) -> dict[str, Any]:
    """A step over one of torch.optim.SGD with momentum, ResNet-20, batch 256."""
    batch = tuple(t.to(device) for t in images(4 if short else 256, 8 if short else 32, 3))
    size = (3, 8, 8) if short else (3, 32, 32)

    def whole(make: Callable[[Any], torch.optim.Optimizer]) -> Step:
        torch.manual_seed(0)
        net = ResNet20(image=size).to(device)
        return optimizer_step(net, batch, make(list(net.parameters())))

    sgd = partial(torch.optim.SGD, lr=1e-4, momentum=0.9)
    table = {
        "SGD, foreach": whole(partial(sgd, foreach=True)),
        "SGD, fused": whole(partial(sgd, fused=True)),
        **{name: whole(make) for name, make in SAMPLERS.items()},
    }
    times = rounds(table, 2 if short else 20, 1 if short else 20, device)
    return {
        "ms": {name: 1e3 * statistics.median(values) for name, values in times.items()},
        "over_foreach": {name: ratio(times, name, "SGD, foreach") for name in SAMPLERS},
        "over_fused": {name: ratio(times, name, "SGD, fused") for name in SAMPLERS},
    }


def chains(device: torch.device, short: bool) -> dict[str, Any]:
    """A step of 16 chains of 784-400-400-10, batches of 100, over one of one chain."""
    widths, count = ([20, 8, 10], 3) if short else ([784, 400, 400, 10], 16)
    found = {}
    for name in ("SGLD", "PSGLD", "SGHMC"):
        table = {
            k: many.step_of(many.SAMPLERS[name], widths, 100, k, str(device)) for k in (0, count)
        }
        named = {"one": table[0], "all": table[count]}
        times = rounds(named, 2 if short else 20, 1 if short else 20, device)
        found[name] = ratio(times, "all", "one")
    return {"chains": count, "all_over_one": found}


def graphs(device: torch.device, short: bool) -> dict[str, Any]:
    """A step of SGHMC whose network runs as a CUDA graph, forwards and backwards, over one without.

    On a CPU, which has none, a step over itself.
    """

    def made(net: nn.Module, batch: tuple[Tensor, Tensor], graphed: bool) -> Step:
        module: Any = net.to(device)
        parameters = list(module.parameters())
        if graphed and device.type == "cuda":
            module = torch.cuda.make_graphed_callables(module, (batch[0],))
        return optimizer_step(module, batch, SAMPLERS["SGHMC"](parameters))

    side, count = (8, 4) if short else (32, 256)
    nets: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, Tensor]]] = {
        "ResNet-20, batch 256": (
            partial(ResNet20, image=(3, side, side)),
            images(count, side, 3),
        ),
        "784-400-400-10, batch 100": (
            lambda: nn.Sequential(nn.Flatten(), MLP((400, 400), inputs=784, outputs=10)),
            images(100, 28, 1),
        ),
    }
    found = {}
    for name, (make, data) in nets.items():
        batch = (data[0].to(device), data[1].to(device))
        table = {kind: made(make(), batch, kind == "graph") for kind in ("graph", "plain")}
        times = rounds(table, 2 if short else 20, 1 if short else 20, device)
        found[name] = ratio(times, "graph", "plain")
    return {"graph_over_plain": found}


def resnet_chains(device: torch.device, short: bool) -> dict[str, Any]:
    """Chain-steps a second of 64 chains of ResNet-20, batches of 256; fewer where memory ends."""
    count, batch, side = (2, 4, 8) if short else (64, 256, 32)
    net, data = ResNet20(image=(3, side, side)), images(20 if short else 5000, side, 3)
    found: dict[str, Any] = {}
    for kind in ("float32", "bf16-mixed"):
        used = count
        while used:
            try:
                step = stacked_step(
                    net, data, batch, used, SAMPLERS["SGHMC"], device, kind == "bf16-mixed"
                )
                times = rounds({"all": step}, 3, 1 if short else 5, device)["all"]
                break
            except torch.OutOfMemoryError:
                used //= 2
                torch.cuda.empty_cache()
        rate = used / statistics.median(times)
        found[kind] = {"chains": used, "chain_steps_a_second": rate}
    return found


def predict(device: torch.device, short: bool) -> dict[str, Any]:
    """1,500 predictions by 100 draws of pde_source's network, over the time on the CPU."""
    size, draws, examples = (12, 4, 6) if short else (60, 100, 1500)
    on_cpu = 2 if short else 10  # draws on the CPU, whose time is proportional to them

    def run(where: torch.device, count: int) -> Step:
        torch.manual_seed(0)
        module = Network([1, 1])
        module.net = EncoderDecoder(size, size, channels=(16, 32), activation="silu")
        module.to(where).eval()
        loads: list[Load] = [
            partial(
                dict, {n: p + 0.1 * torch.randn_like(p) for n, p in module.state_dict().items()}
            )
            for _ in range(count)
        ]
        x = torch.randn(examples, 1, size, size, device=where)
        weights = torch.full((count,), 1 / count, dtype=torch.float64)

        def step() -> None:
            ensemble(module, loads, weights, "predictive", x)

        return step

    fast = min(rounds({"gpu": run(device, draws)}, 3, 1, device)["gpu"])
    slow = run(torch.device("cpu"), on_cpu)
    began = time.perf_counter()
    slow()
    cpu = (time.perf_counter() - began) * draws / on_cpu
    return {"seconds": fast, "seconds_on_the_cpu": cpu, "times_faster": cpu / fast}


def tables(device: torch.device, short: bool) -> dict[str, Any]:
    """Hours of pSGLD's Tables 2 and 3, ten repetitions of each row as stacked chains.

    Extrapolated: the time of a step of ten PSGLD chains, times the steps of all rows.
    """
    hours: dict[str, float] = {}
    for name, label in (("psgld_mnist", "MLP"), ("psgld_cnn", "CNN")):
        settings = yaml.safe_load((ROOT / "configs" / "experiments" / f"{name}.yaml").read_text())
        rows = len(settings["settings"]["methods"])
        for column, its in settings["settings"]["columns"].items():
            hidden = its.get("changes", {}).get("model.net.hidden")
            if column == "reduced" or (label == "MLP" and hidden is None):
                continue
            net = nn.Sequential(nn.Flatten(), MLP(hidden or (1,), inputs=784, outputs=10))
            if label == "CNN":
                net = nn.Sequential(ConvNet(hidden=hidden) if hidden else ConvNet())
            count, data = (2, images(200, 28, 1)) if short else (10, images(5000, 28, 1))
            step = stacked_step(net, data, 100, count, SAMPLERS["PSGLD"], device)
            times = rounds({"all": step}, 1 if short else 5, 1 if short else 20, device)["all"]
            steps_of_a_row = its["epochs"] * N_MNIST // 100
            hours[f"{label} {column}"] = statistics.median(times) * steps_of_a_row * rows / 3600
    return {"hours": hours, "in_all": sum(hours.values())}


N_MNIST = 60_000


def tests(device: torch.device, short: bool) -> dict[str, Any]:
    """The tests that take a device, on it."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", f"--device={device.type}"]
    names = (
        ["lightning_sgmcmc/priors/test_gaussian.py"]
        if short
        else sorted(import_module("tests.device").TAKE_IT)
    )
    where = ["--continue-on-collection-errors", *(f"tests/{name}" for name in names)]
    run = subprocess.run([*command, *where], cwd=ROOT, capture_output=True, text=True)
    lines = run.stdout.strip().splitlines()
    if run.returncode not in (0, 1) or not lines:
        raise RuntimeError(f"pytest has not run: {(run.stdout + run.stderr)[-2000:]}")
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"status": run.returncode, "summary": lines[-1] if lines else "", "failed": failed}


def waits(device: torch.device, short: bool) -> dict[str, Any]:
    """Waits of the host for the device in ten steps, by torch's own count; none on a CPU."""
    if device.type != "cuda":
        return {"waits": None}
    found = {}
    for name, make in SAMPLERS.items():
        data = images(1000, 8, 3)
        step = stacked_step(ResNet20(image=(3, 8, 8)), data, 32, 4, make, device)
        for _ in range(5):
            step()
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(10):
                step()
        torch.cuda.set_sync_debug_mode("default")
        found[name] = sum("synchroniz" in str(w.message) for w in seen)
    return {"waits": found}


#: All parts, the dearest last.
PARTS: dict[str, Callable[[torch.device, bool], dict[str, Any]]] = {
    "steps": steps,
    "chains": chains,
    "graphs": graphs,
    "waits": waits,
    "predict": predict,
    "resnet_chains": resnet_chains,
    "tables": tables,
    "tests": tests,
}
