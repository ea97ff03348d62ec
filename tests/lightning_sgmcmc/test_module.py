"""SGMCMCModule: its chain is the sampler's, its draws are of the posterior, its refusals early."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.optim import lr_scheduler

from lightning_sgmcmc import (
    HASGLD,
    PSGLD,
    SGHMC,
    SGLD,
    SGNHT,
    BatchStream,
    ControlVariate,
    GaussianPrior,
    Posterior,
    PriorMetric,
    RMSProp,
    load_posterior,
)
from lightning_sgmcmc.adaptation import minibatch_noise
from lightning_sgmcmc.callbacks import (
    ChainDivergedError,
    ChainGuard,
    GradualPruning,
    KeepDraws,
)
from lightning_sgmcmc.callbacks.report import results
from lightning_sgmcmc.chain.burn_in import OptimizerBurnIn
from lightning_sgmcmc.chain.schedules import BlockDecay
from lightning_sgmcmc.diagnostics import Step
from lightning_sgmcmc.posterior import KeptDraws, diagnose
from lightning_sgmcmc.posterior.diagnosis import _step
from lightning_sgmcmc.run import cli
from lightning_sgmcmc.target import FullGradient
from tests.device import DEVICE
from tests.toy import (
    NOISE,
    NUM_DATA,
    NUM_FEATURES,
    Toy,
    ToyData,
    exact_posterior,
    toy_data,
    trainer,
)

PRIOR = GaussianPrior(variance=4.0)


def keeper(run: Any) -> KeptDraws:
    return run.lightning_module.kept


def test_module_steps_as_the_bare_sampler_does(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Toy(partial(SGLD, lr=1e-2, prior=PRIOR, seed=5), burn_in=1)
    start = module.net.weight.detach().clone()
    trainer(tmp_path, 25).fit(module, datamodule=ToyData())

    weight = start.to(DEVICE, copy=True).requires_grad_()
    sampler = SGLD([weight], lr=1e-2, prior=PRIOR, seed=5, num_data=NUM_DATA)
    stream = BatchStream(toy_data(), 16)
    stream.bind(DEVICE, seed=5)
    for step in range(25):
        x, y = stream.at(step)
        sampler.zero_grad()
        (0.5 * ((y - x @ weight[0]) / 0.5) ** 2).mean().backward()
        sampler.step()
    torch.testing.assert_close(module.net.weight, weight, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "sampler",
    [
        partial(SGHMC, lr="auto", momentum=0.8, prior=PRIOR),
        partial(PSGLD, lr="auto", prior=PRIOR, floor=0.5),
        partial(HASGLD, lr=0.2, prior=PRIOR),
    ],
    ids=["sghmc", "psgld", "hasgld"],
)
def test_draws_are_of_the_exact_posterior(tmp_path: Path, sampler: Any) -> None:
    """Bayesian linear regression with full batches: mean and covariance within Monte-Carlo error.

    Draws three steps apart have lag-one correlations of at most .6 here (measured over seeds), so
    800 of them are worth at least 200: the standard error of a variance is 10 %, of a mean .07
    deviations. Added to that is the first-order samplers' own bias, at most 1 / (1 - .15).
    """
    module = Toy(sampler, burn_in=300, thinning=3, step_fraction=0.15, draw_budget=0)
    run = trainer(tmp_path, 2700, log_every_n_steps=1000)
    rows = []

    class Collect(L.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
            if module.chain.draws.keeps(module.chain.steps):
                rows.append(module.net.weight.detach().numpy()[0].copy())

    run.callbacks.append(Collect())
    run.fit(module, datamodule=ToyData(batch_size=NUM_DATA, sampling="full"))
    mean, covariance = exact_posterior()
    draws = np.array(rows)
    scale = np.sqrt(np.diag(covariance))
    assert np.abs((draws.mean(0) - mean) / scale).max() < 0.4
    ratio = draws.var(0) / np.diag(covariance)
    assert ratio.min() > 0.6
    assert ratio.max() < 1.6


def test_preconditioner_freezes_where_burn_in_ends(tmp_path: Path) -> None:
    module = Toy(partial(PSGLD, lr=1e-3, prior=PRIOR), burn_in=10)
    seen = []

    class Watch(GradualPruning):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any, **kw: Any) -> None:
            seen.append(pl_module.chain.sampler.preconditioner.square_avg[0].clone())

    trainer(tmp_path, 20, [Watch(0.0, 0, 1)]).fit(module, datamodule=ToyData())
    changes = [not torch.equal(a, b) for a, b in pairwise(seen)]
    assert changes == [True] * 9 + [False] * 10


def test_adapting_draws_are_announced(tmp_path: Path, monkeypatch: Any) -> None:
    said: list[str] = []
    monkeypatch.setattr("lightning_sgmcmc.module.rank_zero_info", said.append)
    module = Toy(partial(PSGLD, lr=1e-3, temperature=0.5), freeze_preconditioner=False)
    trainer(tmp_path, 5).fit(module, datamodule=ToyData())
    for phrase in ("adapts", "temperature is 0.5", "prior is flat"):
        assert any(phrase in line for line in said)


def test_auto_step_is_a_fraction_of_the_stability_limit(tmp_path: Path) -> None:
    module = Toy(
        partial(SGLD, lr="auto", prior=PRIOR),
        burn_in=5,
        step_fraction=0.2,
        curvature_batches=4,
        max_gradient_noise=None,
    )
    trainer(tmp_path, 10).fit(module, datamodule=ToyData())
    x = toy_data()[0].double().numpy()
    hessian = x.T @ x / NUM_DATA / 0.25 + np.eye(NUM_FEATURES) / 4 / NUM_DATA
    limit = 2 / np.linalg.eigvalsh(hessian).max()
    assert module.chain.sampler.lr == pytest.approx(0.2 * limit, rel=0.02)


def test_auto_step_bounds_the_noise_of_minibatches(tmp_path: Path) -> None:
    """256 chains on batches of two: the mean variance is 1 + e times the posterior's.

    The bound is on the worst of three directions, which see about the same noise. Draws are 100
    steps apart, two relaxation times at the bounded step, and the first is still warm from burn-in;
    768 of three weights leave a standard error of 3 %.
    """

    def excess(bound: float | None, sampling: str = "independent") -> tuple[float, dict[str, Any]]:
        module = Toy(
            partial(SGLD, lr="auto", prior=PRIOR),
            burn_in=300,
            thinning=100,
            num_chains=256,
            max_gradient_noise=bound,
            gradients=None,
        )
        states = []

        class Collect(L.Callback):
            def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
                if module.chain.draws.keeps(module.chain.steps):
                    states.append(module.chain.stack.weights[0].detach()[:, 0].numpy().copy())

        folder = tmp_path / f"{bound}-{sampling}"
        run = trainer(folder, 701, log_every_n_steps=1000)
        run.callbacks.append(Collect())
        run.fit(module, datamodule=ToyData(batch_size=2, sampling=sampling))
        mean, covariance = exact_posterior()
        deviations = np.concatenate(states[1:]) - mean
        assert len(states) == 4
        spread = np.einsum("ni,ij,nj->n", deviations, np.linalg.inv(covariance), deviations)
        return spread.mean() / NUM_FEATURES - 1, module.adaptation.stability

    bounded, settled = excess(0.3)
    assert settled["gradient_noise"] == 0.3
    assert settled["fraction"] < 0.06
    assert bounded == pytest.approx(0.3, abs=0.15)
    free, settled = excess(None)
    assert settled["fraction"] == pytest.approx(0.1)
    assert free > 0.5
    assert "gradient_noise" not in excess(0.3, "full")[1]


def test_double_precision_is_that_of_a_double_network(tmp_path: Path) -> None:
    """Lightning's own conversion, of streams and held-out sets too, against one by hand."""

    class ByHand(Toy):
        def nll(self, batch: Any) -> Tensor:
            return super().nll([t.double() for t in batch])

        def predictive(self, batch: Any) -> Tensor:
            return super().predictive([t.double() for t in batch])

    found = []
    for kind, precision in ((Toy, "64-true"), (ByHand, "32-true")):
        torch.manual_seed(0)
        net = nn.Linear(NUM_FEATURES, 1, bias=False)
        sampler = partial(SGHMC, lr="auto", momentum=0.8, prior=PRIOR)
        module = kind(sampler, net.double() if kind is ByHand else net, burn_in=20, thinning=5)
        run = trainer(tmp_path / precision, 60, precision=precision)
        run.fit(module, datamodule=ToyData())
        ensemble = module.kept.ensemble("test")
        found.append((module.net.weight.detach(), ensemble.mean, ensemble.nll))
        assert module.net.weight.dtype == torch.float64
        data = [t.double() for t in toy_data(2, 30)]
        stored = Posterior.from_trainer(run).predictive(tuple(data))
        torch.testing.assert_close(stored.mean, ensemble.mean.to(stored.mean))
    for ours, by_hand in zip(*found, strict=True):
        assert torch.equal(ours, by_hand)


