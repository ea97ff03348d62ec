"""``sgmcmc tune``: a study of runs that is stopped, shared by processes, and pruned by verdict."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

pytest.importorskip("optuna")

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from lightning_sgmcmc.callbacks.stop import RunStoppedError
from lightning_sgmcmc.module import SGMCMCModule
from lightning_sgmcmc.run import cli, sweep, tune
from lightning_sgmcmc.run.study import Study
from lightning_sgmcmc.run.study_figure import study_figure
from tests.test_cli import ROOT, TOY

SWEEP = """
method: random
metric: {name: val/ensemble_nll, goal: minimize}
parameters:
  model.step_fraction: {values: [0.05]}
  model.sampler.prior.variance: {distribution: log_uniform_values, min: 1.0, max: 8.0}
  model.thinning: {value: 8}
command: ["${env}", "${interpreter}", -m, sgmcmc, train, --task, toy, --model.sampler=SGHMC,
  --model.sampler.momentum=0.8, --model.sampler.lr=auto, --data.sampling=full,
  --seed_everything=2, --trainer.max_steps=800, --trainer.log_every_n_steps=500,
  --checkpoint_every=100, --wandb_project=null, "${args}"]
"""


SHORT = ["--trainer.max_steps=240"]


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: Any) -> Path:
    folder = tmp_path / "configs"
    (folder / "sweeps").mkdir(parents=True)
    (folder / "toy.yaml").write_text(TOY)
    (folder / "sweeps" / "toy.yaml").write_text(SWEEP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_RUN_GROUP", "")  # so that what a study leaves there is taken back
    return folder


def trials(configs: Path, folder: str = "runs/tune/toy", *more: str) -> list[Any]:
    found = sweep.read(configs / "sweeps" / "toy.yaml", more)
    return Study(Path(folder), found).trials


def command(out: str) -> list[str]:
    """Return the arguments of the best command that a study printed."""
    (line,) = re.findall(r"^  sgmcmc train (.*)$", out, re.M)
    return str(line).split()


def test_a_study_ends_with_a_command_that_gives_the_best_trial_again(
    configs: Path, capsys: Any
) -> None:
    tune.main(configs, ["toy", "--trials", "2"])
    said = capsys.readouterr().out
    found = trials(configs)
    assert [t.state for t in found] == [TrialState.COMPLETE] * 2
    best = min(found, key=lambda t: t.value)
    folder = Path(f"runs/tune/toy/trial-{best.number:03d}")
    results = json.loads((folder / "results.json").read_text())
    assert best.value == pytest.approx(results["metrics"]["ensemble_val"]["nll"])
    assert Path("runs/tune/toy/study.png").is_file()
    assert best.last_step == results["num_draws"] == 98
    again = cli.main(configs, [*command(said), "--out", "again"])
    a, b = (load_file(f / "samples/chain0/step_794.safetensors") for f in (folder, again))
    assert all(torch.equal(a[k], b[k]) for k in a)
    tune.main(configs, ["toy", "--trials", "0"])
    assert command(capsys.readouterr().out) == command(said)
    assert len(trials(configs)) == 2


def test_two_processes_go_on_with_a_study_that_was_killed(configs: Path) -> None:
    program = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
if __name__ == "__main__":
    from lightning_sgmcmc.run import tune
    tune.main(Path("configs"), ["toy", "--trials", "3", "--workers", sys.argv[1], *{SHORT!r}])
"""
    Path("program.py").write_text(program)
    checkpoint = Path("runs/tune/toy/trial-000/checkpoints/last.ckpt")
    killed = subprocess.Popen([sys.executable, "program.py", "1"], stdout=subprocess.DEVNULL)
    while not checkpoint.is_file():
        assert killed.poll() is None
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    (first,) = trials(configs, "runs/tune/toy", *SHORT)
    assert first.state == TrialState.RUNNING
    done = subprocess.run([sys.executable, "program.py", "2"], check=False)
    assert done.returncode == 0
    found = trials(configs, "runs/tune/toy", *SHORT)
    assert len(found) == 3
    assert all(t.state.is_finished() for t in found)
    assert found[0].params == first.params
    folders = [Path(f"runs/tune/toy/trial-{i:03d}") for i in range(3)]
    assert all(len(list(f.glob("samples/chain0/step_*"))) == 28 for f in folders)
    assert "Restor" in (folders[0] / "output.txt").read_text()


