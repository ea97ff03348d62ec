"""What users of Lightning are used to, with a plain Trainer: a test a row of docs/lightning.md."""

from __future__ import annotations

import csv
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from lightning_sgmcmc import SGLD, Normal, Posterior, load_posterior
from lightning_sgmcmc.callbacks import ChainCheckpoint, ChainProgress, Finish
from lightning_sgmcmc.callbacks.draws import held_out_sets
from lightning_sgmcmc.callbacks.monitoring import RHAT
from lightning_sgmcmc.diagnostics.mixing import rhat
from lightning_sgmcmc.posterior.held_out import HeldOut
from lightning_sgmcmc.run import cli
from tests.device import trainer_settings
from tests.test_cli import TOY
from tests.toy import NOISE, NUM_FEATURES, NotSummedUp, Toy, ToyData, toy_data


class LawToy(Toy):
    """The toy problem with its law stated."""

    def __init__(self, net: nn.Module | None = None, width: int = 0, **chain: Any) -> None:
        super().__init__(net=net, **({"burn_in": 10, "thinning": 5} | chain))

    def law(self, x: Tensor) -> Normal:
        mean = self(x).squeeze(-1)
        return Normal(mean, torch.full_like(mean, NOISE))


class Data(ToyData):
    def predict_dataloader(self) -> Any:
        return DataLoader(TensorDataset(toy_data(2, 30)[0]), batch_size=8)


def trainer(folder: Path, max_steps: int = 40, callbacks: Any = (), **settings: Any) -> L.Trainer:
    """A plain Trainer, with Lightning's own checkpoints and the logger that it always has."""
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    given = any(isinstance(c, Finish) for c in callbacks)
    chosen = [*callbacks] if given else [*callbacks, NotSummedUp()]
    own = {**trainer_settings(), "log_every_n_steps": 4, "callbacks": chosen}
    own["logger"] = CSVLogger(folder)
    return L.Trainer(
        **(own | quiet | {"max_steps": max_steps, "default_root_dir": folder} | settings)
    )


def fit(folder: Path, task: Toy | None = None, **settings: Any) -> tuple[L.Trainer, Toy]:
    task, run = task or LawToy(), trainer(folder, **settings)
    run.fit(task, datamodule=Data())
    return run, task


