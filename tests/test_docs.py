"""Every command and every snippet of README and docs runs, on small data and for few steps.

A page is one test: its blocks run from top to bottom in an empty folder, snippets in one namespace.
``SNIPPETS`` gives what a snippet takes for granted, such as ``x``, and shortens it; ``SHORT`` does
so for commands. What is only built, or not run at all, is listed with the reason.
"""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn

import sgmcmc
from lightning_sgmcmc.baselines import Dropout
from lightning_sgmcmc.run import cli
from tasks.data import kddcup99
from tasks.data.download import DATA_ROOT
from tasks.data.mnist import MNISTData
from tasks.experiments import reproduce
from tasks.experiments.sheet import Sheet
from tests.pages import COMMAND, PAGES, ROOT, Block, blocks, commands, mentioned
from tests.tasks import test_images, test_kddcup99

#: Commands that are not run, by how they begin.
NOT_RUN = {
    "python3 -m venv": "makes an environment from the net; .ci/run runs README's own line",
    ".venv/bin/python -m pip": "as above",
    ".venv/bin/python -m pytest": "as above",
    ".venv/bin/sgmcmc": "the same command stands without the environment below it",
    "python -m pip": "changes the environment that the tests run in",
    ".venv/bin/ruff": ".ci/run runs it",
    ".venv/bin/mypy": ".ci/run runs it",
    "python scripts/write_tables.py": "writes into docs; tests/tasks/test_pages.py holds them",
}
FEW = [
    "--model.burn_in_optimizer.steps=6", "--model.burn_in=8", "--model.thinning=2",
    "--trainer.max_steps=20",
]  # fmt: skip
QUIET = ["--wandb_project=null", "--trainer.enable_progress_bar=false"]
#: Commands that run to their end, and how they are made short. Of other runs of tasks and
#: experiments everything is built, up to the first step: their data are not here, or take long.
SHORT = {
    "--task uci_regression --data.file=my.csv --data.target=price": FEW,
    "--task class_table --data.file=my.csv --data.target=kind": FEW,
    "--model my_module.MyTask": ["--model.burn_in=20", "--trainer.max_steps=60"],
    "--out RUN_FOLDER --ckpt_path last": ["--trainer.max_steps=24"],
    "--finish RUN_FOLDER": [],
    "generate ": ["--samples=8", "--workers=1"],
    "--print_config": [],
    "--help": [],
    "--list": [],
    "--show": [],
}
#: What stands for a word of a page that its reader replaces.
REST = {
    "--data my_module.MyData ...": "--data my_module.MyData --model.sampler=PSGLD "
    "--model.sampler.lr=auto --model.sampler.prior=GaussianPrior --model.thinning=10",
    "train ... --until": "train --task pde_source --until",
    "reproduce NAME": "reproduce table1",
    "--out FILE": "--out file.safetensors",
}
#: The run that a part of a YAML file is of.
YAML = {
    "docs/prediction.md": "--task mnist",
    "docs/samplers.md": "--task uci_regression --data.name yacht",
}
#: Files that a page asks its reader to write, by a phrase of them.
FILES = {
    "class MyNet": "my_net.py",
    "class MyData": "my_module.py",
    "class Channels(": "channels.py",
}


@dataclass(frozen=True)
class Snippet:
    """What a snippet takes for granted, and how it is made short."""

    before: str = ""
    replace: dict[str, str] = field(default_factory=dict)
    after: str = ""


