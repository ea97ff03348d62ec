"""Every command and every snippet of README and docs runs, on small data and for few steps.

A page is one test: its blocks run from top to bottom in an empty folder, snippets in one namespace.
``tests/page_settings.py`` says what a snippet takes for granted, such as ``x``, how snippets and
commands are made short, and which are not run, with the reason.
"""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import sys
from argparse import ArgumentParser
from collections.abc import Callable
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
from lightning_sgmcmc.run import cli, sweep
from tasks.data import kddcup99
from tasks.data.download import DATA_ROOT
from tasks.data.mnist import MNISTData
from tasks.experiments import reproduce
from tasks.experiments.sheet import Sheet
from tests.launchers import LAUNCHERS
from tests.page_settings import (
    FEW,
    FILES,
    NOT_RUN,
    OWN_TESTS,
    QUIET,
    REST,
    RUN_FOLDERS,
    RUNS,
    SHORT,
    SNIPPETS,
    YAML,
    Snippet,
)
from tests.pages import COMMAND, PAGES, ROOT, Block, blocks, commands, mentioned
from tests.tasks import test_images, test_kddcup99


class BuiltError(Exception):
    """All objects of a run were built, and its first step would come."""


class ParsedError(Exception):
    """A script has read its arguments."""


class Dropped(nn.Sequential):
    """A network with dropout."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 8), nn.Tanh(), Dropout(0.1), nn.Linear(8, 1))


def table(path: Path) -> Path:
    """Write a table with a number and a class to predict."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).round(3)
    price = x @ [1, -1, 2] + 0.3 * rng.normal(size=60)
    columns = np.column_stack([x, price, x[:, 0] > 0]).tolist()
    rows = [f"{a},{b},{c},{price:.4f},{kind:.0f}" for a, b, c, price, kind in columns]
    path.write_text("\n".join(["a,b,c,price,kind", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return what makes a short run of ``RUNS``, once, and returns its folder."""
    root = tmp_path_factory.mktemp("runs")

    @cache
    def run(name: str) -> str:
        data = [] if name.startswith("pde_") else [f"--data.file={table(root / 'my.csv')}"]
        out = root / name
        cli.main(ROOT / "configs", [*RUNS[name], *data, *FEW, *QUIET, f"--out={out}"])
        return str(out)

    return run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder to run in, but for the data sets that pages name."""
    table(tmp_path / "my.csv")
    (tmp_path / "new.csv").write_text("kind,price,c,b,a\n1,5,1,2,3\n0,6,2,3,4\n")
    np.save(tmp_path / "sources.npy", np.ones((2, 60, 60)))
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


def run(words: list[str], monkeypatch: pytest.MonkeyPatch, block: str = "") -> None:
    """Run a command of a page, or build all that it would run; one that a launcher starts too."""
    if words[0] == "export":
        monkeypatch.setenv(*words[1].split("=", 1))
        return
    if words[0] in LAUNCHERS:
        variables, words = LAUNCHERS[words[0]](words[1:], block)
        with monkeypatch.context() as context:
            for name, value in variables.items():
                context.setenv(name, value)
            run(words, context)
        return
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
        assert command == "sgmcmc", f"a test cannot run {line!r}: see tests/page_settings.py"
    if arguments in (["train"], ["reproduce"], ["tune"]):
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
        context.setattr(sys, "path", [str(script.parent), *sys.path])  # as python has it
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
    if block.page == "docs/tuning.md":
        assert sweep.read(folder / "part.yaml")
        return
    run(["sgmcmc", "train", *YAML[block.page].split(), "--config", "part.yaml"], monkeypatch)


def own_data() -> Any:
    """Return the data of docs/own-task.md."""
    return __import__("my_module").MyData()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_all_that_a_page_says_to_run_runs(
    page: Path, folder: Path, run_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if page.relative_to(ROOT).as_posix() in OWN_TESTS:
        return
    found = blocks(page)
    namespace = {"run_of": run_of, "own_data": own_data, "torch": torch, "nn": nn, "Tensor": Tensor}
    for block in [*found, *blocks(ROOT / "docs" / "own-task.md")]:
        for phrase, name in FILES.items():
            if phrase in block.text:
                (folder / name).write_text(block.text)
    if "RUN_FOLDER" in page.read_text():
        name = RUN_FOLDERS.get(page.relative_to(ROOT).as_posix(), "pde_source")
        shutil.copytree(run_of(name), folder / "RUN_FOLDER")
    sys.path.append(str(folder))
    for block in found:
        if block.language == "python":
            execute(block, namespace)
        elif block.language == "bash":
            for words in commands(block):
                run(words, monkeypatch, block.text)
        elif block.language == "yaml":
            build(block, folder, monkeypatch)
    for words in mentioned(page):
        run(words, monkeypatch)
    plt.close("all")


def test_commands_stand_in_blocks_that_are_run() -> None:
    for page in PAGES:
        for block in blocks(page):
            assert block.language in ("bash", "python", "yaml", "text"), block.place
            hidden = block.language == "text" and COMMAND.match(block.text.strip())
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