def test_auto_step_follows_its_schedule(tmp_path: Path) -> None:
    module = Toy(
        partial(SGLD, lr="auto", prior=PRIOR), burn_in=5, schedule=partial(BlockDecay, every=4)
    )
    trainer(tmp_path, 12).fit(module, datamodule=ToyData())
    optimizer, scheduler = module.chain.sampler, module.lr_schedulers()
    assert optimizer.lr == pytest.approx(scheduler.base_lrs[0] / 8)


def test_a_schedule_may_end_at_zero(tmp_path: Path) -> None:
    """The noise is that of the last step that was taken, not of one that stands still."""
    lr = 1e-2
    schedule = partial(lr_scheduler.CosineAnnealingLR, T_max=24)
    module = Toy(partial(SGLD, lr=lr, prior=PRIOR), burn_in=4, schedule=schedule)
    trainer(tmp_path, 24).fit(module, datamodule=ToyData())
    assert module.chain.sampler.lr == 0
    found = diagnose(module.kept, {})
    last = lr * (1 + math.cos(math.pi * 23 / 24)) / 2
    assert found["step_size"] == pytest.approx(last)
    noise = minibatch_noise(module.chain, last)
    assert noise is not None
    assert found["gradient_noise"]["ratio"] == pytest.approx(noise.total.ratio)
    assert noise.total.ratio > 0