def test_trials_that_are_held_are_not_given_twice(configs: Path) -> None:
    """A trial that is let go without an end is the next one, before any new trial."""
    space = sweep.read(configs / "sweeps" / "toy.yaml")
    one, other = Study(Path("study"), space), Study(Path("study"), space)
    with one.next_trial(2) as first:
        with other.next_trial(2) as second, one.next_trial(2) as third:
            assert first is not None
            assert second is not None
            assert (first.number, second.number, third) == (0, 1, None)
            assert first.params != second.params
        with one.next_trial(2) as again:
            assert again is not None
            assert (again.number, again.params) == (1, second.params)
            one.end(again, "sampled", 0.5)
        with other.next_trial(2) as more:
            assert more is None
    with one.next_trial(1) as stopped:
        assert stopped is None  # enough have ended; the first one waits


def test_a_study_killed_while_a_trial_is_summed_up_goes_on(
    configs: Path, monkeypatch: Any, capsys: Any
) -> None:
    """Its run has no step left then: the metric is that of its last draw."""
    command = ["toy", "--trials", "1", *SHORT]
    with monkeypatch.context() as context:
        context.setattr("lightning_sgmcmc.callbacks.report.results.write", _killed)
        with pytest.raises(Killed):
            tune.main(configs, command)
    (held,) = trials(configs, "runs/tune/toy", *SHORT)
    assert held.state == TrialState.RUNNING
    tune.main(configs, command)
    (trial,) = trials(configs, "runs/tune/toy", *SHORT)
    assert trial.state == TrialState.COMPLETE
    assert trial.value == held.intermediate_values[held.last_step]


class Killed(BaseException):
    """Passes where a signal that kills would."""


def _killed(*_: Any) -> None:
    raise Killed


def test_trials_that_ended_or_were_never_chosen_are_not_held(tmp_path: Path) -> None:
    """One ends between another process's look at the list and at its lock."""
    (tmp_path / "toy.yaml").write_text(SWEEP)
    found = sweep.read(tmp_path / "toy.yaml")
    first, second = Study(tmp_path / "s", found), Study(tmp_path / "s", found)
    looks = []

    class Late(Study):
        @property
        def trials(self) -> Any:
            listed = super().trials
            if not looks:
                looks.append(1)
                first.end(running, "sampled", 0.5)
                held.__exit__(None, None, None)
            return listed

    held = first.next_trial(3)
    running = held.__enter__()
    assert running is not None
    second.__class__ = Late
    with second.next_trial(3) as given:
        assert given is not None
        assert given.number == 1
        second.end(given, "sampled", 0.25)
    first._study.ask()  # and is killed before its parameters
    with first.next_trial(3) as given:
        assert given is not None
        assert given.number == 3


def test_trials_without_a_draw_are_last_for_either_goal(tmp_path: Path) -> None:
    for goal in ("minimize", "maximize"):
        (tmp_path / "toy.yaml").write_text(SWEEP.replace("goal: minimize", f"goal: {goal}"))
        study = Study(tmp_path / goal, sweep.read(tmp_path / "toy.yaml"))
        for value in (None, 0.9):
            with study.next_trial(9) as trial:
                assert trial is not None
                if value is not None:
                    trial.report(value, 5)
                study.end(trial, "pruned", None)
        assert [line.split()[0] for line in study.table().splitlines()] == ["trial", "1", "0"]


def test_a_trial_that_does_not_sample_is_pruned(configs: Path, capsys: Any) -> None:
    """One diverges; the step of the other inflates the variance, which 20 or 40 draws show."""
    for lr, why in (("5.0", "diverged at step"), ("0.4", "predictions|temperature")):
        more = ["--model.sampler=SGLD", f"--model.sampler.lr={lr}"]
        tune.main(configs, ["toy", "--trials", "1", "--out", f"lr-{lr}", *more])
        (trial,) = trials(configs, f"lr-{lr}", *more)
        assert trial.state == TrialState.PRUNED
        assert re.match(f"does not sample: .*{why}", trial.user_attrs["outcome"])
        assert "No trial gave a sample" in capsys.readouterr().out
    assert trial.last_step in (20, 40)
    steps = {int(p.stem[5:]) for p in Path("lr-0.4/trial-000/samples/chain0").glob("step_*")}
    assert max(steps) < 400
    assert cli.main(configs, ["--finish", "lr-0.4/trial-000"])  # a whole run, if a short one