def csv_logs(folder: Path) -> CSVLogger:
    return CSVLogger(folder, name="logs")


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_plain_trainer_leaves_what_the_command_leaves(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("toy.yaml").write_text(TOY)
    command = cli.main(Path(), ["--task", "toy", "--wandb_project=null", "--out", "command"])
    said = capsys.readouterr().out.split("\n\n")[-2].strip()
    L.seed_everything(0)
    run, task = fit(
        tmp_path, Toy(burn_in=10, thinning=5), callbacks=[Finish()], logger=csv_logs(tmp_path)
    )
    own = Path("logs/version_0")
    rows = [text.strip().splitlines() for text in (said, capsys.readouterr().out.split("\n\n")[-2])]
    assert len({tuple(row for row in own if "time  " not in row) for own in rows}) == 1
    assert names(own) - {"hparams.yaml"} == names(command) - {"config.yaml", ".lock"} - {
        name for name in names(command) if name.startswith("wandb")
    }
    ours, theirs = (json.loads((f / "results.json").read_text()) for f in (own, command))
    del ours["wall_seconds"], theirs["wall_seconds"]
    assert ours.pop("provenance").keys() == theirs.pop("provenance").keys()
    assert ours == theirs
    posterior = Posterior.from_trainer(run)
    assert [d.step for d in posterior.stores[0].draws] == list(range(15, 41, 5))
    assert posterior.module is not task


def test_a_law_of_one_output_is_drawn_with_its_bands(tmp_path: Path) -> None:
    """A task that states its law alone has a figure and coverages; one that states none has not."""
    run, task = fit(tmp_path / "law", callbacks=[Finish()])
    folder = task.kept.folder.parent
    assert (folder / "figures" / "predictions.png").stat().st_size > 0
    results = json.loads((folder / "results.json").read_text())
    posterior, (x, y) = Posterior.from_trainer(run), toy_data(2, 30)
    lower, upper = posterior.predict(x).interval(0.9)
    held = float(((lower <= y) & (y <= upper)).double().mean())
    assert results["metrics"]["ensemble"]["coverage_90"] == pytest.approx(held)
    _, task = fit(tmp_path / "none", Toy(burn_in=10, thinning=5), callbacks=[Finish()])
    assert not list(task.kept.folder.parent.glob("figures/predictions.png"))


def test_a_run_of_no_draws_says_so(tmp_path: Path) -> None:
    stop = EarlyStopping("val/nll", patience=0, min_delta=1e9)
    with pytest.raises(
        ValueError, match=r"no draw was kept: .* or a callback such as EarlyStopping"
    ):
        fit(tmp_path, LawToy(burn_in=30), callbacks=[stop, Finish()])


@pytest.mark.parametrize("chains", [1, 2])
def test_validate_test_and_predict_are_of_the_draws(tmp_path: Path, chains: int) -> None:
    run, task = fit(tmp_path, LawToy(num_chains=chains))
    x, y = toy_data(2, 30)
    weights = torch.stack(
        [draw.net.weight.detach()[0].clone() for draw in Posterior.from_trainer(run)]
    )
    f = (weights @ x.T).double()
    mean, epistemic = f.mean(0), f.var(0, unbiased=False)
    each = torch.distributions.Normal(f, NOISE).log_prob(y.double())
    nll = float(np.log(len(f)) - each.logsumexp(0).mean())
    before = {name: value.clone() for name, value in task.state_dict().items()}
    (found,) = run.test(task, Data(), verbose=False)
    off = (y.double() - mean).abs()
    width = (epistemic + NOISE**2).sqrt()
    bands = {50: 0.67449, 90: 1.64485, 95: 1.95996}
    assert found == {
        "test/ensemble_nll": pytest.approx(nll, 1e-5),
        "test/ensemble_rmse": pytest.approx(float(off.square().mean().sqrt()), 1e-5),
    } | {
        f"test/ensemble_coverage_{percent}": pytest.approx(
            float((off <= z * width).double().mean())
        )
        for percent, z in bands.items()
    }
    (found,) = run.validate(task, Data(), verbose=False)
    assert {"val/nll", "val/ensemble_nll", "val/ensemble_rmse"} <= set(found)
    assert found["val/ensemble_nll"] == pytest.approx(
        float(task.kept.ensemble("val").nll.mean()), 1e-5
    )
    predicted = run.predict(task, Data())
    assert task._posterior is None  # with its copy of the task
    joined = {name: torch.cat([part[name] for part in predicted]) for name in predicted[0]}
    torch.testing.assert_close(joined["mean"], mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(joined["epistemic_std"], epistemic.sqrt(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(joined["std"], (epistemic + NOISE**2).sqrt(), rtol=1e-5, atol=1e-6)
    assert all(torch.equal(task.state_dict()[name], value) for name, value in before.items())


def test_draws_are_asked_for_where_there_are_none(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    assert set(run.validate(LawToy(), Data(), verbose=False)[0]) == {"val/nll"}
    for ask in (run.test, run.predict):
        with pytest.raises(ValueError, match="LawToy has no draws: fit it first"):
            ask(LawToy(), Data())
    with pytest.raises(ValueError, match="the trainer has no draws: fit an SGMCMCModule first"):
        Posterior.from_trainer(trainer(tmp_path))


@pytest.mark.parametrize("chains", [1, 2])
def test_a_checkpoint_loads_with_its_draws(tmp_path: Path, chains: int) -> None:
    run, task = fit(tmp_path, LawToy(width=3, num_chains=chains))
    path = next(tmp_path.rglob("last.ckpt"))
    expected = run.test(task, Data(), verbose=False)
    loaded = LawToy.load_from_checkpoint(path, width=4)
    assert (loaded.hparams["width"], loaded.hparams["num_chains"]) == (4, chains)
    state = task.chain.state(0)
    assert torch.equal(loaded.net.weight, state["net.weight"])
    assert trainer(tmp_path).test(loaded, Data(), verbose=False) == expected
    fresh = LawToy()
    assert trainer(tmp_path).test(fresh, Data(), ckpt_path=path, verbose=False) == expected
    assert run.test(datamodule=Data(), ckpt_path="best", verbose=False) == expected


def test_a_run_of_the_command_goes_on_in_a_script(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("toy.yaml").write_text(TOY)
    run = cli.main(Path(), ["--task", "toy", "--wandb_project=null", "--model.thinning=6"])
    task = load_posterior(run).module
    assert (type(task).__name__, task.hparams["thinning"]) == ("Toy", 6)
    (found,) = trainer(tmp_path).test(task, Data(), verbose=False)
    said = json.loads((run / "results.json").read_text())["metrics"]["ensemble"]["nll"]
    assert found["test/ensemble_nll"] == pytest.approx(said, 1e-5)


class Adds(LawToy):
    def configure_callbacks(self) -> list[L.Callback]:
        return [*super().configure_callbacks(), LearningRateMonitor("step")]


def test_a_task_adds_callbacks(tmp_path: Path) -> None:
    run, task = fit(tmp_path, Adds())
    assert "lr-PSGLD" in run.callback_metrics
    assert task.kept.num_draws == 6


class Saves(LawToy):
    """A user's task that saves all that it was built with."""

    def __init__(self, net: nn.Module, prefix: str = "a", **chain: Any) -> None:
        super().__init__(net, **chain)
        self.save_hyperparameters()


def test_hyperparameters_are_kept_where_they_are_plain(tmp_path: Path) -> None:
    assert dict(LawToy(width=2, thinning=7).hparams) == {"net": None, "width": 2, "thinning": 7}
    with pytest.warns(UserWarning, match="is already saved during checkpointing"):
        task = Saves(nn.Linear(NUM_FEATURES, 1, bias=False), prefix="b")
    fit(tmp_path, task, logger=csv_logs(tmp_path))
    path = tmp_path / "logs/version_0/checkpoints/last.ckpt"
    assert torch.load(path, weights_only=True)["hyper_parameters"] == {"prefix": "b"}
    assert "prefix: b" in (tmp_path / "logs/version_0/hparams.yaml").read_text()
    with pytest.raises(
        TypeError, match=r"missing .* 'net': a checkpoint keeps plain arguments alone"
    ):
        Saves.load_from_checkpoint(path)


class Logs(LawToy):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        self.log("norm", self.net.weight.norm(), prog_bar=True)


def test_the_bar_shows_the_chain_and_what_a_task_logs(tmp_path: Path, capsys: Any) -> None:
    run, _ = fit(tmp_path, Logs(), enable_progress_bar=True)
    assert isinstance(run.progress_bar_callback, ChainProgress)
    said = capsys.readouterr().err
    assert "sampling  40/40  nll" in said
    assert re.search(r"  norm \S+  lr \S+  draws 6", said)
    assert "v_num" not in said
    assert "Epoch" not in said


def test_checkpoints_of_the_best_ensemble_wait_for_draws(tmp_path: Path) -> None:
    best = ModelCheckpoint(monitor="val/ensemble_nll", save_top_k=1)
    run, _ = fit(tmp_path, callbacks=[best])
    with next(tmp_path.rglob("metrics.csv")).open() as file:
        rows = [row for row in csv.DictReader(file) if row["val/ensemble_nll"]]
    values = [float(row["val/ensemble_nll"]) for row in rows]
    assert best.best_model_score == pytest.approx(min(values))
    assert float(run.callback_metrics["val/ensemble_nll"]) == pytest.approx(values[-1])
    assert any(isinstance(c, ChainCheckpoint) for c in run.callbacks)
    with pytest.raises(Exception, match="could not find the monitored key"):
        fit(tmp_path, callbacks=[ModelCheckpoint(monitor="val/ensemble_nil")], max_steps=80)


def test_early_stopping_on_what_predictions_say(tmp_path: Path) -> None:
    """R-hat of the predictions is that of the traces, from the 8th draw on."""
    stop = EarlyStopping(RHAT, stopping_threshold=1e9, patience=1000)
    run, task = fit(tmp_path, LawToy(thinning=2, num_chains=2), callbacks=[stop], max_steps=400)
    assert 8 <= task.kept.num_draws < 12
    assert run.global_step == 28  # the 9th draw is there; epochs have 4 steps
    measured = rhat(task.kept.probes.trace("predictions")[:, :9])
    expected = np.quantile(measured[~np.isnan(measured)], 0.95, method="nearest")
    assert float(run.callback_metrics[RHAT]) == pytest.approx(expected)


@pytest.mark.parametrize("how", ["max_epochs", "early stopping"])
def test_a_run_that_ends_by_epochs_is_saved(tmp_path: Path, how: str) -> None:
    """It ends at step 28, between checkpoints, and goes on as a run of 40 steps would have."""
    settings: dict[str, Any] = {"max_epochs": 7, "max_steps": -1}
    if how == "early stopping":
        settings = {"callbacks": [EarlyStopping(RHAT, stopping_threshold=1e9, patience=1000)]}
    tasks = []
    for folder, own in ((tmp_path / "part", settings), (tmp_path / "whole", {})):
        torch.manual_seed(0)
        tasks.append(LawToy(thinning=2, num_chains=2))
        run, _ = fit(folder, tasks[-1], **({"max_steps": 40} | own))
        if own:
            assert run.global_step == 28
            run.test(tasks[-1], datamodule=Data(), ckpt_path="best")
    path = next((tmp_path / "part").rglob("last.ckpt"))
    again = [EarlyStopping(RHAT, patience=1000)] if how == "early stopping" else []
    run, task = trainer(tmp_path / "part", callbacks=again), LawToy(thinning=2, num_chains=2)
    run.fit(task, datamodule=Data(), ckpt_path=path)
    assert run.global_step == 40
    found = [one.kept.ensemble("test").mean for one in (task, tasks[1])]
    assert torch.equal(*found)


class Sampled(ToyData):
    """Splits one data set by samplers."""

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.given = given

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*toy_data()), **({"batch_size": 4} | self.given))

    def val_dataloader(self) -> Any:
        return DataLoader(
            TensorDataset(*toy_data()), sampler=SubsetRandomSampler([63, 5, 40]), batch_size=2
        )

    test_dataloader = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"sampler": SubsetRandomSampler(range(20))}, 20),
        ({"sampler": RandomSampler(range(64))}, 64),
        (
            {
                "batch_sampler": BatchSampler(SubsetRandomSampler(range(20)), 4, False),
                "batch_size": 1,
            },
            20,
        ),
    ],
)
def test_samplers_of_a_loader_choose_the_examples(
    tmp_path: Path, given: dict[str, Any], expected: int
) -> None:
    run, task = trainer(tmp_path), LawToy(sampler=partial(SGLD, lr="auto"))
    run.fit(task, datamodule=Sampled(**given))
    assert task.chain.sampler.num_data == expected
    x, y = toy_data()
    (kept,) = held_out_sets(run).values()
    chosen = [5, 40, 63]
    assert torch.equal(kept.examples[0], x[chosen])
    assert torch.equal(kept.examples[1], y[chosen])