@pytest.mark.parametrize(("make", "counts"), [(SGLD, True), (SGNHT, False)])
def test_noise_that_a_sampler_takes_out_is_measured_and_no_reason_for_an_alarm(
    make: Any, counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict: dict[str, Any] = {}

    def alarms(*_: Any, **given: Any) -> list[Any]:
        verdict.update(given)
        return []

    monkeypatch.setattr("lightning_sgmcmc.posterior.diagnosis.alarms", alarms)
    module = Toy(partial(make, lr=1e-2, prior=PRIOR), burn_in=1)
    trainer(tmp_path, 3).fit(module, datamodule=ToyData())
    noise = minibatch_noise(module.chain, 1e-2)
    assert noise is not None
    assert diagnose(module.kept, {})["gradient_noise"]["ratio"] == noise.total.ratio > 0
    assert ("noise" in verdict) is counts


def test_remedies_depend_on_the_minibatch_s_share_and_the_last_step(tmp_path: Path) -> None:
    module = Toy(partial(SGLD, lr=1e-3, prior=PRIOR), burn_in=1)
    trainer(tmp_path, 2).fit(module, datamodule=ToyData())
    stability = {"fraction": 0.3, "variance_bias": 0.05, "largest_stable_lr": 4.0}
    stream = module.chain.stream
    assert stream is not None
    assert stream.batch_size < stream.num_data
    share = stream.batch_size / stream.num_data
    expected = Step(0.3, 0.05, batch_share=share, last=0.5, overdamped=True)
    assert _step(module.chain, stability, 2.0) == expected
    module.chain.gradients = FullGradient()
    assert _step(module.chain, stability, 2.0) == replace(expected, batch_share=1.0)
    assert _step(module.chain, {}, 2.0) == Step(overdamped=True)


def test_momentum_is_a_remedy_for_sgld_in_a_constant_metric() -> None:
    weights = [torch.zeros(1)]
    assert SGLD(weights, 0.1).overdamped
    assert SGLD(weights, 0.1, prior=PRIOR, preconditioner=PriorMetric()).overdamped
    for made in (SGLD(weights, 0.1, preconditioner=RMSProp()), PSGLD(weights, 0.1)):
        assert not made.overdamped
    assert not SGHMC(weights, 0.1).overdamped


class Turned(ToyData):
    """Data of the opposite weights."""

    def train_dataloader(self) -> BatchStream:
        x, y = toy_data()
        return BatchStream((x, -y), self.batch_size, self.sampling)


def test_a_second_fit_has_the_data_of_its_own(tmp_path: Path) -> None:
    """Neither the centre nor the curvature of the first fit, as a module of the same weights."""
    sampler = partial(SGHMC, lr="auto", momentum=0.8, prior=PRIOR)
    given = {"burn_in": 20, "thinning": 5, "gradients": ControlVariate()}
    again, fresh = Toy(sampler, **given), Toy(sampler, **given)
    trainer(tmp_path / "first", 60).fit(again, datamodule=ToyData())
    fresh.load_state_dict(again.state_dict())
    for name, module in (("again", again), ("fresh", fresh)):
        trainer(tmp_path / name, 60).fit(module, datamodule=Turned())
    assert torch.equal(again.net.weight, fresh.net.weight)
    assert again.chain.num_gradients == fresh.chain.num_gradients
    assert again.adaptation.stability == fresh.adaptation.stability


def test_a_checkpoint_of_an_earlier_version_keeps_its_step(tmp_path: Path) -> None:
    sampler = partial(SGHMC, lr="auto", prior=PRIOR)
    module, again = Toy(sampler, burn_in=20), Toy(sampler, burn_in=20)
    trainer(tmp_path, 30).fit(module, datamodule=ToyData())
    checkpoint: dict[str, Any] = {"state_dict": module.state_dict()}
    module.on_save_checkpoint(checkpoint)
    checkpoint["sgmcmc_stability"] = checkpoint.pop("sgmcmc_adaptation")["stability"]
    again.on_load_checkpoint(checkpoint)
    assert again.adaptation.stability["lr"] == module.chain.sampler.lr


def test_burn_in_by_an_optimizer_reaches_the_mode(tmp_path: Path) -> None:
    module = Toy(
        partial(SGHMC, lr="auto", prior=PRIOR, preconditioner=RMSProp(floor=0.5)),
        burn_in=400,
        burn_in_optimizer=OptimizerBurnIn(partial(torch.optim.Adam, lr=0.1), 400),
    )
    reached = []

    class Watch(GradualPruning):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any, **kw: Any) -> None:
            if trainer.global_step == 400:
                reached.append(pl_module.net.weight.detach().numpy()[0].copy())

    trainer(tmp_path, 402, [Watch(0.0, 0, 1)], log_every_n_steps=100).fit(
        module, datamodule=ToyData(64, "full")
    )
    np.testing.assert_allclose(reached[0], exact_posterior()[0], atol=2e-3)


