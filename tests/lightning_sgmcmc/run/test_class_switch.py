"""A class that takes another's place has its own arguments only."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import jsonargparse
import pytest
import yaml
from torch import nn

from lightning_sgmcmc import GaussianPrior, Sampler
from lightning_sgmcmc.run import cli
from lightning_sgmcmc.run.class_switch import KEPT, classes_first, own_arguments
from tests.toy import Toy, ToyData

CONFIG = """
model:
  class_path: tests.lightning_sgmcmc.run.test_class_switch.Task
  init_args:
    net:
      class_path: tests.lightning_sgmcmc.run.test_class_switch.Wide
      init_args: {width: 7, depth: 3}
    sampler:
      class_path: lightning_sgmcmc.SGHMC
      init_args:
        lr: auto
        momentum: 0.9
        temperature: 0.5
        prior:
          class_path: lightning_sgmcmc.GaussianPrior
          init_args: {variance: 4.0, mean: 1.0}
        preconditioner:
          class_path: lightning_sgmcmc.RMSProp
          init_args: {eps: 1.0e-3}
    schedule:
      class_path: lightning_sgmcmc.PolynomialDecay
      init_args: {b: 5, gamma: 0.75}
    burn_in_optimizer:
      optimizer:
        class_path: torch.optim.Adam
        init_args: {lr: 0.5}
      steps: 2
    burn_in: 10
    power: 3.0
data:
  class_path: tests.lightning_sgmcmc.run.test_class_switch.Data
  init_args: {size: 5}
trainer: {max_steps: 40, accelerator: cpu}
wandb_project: null
"""
SAMPLER = "--model.sampler"
FIXED = f"{SAMPLER}.lr=0.1"


class Wide(nn.Linear):
    def __init__(self, width: int = 1, depth: int = 1) -> None:
        super().__init__(3, 1)


class Deep(Wide):
    """Takes the arguments of the class in whose place it comes."""


class Task(Toy):
    def __init__(
        self,
        net: nn.Module,
        sampler: Callable[[Iterable[Any]], Sampler],
        power: float = 1.0,
        **chain: Any,
    ) -> None:
        super().__init__(sampler, **chain)


class Other(Task):
    """A task with the same arguments."""


class Data(ToyData):
    def __init__(self, size: int = 1) -> None:
        super().__init__()


class OtherData(Data):
    """Data with the same arguments."""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: Any) -> Path:
    path = tmp_path / "base.yaml"
    path.write_text(CONFIG)
    monkeypatch.delenv("SGMCMC_RUN_FOLDER", raising=False)
    monkeypatch.setattr("sys.argv", ["train.py"])
    monkeypatch.chdir(tmp_path)
    return path


def resolved(config: Path, *arguments: str) -> dict[str, Any]:
    """Return what ``--print_config`` prints."""
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit) as stop:
        cli.ChainCLI(config.parent, ["--config", str(config), *arguments, "--print_config"])
    assert stop.value.code == 0
    content: dict[str, Any] = yaml.safe_load(printed.getvalue())
    return content


def model(config: Path, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = resolved(config, *arguments)["model"]["init_args"]
    return found


def test_a_sampler_keeps_the_target_alone(config: Path) -> None:
    sampler = model(config, f"{SAMPLER}=SGLD")["sampler"]
    assert sampler["class_path"] == "lightning_sgmcmc.SGLD"
    init = sampler["init_args"]
    assert init["preconditioner"] is None
    assert (init["lr"], init["temperature"]) == ("auto", 0.5)
    assert init["prior"]["init_args"] == {"variance": 4.0, "mean": 1.0}


def test_a_step_in_numbers_was_for_the_old_sampler(config: Path, capsys: Any) -> None:
    two = config.with_name("fixed.yaml")
    two.write_text("model: {init_args: {sampler: {init_args: {lr: 0.25}}}}")
    given = ["--config", str(config), "--config", str(two), f"{SAMPLER}=SGLD"]
    with pytest.raises(SystemExit) as stop:
        cli.main(config.parent, given)
    assert stop.value.code == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert errors == ["error: model.sampler needs lr: give --model.sampler.lr"]


@pytest.mark.parametrize("same", ["SGHMC", "lightning_sgmcmc.samplers.sghmc.SGHMC"])
def test_the_same_class_keeps_everything(config: Path, same: str) -> None:
    init = model(config, f"{SAMPLER}={same}")["sampler"]["init_args"]
    assert init["momentum"] == 0.9
    assert init["preconditioner"]["init_args"]["eps"] == 1e-3


@pytest.mark.parametrize(
    ("option", "new", "path"),
    [
        ("net", "Deep", "net"),
        ("sampler.prior", "FanInGaussianPrior", "sampler.init_args.prior"),
        ("sampler.preconditioner", "DiagonalFisher", "sampler.init_args.preconditioner"),
        ("burn_in_optimizer.optimizer", "torch.optim.RMSprop", "burn_in_optimizer.optimizer"),
    ],
)
def test_nothing_stays_of_another_class(config: Path, option: str, new: str, path: str) -> None:
    """Each new class takes arguments of the old one's names, and has its own defaults instead."""
    name = f"{__name__}.{new}" if option == "net" else new
    found = model(config, f"--model.{option}={name}")
    for key in path.split("."):
        found = found[key]
    default = {
        "Deep": {"width": 1, "depth": 1},
        "FanInGaussianPrior": {"variance": 1.0, "bias_variance": 1.0},
        "DiagonalFisher": {"eps": 1e-4, "labels": "data"},
        "torch.optim.RMSprop": {"lr": 0.01, "alpha": 0.99},
    }[new]
    assert found["class_path"].endswith(new)
    assert default.items() <= found["init_args"].items()