def test_examples_that_a_sampler_draws_by_weight_are_not_counted(tmp_path: Path) -> None:
    weighted = Sampled(sampler=WeightedRandomSampler([1.0] * 64, 64))
    with pytest.raises(ValueError, match="cannot be read from the train dataloader: give num_data"):
        trainer(tmp_path).fit(LawToy(), datamodule=weighted)
    run, task = trainer(tmp_path), LawToy(num_data=64)
    run.fit(task, datamodule=weighted)
    assert task.chain.sampler.num_data == 64
    weighted.val_dataloader = weighted.train_dataloader  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="which examples WeightedRandomSampler of a dataloader"):
        trainer(tmp_path).fit(LawToy(num_data=64), datamodule=weighted)


def test_what_is_monitored_goes_on_where_a_run_continues(tmp_path: Path) -> None:
    """Early stopping finds its quantity before the next draw."""
    settings = {"logger": csv_logs(tmp_path), "max_steps": 60}
    stop = EarlyStopping(RHAT, patience=1000)
    fit(tmp_path, LawToy(thinning=4), callbacks=[stop], **settings)
    run = trainer(tmp_path, 64, [EarlyStopping(RHAT, patience=1000)], logger=csv_logs(tmp_path))
    run.fit(
        LawToy(thinning=4),
        datamodule=Data(),
        ckpt_path=tmp_path / "logs/version_0/checkpoints/last.ckpt",
        weights_only=True,
    )
    assert run.global_step == 64