TABLE_ROWS = "x, y = torch.randn(5, 4), torch.randn(5, 1)"
SNIPPETS = {
    ("README.md", 'load_posterior("runs/pde_source/...")'): Snippet(
        "sources = torch.rand(2, 60, 60)", {'"runs/pde_source/..."': 'run_of("pde_source")'}
    ),
    ("README.md", "class MyTask"): Snippet(
        "net, data = nn.Linear(2, 2), own_data()",
        {"burn_in=300, thinning=100": "burn_in=10, thinning=5", "max_steps=3000": "max_steps=30"},
    ),
    ("docs/baselines.md", "mc_dropout_predictions"): Snippet(
        "from lightning_sgmcmc import load_posterior\n"
        "from lightning_sgmcmc.baselines import mc_dropout_predictions\n"
        f"{TABLE_ROWS}; batch = x, y; run_folder = run_of('dropout')",
        {"num=100": "num=5"},
    ),
    ("docs/diagnostics.md", "to_arviz"): Snippet(
        f"{TABLE_ROWS}; batch = x, y", {'"runs/<task>/<name>"': 'run_of("uci_regression")'}
    ),
    ("docs/prediction.md", "for weights, outputs"): Snippet(
        TABLE_ROWS, {'"runs/TASK/NAME"': 'run_of("uci_regression")'}
    ),
    ("docs/prediction.md", "cell_velocity"): Snippet(
        "import numpy as np, pde\n"
        "posterior = load_posterior(run_of('pde_source'))\n"
        "grid, source, kappa = pde.Grid(60, 60), torch.rand(60, 60), np.ones((60, 60))",
        {"sample(200)": "sample(5)"},
    ),
    ("docs/prediction.md", "of_labels"): Snippet(
        "from lightning_sgmcmc.metrics import entropy\n"
        "posterior = load_posterior(run_of('class_table'))\n"
        "x, y = torch.randn(5, 4), torch.tensor([0, 1, 0, 1, 0])",
        after="assert (of_weights > -1e-6).all()",
    ),
    ("docs/prediction.md", "save_mean_network"): Snippet(
        "import safetensors.torch\n"
        "from tasks.nets.mlp import MLP\n"
        "net = MLP(inputs=4, hidden=[50], outputs=2)"
    ),
    ("docs/prediction.md", "distill("): Snippet(
        "student, x_train, y_train = nn.Linear(4, 2), x, y", {"20_000": "5", "=10)": "=2)"}
    ),
    ("docs/own-task.md", "class Poisson"): Snippet("from lightning_sgmcmc import BatchStream, Law"),
    ("docs/own-task.md", "def train_dataloader(self):\n    return"): Snippet(
        "x, y = torch.randn(200, 2), torch.zeros(200)", after="next(iter(train_dataloader(None)))"
    ),
    ("docs/gallery.md", "601"): Snippet(replace={"601": "101"}),
    ("docs/darcy.md", "class Channels"): Snippet(
        after="import channels, pde\n"
        "pde.generate(channels.ChannelSpec(num_samples=3), 'channels.safetensors', workers=1)\n"
        "assert pde.load('channels.safetensors').velocity.shape[0] == 3"
    ),
    ("docs/spike-slab.md", "bind_residuals"): Snippet(
        "from lightning_sgmcmc import SGLD, SpikeAndSlabPrior\n"
        "net, N, sum_of_squared_residuals = nn.Linear(3, 1), 100, 10.0"
    ),
    ("docs/uci.md", "load_posterior"): Snippet(
        "x = torch.randn(5, 4)", {'"runs/uci_regression/..."': 'run_of("uci_regression")'}
    ),
    ("docs/class-data.md", "'mine.csv'"): Snippet(
        replace={"mine.csv": "my.csv", "diagnosis": "kind"}
    ),
    ("docs/class-data.md", "'hhp.csv'"): Snippet(replace={"hhp.csv": "my.csv", "days": "kind"}),
}


class BuiltError(Exception):
    """All objects of a run were built, and its first step would come."""


class ParsedError(Exception):
    """A script has read its arguments."""


class Dropped(nn.Sequential):
    """A network with dropout."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 8), nn.Tanh(), Dropout(0.1), nn.Linear(8, 1))


#: The runs that snippets load: the command, without its data.
RUNS = {
    "pde_source": [
        "--task=pde_source", "--data.num_samples=20", "--model.sampler.lr=1e-6",
    ],
    "uci_regression": ["--task=uci_regression", "--data.target=price"],
    "class_table": ["--task=class_table", "--data.target=kind"],
    "dropout": [
        "--task=uci_regression", "--data.target=price", "--model.net=tests.test_docs.Dropped",
        "--model.sampler=lightning_sgmcmc.baselines.Optimized", "--model.sampler.lr=1e-3",
        "--model.sampler.optimizer=torch.optim.Adam", "--model.num_chains=1",
        "--model.noise=0.3", "--model.sampler.prior=FlatPrior",
    ],
}  # fmt: skip


def table(path: Path) -> Path:
    """Write a table with a number and a class to predict."""
    x = np.random.default_rng(0).normal(size=(60, 3)).round(3)
    columns = np.column_stack([x, x @ [1, -1, 2], x[:, 0] > 0]).tolist()
    rows = [f"{a},{b},{c},{price:.4f},{kind:.0f}" for a, b, c, price, kind in columns]
    path.write_text("\n".join(["a,b,c,price,kind", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return what makes a short run of ``RUNS``, once, and returns its folder."""
    root = tmp_path_factory.mktemp("runs")

    @cache
    def run(name: str) -> str:
        data = [] if name == "pde_source" else [f"--data.file={table(root / 'my.csv')}"]
        out = root / name
        cli.main(ROOT / "configs", [*RUNS[name], *data, *FEW, *QUIET, f"--out={out}"])
        return str(out)

    return run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder to run in, but for the data sets that pages name."""
    table(tmp_path / "my.csv")
    digits = test_images.written(tmp_path, "MNIST", "file:///nowhere/")
    monkeypatch.setattr(MNISTData, "files", digits)
    connections = test_kddcup99.written(tmp_path, test_kddcup99.ROWS * 10)
    checksum = f"sha256:{sha256(connections.read_bytes()).hexdigest()}"
    monkeypatch.setitem(kddcup99.SETS, "10percent", (connections.name, "file:///", (checksum,)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv(DATA_ROOT, str(tmp_path))
    for name in ("my_net", "my_module", "channels"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def stop(error: type[Exception]) -> Callable[..., Any]:
    def stopped(*arguments: Any, **named: Any) -> Any:
        raise error

    return stopped


def run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command of a page, or build all that it would run."""
    line = " ".join(words)
    if any(line.startswith(begin) for begin in NOT_RUN):
        return
    for phrase, rest in REST.items():
        line = line.replace(phrase, rest)
    command, *arguments = shlex.split(line)
    if command == "python":
        script, *arguments = arguments
        if script != "scripts/train.py":
            parse(ROOT / script, arguments, monkeypatch)
            return
        arguments.insert(0, "train")
    else:
        assert command == "sgmcmc", f"a test cannot run {line!r}: see NOT_RUN"
    if arguments in (["train"], ["reproduce"]):
        arguments.append("--help")
    if arguments[0] == "generate" and "--out" not in arguments:
        arguments += ["--out", f"{arguments[1]}.safetensors"]
    line = " ".join(arguments)
    short = next((more for phrase, more in SHORT.items() if phrase in line), None)
    whole = short is not None or arguments[0] not in ("train", "reproduce")
    with monkeypatch.context() as context:
        if not whole:
            context.setattr(cli, "_fit", stop(BuiltError))
            context.setattr(reproduce, "_compute", stop(BuiltError))
        try:
            status = sgmcmc.main([*arguments, *(short or [])])
        except SystemExit as end:
            status = int(end.code or 0)
        except BuiltError:
            return
    assert whole, f"nothing was built by {line}"
    assert status == 0, line


