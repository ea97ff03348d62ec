"""Networks that compute in bfloat16 under chains in float32: ``trainer.precision=bf16-mixed``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_sgmcmc import SGHMC, BatchStream, GaussianPrior
from tests.device import DEVICE
from tests.toy import NUM_FEATURES, Toy, ToyData, exact_posterior, toy_data, trainer

CHAINS, DRAWS, THINNING = 1000, 40, 20


class Noting(nn.Linear):
    """A layer that notes the types of its weights and outputs."""

    def __init__(self) -> None:
        super().__init__(NUM_FEATURES, 1, bias=False)
        self.seen: set[tuple[torch.dtype, torch.dtype]] = set()

    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(x)
        self.seen.add((self.weight.dtype, output.dtype))
        return output


def test_the_law_is_the_posterior_up_to_the_rounding_of_the_network() -> None:
    """Means to .2 posterior deviations and variances to 5 %, in 1,000 chains.

    The layer rounds weights of size 1 to 2 to multiples of 2^-7, an eighth of the posterior's
    deviation of .063, and the force is that at the rounded weights: of u = 2^-7 / .063, half is
    the largest shift of a mean and u^2 / 12 = .1 % the change of a variance where a rounding error
    is uniform. 40 draws of each chain, two relaxation times apart, leave standard errors of .5 %
    and 1 %, so that one of the six numbers of a right chain is outside by chance with probability
    below 1e-5.
    """
    torch.manual_seed(0)
    sampler = partial(SGHMC, lr=0.03, momentum=0.8, prior=GaussianPrior(variance=4.0))
    net = Noting()
    module = Toy(sampler, net, num_chains=CHAINS, burn_in=1).to(DEVICE)
    chain = module.chain
    chain.select()
    chain.place()
    chain.build()
    chain.sampler.stack(one_generator=True)
    chain.bind(BatchStream(toy_data(), 64, "full"))
    chain.check_task()
    draws, net.seen = [], set()
    with torch.autocast(DEVICE.type, torch.bfloat16):
        for step in range(100 + DRAWS * THINNING):
            chain.advance(chain.minibatch())
            if step >= 100 and step % THINNING == 0:
                draws.append(chain.sampler.params[0].detach().squeeze(1).double().cpu().numpy())
    assert net.seen == {(torch.float32, torch.bfloat16)}
    assert chain.sampler.velocity[0].dtype == torch.float32
    found, (mean, covariance) = np.concatenate(draws), exact_posterior()
    deviation = np.sqrt(covariance.diagonal())
    shift, ratio = (found.mean(0) - mean) / deviation, found.var(0) / deviation**2
    assert np.abs(shift).max() < 0.2, shift
    assert np.abs(ratio - 1).max() < 0.05, ratio


@pytest.mark.parametrize("chains", [1, 3])
def test_a_run_holds_its_weights_in_float32(tmp_path: Path, chains: int) -> None:
    net = Noting()
    module = Toy(partial(SGHMC, lr=1e-3), net, burn_in=5, num_chains=chains)
    trainer(tmp_path, 8, precision="bf16-mixed").fit(module, datamodule=ToyData())
    assert (torch.float32, torch.bfloat16) in net.seen
    assert {w for w, _ in net.seen} == {torch.float32}
    state: dict[str, Any] = module.chain.sampler.state_dict()["chain"]
    assert {v.dtype for v in state["velocity"]} == {torch.float32}