def test_draw_budget_spaces_draws_evenly_and_the_ensemble_takes_all(tmp_path: Path) -> None:
    module = Toy(burn_in=10, thinning=2, draw_budget=4)
    run = trainer(tmp_path, 50)
    run.fit(module, datamodule=ToyData())
    files = sorted((tmp_path / "samples/chain0").glob("step_*"), key=lambda p: int(p.stem[5:]))
    assert [int(f.stem[5:]) for f in files] == [12, 22, 32, 42]
    assert keeper(run).num_draws == 20


def test_draw_budget_counts_the_steps_of_epochs(tmp_path: Path) -> None:
    """13 epochs of 4 steps: 21 draws are due; every sixth is stored, with one weight."""
    module = Toy(burn_in=10, thinning=2, draw_budget=4)
    trainer(tmp_path, -1, max_epochs=13).fit(module, datamodule=ToyData())
    posterior = load_posterior(tmp_path, Toy())
    (store,) = posterior.stores
    assert [draw.step for draw in store.draws] == [12, 24, 36, 48]
    assert [draw.weight / store.draws[0].weight for draw in store.draws] == [1, 1, 1, 1]
    torch.testing.assert_close(posterior.weights, posterior.weights.new_full((4,), 0.25))


def test_a_stored_draw_weighs_as_those_that_it_stands_for(tmp_path: Path) -> None:
    """The first four draws are stored, and every fifth once the run is made longer."""
    module = Toy(burn_in=10, thinning=2, draw_budget=4)
    run = trainer(tmp_path, 18)
    run.fit(module, datamodule=ToyData())
    run.save_checkpoint(tmp_path / "last.ckpt")
    module = Toy(burn_in=10, thinning=2, draw_budget=4)
    trainer(tmp_path, 50).fit(module, datamodule=ToyData(), ckpt_path=tmp_path / "last.ckpt")
    weights = load_posterior(tmp_path, Toy()).weights
    torch.testing.assert_close(weights / weights[0], weights.new_tensor([1, 1, 1, 1, 5, 5, 5]))


