"""What the tests of the baselines share."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lightning_sgmcmc.callbacks import ChainCheckpoint
from lightning_sgmcmc.posterior import KeptDraws
from lightning_sgmcmc.samplers import Sampler, Stacked
from tests.lightning_sgmcmc.problem import Problem
from tests.toy import NUM_FEATURES, Toy, ToyData, trainer


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def net(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(NUM_FEATURES, 4), nn.Tanh(), nn.Linear(4, 1))


def keeper(module: Toy) -> KeptDraws:
    return module.kept


def draw(folder: Path, chain: int, step: int) -> dict[str, Tensor]:
    return load_file(folder / "samples" / f"chain{chain}" / f"step_{step}.safetensors")


def draws(folder: Path) -> dict[str, dict[str, Tensor]]:
    files = sorted((folder / "samples").glob("chain*/step_*.safetensors"))
    return {str(file.relative_to(folder)): load_file(file) for file in files}


def fit(module: Toy, folder: Path, steps: int, every: int = 10**6, resume: bool = False) -> Toy:
    """Run, or continue, a module in a folder with checkpoints every so many steps."""
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    trainer(folder, steps, [ChainCheckpoint(every)]).fit(
        module,
        datamodule=ToyData(),
        ckpt_path=str(folder / "checkpoints" / "last.ckpt") if resume else None,
        weights_only=True,
    )
    return module


def assert_same(a: dict[str, dict[str, Tensor]], b: dict[str, dict[str, Tensor]]) -> None:
    """Assert that two runs kept the same draws, to the bit."""
    assert list(a) == list(b)
    for file, tensors in a.items():
        for key, value in tensors.items():
            assert torch.equal(value, b[file][key]), (file, key)


def assert_stacked_is_alone(make: Callable[..., Sampler], steps: int = 12) -> None:
    """Assert that three stacked chains go where each goes alone, from its own start and batches.

    Args:
        make: Builds a sampler from parameters and the number of its (first) chain.
        steps: Steps to take.
    """
    problems = [Problem(seed=k) for k in range(3)]
    for k, problem in enumerate(problems):
        problem.x, problem.y = problems[0].x, problems[0].y
        problem.step_number = k
    rows = [problem.twin() for problem in problems]
    ends = [problem.run(make(problem.params, chain=k), steps) for k, problem in enumerate(problems)]
    stacked = [
        nn.Parameter(torch.stack([row.params[i].detach() for row in rows]))
        for i in range(len(rows[0].params))
    ]
    sampler = make(Stacked(stacked), chain=0)
    for _ in range(steps):
        grads = []
        for k, row in enumerate(rows):
            with torch.no_grad():
                for own, p in zip(row.params, stacked, strict=True):
                    own.copy_(p[k])
            loss = row.nll(row.batch(row.step_number)).mean()
            grads.append(torch.autograd.grad(loss, row.params))
            row.step_number += 1
        for p, parts in zip(stacked, zip(*grads, strict=True), strict=True):
            p.grad = torch.stack(parts)
        sampler.step()
    for k, end in enumerate(ends):
        found = torch.cat([p.detach()[k].reshape(-1) for p in stacked])
        assert torch.allclose(found, end, rtol=1e-9, atol=1e-12)