def test_learning_rates_are_monitored(tmp_path: Path) -> None:
    run, _ = fit(tmp_path, callbacks=[LearningRateMonitor("step")])
    assert float(run.callback_metrics["lr-PSGLD"]) == pytest.approx(1e-3)


class Broken(LawToy):
    def metrics(self, prediction: Any, batch: Any) -> dict[str, float]:
        raise KeyError("a mistake in metrics")


@pytest.mark.parametrize("steps", [True, 3])
def test_fast_dev_run_goes_through_all_and_leaves_nothing(tmp_path: Path, steps: Any) -> None:
    run, task = fit(tmp_path, LawToy(burn_in=300), fast_dev_run=steps, max_steps=-1)
    assert run.global_step == int(steps)
    assert task.kept.num_draws == 1
    assert names(tmp_path) == set()
    with pytest.raises(KeyError, match="a mistake in metrics"):
        fit(tmp_path, Broken(burn_in=300), fast_dev_run=steps, max_steps=-1)


@pytest.mark.filterwarnings("ignore:You are trying to `self.log")
def test_barebones_takes_steps_alone(tmp_path: Path) -> None:
    task = LawToy()
    nothing = {
        "logger": None,
        "enable_progress_bar": None,
        "enable_model_summary": None,
        "log_every_n_steps": None,
    }
    run = trainer(tmp_path, barebones=True, **nothing)
    run.fit(task, datamodule=Data())
    assert run.global_step == task.chain.steps == 40
    assert names(tmp_path) == set()


