"""The command line: one folder a run, clear refusals, exact continuation, W&B without a key."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
import yaml
from safetensors.torch import load_file

import sgmcmc
from lightning_sgmcmc import Sampler, load_posterior
from lightning_sgmcmc.callbacks.report.results import provenance
from lightning_sgmcmc.run import cli
from tasks import commands
from tests.toy import Toy

ROOT = Path(__file__).resolve().parents[1]

TOY = """
name: toy
model:
  class_path: tests.toy.Toy
  init_args:
    sampler:
      class_path: lightning_sgmcmc.PSGLD
      init_args:
        lr: 1.0e-3
        prior:
          class_path: lightning_sgmcmc.GaussianPrior
          init_args: {variance: 4.0}
    burn_in: 10
    thinning: 5
data:
  class_path: tests.toy.ToyData
trainer:
  max_steps: 40
  log_every_n_steps: 4
  enable_model_summary: false
  accelerator: cpu
  devices: 1
"""


class NoSampler(Toy):
    """A task that does not say how it is sampled."""

    def __init__(self, sampler: Callable[[Iterable[Any]], Sampler], **chain: Any) -> None:
        super().__init__(sampler, **chain)


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: Any) -> Path:
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "toy.yaml").write_text(TOY)
    (folder / "other.yaml").write_text(TOY)
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_API_KEY", "WANDB_MODE", "SGMCMC_RUN_FOLDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # no netrc
    return folder


class Blind(Toy):
    """A task whose likelihood depends on the sum of its weights alone."""

    def nll(self, batch: Any) -> Any:
        x, y = batch
        return super().nll((x[..., [0, 0, 0]], y))


def run(configs: Path, *arguments: str) -> Path:
    return cli.main(configs, ["--task", "toy", "--wandb_project=null", *arguments])


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_run_leaves_what_it_says(configs: Path, capsys: Any) -> None:
    folder = run(configs)
    assert capsys.readouterr().out.strip().splitlines()[-1] == str(folder)
    assert folder.parent == Path("runs/toy")
    assert folder.name.startswith("psgld-seed0-")
    content = json.loads((folder / "results.json").read_text())
    for key in (
        "schema", "provenance", "task", "sampler", "seed", "temperature", "num_data",
        "num_parameters", "num_draws", "num_steps", "num_gradients", "wall_seconds", "metrics",
        "diagnostics", "paper",
    ):  # fmt: skip
        assert key in content
    assert (content["num_data"], content["num_draws"], content["num_gradients"]) == (64, 6, 40)
    assert {"ensemble", "posterior_mean", "last", "burn_in"} <= content["metrics"].keys()
    assert {p.stem for p in (folder / "figures").glob("*.png")} == {"learning_curve", "trace"}
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(r["step"]) for r in rows if r["train/nll"]] == list(range(4, 41, 4))
    assert len(load_posterior(folder)) == 6


def test_config_reruns_the_run(configs: Path) -> None:
    first = run(configs, "--out", "first", "--seed_everything=3", "--model.sampler.lr=2e-3")
    second = cli.main(configs, ["--config", str(first / "config.yaml"), "--out", "second"])
    for name in ("step_15", "step_40"):
        a, b = (load_file(f / f"samples/chain0/{name}.safetensors") for f in (first, second))
        assert all(torch.equal(a[k], b[k]) for k in a)
    assert json.loads((second / "results.json").read_text())["seed"] == 3


def test_a_run_is_labelled_by_what_was_built(configs: Path, capsys: Any) -> None:
    """Of another sampler than the task's, which reruns and continues as it was."""
    new = ["--model.sampler.lr=0.01", "--model.sampler=SGLD", "--model.sampler.temperature=0.5"]
    folder = run(configs, "--out", "first", "--checkpoint_every=10", *new)
    said = json.loads((folder / "results.json").read_text())["sampler"]
    label = "SGLD, no metric, lr 0.01, GaussianPrior(variance=4, mean=0), T = 0.5"
    assert said["label"] == label
    assert said["metric"] == {"name": "Identity", "state": "constant", "arguments": {}}
    assert said["step"]["schedule"] == "ConstantStep()"
    assert said["batches"] == "reshuffled"
    said, table = capsys.readouterr().out.split("\n\n")[-3:-1]
    assert said.strip().startswith("Verdict: not yet a sample of the target\n  - ")
    rows = table.splitlines()
    assert re.fullmatch(rf"  chain +{re.escape(label)}", rows[0])
    cli.main(configs, ["--config", str(folder / "config.yaml"), "--out", "second"])
    run(configs, "--out", "third", "--checkpoint_every=10", "--trainer.max_steps=23", *new)
    cli.main(configs, ["--out", "third", "--ckpt_path", "last", "--trainer.max_steps=40"])
    whole, *others = (
        load_file(Path(f) / "samples/chain0/step_40.safetensors")
        for f in ("first", "second", "third")
    )
    assert all(torch.equal(whole[k], other[k]) for other in others for k in whole)


