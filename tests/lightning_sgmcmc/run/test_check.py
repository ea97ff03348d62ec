"""``--check RUN`` reads everything; what may change on continuing is recorded, the rest refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lightning_sgmcmc import load_posterior
from lightning_sgmcmc.callbacks.report import results
from lightning_sgmcmc.run import cli
from lightning_sgmcmc.run.check import damage
from tests.test_cli import TOY
from tests.toy import toy_data


@pytest.fixture(scope="module")
def root(tmp_path_factory: Any) -> Path:
    """A folder with configs/ and a run of two chains, stopped at step 40."""
    folder: Path = tmp_path_factory.mktemp("root")
    (folder / "configs").mkdir()
    (folder / "configs" / "toy.yaml").write_text(TOY)
    with pytest.MonkeyPatch.context() as context:
        context.setenv("WANDB_MODE", "disabled")
        call(folder, "--task", "toy", "--out", str(folder / "run"), "--model.num_chains=2")
    return folder


def call(root: Path, *arguments: str) -> Path:
    quiet = ["--wandb_project=null", "--trainer.enable_progress_bar=false"]
    more = [] if arguments[0] == "--check" else [*quiet, "--checkpoint_every=10"]
    return cli.main(root / "configs", [*arguments, *more])


@pytest.fixture
def run(root: Path, tmp_path: Path) -> Path:
    shutil.copytree(root / "run", tmp_path / "run")
    return tmp_path / "run"


def files(folder: Path) -> list[str]:
    return sorted(
        str(p.relative_to(folder))
        for p in folder.rglob("*")
        if p.is_file() and p.suffix != ".png" and "wandb" not in p.parts
    )


def test_a_whole_run_is_sound(root: Path, run: Path, capsys: Any) -> None:
    assert damage(run) == []
    assert call(root, "--check", str(run)) == run
    assert capsys.readouterr().out == f"{run} is sound\n"
    for path in run.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path


@pytest.mark.parametrize("how", ["flip", "truncate", "remove"])
def test_damage_to_any_file_is_named(root: Path, run: Path, how: str, capsys: Any) -> None:
    found = []
    for name in files(run):
        path = run / name
        whole = path.read_bytes()
        middle = len(whole) // 2
        if how == "remove":
            path.unlink()
        elif how == "flip":
            path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        else:
            path.write_bytes(whole[: middle - 3])
        lines = damage(run)
        path.write_bytes(whole)
        if any(path.name in line for line in lines):
            found.append(name)
            assert all("\n" not in line for line in lines)
    replaceable = {"checkpoints/previous.ckpt"} if how == "remove" else set()
    assert set(files(run)) - set(found) == replaceable
    assert damage(run) == []
    (run / "samples/chain1/step_20.safetensors").unlink()
    with pytest.raises(SystemExit) as stop:
        call(root, "--check", str(run))
    assert stop.value.code == 2
    assert "chain1/step_20.safetensors is" in capsys.readouterr().out


def test_a_copy_of_a_chain_s_folder_is_no_chain(run: Path) -> None:
    shutil.copytree(run / "samples" / "chain0", run / "samples" / "chain0.old")
    assert damage(run) == []
    assert len(load_posterior(run).stores) == 2


def test_chains_and_results_that_are_missing_are_named(run: Path) -> None:
    (run / "results.json").rename(run / "elsewhere.json")
    (line,) = damage(run)
    assert (
        line == f"{run / 'results.json'} is missing: 'sgmcmc train --finish {run}' writes it again"
    )
    (run / "elsewhere.json").rename(run / "results.json")
    shutil.rmtree(run / "checkpoints")
    assert damage(run) == []
    shutil.rmtree(run / "samples" / "chain1")
    message = f"{run / 'samples'} holds 1 of the 2 chains that results.json counts"
    (line,) = damage(run)
    assert line.startswith(message)
    with pytest.raises(FileNotFoundError, match=re.escape(message)):
        load_posterior(run)


def test_no_run_is_one_line(root: Path, tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit) as stop:
        call(root, "--check", str(tmp_path))
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith("holds no run: neither config.yaml nor samples/\n")


def test_a_draw_that_is_not_finite_is_not_averaged(run: Path) -> None:
    posterior = load_posterior(run)
    store = posterior.stores[1]
    weights = store.load(store.draws[2])
    store.save(45, {name: torch.full_like(t, torch.nan) for name, t in weights.items()}, 1.0)
    with pytest.raises(ValueError, match=r"chain1/step_45\.safetensors is no draw: net\.weight"):
        _ = load_posterior(run).predict(toy_data()[0]).mean


def test_damaged_results_are_written_again(root: Path, run: Path) -> None:
    path = run / "results.json"
    before = json.loads(path.read_text())
    path.write_bytes(path.read_bytes()[:1000])
    call(root, "--finish", str(run))
    after = json.loads(path.read_text())
    assert damage(run) == []
    same = ("metrics", "diagnostics", "num_draws", "num_gradients")
    assert all(after[key] == before[key] for key in same)


def test_results_that_are_written_again_have_their_own_checksum(tmp_path: Path, run: Path) -> None:
    """As records of experiments are, which are copied without the command."""
    content = json.loads((run / "results.json").read_text())
    del content["provenance"]["command"]
    results.write(tmp_path, content)
    del content["provenance"]["sha256"]
    assert results.read(tmp_path / "results.json") == content


def test_what_may_change_is_recorded_with_its_step(root: Path, run: Path) -> None:
    last = ["--out", str(run), "--ckpt_path", "last"]
    call(root, *last, "--trainer.max_steps=50", "--model.draw_budget=150")
    call(root, *last)
    call(root, *last, "--trainer.max_steps=60")
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["trainer"]["max_steps"] == 60
    assert config["model"]["init_args"]["draw_budget"] == 150
    found = json.loads((run / "results.json").read_text())
    assert found["num_draws"] == 10
    assert found["changes"] == [
        {"setting": "model.draw_budget", "from": 200, "to": 150, "step": 40},
        {"setting": "trainer.max_steps", "from": 40, "to": 50, "step": 40},
        {"setting": "trainer.max_steps", "from": 50, "to": 60, "step": 50},
    ]
    again = call(root, "--config", str(run / "config.yaml"), "--out", str(run.parent / "again"))
    assert files(again / "samples") == files(run / "samples")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.sampler.temperature=0.5"], "model.sampler.temperature cannot change where a "
         "run is continued: 1.0 so far, 0.5 now"),
        (["--model.sampler.prior.variance=2"], "variance cannot change"),
        (["--model.sampler.alpha=0.9"], "model.sampler.alpha cannot change"),
        (["--model.sampler.noise=philox"], "model.sampler.noise cannot change where a run is "
         "continued: null so far, philox now"),
        (["--seed_everything=1"], "seed cannot change where a run is continued: 0 so far, 1 now"),
        (["--data.batch_size=8"], "data.batch_size cannot change where a run is continued: 16 so "
         "far, 8 now"),
        (["--model.sampler=SGLD", "--model.sampler.lr=1e-3"], "model.sampler cannot change where "
         "a run is continued: lightning_sgmcmc.PSGLD so far, lightning_sgmcmc.SGLD now"),
        (["--model.num_chains=3"], "the run has 2 chains, not 1 x 3 (processes x num_chains)"),
    ],
)  # fmt: skip
def test_the_rest_is_refused_in_one_line(
    root: Path, run: Path, capsys: Any, arguments: list[str], message: str
) -> None:
    before = {name: (run / name).read_bytes() for name in files(run)}
    with pytest.raises(SystemExit) as stop:
        call(root, "--out", str(run), "--ckpt_path", "last", "--trainer.max_steps=50", *arguments)
    assert stop.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert message in said[-1]
    assert {name: (run / name).read_bytes() for name in files(run)} == before


def test_a_config_that_was_edited_is_refused(root: Path, run: Path, capsys: Any) -> None:
    path = run / "config.yaml"
    path.write_text(path.read_text().replace("variance: 4.0", "variance: 5.0"))
    for known in (True, False):
        with pytest.raises(SystemExit):
            call(root, "--out", str(run), "--ckpt_path", "last", "--trainer.max_steps=50")
        if known:
            assert "if you changed it yourself, take its first line" in capsys.readouterr().err
            path.write_text(path.read_text().partition("\n")[2])
    assert "prior.variance cannot change where a run is continued: 4.0" in capsys.readouterr().err


def test_the_older_checkpoint_is_taken_with_a_word(root: Path, run: Path, capsys: Any) -> None:
    last = run / "checkpoints" / "last.ckpt"
    expected = {name: (run / name).read_bytes() for name in files(run) if "step_" in name}
    last.write_bytes(last.read_bytes()[:-100])
    call(root, "--out", str(run), "--ckpt_path", "last")
    assert "taking previous.ckpt, the one before" in capsys.readouterr().err
    assert damage(run) == []
    found = {name: (run / name).read_bytes() for name in files(run) if "step_" in name}
    assert found == expected