def test_a_trial_that_is_worse_is_pruned(configs: Path) -> None:
    """Of two priors, the second of which holds all weights at zero."""
    path = configs / "sweeps" / "toy.yaml"
    text = SWEEP.replace(
        "distribution: log_uniform_values, min: 1.0, max: 8.0", "values: [4, 0.001]"
    )
    path.write_text(text + "early_terminate: {type: hyperband, min_iter: 5}\n")
    study = Study(Path("study"), sweep.read(path))
    for variance in (4, 1e-3):
        chosen = {"model.step_fraction": 0.05, "model.sampler.prior.variance": variance}
        study._study.enqueue_trial(chosen)
    tune.main(configs, ["toy", "--trials", "2", "--out", "study"])
    good, worse = study.trials
    assert good.state == TrialState.COMPLETE
    assert (worse.state, worse.last_step) == (TrialState.PRUNED, 5)
    assert worse.user_attrs["outcome"] == "worse than others after 5 draws"
    assert study.best().number == 0
    path.write_text(text)
    tune.main(configs, ["toy", "--trials", "0", "--out", "study"])  # stopping may change
    path.write_text(SWEEP)
    path.with_name("other.yaml").write_text(SWEEP)
    for name in ("toy", "other"):
        with pytest.raises(SystemExit):
            tune.main(configs, [name, "--trials", "0", "--out", "study"])


