"""K chains as one computation are K chains, for every sampler."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lightning_sgmcmc import (
    HAMCMC,
    HASGLD,
    HMC,
    PSGLD,
    SGFS,
    SGHMC,
    SGLD,
    SGNHT,
    SVRG,
    AveragedLBFGS,
    ControlVariate,
    DiagonalFisher,
    FullFisher,
    GaussianPrior,
    GradientEstimator,
    NaturalLangevin,
    RMSProp,
    load_posterior,
)
from lightning_sgmcmc.callbacks import ChainCheckpoint, GradualPruning
from lightning_sgmcmc.chain import BatchStream
from lightning_sgmcmc.chain.burn_in import OptimizerBurnIn
from lightning_sgmcmc.chain.selection import load_pretrained
from lightning_sgmcmc.chain.split import state_of, together
from lightning_sgmcmc.chain.stack import ChainStack
from lightning_sgmcmc.chain.starts import starts
from lightning_sgmcmc.posterior import KeptDraws
from lightning_sgmcmc.samplers import ChainsInTurn
from tests.device import DEVICE
from tests.lightning_sgmcmc.states import assert_alike
from tests.toy import NUM_FEATURES, Toy, ToyData, exact_posterior, trainer

PRIOR = GaussianPrior(4.0)
K = 3

SAMPLERS: dict[str, Callable[..., Any]] = {
    "SGLD": partial(SGLD, lr=1e-2, prior=PRIOR),
    "PSGLD": partial(PSGLD, lr=1e-3, floor=0.3, prior=PRIOR),
    "PSGLD-gamma": partial(PSGLD, lr=1e-3, gamma_probes=0, eps=0.1, prior=PRIOR),
    "SGHMC": partial(SGHMC, lr=1e-2, prior=PRIOR),
    "SGHMC-RMSProp": partial(
        SGHMC, lr=1e-3, prior=PRIOR, preconditioner=RMSProp(eps=0.1, start_at_gradient=True)
    ),
    "SGHMC-philox": partial(SGHMC, lr=1e-2, noise="philox", prior=PRIOR),
    "SGNHT": partial(SGNHT, lr=1e-2, prior=PRIOR),
    "SGLD-matched": partial(SGLD, lr=1e-2, prior=PRIOR, increments="moment-matched"),
    "NaturalLangevin": partial(NaturalLangevin, lr=1e-3, prior=PRIOR),
    "SGLD-DiagonalFisher": partial(
        SGLD, lr=1e-3, prior=PRIOR, preconditioner=DiagonalFisher(labels="model", eps=0.1)
    ),
    "SGLD-FullFisher": partial(SGLD, lr=1e-3, prior=PRIOR, preconditioner=FullFisher(eps=0.1)),
    "SGFS": partial(SGFS, lr=0.05, prior=PRIOR),
    "SGFS-diagonal": partial(SGFS, lr=0.05, variant="diagonal", prior=PRIOR),
    "HAMCMC": partial(HAMCMC, lr=1e-2, prior=PRIOR),
    "LBFGS-matrix": partial(HASGLD, lr=1e-2, prior=PRIOR),
    "LBFGS-matrix-printed": partial(HASGLD, lr=1e-3, prior=PRIOR, paper_mode=True),
    "HASGLD": partial(HASGLD, lr=1e-2, slots=1, prior=PRIOR),
    "SGHMC-LBFGS": partial(SGHMC, lr=1e-3, prior=PRIOR, preconditioner=AveragedLBFGS(slots=1)),
    "HASGLD-slots": partial(HASGLD, lr=1e-2, slots=3, memory=3, prior=PRIOR),
}
each_sampler = pytest.mark.parametrize("name", SAMPLERS)


def net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(NUM_FEATURES, 4), nn.Tanh(), nn.Linear(4, 1))


def keeper(module: Toy) -> KeptDraws:
    return module.kept


def weights(folder: Path, chain: int, step: int) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "samples" / f"chain{chain}" / f"step_{step}.safetensors")


@each_sampler
def test_stacked_chains_are_separate_chains(tmp_path: Path, name: str) -> None:
    """Each of K chains ends where it ends alone, with its start, noise and minibatches."""
    sampling = "independent" if len(name) % 2 else "reshuffled"
    make = SAMPLERS[name]
    settings: dict[str, Any] = {"burn_in": 6, "thinning": 14}
    module = Toy(make, net(), num_chains=K, starts="same", **settings)
    trainer(tmp_path / "all", 20).fit(module, datamodule=ToyData(sampling=sampling))
    assert isinstance(module.chain.sampler, ChainsInTurn) == name.startswith(
        ("HASGLD", "SGHMC-LBFGS")
    )
    means = keeper(module).chain_means("test")
    assert means is not None
    ends, states = [], []
    stacked = module.chain.sampler.state_dict()
    for chain in range(K):
        alone = Toy(partial(make, chain=chain), net(), **settings)
        folder = tmp_path / str(chain)
        trainer(folder, 20).fit(alone, datamodule=ToyData(sampling=sampling))
        expected, found = weights(folder, chain, 20), weights(tmp_path / "all", chain, 20)
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=2e-4, atol=2e-5)
        own = keeper(alone).ensemble("test").mean
        torch.testing.assert_close(means[chain], own, rtol=2e-4, atol=2e-5)
        assert keeper(alone).chain_means("test") is None
        ends.append(expected["net.0.weight"])
        assert alone.chain.sampler.gradients == module.chain.sampler.gradients
        states.append(alone.chain.sampler.state_dict())
        assert_alike(state_of(stacked, chain, K), states[-1])
    assert not torch.allclose(ends[0], ends[1], atol=1e-3)
    in_turn = isinstance(module.chain.sampler, ChainsInTurn)
    parts = [state_of(stacked, k, K) for k in range(K)]
    joined = [together(states, in_turn), together(parts, in_turn)]
    for name in ("noise", "prior") if in_turn else ():  # which no chain in turn uses
        for state in (stacked, *joined):
            state["chain"].pop(name)
    assert_alike(joined[0], stacked)
    assert_alike(joined[1], stacked, exact=True)


@pytest.mark.parametrize("gradients", [ControlVariate(), SVRG(4)], ids=["fixed", "svrg"])
@pytest.mark.parametrize(
    "name", ["SGHMC-RMSProp", "NaturalLangevin", "HAMCMC", "HASGLD", "SGLD-DiagonalFisher"]
)
def test_stacked_chains_have_centres_of_their_own(
    tmp_path: Path, name: str, gradients: GradientEstimator
) -> None:
    """Each of K chains ends where it ends alone, after an optimizer and pruning."""
    settings: dict[str, Any] = {
        "burn_in": 12,
        "thinning": 13,
        "gradients": gradients,
        "burn_in_optimizer": OptimizerBurnIn(partial(torch.optim.SGD, lr=0.01), 5),
    }

    def run(make: Any, folder: Path, **more: Any) -> Toy:
        module = Toy(make, net(), **settings, **more)
        pruning = [GradualPruning(0.3, start=6, stop=11, every=2)]
        trainer(folder, 25, pruning).fit(module, datamodule=ToyData())
        return module

    module = run(SAMPLERS[name], tmp_path / "all", num_chains=K, starts="same")
    for centre, mask in zip(module.chain.gradients.centre, module.chain.sampler.masks, strict=True):
        assert not centre[mask == 0].any()
    for chain in range(K):
        folder = tmp_path / str(chain)
        alone = run(partial(SAMPLERS[name], chain=chain), folder)
        expected, found = weights(folder, chain, 25), weights(tmp_path / "all", chain, 25)
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=2e-4, atol=2e-5)
        assert alone.chain.num_gradients == module.chain.num_gradients
        for ours, its in zip(
            alone.chain.gradients.centre, module.chain.gradients.centre, strict=True
        ):
            torch.testing.assert_close(its[chain], ours, rtol=2e-4, atol=2e-5)


def test_starts_are_each_chains_own(tmp_path: Path) -> None:
    """Chain 0 starts at the net, the others where reset_parameters puts them, by the seed."""

    def states(seed: int, starts: Any) -> list[dict[str, torch.Tensor]]:
        module = Toy(
            partial(SGLD, lr=1e-9, seed=seed, prior=PRIOR),
            net(),
            num_chains=K,
            starts=starts,
            burn_in=1,
        )
        trainer(tmp_path / f"{seed}{starts}{np.random.default_rng().integers(1 << 40)}", 2).fit(
            module, datamodule=ToyData()
        )
        return [module.chain.state(k) for k in range(K)]

    first, again, other = (states(seed, "reinitialise") for seed in (1, 1, 2))
    torch.testing.assert_close(first[0]["net.0.weight"], net()[0].weight, atol=1e-3, rtol=0)
    for k in range(1, K):
        assert torch.equal(first[k]["net.0.weight"], again[k]["net.0.weight"])
        assert (first[k]["net.0.weight"] - other[k]["net.0.weight"]).abs().max() > 0.05
        bound = NUM_FEATURES**-0.5  # torch's initialisation is U(-bound, bound)
        assert float(first[k]["net.0.weight"].abs().max()) < bound + 1e-3
        assert (first[k]["net.0.weight"] - first[0]["net.0.weight"]).abs().max() > 0.05
    drawn = states(1, "prior")
    assert float(drawn[1]["net.0.weight"].abs().max()) > 1.5  # standard deviation 2


def test_starts_from_the_prior_have_its_law() -> None:
    """Mean, variance and independence of 5,050 weights N(3, 4) of each of two chains: 5 sigma."""
    layer = nn.Linear(100, 50)
    first = {name: p.detach().clone() for name, p in layer.named_parameters()}
    prior = GaussianPrior(variance=4.0, mean=3.0)
    drawn = starts(layer, list(first), "prior", 0, range(3), prior)
    assert all(torch.equal(drawn[0][name], value) for name, value in first.items())
    z = [(torch.cat([p.flatten() for p in each.values()]).double() - 3) / 2 for each in drawn[1:]]
    bound = 5 / len(z[0]) ** 0.5
    for each in z:
        assert abs(float(each.mean())) < bound
        assert abs(float(each.square().mean()) - 1) < 2**0.5 * bound
    assert abs(float((z[0] * z[1]).mean())) < bound


def test_attention_starts_anew_in_every_chain() -> None:
    """It has no ``reset_parameters``."""
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(4, 2)
    first = {name: p.detach().clone() for name, p in attention.named_parameters()}
    drawn = starts(attention, list(first), "reinitialise", 0, range(3), PRIOR, set())
    weights = [each["in_proj_weight"] for each in drawn]
    bound = (6 / (12 + 4)) ** 0.5  # Glorot's
    for a, b in itertools.combinations(weights, 2):
        assert not torch.isclose(a, b).any()
    for each in weights:
        assert 0.8 * bound < float(each.abs().max()) < bound
    assert all(torch.equal(p, first[name]) for name, p in attention.named_parameters())


class _Tuned(nn.Module):
    """Initialises its layer in a way of its own, when it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.layer.bias, 0.7)