@pytest.mark.filterwarnings("ignore:Found 6 module")
def test_a_buffer_that_follows_the_weights_is_refused(tmp_path: Path) -> None:
    """Draws are stored with the buffers of the first; power iteration goes on in training mode."""
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(NUM_FEATURES, 2))
    net = nn.Sequential(layer, nn.Linear(2, 1))
    with pytest.raises(ValueError, match=r"_u changes while the chain samples"):
        trainer(tmp_path / "a", 20).fit(Toy(net=net, burn_in=10), datamodule=ToyData())
    net.eval()
    trainer(tmp_path / "b", 20).fit(Toy(net=net, burn_in=10), datamodule=ToyData())


def test_loaded_posterior_predicts_what_the_run_did(tmp_path: Path) -> None:
    module = Toy(burn_in=10, thinning=2, schedule=partial(BlockDecay, every=7))
    run = trainer(tmp_path, 50)
    run.fit(module, datamodule=ToyData())
    posterior = load_posterior(tmp_path, Toy())
    assert len(posterior) == 20
    batch = toy_data(2, 30)
    found = posterior.predict(batch[0])
    ours = keeper(run).ensemble("test")
    torch.testing.assert_close(found.mean, ours.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.epistemic_std, ours.epistemic_std, rtol=1e-4, atol=1e-5)
    prediction = posterior.predictive(batch)
    torch.testing.assert_close(prediction.nll, ours.nll, rtol=1e-6, atol=1e-6)
    # Draws weigh as their step sizes do.
    assert posterior.weights[0] > 3 * posterior.weights[-1]
    # The mean of the weights is the mean of the draws.
    mean_weight = keeper(run).mean_weights()["net.weight"].float()
    torch.testing.assert_close(
        posterior.mean_weights()["net.weight"], mean_weight, rtol=1e-5, atol=1e-6
    )