def test_limits_are_of_lightnings_loops(tmp_path: Path) -> None:
    run, task = fit(tmp_path, limit_train_batches=2, limit_val_batches=1, limit_test_batches=1)
    assert run.current_epoch == 20
    assert task.chain.sampler.num_data == 64
    assert {name: data.size for name, data in task.kept.held_out.items()} == {"val": 20, "test": 30}
    (found,) = run.test(task, Data(), verbose=False)
    first = DataLoader(TensorDataset(*toy_data(2, 8)), batch_size=8)
    assert len(next(iter(first))[0]) == 8
    assert found["test/ensemble_nll"] != float(task.kept.ensemble("test").nll.mean())


def test_draws_that_no_budget_bounds_are_announced(tmp_path: Path, caplog: Any) -> None:
    """Only ``max_steps`` tells how many come."""
    for folder, length in (("epochs", {"max_steps": -1, "max_epochs": 3}), ("steps", {})):
        fit(tmp_path / folder, **length)
    assert "all are written" not in caplog.text
    fit(tmp_path / "time", max_steps=-1, max_epochs=-1, max_time={"seconds": 1})
    assert "all are written: give trainer.max_steps too" in caplog.text


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_a_loader_for_validation_that_fit_is_given_is_held_out(tmp_path: Path) -> None:
    """Also where the trainer has not opened it yet, and where the run goes on."""

    def loaders() -> list[Any]:
        return [
            DataLoader(TensorDataset(*toy_data(seed, size)), batch_size=16, shuffle=not seed)
            for seed, size in ((0, 64), (1, 20))
        ]

    rare: dict[str, Any] = {"check_val_every_n_epoch": 5}
    task = LawToy()
    trainer(tmp_path, max_steps=24, **rare).fit(task, *loaders())
    assert {name: data.size for name, data in task.kept.held_out.items()} == {"val": 20}
    path = next(tmp_path.rglob("last.ckpt"))
    task = LawToy()
    trainer(tmp_path, max_steps=40, **rare).fit(task, *loaders(), ckpt_path=path)
    assert task.kept.num_draws == 6
    task = LawToy()
    trainer(tmp_path / "none", limit_val_batches=0).fit(task, loaders()[0])
    assert task.kept.held_out == {}