def test_a_metric_that_froze_says_so(configs: Path) -> None:
    said = json.loads((run(configs) / "results.json").read_text())["sampler"]
    assert said["label"].startswith("PSGLD, RMSProp metric (frozen), lr 0.001, GaussianPrior(")
    assert said["metric"]["arguments"]["alpha"] == 0.99


def test_a_configuration_of_a_run_takes_another_seed(configs: Path) -> None:
    """It states the chain's seed, and so did the run that wrote it."""
    first = run(configs, "--out", "first", "--seed_everything=5")
    again = ["--config", str(first / "config.yaml")]
    found = {
        name: json.loads((run(configs, "--out", name, *given) / "results.json").read_text())["seed"]
        for name, given in {
            "same": again,
            "other": [*again, "--seed_everything=7"],
            "own": [*again, "--seed_everything=7", "--model.sampler.seed=0"],
        }.items()
    }
    assert found == {"same": 5, "other": 7, "own": 0}


def test_an_option_has_one_name(configs: Path, capsys: Any) -> None:
    """``--seed=7`` would set --seed_everything and leave the chain's seed as it was."""
    first = run(configs, "--out", "first", "--seed_everything=5")
    for short, meant in (
        ("--seed=7", "--seed_everything"),
        ("--trainer.max_step=20", "--trainer.max_steps"),
        ("--ckpt=last", "--ckpt_path"),
        ("--seed_evrything=7", "--seed_everything"),
    ):
        with pytest.raises(SystemExit):
            run(configs, "--config", str(first / "config.yaml"), "--out", "other", short)
        said = f"error: unrecognized arguments: {short}; do you mean {meant}?\n"
        assert capsys.readouterr().err.endswith(said)


def test_seed_changes_the_chain(configs: Path) -> None:
    a, b = (
        load_file(
            run(configs, "--out", f"s{s}", f"--seed_everything={s}")
            / "samples/chain0/step_40.safetensors"
        )
        for s in (1, 2)
    )
    assert not torch.equal(a["net.weight"], b["net.weight"])


def test_stopped_run_continues(configs: Path) -> None:
    whole = run(configs, "--out", "whole", "--checkpoint_every=10")
    run(configs, "--out", "part", "--checkpoint_every=10", "--trainer.max_steps=23")
    folder = Path("part")
    cli.main(configs, ["--out", "part", "--ckpt_path", "last", "--trainer.max_steps=40"])
    for name in (f"step_{k}.safetensors" for k in range(15, 41, 5)):
        a, b = (load_file(f / "samples/chain0" / name) for f in (whole, folder))
        assert all(torch.equal(a[k], b[k]) for k in a)
    assert json.loads((folder / "results.json").read_text())["num_draws"] == 6


def results(folder: Path) -> dict[str, Any]:
    """The results of a run, but the clock and where they came from."""
    content: dict[str, Any] = json.loads((folder / "results.json").read_text())
    del content["provenance"], content["wall_seconds"]
    return content