def test_starts_are_as_the_network_was_built() -> None:
    """A network that initialises its layers does so after they have done it themselves."""
    net = nn.Sequential(_Tuned(), nn.Linear(3, 1))
    first = {name: p.detach().clone() for name, p in net.named_parameters()}
    _, drawn = starts(net, list(first), "reinitialise", 0, range(2), PRIOR, set())
    assert torch.equal(drawn["0.layer.bias"], torch.full((3,), 0.7))
    assert not torch.isclose(drawn["0.layer.weight"], first["0.layer.weight"]).any()


def test_starts_leave_what_is_not_sampled(tmp_path: Path) -> None:
    """Frozen statistics, which ``reset_parameters`` would forget, are those of all chains."""
    layers = nn.Sequential(nn.Linear(NUM_FEATURES, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).eval()
    layers[1].running_mean.fill_(5.0)
    module = Toy(partial(SGLD, lr=1e-9), layers, num_chains=K, burn_in=1)
    module.train()
    layers[1].eval()
    with pytest.warns(UserWarning, match="in eval mode"):
        trainer(tmp_path, 2).fit(module, datamodule=ToyData())
    assert torch.equal(layers[1].running_mean, torch.full((4,), 5.0))


@pytest.mark.parametrize(
    ("name", "gradients"),
    [("PSGLD", None), ("SGHMC", SVRG(7)), ("SGHMC", ControlVariate()), ("HASGLD", None)],
)
def test_stacked_chains_resume_to_the_bit(
    tmp_path: Path, name: str, gradients: GradientEstimator | None
) -> None:
    def run(folder: Path, steps: int, resume: bool = False) -> Toy:
        module = Toy(
            SAMPLERS[name],
            net(),
            num_chains=2,
            burn_in=10,
            thinning=3,
            burn_in_optimizer=OptimizerBurnIn(partial(torch.optim.Adam, lr=1e-2), 5),
            gradients=gradients,
        )
        trainer(folder, steps, [ChainCheckpoint(5)]).fit(
            module,
            datamodule=ToyData(),
            ckpt_path=str(folder / "checkpoints" / "last.ckpt") if resume else None,
            weights_only=True,
        )
        return module

    whole = run(tmp_path / "whole", 30)
    run(tmp_path / "parts", 15)
    parts = run(tmp_path / "parts", 30, resume=True)
    assert whole.chains is not None
    assert parts.chains is not None
    for a, b in zip(whole.chains.weights, parts.chains.weights, strict=True):
        assert torch.equal(a, b)
    keeps = [keeper(module) for module in (whole, parts)]
    assert torch.equal(keeps[0].ensemble("test").mean, keeps[1].ensemble("test").mean)
    for kind in ("weights", "forces", "predictions"):
        assert np.array_equal(*(keep.probes.trace(kind) for keep in keeps))
    means = [keep.chain_means("test") for keep in keeps]
    assert means[0] is not None
    assert torch.equal(means[0], means[1])
    # Both chains' draws make the ensemble.
    torch.testing.assert_close(means[0].mean(0), keeps[0].ensemble("test").mean)


def test_chains_sample_the_posterior(tmp_path: Path) -> None:
    """Mean and variance of linear regression over 40 chains, each in the ensemble and on disk.

    Full batches and SGHMC, whose variances are exact; the 40 chains' final states are independent
    draws: five standard errors.
    """
    module = Toy(
        partial(SGHMC, lr=0.05, momentum=0.7, prior=PRIOR),
        num_chains=40,
        burn_in=150,
        thinning=10,
        starts="prior",
    )
    run = trainer(tmp_path, 250)
    run.fit(module, datamodule=ToyData(64, "full"))
    mean, covariance = exact_posterior()
    traces = module.kept.weight_traces(3)[1]
    assert traces.shape == (40, 10, 3)
    spread = np.sqrt(np.diag(covariance))
    chain_means = traces.mean(1)
    error = chain_means.std(0) / np.sqrt(40)
    assert (np.abs(chain_means.mean(0) - mean) < 5 * error).all()
    assert (error < 0.2 * spread).all()
    squares = ((traces - mean) ** 2).mean(1)
    assert (np.abs(squares.mean(0) - spread**2) < 5 * squares.std(0) / np.sqrt(40)).all(), (
        squares.mean(0) / spread**2
    )
    posterior = load_posterior(tmp_path, Toy())
    assert len(posterior) == 400
    x = ToyData().test_dataloader().dataset.tensors[0].to(DEVICE)
    found = posterior.predict(x).mean
    torch.testing.assert_close(found, module.kept.ensemble("test").mean, rtol=1e-4, atol=1e-5)


def test_samplers_that_follow_the_loss_do_not_run_in_turn(tmp_path: Path) -> None:
    sampler = partial(HMC, lr=1e-3, prior=PRIOR, preconditioner=AveragedLBFGS(slots=1))
    module = Toy(sampler, net(), burn_in=2, num_chains=2)
    with pytest.raises(
        ValueError, match="HMC follows the loss of each chain and cannot run several"
    ):
        trainer(tmp_path, 4).fit(module, datamodule=ToyData(sampling="full"))


def test_the_number_of_examples_that_a_sampler_is_given_counts(tmp_path: Path) -> None:
    module = Toy(partial(SGLD, lr=1e-3, num_data=6400, prior=PRIOR), burn_in=2)
    trainer(tmp_path, 4).fit(module, datamodule=ToyData())
    assert module.chain.sampler.num_data == 6400


def test_pruned_chains_have_masks_of_their_own(tmp_path: Path) -> None:
    module = Toy(SAMPLERS["SGLD"], net(), num_chains=2, burn_in=12)
    pruning = GradualPruning(0.5, start=2, stop=10, every=4)
    trainer(tmp_path, 16, [pruning]).fit(module, datamodule=ToyData())
    zeros = [module.chain.state(k)["net.0.weight"] == 0 for k in range(2)]
    assert [int(z.sum()) for z in zeros] == [6, 6]
    assert not torch.equal(*zeros)


def test_a_full_batch_is_shared(tmp_path: Path) -> None:
    data = BatchStream([torch.arange(10.0)], 3, "full")
    data.bind(torch.device("cpu"), 0, num_chains=4)
    assert data.at(7)[0].shape == (10,)
    assert not data.stacked


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_chains": 0}, "num_chains must be at least 1, got 0"),
        ({"max_gradient_noise": 0.0}, "max_gradient_noise must be positive, got 0.0"),
        (
            {"sample": ["net.9.*"]},
            r"no parameter is named like 'net.9.\*': choose among net.0.weight",
        ),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, 20).fit(
            Toy(SAMPLERS["SGLD"], net(), burn_in=1, **arguments), datamodule=ToyData()
        )