class Extra(ToyData):
    """Has no test or validation set, but another one."""

    val_dataloader = None  # type: ignore[assignment]
    test_dataloader = None  # type: ignore[assignment]

    def extra_dataloaders(self) -> dict[str, Any]:
        return {"other": DataLoader(TensorDataset(*toy_data(2, 30)), batch_size=8)}


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_a_set_beside_test_and_validation_may_be_the_only_one(tmp_path: Path) -> None:
    task = LawToy()
    trainer(tmp_path, callbacks=[Finish()]).fit(task, datamodule=Extra())
    assert list(task.kept.held_out) == ["other"]
    (results,) = tmp_path.rglob("results.json")
    assert json.loads(results.read_text())["metrics"] == {}


def loader(x: Tensor, y: Tensor, **options: Any) -> Any:
    return DataLoader(TensorDataset(x, y), batch_size=20, **options)


def test_a_limit_that_hides_the_same_examples_in_every_pass_is_refused(tmp_path: Path) -> None:
    """The others would count as seen; with shuffling a limit only shortens the passes."""
    data = toy_data(0, 60)
    with pytest.raises(ValueError, match="the other examples are never seen: give it shuffle=True"):
        trainer(tmp_path, limit_train_batches=1).fit(LawToy(), loader(*data), loader(*data))
    run = trainer(tmp_path, limit_train_batches=1)
    run.fit(LawToy(), loader(*data, shuffle=True), loader(*data))
    assert run.global_step == 40


@pytest.mark.parametrize(
    ("hook", "says"),
    [
        ("setup", "has to call super().setup(stage)"),
        ("on_train_start", "call super().on_train_start() in it"),
        ("training_step", "call super().training_step(batch, batch_idx) in it"),
        ("on_save_checkpoint", "has to call super().on_save_checkpoint(checkpoint)"),
    ],
)
def test_a_hook_without_that_of_the_module_is_no_silent_one(
    hook: str, says: str, tmp_path: Path
) -> None:
    own = type("Own", (LawToy,), {hook: lambda self, *args, **named: None})
    with pytest.raises(RuntimeError, match=re.escape(says)):
        fit(tmp_path, own())