@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("how", [["--finish", "run"], ["--out", "run", "--ckpt_path", "last"]])
@pytest.mark.parametrize("sampler", [[], ["--model.sampler=SGHMC", "--model.sampler.lr=auto"]])
def test_results_are_a_function_of_the_folder(
    configs: Path, how: list[str], lost: bool, sampler: list[str]
) -> None:
    """A run that has no step left is summed up again, also one that died before its results."""
    folder = run(configs, "--out", "run", "--checkpoint_every=10", *sampler)
    expected, log = results(folder), (folder / "metrics.csv").read_bytes()
    if lost:
        (folder / "results.json").unlink()
        shutil.rmtree(folder / "figures")
    assert cli.main(configs, how) == folder
    assert results(folder) == expected
    assert (folder / "metrics.csv").read_bytes() == log
    assert {p.stem for p in (folder / "figures").glob("*.png")} == {"learning_curve", "trace"}


def test_an_unfinished_run_is_summed_up_and_goes_on(configs: Path, monkeypatch: Any) -> None:
    """Killed on the way, with rows and draws after its checkpoint."""
    settings = ["--checkpoint_every=10", "--model.sampler=SGHMC", "--model.sampler.lr=auto"]
    whole = run(configs, "--out", "whole", *settings)
    with monkeypatch.context() as context:
        context.setattr(Toy, "on_draw", _die_at_last_draw)
        with pytest.raises(RuntimeError, match="killed"):
            run(configs, "--out", "part", *settings)
    part = cli.main(configs, ["--finish", "part"])
    assert results(part)["num_draws"] == 4  # at step 30, of the 6 at step 40
    cli.main(configs, ["--out", "part", "--ckpt_path", "last"])
    assert results(part) == results(whole)
    assert results(part)["diagnostics"]["stability"]
    assert (part / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()


def _die_at_last_draw(task: Toy, weight: float) -> None:
    if task.chain.steps == 40:
        raise RuntimeError("killed")


def test_fuller_results_stay(configs: Path, capsys: Any) -> None:
    folder = run(configs, "--out", "run")
    path = folder / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_draws": 7}))
    before = path.read_bytes()
    with pytest.raises(SystemExit) as stop:
        cli.main(configs, ["--finish", "run"])
    assert stop.value.code == 2
    assert "is of 7 draws, the checkpoint of 6: the results stay" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_results_without_git_and_within_another_repository(
    tmp_path: Path, monkeypatch: Any
) -> None:
    here = provenance(torch.device("cpu"))["commit"]
    package = tmp_path / "lib" / "site" / "lightning_sgmcmc" / "callbacks" / "report" / "results.py"
    package.parent.mkdir(parents=True)
    with monkeypatch.context() as context:
        context.setenv("PATH", str(tmp_path))
        assert provenance(torch.device("cpu"))["commit"] is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "other"], check=True)
    monkeypatch.setattr("lightning_sgmcmc.callbacks.report.results.__file__", str(package))
    assert provenance(torch.device("cpu"))["commit"] is None
    assert here is None or re.fullmatch(r"[0-9a-f]{12}(-dirty)?|.+-g[0-9a-f]{12}(-dirty)?", here)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--task", "toy", "--trainer.enable_checkpointing=false"],
            "trainer.enable_checkpointing: a run keeps two checkpoints",
        ),
        (["--task", "toy", "--trainer.barebones=true"], "trainer.barebones keeps no draw"),
        (["--task", "nothing"], "unknown task 'nothing': choose one of other, toy"),
        ([], "give --task NAME"),
        (["--model=tests.toy.Toy"], "no data: give --data CLASS"),
        (
            ["--model=tests.test_cli.NoSampler", "--data=tests.toy.ToyData"],
            "no sampler: give --model.sampler, one of HAMCMC",
        ),
        (
            ["--task", "toy", "--model.sampler.lrr=1"],
            "PSGLD has no option 'lrr': it takes lr, alpha, eps, floor",
        ),
        (
            ["--task", "toy", "--model.sampler.lr=fast"],
            "model.sampler.lr: expected float or ['auto'], got fast",
        ),
        (["--task", "toy", "--model.sampler.lr=-1"], "lr must be a positive number"),
        (["--task", "toy", "--model.sampler.alpha=null"], "alpha: expected float, got null"),
        (
            ["--task", "toy", "--model.sampler=NoSampler"],
            "model.sampler: unknown class 'NoSampler': choose one of HAMCMC, HASGLD, HMC, MCLMC, "
            "NaturalLangevin, PSGLD, SGFS, SGHMC, SGLD, SGNHT, SMILE, or the path of a "
            "class",
        ),
        (
            ["--task", "toy", "--model.sampler=SGLD", "--model.sampler.preconditioner=None"],
            "preconditioner: unknown class 'None': choose one of AveragedLBFGS, BlockFisher, "
            "DecayingRMSProp, DiagonalFisher, FullFisher, Identity, PriorMetric, "
            "QuasiDiagonalFisher, RMSProp, or the path",
        ),
        (
            ["--model=tests.test_cli.NoSampler", "--model.sampler=SGLD",
             "--data=tests.toy.ToyData"],
            "model.sampler needs lr: give --model.sampler.lr",
        ),
        (
            ["--task", "toy", "--model.sampler=SGLD"],  # the step was PSGLD's
            "model.sampler needs lr: give --model.sampler.lr",
        ),
        (
            ["--task", "toy", "--model.burn_in_optimizer.thinning=2"],
            "OptimizerBurnIn has no option 'thinning': it takes optimizer, steps, warmup, final",
        ),
        (
            ["--task", "toy", "--data.batchsize=2"],
            "ToyData has no option 'batchsize': it takes batch_size",
        ),
        (["--task", "toy", "--nonsense=1"], "nonsense"),
        (["--task", "toy", "--trainer.max_steps=few"], "trainer.max_steps: expected int, got few"),
        (["--task", "toy", "--model.burn_in=100"], "burn_in = 100 is not shorter"),
        (["--task", "toy", "--trainer.precision=16-mixed"], "16-mixed"),
        (["--task", "toy", "--trainer.gradient_clip_val=1.0"], "gradient_clip_val"),
        (["--ckpt_path", "last", "--out", "none"], "no run to continue in none"),
        (
            ["--task", "toy", "--out", "configs/toy.yaml/below"],
            "toy.yaml/below: not a directory; --out FOLDER writes the run elsewhere",
        ),
        (["--task", "toy", "--ckpt_path", "last"], "there is no checkpoint runs/toy/"),
        (["--task", "toy", "--ckpt_path", "gone.ckpt"], "there is no checkpoint gone.ckpt"),
        (
            ["--task", "toy", "--trainer.callbacks+=lightning_sgmcmc.callbacks.GradualPruning",
             "--trainer.callbacks.rate=1.5", "--trainer.callbacks.start=0",
             "--trainer.callbacks.stop=5"],
            "sparse rate must lie in [0, 1)",
        ),
        (
            ["--task", "toy", "--trainer.callbacks+=lightning_sgmcmc.callbacks.GradualPruning",
             "--trainer.callbacks.rate=0.5", "--trainer.callbacks.start=0",
             "--trainer.callbacks.stop=20"],
            "pruning must end before draws",
        ),
    ],
)  # fmt: skip
def test_a_bad_command_is_one_line_and_status_2(
    configs: Path, capsys: Any, arguments: list[str], message: str
) -> None:
    before = files(configs.parent)
    with pytest.raises(SystemExit) as stop:
        cli.main(configs, arguments)
    assert stop.value.code == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(errors) == 1
    assert message in errors[0]
    assert files(configs.parent) == before