@pytest.mark.parametrize("num_chains", [1, 2])
def test_a_part_of_the_network_is_sampled(tmp_path: Path, num_chains: int) -> None:
    """The last layer moves, the rest stays pretrained and comes back with the draws."""
    pretrained = net(7)
    torch.save(pretrained.state_dict(), tmp_path / "net.pt")
    module = Toy(
        SAMPLERS["SGLD"],
        net(),
        burn_in=2,
        num_chains=num_chains,
        sample=["net.2.*"],
        pretrained=str(tmp_path / "net.pt"),
    )
    run = trainer(tmp_path / "run", 8)
    assert module.chain.sampled == [
        "net.2.weight",
        "net.2.bias",
    ]  # asked before the weights are loaded
    run.fit(module, datamodule=ToyData())
    assert list(module.chain.state(0)) == ["net.2.weight", "net.2.bias"]
    assert module.chain.sampler.num_parameters == 5
    assert torch.equal(module.net[0].weight, pretrained[0].weight)
    posterior = load_posterior(tmp_path / "run", Toy(net=net()))
    assert len(posterior) == 6 * num_chains
    for draw in posterior:
        assert torch.equal(draw.net[0].weight, pretrained[0].weight)
        assert not torch.equal(draw.net[2].weight, pretrained[2].weight)