def test_what_is_given_between_two_classes_is_for_the_first(config: Path) -> None:
    """Both schedules take a gamma."""
    first, second = "torch.optim.lr_scheduler.ExponentialLR", "PolynomialDecay"
    found = model(config, f"--model.schedule={first}", "--model.schedule.gamma=0.9",
                  f"--model.schedule=lightning_sgmcmc.chain.schedules.{second}",
                  "--model.schedule.b=2")["schedule"]  # fmt: skip
    assert found["init_args"] == {"b": 2, "gamma": 0.55}


def test_data_keeps_nothing(config: Path) -> None:
    data = resolved(config, f"--data={__name__}.OtherData")["data"]
    assert data["init_args"]["size"] == 1


def test_a_task_keeps_its_chain(config: Path) -> None:
    init = model(config, f"--model={__name__}.Other", f"--model.net={__name__}.Wide")
    assert init["burn_in"] == 10
    assert init["sampler"]["init_args"]["momentum"] == 0.9
    assert init["power"] == 1.0
    assert init["net"]["init_args"] == {"width": 1, "depth": 1}


def test_arguments_are_for_the_class_that_the_command_names(config: Path) -> None:
    before = model(config, FIXED, f"{SAMPLER}.prior.variance=9", f"{SAMPLER}=SGLD")["sampler"]
    after = model(config, f"{SAMPLER}=SGLD", FIXED, f"{SAMPLER}.prior.variance=9")["sampler"]
    assert before == after
    assert before["init_args"]["lr"] == 0.1
    assert before["init_args"]["prior"]["init_args"] == {"variance": 9.0, "mean": 1.0}


def test_a_later_configuration_switches_too(config: Path) -> None:
    two = config.with_name("two.yaml")
    two.write_text(
        "model: {init_args: {sampler: {class_path: lightning_sgmcmc.SGLD, init_args: {lr: 0.5}}}}"
    )
    init = model(config, "--config", str(two))["sampler"]["init_args"]
    assert (init["lr"], init["preconditioner"], init["temperature"]) == (0.5, None, 0.5)