def test_ctrl_c_while_packages_load(monkeypatch: Any, capsys: Any) -> None:
    """It ends the process at once; later, where nothing runs yet, it is one word and status 130."""
    seen = []

    def load(name: str) -> None:
        seen.append(signal.getsignal(signal.SIGINT))
        raise KeyboardInterrupt

    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(commands, "import_module", load)
    try:
        assert sgmcmc.main(["generate", "permeability"]) == 130
        assert seen == [signal.SIG_DFL]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, usual)
    assert capsys.readouterr().err == "stopped\n"


def test_a_folder_that_holds_a_run_is_refused(configs: Path, capsys: Any) -> None:
    folder = run(configs, "--out", "mine")
    before = files(folder)
    with pytest.raises(SystemExit) as stop:
        run(configs, "--out", "mine")
    assert stop.value.code == 2
    assert "already holds a run" in capsys.readouterr().err
    assert files(folder) == before


def test_diverging_run_ends_with_advice(configs: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit) as stop:
        run(configs, "--out", "hot", "--model.sampler=lightning_sgmcmc.SGLD",
            "--model.sampler.lr=5.0")  # fmt: skip
    assert stop.value.code == 3
    assert "lower lr" in capsys.readouterr().err


def test_a_metric_without_an_inverse_is_one_line(configs: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit) as stop:
        run(configs, "--out", "blind", "--model=tests.test_cli.Blind",
            "--model.sampler=lightning_sgmcmc.SGLD", "--model.sampler.lr=0.1",
            "--model.sampler.preconditioner=lightning_sgmcmc.FullFisher",
            "--model.sampler.preconditioner.eps=1e-12")  # fmt: skip
    assert stop.value.code == 3
    said = capsys.readouterr().err.strip().split("\n")[-1]
    assert said.startswith("error: FullFisher")
    assert "raise eps or floor, or compute in float64" in said