def test_results_are_of_the_networks_and_sets_that_they_name(tmp_path: Path) -> None:
    """Predictive NLLs from the states that a run passed, with weights of a decaying step."""
    states: dict[int, np.ndarray] = {}

    class Record(L.Callback):
        def on_train_batch_end(self, run: Any, task: Any, *args: Any) -> None:
            states[run.global_step] = task.net.weight.detach().cpu().double().numpy()[0].copy()

    sampler = partial(SGLD, lr=0.02, prior=GaussianPrior(variance=4.0))
    module = Toy(sampler, burn_in=9, thinning=3, schedule=partial(BlockDecay, every=6))
    trainer(tmp_path, 20, [Record()]).fit(module, datamodule=ToyData())
    draws = [12, 15, 18]
    weights = np.array([0.02 * 0.5 ** ((step - 1) // 6) for step in draws])
    weights /= weights.sum()
    assert module.kept.num_draws == 3

    def nll(state: np.ndarray, seed: int, size: int) -> np.ndarray:
        x, y = (t.double().numpy() for t in toy_data(seed, size))
        return -stats.norm(x @ state, NOISE).logpdf(y)

    def mixture(*data: int) -> float:
        densities = np.exp([-nll(states[step], *data) for step in draws])
        return float(-np.log(weights @ densities).mean())

    test, val = (2, 30), (1, 20)
    mean = sum(w * states[step] for w, step in zip(weights, draws, strict=True))
    found = {name: metrics["nll"] for name, metrics in results.measure(module).items()}
    assert found == {
        "ensemble": pytest.approx(mixture(*test), rel=1e-5),
        "ensemble_val": pytest.approx(mixture(*val), rel=1e-5),
        "posterior_mean": pytest.approx(nll(mean, *test).mean(), rel=1e-5),
        "last": pytest.approx(nll(states[20], *test).mean(), rel=1e-5),
        "burn_in": pytest.approx(nll(states[9], *test).mean(), rel=1e-5),
        "burn_in_val": pytest.approx(nll(states[9], *val).mean(), rel=1e-5),
    }


def test_a_sampler_that_the_command_line_could_not_build_is_refused() -> None:
    """It is a word or options where a task annotates ``sampler`` by no type that says more."""
    with pytest.raises(TypeError, match=r"got 'SGLD'; a task of your own annotates it sampler: C"):
        Toy(sampler="SGLD")  # type: ignore[arg-type]


def test_posterior_of_another_module_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path, 12).fit(Toy(burn_in=10), datamodule=ToyData())
    with pytest.raises(ValueError, match="another module"):
        load_posterior(tmp_path, Toy(net=nn.Linear(NUM_FEATURES + 1, 1)))
    with pytest.raises(FileNotFoundError, match="no draw was kept"):
        load_posterior(tmp_path / "nowhere", Toy())


def test_diverged_chain_stops_and_keeps_its_draws(tmp_path: Path) -> None:
    module = Toy(partial(SGLD, lr=1.2, prior=PRIOR), burn_in=1)
    with (
        pytest.warns(UserWarning, match=r"lr = 1\.2 exceeds the largest stable step 0\.4"),
        pytest.raises(ChainDivergedError, match=r"step \d+ .* step size 1\.2: lower lr"),
    ):
        trainer(tmp_path, 400).fit(module, datamodule=ToyData())
    posterior = load_posterior(tmp_path, Toy())
    assert len(posterior) > 1
    assert all(bool(torch.isfinite(m.net.weight).all()) for m in posterior)


def test_a_guard_of_the_users_own_is_used(tmp_path: Path) -> None:
    module = Toy(partial(SGLD, lr=1e-3, prior=PRIOR), burn_in=1)
    with pytest.raises(ChainDivergedError):
        trainer(tmp_path, 40, [ChainGuard(bound=1e-6)]).fit(module, datamodule=ToyData())


def test_folder_with_draws_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path, 12).fit(Toy(burn_in=10), datamodule=ToyData())
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(FileExistsError, match="already holds draws"):
        trainer(tmp_path, 12).fit(Toy(burn_in=10), datamodule=ToyData())
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


def test_checkpoint_of_another_task_is_refused(tmp_path: Path) -> None:
    from lightning_sgmcmc.callbacks import ChainCheckpoint

    class Other(Toy):
        pass

    (tmp_path / "checkpoints").mkdir()
    trainer(tmp_path, 12, [ChainCheckpoint(5)]).fit(Toy(burn_in=10), datamodule=ToyData())
    with pytest.raises(ValueError, match="is of Toy, not of Other"):
        trainer(tmp_path / "new", 20).fit(
            Other(burn_in=10),
            datamodule=ToyData(),
            ckpt_path=str(tmp_path / "checkpoints/last.ckpt"),
            weights_only=True,
        )


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (lambda: Toy(partial(SGLD, lr=-1.0)), {}, "lr must be a positive number"),
        (lambda: Toy(burn_in=50), {}, "burn_in = 50 is not shorter"),
        (lambda: Toy(burn_in=18, thinning=5), {}, "no draw is due"),
        (lambda: Toy(thinning=0), {}, "thinning must be at least 1"),
        (lambda: Toy(burn_in=0), {}, "burn_in is 0"),
        (lambda: Toy(burn_in=5, num_data=0), {}, "num_data must be positive"),
        (
            lambda: Toy(
                burn_in=5, burn_in_optimizer=OptimizerBurnIn(partial(torch.optim.Adam, lr=1.0), 6)
            ),
            {},
            "at least as large",
        ),
        (
            lambda: Toy(burn_in=5, burn_in_optimizer=OptimizerBurnIn(torch.optim.LBFGS, 3)),
            {},
            "LBFGS evaluates the loss several times a step",
        ),
        (
            lambda: Toy(burn_in=5, schedule=lr_scheduler.ReduceLROnPlateau),
            {},
            "ReduceLROnPlateau follows a loss",
        ),
        (
            lambda: Toy(
                partial(SGLD, lr="auto"),
                burn_in=5,
                schedule=partial(lr_scheduler.StepLR, step_size=3),
            ),
            {},
            'lr: "auto" changes the step size that a schedule starts from, which StepLR',
        ),
    ],
)
def test_bad_settings_are_one_early_error(
    tmp_path: Path, make: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, RuntimeError), match=message):
        trainer(tmp_path, 20, **settings).fit(make(), datamodule=ToyData())
    assert not (tmp_path / "samples").exists()