@pytest.mark.parametrize("content", [b"a,b,kind\n1,2,3\n", b"", nn.Linear(2, 2)])
def test_a_file_that_holds_no_weights_is_refused(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "weights.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(ValueError, match=r"weights\.pt holds no weights that are read without"):
        load_pretrained(nn.Linear(2, 2), path)
    (tmp_path / "w.safetensors").write_bytes(b"no header")
    with pytest.raises(ValueError, match=r"w\.safetensors holds no weights, or is damaged"):
        load_pretrained(nn.Linear(2, 2), tmp_path / "w.safetensors")


def test_pretrained_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "other.pt")
    for name, message, error in (
        ("other.pt", "does not fit the module: net.0.bias, net.0.weight", ValueError),
        ("none.pt", "are missing", FileNotFoundError),
    ):
        module = Toy(SAMPLERS["SGLD"], net(), burn_in=1, pretrained=str(tmp_path / name))
        with pytest.raises(error, match=message):
            trainer(tmp_path, 5).fit(module, datamodule=ToyData())


@pytest.mark.parametrize("num_chains", [1, 2])
def test_chains_that_do_not_sample_the_target_say_so(tmp_path: Path, num_chains: int) -> None:
    make = partial(HASGLD, lr=1e-3, prior=PRIOR, paper_mode=True)
    module = Toy(make, net(), num_chains=num_chains, burn_in=2)
    trainer(tmp_path, 4).fit(module, datamodule=ToyData())
    assert [note for note in module.chain.notes() if "paper_mode" in note] != []