def test_without_a_key_wandb_is_offline_and_says_so(configs: Path, caplog: Any, capfd: Any) -> None:
    with caplog.at_level("INFO"):
        folder = cli.main(configs, ["--task", "toy", "--out", "tracked"])
    assert any("no API key, logging offline" in r.getMessage() for r in caplog.records)
    assert list((folder / "wandb").glob("offline-run-*/*.wandb"))
    assert "WARNING" not in capfd.readouterr().err


def test_print_config_is_a_config(configs: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(configs, ["--task", "toy", "--model.thinning=7", "--print_config"])
    assert stop.value.code == 0
    assert yaml.safe_load(capsys.readouterr().out)["model"]["init_args"]["thinning"] == 7


SWEEPS = sorted((ROOT / "configs" / "sweeps").glob("*.yaml"))


@pytest.mark.parametrize("path", SWEEPS, ids=lambda p: p.stem)
def test_sweep_parameters_are_options_of_the_task(path: Path, capsys: Any) -> None:
    sweep = yaml.safe_load(path.read_text())
    words = sweep["command"]
    fixed = [a for a in words[words.index("train") + 1 :] if not a.startswith("${")]
    for name, parameter in sweep["parameters"].items():
        value = parameter["values"][0] if "values" in parameter else parameter["min"]
        with pytest.raises(SystemExit) as stop:
            cli.main(ROOT / "configs", [*fixed, f"--{name}={value}", "--print_config"])
        assert stop.value.code == 0, name
        found = yaml.safe_load(capsys.readouterr().out)
        for key in name.split("."):
            found = found["init_args"][key] if key not in found else found[key]
        assert found == (yaml.safe_load(value) if isinstance(value, str) else value)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda p: p.stem)
def test_sweep_fits_the_schema_of_wandb(path: Path) -> None:
    """The package ``sweeps`` is W&B's own; it pins an old NumPy, so only its schema is read."""
    try:
        entries = metadata.files("sweeps") or []
    except metadata.PackageNotFoundError:
        pytest.skip("W&B's package `sweeps` is not installed (pip install --no-deps sweeps)")
    schema = next(e for e in entries if str(e).endswith("schema.json"))
    validator = jsonschema.Draft7Validator(json.loads(Path(str(schema.locate())).read_text()))
    sweep = yaml.safe_load(path.read_text())
    assert list(validator.iter_errors(sweep)) == []
    assert list(validator.iter_errors(sweep | {"method": "guess"}))


def test_environment_is_clean_after_a_run(configs: Path) -> None:
    run(configs, "--out", "one")
    assert run(configs).parent == Path("runs/toy")
    assert "LOCAL_RANK" not in os.environ


