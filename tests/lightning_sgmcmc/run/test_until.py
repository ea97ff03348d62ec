"""``--until sampled``: rounds that follow the remedies of a run until no alarm is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_sgmcmc.run import values
from lightning_sgmcmc.run.until import Rounds

CONFIG = """
model:
  init_args:
    sampler: {{init_args: {{lr: {lr}}}}}
    step_fraction: 0.1
    burn_in: 100
    burn_in_optimizer: {{init_args: {{steps: 40}}}}
data: {{class_path: mine.MyData, init_args: {{{data}}}}}
trainer: {{max_steps: {steps}}}
"""
NOTHING = {"lr": 1.0, "steps": 1.0, "whole_data": False, "momentum": False}


class Runs:
    """Stands for the command line: leaves the next results, and notes how it was called."""

    def __init__(self, tmp_path: Path, remedies: list[dict[str, Any] | None], lr: str) -> None:
        self.remedies, self.calls, self.lr = remedies, list[list[str]](), lr
        self.data, self.stability = "sampling: auto", dict[str, float]()
        self.steps, self.taken = 1000, 1000
        self.folder = tmp_path / "out"
        self.leave(self.folder)

    def leave(self, folder: Path) -> None:
        remedy = self.remedies.pop(0)
        folder.mkdir(exist_ok=True)
        (folder / "config.yaml").write_text(
            CONFIG.format(lr=self.lr, data=self.data, steps=self.steps)
        )
        content = {
            "wall_seconds": 10.0,
            "num_steps": self.taken,
            "num_gradients": 1000,
            "provenance": {},
            "diagnostics": {
                "alarms": ["wrong"] if remedy else [],
                "remedy": remedy and NOTHING | remedy,
                "step_size": 0.01,
                "stability": self.stability,
            },
        }
        (folder / "results.json").write_text(json.dumps(content))

    def __call__(self, arguments: list[str]) -> Path:
        self.calls.append(arguments)
        folder = Path(arguments[arguments.index("--out") + 1])
        self.steps = self.taken = int(arguments[-1].split("=")[1])
        self.leave(folder)
        return folder


def test_a_longer_run_continues_the_chain(tmp_path: Path, capsys: Any) -> None:
    runs = Runs(tmp_path, [{"steps": 4.0}, {"steps": 2.0}, None], "auto")
    assert Rounds(runs, None).follow(runs.folder) == runs.folder
    going_on = ["--ckpt_path", "last", "--out", str(runs.folder)]
    assert runs.calls == [
        [*going_on, "--trainer.max_steps=4000"],
        [*going_on, "--trainer.max_steps=8000"],
    ]
    assert "the verdict holds after 1000 gradients a chain" in capsys.readouterr().out


def test_a_new_chain_takes_a_folder_that_is_free(tmp_path: Path) -> None:
    """The rounds of an earlier command left one, in which a second command cannot start."""
    runs = Runs(tmp_path, [{"lr": 0.25}, {"lr": 0.5}, None], "auto")
    (tmp_path / "out-2").mkdir()
    assert Rounds(runs, None).follow(runs.folder) == tmp_path / "out-4"
    assert [arguments[arguments.index("--out") + 1] for arguments in runs.calls] == [
        str(tmp_path / "out-3"),
        str(tmp_path / "out-4"),
    ]


def test_a_round_that_was_stopped_goes_on(tmp_path: Path, capsys: Any) -> None:
    """As where a job is started again with the same command, which names the first folder."""

    class Stopped(Runs):
        def leave(self, folder: Path) -> None:
            super().leave(folder)
            if folder.name == "out-2" and self.remedies:
                (folder / "results.json").unlink()
                raise KeyboardInterrupt

    runs = Stopped(tmp_path, [{"lr": 0.25, "steps": 2.0}, {"lr": 0.5}, None], "auto")
    with pytest.raises(KeyboardInterrupt):
        Rounds(runs, None).follow(runs.folder)
    assert Rounds(runs, None).follow(runs.folder) == tmp_path / "out-2"
    going_on = ["--ckpt_path", "last", "--out", str(tmp_path / "out-2")]
    assert runs.calls[1:] == [[*going_on, "--trainer.max_steps=2000"]]
    assert "after 2000 gradients a chain" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lr", "option"),
    [("auto", "--model.step_fraction=0.025"), ("0.3", "--model.sampler.lr=0.0025")],
)
def test_another_step_starts_anew(tmp_path: Path, capsys: Any, lr: str, option: str) -> None:
    """With a burn-in of its own, of which the optimizer's 40 steps stay, beside the first run."""
    runs = Runs(tmp_path, [{"lr": 0.25, "steps": 2.0, "whole_data": True}, None], lr)
    last = Rounds(runs, None).follow(runs.folder)
    assert last == tmp_path / "out-2"
    (arguments,) = runs.calls
    assert arguments[:2] == ["--config", str(runs.folder / "config.yaml")]
    assert {option, "--data.sampling=full", "--model.burn_in=160"} <= set(arguments)
    assert arguments[-1] == "--trainer.max_steps=2000"
    assert "after 2000 gradients a chain" in capsys.readouterr().out


def test_a_step_that_minibatches_bound_is_lowered_by_that_bound(tmp_path: Path) -> None:
    """Half of the fraction would be above the bound still, and change nothing."""
    remedies = [{}, {"lr": 0.5}, {"lr": 0.5, "whole_data": True}, None]
    runs = Runs(tmp_path, remedies, "auto")
    runs.stability["gradient_noise"] = 0.05
    runs.leave(runs.folder)
    Rounds(runs, None).follow(runs.folder)
    first, second = runs.calls
    assert "--model.max_gradient_noise=0.025" in first
    assert "--model.step_fraction=0.05" in second


def test_data_without_the_option_of_a_remedy_end_the_rounds(tmp_path: Path, capsys: Any) -> None:
    runs = Runs(tmp_path, [{"steps": 4.0}, {"whole_data": True}], "auto")
    runs.data = ""
    Rounds(runs, None).follow(runs.folder)
    assert len(runs.calls) == 1
    assert "does not hold yet" in capsys.readouterr().out


def test_time_bounds_the_rounds(tmp_path: Path, capsys: Any) -> None:
    """10 s took 1,000 steps: in 25 s there are 15 more for 1,500, in 10 none."""
    runs = Runs(tmp_path, [{"steps": 4.0}, None], "auto")
    rounds = Rounds(runs, 25 / 60)
    rounds.follow(runs.folder)
    steps = int(runs.calls[0][-1].split("=")[1])
    assert 2400 < steps <= 2500
    runs = Runs(tmp_path, [{"steps": 4.0}], "auto")
    Rounds(runs, 10 / 60).follow(runs.folder)
    assert runs.calls == []
    assert "does not hold yet" in capsys.readouterr().out


def test_a_run_that_another_bound_has_ended_is_not_followed(tmp_path: Path, capsys: Any) -> None:
    """Trainer's ``max_time``, say, ends a longer run at the same place, over and over."""
    runs = Runs(tmp_path, [{}, {"steps": 4.0}], "auto")
    runs.taken = 600
    runs.leave(runs.folder)
    Rounds(runs, None).follow(runs.folder)
    assert runs.calls == []
    assert "does not hold yet" in capsys.readouterr().out


def test_rounds_without_a_number_of_steps_are_refused() -> None:
    with pytest.raises(ValueError, match=r"give trainer\.max_steps"):
        values.check({"until": "sampled", "trainer": {"max_steps": -1, "max_epochs": 5}})
    values.check({"until": "sampled", "trainer": {"max_steps": 10}})