@pytest.mark.parametrize(
    ("arguments", "change", "message"),
    [
        (["nothing"], ("", ""), "unknown sweep 'nothing': choose one of toy, or the path"),
        (["toy", "--out=a", "--ckpt_path=last"], ("", ""), "--ckpt_path does not go with a study"),
        (["toy", "--trials", "few"], ("", ""), "invalid int value: 'few'"),
        (["toy", "stray"], ("", ""), "'stray' is no option"),
        (["toy", "--nonsense=1"], ("", ""), "trial 0: unrecognized arguments: --nonsense=1"),
        (
            ["toy"],
            ("val/ensemble_nll", "val/loss"),
            "the draws have no val/loss: choose one of val",
        ),
        (["toy"], ("method: random", "method: grid"), "method must be one of bayes, random"),
        (["toy"], ("parameters:", "parameter:"), "unknown key 'parameter'"),
        (["toy"], ("max: 8.0", "most: 8.0"), "prior.variance: 'max' is missing"),
        (["toy"], ("min: 1.0", "min: 9.0"), "parameters.model.sampler.prior.variance: "),
        (["toy"], ("log_uniform_values", "normal"), "distribution must be one of uniform"),
        (["toy"], ("{values: [0.05]}", "{values: abc}"), "step_fraction.values must be a list"),
        (["toy"], ("{values: [0.05]}", "{value: 2020-01-01}"), "write 2020-01-01 in quotes"),
        (["toy"], ("name: val/ensemble_nll", "name: null"), "metric.name must be a name"),
        *(
            (["toy"], ("method:", f"early_terminate: {stated}\nmethod:"), "early_terminate must be")
            for stated in (
                "hyperband",
                "[1]",
                "{type: hyperband}",
                "{type: hyperband, min_iter: abc}",
                "{type: hyperband, min_iter: 0}",
                "{type: hyperband, min_iter: 5, eta: 1}",
            )
        ),
        (["toy"], ("max: 8.0", "max: .inf"), "min and max must be finite, got inf"),
        (["toy"], ("max: 8.0", "max: 1e1"), "must be numbers, got '1e1'; YAML reads 1.0e-4 as a"),
        (["toy"], ('"${args}"', "a"), "command must be a list with 'train', the task and ${args}"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    configs: Path, capfd: Any, arguments: list[str], change: tuple[str, str], message: str
) -> None:
    path = configs / "sweeps" / "toy.yaml"
    path.write_text(SWEEP.replace(*change) if change[0] else SWEEP)
    with pytest.raises(SystemExit) as stop:
        tune.main(configs, arguments)
    assert stop.value.code == 2
    errors = [line for line in capfd.readouterr().err.splitlines() if "error: " in line]
    assert len(errors) == 1
    assert message in errors[0]


def test_a_command_that_is_no_list_is_said(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(SWEEP[: SWEEP.index("command:")] + "command: 7\n")
    with pytest.raises(ValueError, match="command must be a list"):
        sweep.read(path)


def test_a_trial_that_goes_on_is_judged_where_a_whole_one_is(configs: Path) -> None:
    """A trial that was stopped at draw 55 is asked next at draw 80."""
    study = Study(Path("study"), sweep.read(configs / "sweeps" / "toy.yaml"))
    for stopped, next_ in ((0, 20), (19, 20), (20, 20), (21, 40), (55, 80)):
        trial = study._study.ask()
        if stopped:
            trial.report(1.0, stopped)
        assert tune.Watch(trial, "val/ensemble_nll")._asked_at == next_


def _killed_by_the_system(*arguments: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_study_survives_a_worker(configs: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(tune, "_beside", _killed_by_the_system)
    tune.main(configs, ["toy", "--trials", "2", "--workers", "2", "--out", "study", *SHORT])
    said = capsys.readouterr()
    assert "a worker was ended by SIGKILL; the others took over its trial" in said.err
    assert Path("study/study.png").is_file()
    assert all(t.state == TrialState.COMPLETE for t in trials(configs, "study", *SHORT))


def test_sigusr1_keeps_a_trial(configs: Path, monkeypatch: Any, capsys: Any) -> None:
    """As on a cluster, where it asks a job to be put back."""
    status = 128 + signal.SIGUSR1
    monkeypatch.setattr(tune.cli, "main", lambda *args, **named: sys.exit(status))
    with pytest.raises(SystemExit) as stop:
        tune.main(configs, ["toy", "--trials", "1", "--out", "study", *SHORT])
    assert stop.value.code == status
    assert "stopped, with the trials saved: the same command goes on" in capsys.readouterr().err
    (trial,) = trials(configs, "study", *SHORT)
    assert trial.state == TrialState.RUNNING


def test_the_command_that_a_message_suggests_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(SWEEP.replace("train", "fit"))
    with pytest.raises(ValueError, match="command must be a list") as stop:
        sweep.read(path)
    suggested = str(stop.value).split("such as ")[1].replace("NAME", "toy")
    path.write_text(SWEEP.split("command:")[0] + f"command: {suggested}\n")
    assert sweep.read(path).arguments == ("--task", "toy", "--model.thinning=8")


def test_laws_are_those_of_wandb(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    laws = {
        "a": {"min": 1, "max": 3},
        "b": {"min": 1.0, "max": 3.0},
        "c": {"distribution": "log_uniform_values", "min": 1e-3, "max": 1.0},
        "d": {"values": [1, "x", None]},
        "e": {"distribution": "q_uniform", "min": 0.0, "max": 1.0, "q": 0.25},
        "f": {"value": True},
    }
    path.write_text(yaml.safe_dump(yaml.safe_load(SWEEP) | {"parameters": laws}))
    found = sweep.read(path)
    assert found.space == {
        "a": IntDistribution(1, 3),
        "b": FloatDistribution(1, 3),
        "c": FloatDistribution(1e-3, 1, log=True),
        "d": CategoricalDistribution([1, "x", None]),
        "e": FloatDistribution(0, 1, step=0.25),
    }
    assert "--f=true" in found.arguments
    assert found.options({"a": 2, "d": None}) == ["--a=2", "--d=null"]


def test_the_page_shows_commands_and_a_file_that_are_taken(configs: Path) -> None:
    page = (ROOT / "docs" / "tuning.md").read_text()
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.S)
    Path("my.yaml").write_text(text)
    found = sweep.read(Path("my.yaml"))
    assert found.arguments[:3] == ("--task", "class_table", "--data.num_val=0.2")
    assert (found.min_iter, found.eta) == (20, 3)
    commands = re.findall(r"^sgmcmc tune (.*?)(?:  .*)?$", page, re.M)
    assert len(commands) == 5
    for line in commands:
        given, more = tune._parse(line.split())
        space = sweep.read(sweep.find(ROOT / "configs", given.sweep), more)
        with pytest.raises(SystemExit) as stop:
            cli.main(ROOT / "configs", [*space.arguments, "--print_config"])
        assert stop.value.code == 0


def test_a_trial_that_does_not_sample_is_no_measure_for_others(configs: Path) -> None:
    """Of three values at the first rung only the best goes on, among trials that sample."""
    path = configs / "sweeps" / "toy.yaml"
    path.write_text(SWEEP + "early_terminate: {type: hyperband, min_iter: 5}\n")
    study = Study(Path("study"), sweep.read(path))
    ended = ((0.1, f"{sweep.NO_SAMPLE}: hot", None), (0.5, "sampled", 0.5))
    for at_first, outcome, value in ended:
        with study.next_trial(3) as trial:
            assert trial is not None
            trial.report(at_first, 5)
            assert not trial.should_prune()
            study.end(trial, outcome, value)
    for at_first, worse in ((0.4, False), (0.6, True)):
        with study.next_trial(4) as trial:
            assert trial is not None
            trial.report(at_first, 5)
            assert trial.should_prune() == worse
            study.end(trial, "sampled", at_first)


def test_the_figure_of_a_study_has_every_trial(configs: Path) -> None:
    study = Study(Path("study"), sweep.read(configs / "sweeps" / "toy.yaml"))
    assert study_figure(study) is None
    ended = [
        (0.5, "sampled", 0.5),
        (0.2, f"{sweep.NO_SAMPLE}: hot", None),
        (0.6, "worse than others after 5 draws", None),
        (0.4, "sampled", 0.4),
        (90.0, "worse than others after 5 draws", None),
        (float("nan"), f"{sweep.NO_SAMPLE}: diverged", None),
    ]
    for last, outcome, value in ended:
        with study.next_trial(len(ended)) as trial:
            assert trial is not None
            trial.report(last, 5)
            study.end(trial, outcome, value)
    figure = study_figure(study)
    assert figure is not None
    first, *others = figure.axes
    drawn = {line.get_label(): np.c_[line.get_data()].tolist() for line in first.lines}
    edge = 0.2 + 4 * (0.5 - 0.2)
    assert drawn["sampled"] == [[0, 0.5], [3, 0.4]]
    assert drawn["worse than others"] == [[2, 0.6], [4, pytest.approx(edge)]]
    assert drawn["does not sample"] == [[1, 0.2]]
    assert drawn["best so far"] == [[0, 0.5], [1, 0.5], [2, 0.5], [3, 0.4], [4, 0.4]]
    assert [text.get_text().strip() for text in first.texts] == ["90"]
    names = ["model.step_fraction", "model.sampler.prior.variance"]
    assert [axes.get_xlabel() for axes in others] == [n.removeprefix("model.") for n in names]
    assert others[1].get_xscale() == "log"
    given = sorted(x for line in others[1].lines for x in np.asarray(line.get_xdata()).tolist())
    assert given == sorted(trial.params[names[1]] for trial in study.trials[:5])


def test_a_study_that_came_to_nothing_gives_way_to_the_command_that_was_meant(
    configs: Path, capsys: Any
) -> None:
    """A "?" in the folder's name is no part of an URL."""
    for wrong in (["--model.thining=4"], ["--data.num_val=-1"]):
        with pytest.raises(SystemExit):
            tune.main(configs, ["toy", "--trials=1", "--out=a?b", *SHORT, *wrong])
    tune.main(configs, ["toy", "--trials=1", "--out=a?b", *SHORT])
    (only,) = trials(configs, "a?b", *SHORT)
    assert only.state.is_finished()
    assert Path("a?b/study.db").is_file()
    capsys.readouterr()
    with pytest.raises(SystemExit):
        tune.main(configs, ["toy", "--trials=1", "--out=a?b", "--trainer.max_steps=241"])
    assert "holds a study of another" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lr", "momentum", "whole", "ends"),
    [
        (1.0, True, False, False),
        (2.0, True, False, False),
        (2.0, False, False, False),
        (0.25, True, False, True),
        (2.0, False, True, True),
    ],
)
def test_a_trial_that_is_slow_goes_on_unless_it_is_hot(
    lr: float, momentum: bool, whole: bool, ends: bool, monkeypatch: Any
) -> None:
    """Momentum or a larger step make a chain faster; more steps would end its alarm too."""
    found = {"lr": lr, "steps": 1.0, "whole_data": whole, "momentum": momentum}
    verdict = {"alarms": ["not mixed"], "remedy": found}
    monkeypatch.setattr(tune, "diagnose", lambda *_: verdict)
    module = Mock(spec=SGMCMCModule, kept=None, adaptation=Mock())
    assert (tune.Watch._alarm(Mock(), module) is not None) is ends


def test_a_trial_that_a_signal_stops_outside_its_run_is_left_to_the_next_command(
    configs: Path, monkeypatch: Any
) -> None:
    def stopped(*_: Any) -> None:
        raise RunStoppedError(signal.SIGINT)

    monkeypatch.setattr(cli, "main", stopped)
    with pytest.raises(SystemExit) as stop:
        tune.main(configs, ["toy", "--trials=1", *SHORT])
    assert stop.value.code == 130
    (only,) = trials(configs, "runs/tune/toy", *SHORT)
    assert only.state == TrialState.RUNNING