class Scaled(LawToy):
    """Takes inputs in another unit, as a loader's batches have them."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return [(batch[0] - 100) / 50, batch[1]]


@pytest.mark.filterwarnings("ignore:You have overridden `on_after_batch_transfer`")
def test_held_out_batches_pass_through_the_hooks_of_training_batches(tmp_path: Path) -> None:
    (x, y), (x_val, y_val) = toy_data(0, 60), toy_data(1, 20)
    runs = []
    for name, kind, scale in (("a", LawToy, (0, 1)), ("b", Scaled, (100, 50))):
        torch.manual_seed(0)
        task, run = kind(), trainer(tmp_path / name)
        sets = [scale[0] + scale[1] * part for part in (x, x_val)]
        run.fit(task, loader(sets[0], y), loader(sets[1], y_val))
        runs.append({k: float(v) for k, v in run.callback_metrics.items() if "val" in k})
    assert runs[0].keys() == runs[1].keys() >= {"val/nll", "val/ensemble_nll"}
    for name, value in runs[0].items():
        assert runs[1][name] == pytest.approx(value, rel=1e-3), name
    with pytest.raises(ValueError, match="on_after_batch_transfer is not called for a BatchStream"):
        fit(tmp_path / "c", Scaled())


def test_held_out_sets_are_one_sized_loader_each(tmp_path: Path) -> None:
    data = toy_data(0, 20)
    stream = Data().train_dataloader()
    for held_out, says in (
        ([loader(*data), loader(*data)], "val_dataloader() returns several loaders"),
        (stream, "val_dataloader() returns a BatchStream, which has no end"),
    ):
        with pytest.raises(ValueError, match=re.escape(says)):
            trainer(tmp_path).fit(LawToy(), loader(*data), held_out)
    rows = [(data[0][i : i + 10], data[1][i : i + 10]) for i in (0, 10)]

    class Read(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(rows)

    run = trainer(tmp_path / "read")
    run.fit(task := LawToy(), loader(*data), DataLoader(Read(), batch_size=None))
    assert task.kept.held_out["val"].size == 20
    padded = [(torch.zeros(4, n), torch.zeros(4)) for n in (5, 7)]
    with pytest.raises(ValueError, match=r"the shapes \[\(5,\), \(7,\)\]: pad all to one length"):
        HeldOut(padded)


def test_a_wrong_loss_is_one_line_where_validation_comes_first(tmp_path: Path) -> None:
    class Averaged(LawToy):
        def nll(self, batch: Any) -> Tensor:
            return super().nll(batch).mean()

    with pytest.raises(ValueError, match="return the loss before its mean over the batch"):
        fit(tmp_path, Averaged())


def test_overfit_batches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="overfit_batches trains on a few minibatches"):
        fit(tmp_path, overfit_batches=1)


def test_a_plain_run_continues_in_its_folder(tmp_path: Path) -> None:
    """Lightning's logger would begin version_1."""
    whole, other = tmp_path / "whole", tmp_path / "part"
    for folder, steps in ((whole, 40), (other, 23)):
        torch.manual_seed(0)
        fit(folder, max_steps=steps)
    path = next(other.rglob("last.ckpt"))
    run = trainer(other)
    task = LawToy()
    run.fit(task, datamodule=Data(), ckpt_path=path)
    folder = path.parents[1]
    assert {p.parents[1] for p in other.rglob("chain0/index.json")} == {folder / "samples"}
    for step in range(15, 41, 5):
        name = f"samples/chain0/step_{step}.safetensors"
        assert (folder / name).read_bytes() == next(
            whole.rglob(f"step_{step}.safetensors")
        ).read_bytes()
    with (folder / "metrics.csv").open() as file:
        steps = [int(row["step"]) for row in csv.DictReader(file) if row["train/nll"]]
    assert steps == list(range(4, 41, 4))
    assert task.kept.num_draws == 6


@pytest.mark.filterwarnings("ignore:Experiment logs directory")  # of the CSVLogger, which gives way
@pytest.mark.parametrize("named", [False, True], ids=["no logger", "a named version"])
def test_last_is_found_where_the_folder_is_the_same(tmp_path: Path, named: bool) -> None:
    def logger() -> CSVLogger | bool:
        return CSVLogger(tmp_path, name="logs", version=3) if named else False

    fit(tmp_path, max_steps=23, logger=logger())
    run, task = trainer(tmp_path, logger=logger()), LawToy()
    run.fit(task, datamodule=Data(), ckpt_path="last")
    assert Path(str(run.ckpt_path)).name == "last.ckpt"
    assert task.kept.num_draws == 6