def test_what_is_printed_resolves_to_itself(config: Path) -> None:
    first = resolved(config, f"{SAMPLER}=PSGLD", f"{SAMPLER}.alpha=0.5", f"--data={__name__}.Data")
    again = config.with_name("again.yaml")
    again.write_text(yaml.safe_dump(first))
    assert resolved(again) == first


def said(config: Path, caplog: Any, *arguments: str) -> list[str]:
    caplog.clear()
    with caplog.at_level("INFO"):
        cli.ChainCLI(config.parent, ["--config", str(config), *arguments])
    return [m for r in caplog.records if "drop" in (m := r.getMessage()) or "keeps" in m]


def test_a_line_says_what_stays(config: Path, caplog: Any) -> None:
    assert said(config, caplog) == []
    assert said(config, caplog, f"{SAMPLER}.momentum=0.5") == []
    assert said(config, caplog, f"{SAMPLER}=SGLD") == [
        "Note: SGLD keeps lr='auto', temperature=0.5, prior=GaussianPrior(variance=4, mean=1) of "
        "SGHMC; momentum and preconditioner are dropped"
    ]
    assert said(config, caplog, f"{SAMPLER}=SGLD", FIXED, f"{SAMPLER}.prior=FlatPrior") == [
        "Note: SGLD keeps temperature=0.5 of SGHMC; momentum and preconditioner are dropped",
        "Note: variance and mean of GaussianPrior are dropped",
    ]
    assert said(config, caplog, f"--data={__name__}.OtherData") == ["Note: size of Data is dropped"]


def test_classes_come_before_their_arguments() -> None:
    assert classes_first(["--a.b.c", "-1", "--a.b=K", "--x=1", "--a", "L"]) == [
        "--a", "L", "--a.b=K", "--a.b.c", "-1", "--x=1",
    ]  # fmt: skip
    for unchanged in (
        ["--a.b=1", "--a=null"],  # null takes all away
        ["--a=K", "--a.b=1", "--a=L"],  # b is K's
        ["--a.b=1", "--config", "f.yaml", "--a=K"],
        ["--a.b=1", "--ab=K", "--print_config", "--c=K"],
        ["--a+=K", "--a.b=1", "--a+=L", "--a.b=2"],
    ):
        assert classes_first(unchanged) == unchanged
    assert classes_first(["--a.b=1", "-c", "f.yaml", "--a.b=2", "--a=K"]) == [
        "--a.b=1", "-c", "f.yaml", "--a=K", "--a.b=2",
    ]  # fmt: skip


def test_what_is_kept_is_an_argument_of_the_base() -> None:
    for base, names in KEPT.items():
        assert set(names) <= set(base.__init__.__code__.co_varnames)
    assert "net" not in KEPT[cli.SGMCMCModule]


def test_jsonargparse_decides_where_we_ask() -> None:
    """Fails where a version of it keeps arguments by another way than the one replaced."""
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--x", type=Wide)
    given = ["--x=Wide", "--x.width=5", "--x=Deep"]
    assert parser.parse_args(given).x.init_args.width == 5  # its own rule
    with own_arguments() as switches:
        assert parser.parse_args(given).x.init_args.width == 1
        parser.add_argument("--p", type=GaussianPrior)
    assert {s.new.rsplit(".", 1)[-1] for s in switches} == {"Deep"}
    assert parser.parse_args(given).x.init_args.width == 5


@pytest.mark.parametrize(
    ("sampler", "name"),
    [("HASGLD", "slots"), ("HMC", "target_acceptance"), ("MCLMC", "target_energy_variance")],
)
def test_an_argument_that_may_be_none_takes_null(config: Path, sampler: str, name: str) -> None:
    """Where the default is a number, and jsonargparse gives the class the word "None"."""
    arguments = [f"{SAMPLER}={sampler}", FIXED]
    usual = resolved(config, *arguments)["model"]["init_args"]["sampler"]["init_args"]
    assert usual[name] is not None
    found = resolved(config, *arguments, f"{SAMPLER}.{name}=null")
    assert found["model"]["init_args"]["sampler"]["init_args"] == usual | {name: None}