def parse(script: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a script and stop it where it has read its arguments."""
    read = ArgumentParser.parse_args

    def parsed(parser: ArgumentParser, *given: Any) -> Any:
        read(parser, *given)
        raise ParsedError

    with monkeypatch.context() as context:
        context.setattr(sys, "argv", [str(script), *arguments])
        context.setattr(ArgumentParser, "parse_args", parsed)
        with pytest.raises(ParsedError):
            runpy.run_path(str(script), run_name="__main__")


def execute(block: Block, namespace: dict[str, Any]) -> None:
    """Run a snippet, short, with what it takes for granted."""
    known = [
        s for (page, phrase), s in SNIPPETS.items() if page == block.page and phrase in block.text
    ]
    (snippet,) = known or [Snippet()]
    text = block.text
    for old, new in snippet.replace.items():
        assert old in text, (block.place, old)
        text = text.replace(old, new)
    exec(snippet.before, namespace)
    exec(compile("\n" * (block.line - 1) + text, ROOT / block.page, "exec"), namespace)
    exec(snippet.after, namespace)


def build(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Build the run that a YAML file describes."""
    content = yaml.safe_load(block.text)
    if block.page == "docs/experiments.md":
        sheet = Sheet(**content)
        assert sheet.runs()
        assert sheet.trial_runs()
        return
    (folder / "part.yaml").write_text(block.text)
    run(["sgmcmc", "train", *YAML[block.page].split(), "--config", "part.yaml"], monkeypatch)


def own_data() -> Any:
    """Return the data of docs/own-task.md."""
    return __import__("my_module").MyData()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_all_that_a_page_says_to_run_runs(
    page: Path, folder: Path, run_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = blocks(page)
    namespace = {"run_of": run_of, "own_data": own_data, "torch": torch, "nn": nn, "Tensor": Tensor}
    for block in [*found, *blocks(ROOT / "docs" / "own-task.md")]:
        for phrase, name in FILES.items():
            if phrase in block.text:
                (folder / name).write_text(block.text)
    if "RUN_FOLDER" in page.read_text():
        shutil.copytree(run_of("pde_source"), folder / "RUN_FOLDER")
    sys.path.append(str(folder))
    for block in found:
        if block.language == "python":
            execute(block, namespace)
        elif block.language == "bash":
            for words in commands(block):
                run(words, monkeypatch)
        elif block.language == "yaml":
            build(block, folder, monkeypatch)
    for words in mentioned(page):
        run(words, monkeypatch)
    plt.close("all")


def test_commands_stand_in_blocks_that_are_run() -> None:
    for page in PAGES:
        for block in blocks(page):
            assert block.language in ("bash", "python", "yaml", "text"), block.place
            hidden = block.language == "text" and COMMAND.search("\n" + block.text)
            assert not hidden, block.place
        outside = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
        indented = [line for line in outside.splitlines() if re.match(r" {4,}", line)]
        assert not [line for line in indented if COMMAND.match(line.strip())], page


def test_every_exception_is_needed() -> None:
    """A snippet or a command that is no more has no entry here."""
    whole = {page.relative_to(ROOT).as_posix(): page.read_text() for page in PAGES}
    assert [key for key in SNIPPETS if key[1] not in whole[key[0]]] == []
    text = " ".join("\n".join(whole.values()).replace("\\\n", " ").split())
    assert [phrase for phrase in (*NOT_RUN, *SHORT, *REST) if phrase not in text] == []