def test_weight_averaging_is_refused(tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import WeightAveraging

    with pytest.raises(ValueError, match="overwrites the weights"):
        trainer(tmp_path, 20, [WeightAveraging()]).fit(Toy(burn_in=5), datamodule=ToyData())


class InstanceNorm(nn.InstanceNorm1d):
    """Of each example's four numbers as one channel."""

    def __init__(self) -> None:
        super().__init__(1, affine=True)

    def forward(self, input: Any) -> Any:
        return super().forward(input.unsqueeze(1)).squeeze(1)


def normalised(layer: nn.Module) -> nn.Sequential:
    """Return a net with a layer, or several, between two linear maps."""
    return nn.Sequential(nn.Linear(NUM_FEATURES, 4), layer, nn.Linear(4, 1))


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (nn.BatchNorm1d(4), r"^net\.1 \(BatchNorm1d\) would"),
        (nn.SyncBatchNorm(4), r"^net\.1 \(SyncBatchNorm\) would"),
        (nn.LazyBatchNorm1d().eval().train(), r"^net\.1 \(LazyBatchNorm1d\) would"),
        (nn.BatchNorm1d(4, affine=False), r"^net\.1 \(BatchNorm1d\) would"),
        (nn.BatchNorm1d(4, track_running_stats=False).eval(), r"^net\.1 \(BatchNorm1d\) would"),
        (
            nn.Sequential(nn.BatchNorm1d(4).eval(), nn.BatchNorm1d(4)),
            r"^net\.1\.1 \(BatchNorm1d\) w",
        ),
        (nn.Sequential(*(nn.BatchNorm1d(4) for _ in range(5))), r"net\.1\.2 .* and 2 others would"),
    ],
)
def test_batch_statistics_are_refused_before_any_work(
    tmp_path: Path, layer: nn.Module, named: str
) -> None:
    module = Toy(net=normalised(layer), burn_in=5, pretrained=str(tmp_path / "missing.safetensors"))
    with pytest.raises(ValueError, match=f"{named}.*freeze running statistics with eval.*Group"):
        trainer(tmp_path, 20).fit(module, datamodule=ToyData())
    assert list(tmp_path.iterdir()) == []


def test_batch_statistics_are_refused_on_the_command_line(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """With the weights of the last layer sampled alone, which changes nothing."""
    (tmp_path / "toy.yaml").write_text(
        """
name: toy
model:
  class_path: tests.toy.Toy
  init_args:
    net: {class_path: torch.nn.BatchNorm1d, init_args: {num_features: 3}}
    sample: [net.bias]
    burn_in: 5
data: {class_path: tests.toy.ToyData}
trainer: {max_steps: 20, accelerator: cpu, devices: 1}
"""
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        cli.main(tmp_path, ["--task", "toy", "--wandb_project=null"])
    assert stopped.value.code == 2
    assert "error: net (BatchNorm1d) would normalise by" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["toy.yaml"]


@pytest.mark.parametrize(
    "layer",
    [nn.GroupNorm(1, 4), nn.LayerNorm(4), InstanceNorm()],
    ids=["group", "layer", "instance"],
)
def test_normalisation_of_single_examples_is_not(tmp_path: Path, layer: nn.Module) -> None:
    torch.manual_seed(0)
    run = trainer(tmp_path, 12)
    run.fit(Toy(net=normalised(layer), burn_in=10), datamodule=ToyData())
    assert keeper(run).num_draws == 2


def test_frozen_statistics_stay_so_through_a_run(tmp_path: Path) -> None:
    """Draws and validation set modes; neither may hand the layer the batch's statistics."""
    torch.manual_seed(0)
    net = normalised(nn.BatchNorm1d(4).eval())
    assert isinstance(net[1], nn.BatchNorm1d)
    net[1].running_mean = torch.tensor([1.0, -2.0, 0.5, 3.0])
    mean = net[1].running_mean.clone()
    start = net[1].weight.detach().clone()
    module = Toy(net=net, burn_in=10, thinning=5)
    run = trainer(tmp_path, 30, val_check_interval=4, check_val_every_n_epoch=None)
    with pytest.warns(UserWarning, match=r"Found 1 module\(s\) in eval mode"):  # Lightning's
        run.fit(module, datamodule=ToyData())
    assert module.training
    assert net[0].training
    assert not net[1].training
    assert torch.equal(net[1].running_mean, mean)
    assert int(net[1].num_batches_tracked) == 0
    assert not torch.equal(net[1].weight, start)


def test_before_a_run_modes_are_the_users() -> None:
    module = Toy(net=normalised(nn.BatchNorm1d(4)))
    assert not module.eval().net[1].training
    assert module.train().net[1].training


def test_before_a_run_nothing_is_kept() -> None:
    with pytest.raises(AttributeError, match="kept"):
        _ = Toy().kept
    with pytest.raises(RuntimeError, match="built where training starts"):
        _ = Toy().chain.sampler
    with pytest.raises(TypeError, match="needs an SGMCMCModule, got LightningModule"):
        KeepDraws().on_train_start(L.Trainer(logger=False), L.LightningModule())