def test_folders_and_checkpoints_are_where_they_are_asked_for(tmp_path: Path) -> None:
    run, _ = fit(tmp_path / "a", enable_checkpointing=False, logger=False)
    assert {name.split("/")[0] for name in names(tmp_path / "a")} == {"samples", "metrics.csv"}
    assert not run.checkpoint_callbacks
    fit(tmp_path / "b", logger=False)
    assert (tmp_path / "b/checkpoints/last.ckpt").is_file()
    fit(tmp_path / "c", logger=csv_logs(tmp_path / "c"))
    folder = tmp_path / "c/logs/version_0"
    assert (folder / "checkpoints/last.ckpt").is_file()
    assert len(load_posterior(folder, LawToy())) == 6
    with pytest.raises(FileExistsError, match="already holds draws of a run"):
        fit(tmp_path / "b", logger=False)


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from lightning.pytorch.loggers import TensorBoardLogger
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run, task = fit(tmp_path, callbacks=[Finish()], logger=TensorBoardLogger(tmp_path))
    folder = tmp_path / "lightning_logs/version_0"
    events = EventAccumulator(str(folder)).Reload()
    tags = events.Tags()
    assert {"train/nll", "val/ensemble_nll", "final/ensemble/nll"} <= set(tags["scalars"])
    assert {"figures/trace", "figures/learning_curve"} <= set(tags["images"])
    assert {"results.json", "metrics.csv", "checkpoints/last.ckpt"} <= names(folder)
    run.test(task, Data(), verbose=False)  # the logger takes more after the run


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own database layer
def test_mlflow(tmp_path: Path, monkeypatch: Any) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("alembic")  # of its database
    from lightning.pytorch.loggers import MLFlowLogger

    monkeypatch.chdir(tmp_path)
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    loggers = [MLFlowLogger(tracking_uri=store) for _ in range(2)]
    folders = set()
    for logger in loggers:
        fit(tmp_path, callbacks=[Finish()], logger=logger)
        found = mlflow.MlflowClient(store).get_run(logger.run_id)
        assert found.info.status == "FINISHED"
        assert {"val/ensemble_nll", "final/ensemble/nll"} <= set(found.data.metrics)
        images = mlflow.MlflowClient(store).list_artifacts(logger.run_id, "figures")
        drawn = {"trace", "learning_curve", "predictions"}
        assert {Path(image.path).stem for image in images} == drawn
        folders |= {path.parent for path in tmp_path.rglob("results.json")}
    assert len(folders) == 2  # a run has a folder of its own


@pytest.mark.parametrize("chains", [1, 2])
def test_draws_of_a_compiled_network_are_of_the_plain_one(tmp_path: Path, chains: int) -> None:
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    def network() -> nn.Sequential:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(NUM_FEATURES, 2), nn.Tanh(), nn.Linear(2, 1))

    plain, compiled = (
        LawToy(net, num_chains=chains)
        for net in (network(), torch.compile(network(), backend=backend))
    )
    assert list(compiled.state_dict()) == list(plain.state_dict())
    for name, task in (("plain", plain), ("compiled", compiled)):
        torch.manual_seed(2)
        fit(tmp_path / name, task, logger=False)
    assert bool(graphs) == (chains == 1)
    one, other = (
        load_posterior(tmp_path / name, LawToy(network())) for name in ("plain", "compiled")
    )
    assert len(one) == len(other) == 6 * chains
    x = toy_data(2, 5)[0]
    torch.testing.assert_close(one.predict(x).mean, other.predict(x).mean, rtol=1e-4, atol=1e-5)


def test_a_script_without_a_data_module(tmp_path: Path) -> None:
    train, val = (
        DataLoader(TensorDataset(*toy_data(s, n)), batch_size=16) for s, n in ((0, 64), (1, 20))
    )
    run = trainer(tmp_path)
    run.fit(LawToy(), train, val)
    scores = {"nll", "rmse", "coverage_50", "coverage_90", "coverage_95"}
    assert set(run.test(dataloaders=val, ckpt_path="best", verbose=False)[0]) == {
        f"test/ensemble_{name}" for name in scores
    }