def test_results_name_the_chains(tmp_path: Path) -> None:
    from lightning_sgmcmc.callbacks.report import results

    module = Toy(SAMPLERS["HASGLD"], net(), num_chains=2, burn_in=4)
    run = trainer(tmp_path, 12)
    run.fit(module, datamodule=ToyData())
    content = results.build(module, {}, "toy", 1.0)
    results.write(tmp_path, content)
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["sampler"]["name"] == "HASGLD"
    assert (found["num_chains"], found["num_draws"], found["num_parameters"]) == (2, 8, 21)


def test_tied_weights_are_one_weight_in_every_chain() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
            self.second.weight = self.first.weight

        def twice(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x))

    module = Tied()
    weights = torch.randn(3, 2, 2)
    stack = ChainStack(module, [{"first.weight": w} for w in weights])
    x = torch.randn(5, 2)
    expected = torch.stack([x @ w.T @ w.T for w in weights])
    torch.testing.assert_close(stack.evaluate("twice", x, False), expected)


def test_a_layer_with_two_names_is_one_layer_and_stays_as_it_is() -> None:
    class TwoNames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(2, 2, bias=False)
            self.second = self.first

        def twice(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x))

    module = TwoNames()
    own, weights, x = module.first.weight, torch.randn(3, 2, 2), torch.randn(5, 2)
    stack = ChainStack(module, [{"first.weight": w} for w in weights])
    expected = torch.stack([x @ w.T @ w.T for w in weights])
    torch.testing.assert_close(stack.evaluate("twice", x, False), expected)
    assert module.first.weight is own