@pytest.fixture(scope="module")
def own_module(tmp_path_factory: Any) -> Path:
    """Return the folder of the file that docs/own-task.md shows, as it stands there."""
    text = (ROOT / "docs" / "own-task.md").read_text()
    code = next(c for c in re.findall(r"```python\n(.*?)```", text, re.S) if "class MyData" in c)
    folder: Path = tmp_path_factory.mktemp("own")
    (folder / "my_module.py").write_text(code)
    return folder


#: A step size that suits the example, and what a sampler's law asks of the minibatches.
OWN_STEPS = {
    "PSGLD": "0.01",
    "SGLD": "0.5",
    "SGHMC": "0.02",
    "SGNHT": "0.01",
    "SMILE": "0.01",
    "SGFS": "0.002",
    "NaturalLangevin": "0.01",
    "HASGLD": "0.02",
    "HAMCMC": "0.2",
}


@pytest.mark.parametrize("sampler", OWN_STEPS)
def test_a_users_own_file_runs_with_every_sampler(
    own_module: Path, configs: Path, monkeypatch: Any, sampler: str
) -> None:
    """A file outside this repository; its classes learn the moons, whose noise misleads 6 %."""
    monkeypatch.syspath_prepend(own_module)
    folder = cli.main(
        configs,
        [
            "--model=my_module.MyTask",
            "--data=my_module.MyData",
            f"--model.sampler={sampler}",
            f"--model.sampler.lr={OWN_STEPS[sampler]}",
            "--model.sampler.prior=GaussianPrior",
            "--model.sampler.prior.variance=4",
            "--model.burn_in=300",
            "--model.thinning=10",
            "--trainer.max_steps=600",
            "--trainer.accelerator=cpu",
            "--wandb_project=null",
        ],
    )
    assert folder.parent == Path("runs/mytask")
    metrics = json.loads((folder / "results.json").read_text())["metrics"]
    assert metrics["ensemble"]["error_percent"] < 15  # a line through the middle has 17
    assert len(load_posterior(folder)) == 30


def test_the_documented_command_runs_where_the_file_lies(own_module: Path) -> None:
    """By scripts/train.py from the file's own folder, without any path being set."""
    text = (ROOT / "docs" / "own-task.md").read_text()
    block = next(
        b for b in re.findall(r"```bash\n(sgmcmc train --model my_module.*?)```", text, re.S)
    )
    arguments = block.replace("\\\n", " ").split()[2:]
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "WANDB_API_KEY")}
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "scripts" / "train.py"),
            *arguments,
            "--model.burn_in=20",
            "--trainer.max_steps=60",
            "--wandb_project=null",
        ],
        cwd=own_module,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (own_module / done.stdout.splitlines()[-1] / "results.json").is_file()


def test_a_sampler_and_a_metric_of_ones_own_go_by_their_names(configs: Path) -> None:
    """Those of docs/examples, which docs/own-sampler.md gives on a command line."""
    folder = run(
        configs,
        "--model.sampler=obabo.OBABO",
        "--model.sampler.lr=auto",
        "--model.sampler.momentum=0.9",
        "--model.sampler.preconditioner=shampoo.Shampoo",
        "--model.sampler.preconditioner.every=5",
    )
    results = json.loads((folder / "results.json").read_text())
    assert results["sampler"]["name"] == "OBABO"
    assert results["sampler"]["implementation"] == "torch"
    saved = (folder / "config.yaml").read_text()
    assert "class_path: obabo.OBABO" in saved
    assert "every: 5" in saved


def test_draws_of_a_module_that_cannot_be_found(tmp_path: Path) -> None:
    (tmp_path / "samples" / "chain0").mkdir(parents=True)
    (tmp_path / "config.yaml").write_text("model: {class_path: nowhere.Task}")
    with pytest.raises(ValueError, match=r"names nowhere\.Task, which cannot be imported"):
        load_posterior(tmp_path)
    (tmp_path / "config.yaml").write_text("model: {class_path: tests.toy.Toy, init_args: {n: 1}}")
    with pytest.raises(ValueError, match="Toy has no option 'n': it takes sampler, burn_in"):
        load_posterior(tmp_path)
