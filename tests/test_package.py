"""The wheel in an environment that knows no checkout, and what `import` and `--help` cost."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import yaml

import lightning_sgmcmc
from lightning_sgmcmc.common.arguments import argument_names
from lightning_sgmcmc.run import cli
from lightning_sgmcmc.run import help as run_help
from tasks import commands
from tasks.home import CONFIGS

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("lightning_sgmcmc", "pde", "tasks")
#: What costs seconds, and is needed by few.
HEAVY = {"arviz_base", "arviz_stats", "lightning", "matplotlib", "numba", "pandas", "scipy"}
HEAVY |= {"torch", "torchmetrics", "torchvision", "wandb"}

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def python(code: str) -> str:
    """Run code in a process of its own, in this checkout."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: Any) -> Path:
    """Build the wheel from a copy, which holds no files of earlier builds."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in (*PACKAGES, "configs", "scripts", "tests"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "sgmcmc.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--no-index", "-w", str(folder), str(source)], check=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: Any) -> Path:
    """Return an environment with the wheel, and with what it needs from the one of the tests.

    A path file names those packages. Python does not read the path files that lie there, so that
    an editable installation of this checkout is not seen.
    """
    folder = Path(tmp_path_factory.mktemp("installed"))
    venv.create(folder, with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "needed.pth").write_text("\n".join(sorted(paths)))
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    options = ["--quiet", "--no-deps", "--no-index", "--force-reinstall"]
    subprocess.run([*pip, *options, str(wheel)], check=True)
    return folder


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Run:
    """Run a program of the environment in an empty folder."""
    unset = ("PYTHONPATH", "WANDB_API_KEY", "SGMCMC_RUN_FOLDER")
    clean = {name: value for name, value in os.environ.items() if name not in unset}

    def run(*command: str, **more: str) -> subprocess.CompletedProcess[str]:
        program = str(installed / "bin" / command[0])
        return subprocess.run(
            [program, *command[1:]],
            cwd=tmp_path,
            env=clean | more,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_the_wheel_holds_the_packages_the_configurations_and_nothing_else(wheel: Path) -> None:
    found = set(ZipFile(wheel).namelist())
    info = f"lightning_sgmcmc-{lightning_sgmcmc.__version__}.dist-info"
    wanted = {"sgmcmc.py", *(f"{package}/py.typed" for package in PACKAGES)}
    for package in PACKAGES:
        wanted |= {path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*.py")}
    wanted |= {f"tasks/{p.relative_to(ROOT).as_posix()}" for p in CONFIGS.rglob("*.yaml")}
    assert {name for name in found if not name.startswith(info)} == wanted
    assert f"{info}/licenses/LICENSE" in found
    read = ZipFile(wheel).read
    assert b"sgmcmc = sgmcmc:main" in read(f"{info}/entry_points.txt")
    metadata = read(f"{info}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Author: the lightning-sgmcmc developers" in metadata
    minors = re.findall(r"Python :: (3\.\d+)", metadata)
    assert minors == ["3.11", "3.12", "3.13"]


def test_the_changelog_begins_with_this_version() -> None:
    heading = next(t for t in (ROOT / "CHANGELOG.md").read_text().splitlines() if t[:3] == "## ")
    assert heading.startswith(f"## {lightning_sgmcmc.__version__} ")


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == lightning_sgmcmc.__version__


NET = """
import lightning_sgmcmc, pde, sgmcmc, tasks
import torch

print(*(module.__file__ for module in (lightning_sgmcmc, pde, sgmcmc, tasks)))

class Net(torch.nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(torch.nn.Linear(2, width), torch.nn.Tanh(), torch.nn.Linear(width, 2))
"""


def test_a_task_and_a_class_of_ones_own_run_from_any_folder(
    run: Run, installed: Path, tmp_path: Path
) -> None:
    rows = [f"{(i * 37) % 19 - 9},{(i * 11) % 7 - 3}" for i in range(60)]
    classes = ["yes" if eval(row.replace(",", "+")) > 0 else "no" for row in rows]
    table = "\n".join(["a,b,kind", *(f"{r},{c}" for r, c in zip(rows, classes, strict=True))])
    (tmp_path / "my.csv").write_text(table)
    (tmp_path / "mine.py").write_text(NET)
    (tmp_path / "tasks.py").write_text("raise ImportError('the tasks.py of another')")
    options = [
        "--model.burn_in_optimizer.steps=20",
        "--model.burn_in=60",
        "--trainer.max_steps=160",
    ]
    done = run(
        *("sgmcmc", "train", "--task", "class_table", "--data.file=my.csv", "--data.target=kind"),
        *("--model.net=mine.Net", "--model.net.width=4", *options),
        *("--wandb_project=null", "--trainer.enable_progress_bar=false", "--out=run"),
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "run"
    files = next(line for line in lines if "sgmcmc.py" in line).split()
    assert all(Path(file).is_relative_to(installed) for file in files)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["task"] == "class_table"
    assert results["provenance"]["commit"] is None


def test_data_and_experiments_are_there_too(run: Run, tmp_path: Path) -> None:
    sizes = ["--samples", "3", "--grid", "8", "--terms", "4", "--workers", "1"]
    done = run("sgmcmc", "generate", "permeability", "--out", "flows", *sizes)
    assert (done.returncode, done.stdout) == (0, "flows\n"), done.stderr
    assert (tmp_path / "flows").is_file()
    done = run("sgmcmc", "reproduce", "table1", "--show", "--record")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    code = (
        "import sys, lightning, sgmcmc; before = {*sys.modules}\n"
        "sgmcmc.main(['reproduce', 'table1', '--list'])\n"
        "print(*{name.split('.')[0] for name in {*sys.modules} - before})"
    )
    done = run("python", "-c", code)
    assert done.returncode == 0, done.stderr
    *cells, imported = done.stdout.splitlines()
    assert len(cells) > 5
    # Lightning imports matplotlib and torchvision itself.
    assert not {"matplotlib", "numba", "torchvision", "wandb"} & set(imported.split())


@pytest.mark.parametrize("package", ["tasks", "pde"])
def test_a_package_of_the_same_name_is_refused(package: str, run: Run, tmp_path: Path) -> None:
    """That comes first on the path, as a file or as a folder."""
    for name in (f"{package}.py", f"{package}/__init__.py"):
        path = tmp_path / "elsewhere" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("raise ImportError('of another')")
        done = run("sgmcmc", "train", "--help", PYTHONPATH=str(tmp_path / "elsewhere"))
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert f"'import {package}' finds {path} and not " in done.stderr
        path.unlink()


def test_a_package_that_another_distribution_has_overwritten_is_refused(
    run: Run, installed: Path
) -> None:
    """As py-pde does with ``pde/__init__.py`` where it is installed later."""
    [path] = installed.glob("lib/*/site-packages/pde/__init__.py")
    content = path.read_bytes()
    path.write_text('"""Of another."""\n')
    try:
        done = run("sgmcmc", "--version")
        path.unlink()  # and then py-pde is removed
        without = run("sgmcmc", "--version")
    finally:
        path.write_bytes(content)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"{path} is not the file that was installed" in done.stderr
    assert f"'import pde' finds {path.parent} and not {path}" in without.stderr
    assert run("sgmcmc", "--version").stdout == f"sgmcmc {lightning_sgmcmc.__version__}\n"


def test_a_class_in_ones_own_tasks_py_is_not_looked_for_elsewhere(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("class MyTask: pass\n")
    for harmless in ("--data.file=tasks.csv", "--out=tasks", "--model=tasks.laplace.Laplace"):
        assert run("sgmcmc", "train", harmless, "--help").returncode == 0
    done = run("sgmcmc", "train", "--task", "class_table", "--model=tasks.MyTask")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"which hides {tmp_path / 'tasks.py'}: rename that" in done.stderr


def test_files_of_the_working_folder_hide_nothing(tmp_path: Path) -> None:
    """Also where an editable install's packages are found after all that lie on the path."""
    (tmp_path / "tasks.py").write_text("raise ImportError('the tasks.py of another')")
    for name in ("pde", "lightning_sgmcmc"):
        (tmp_path / name).mkdir()
    command = [Path(sys.executable).with_name("sgmcmc"), "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("sgmcmc ")


def test_the_command_imports_no_torch_before_it_needs_it() -> None:
    code = (
        "import sys, lightning_sgmcmc\n"
        "from tasks.commands import main\n"
        "for line in (['--version'], ['train', '--help'], ['train', '--task=typo'], ['typo']):\n"
        "    main(line)\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    assert not HEAVY & set(python(code).splitlines()[-1].split())


def test_every_public_name_is_found_and_known_to_type_checkers() -> None:
    tree = ast.parse(Path(lightning_sgmcmc.__file__).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {alias.name for n in block.body if isinstance(n, ast.ImportFrom) for alias in n.names}
    assert typed == set(lightning_sgmcmc.__all__) <= set(dir(lightning_sgmcmc))
    for name in lightning_sgmcmc.__all__:
        assert getattr(lightning_sgmcmc, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'SGLP'"):
        _ = lightning_sgmcmc.SGLP


def test_the_short_help_names_tasks_and_options_that_exist(capsys: Any) -> None:
    assert commands.main(["train", "--help"]) == 0
    short = capsys.readouterr().out
    lines = short.splitlines()
    assert len(lines) < 80
    assert max(map(len, lines)) <= 100
    titles = [line for line in lines if re.fullmatch(r"\w+:", line)]
    assert titles == ["tasks:", "run:", "model:", "sampler:", "data:", "trainer:"]
    tasks = re.findall(r"^  (\w+) ", short[short.index("tasks:") : short.index("run:")], re.M)
    assert tasks == run_help.names(CONFIGS)
    with pytest.raises(SystemExit, match="0"):
        commands.main(["train", "--help.all"])
    whole = capsys.readouterr().out
    assert f"{run_help.TITLE} options:" in " ".join(whole.split())
    assert whole.startswith("usage: sgmcmc train ")
    assert "Lightning Trainer command line tool" not in whole
    chain = set(argument_names(lightning_sgmcmc.SGMCMCModule)) | {"net", "help"}
    sampler = set(argument_names(lightning_sgmcmc.SGHMC)) | {"help"}
    for option in re.findall(r"(?<=[ \n])--([\w.]+)", short[short.index("run:") :]):
        if option.startswith("model.sampler."):
            assert option.removeprefix("model.sampler.") in sampler
        elif option.startswith("model."):
            assert option.removeprefix("model.") in chain
        elif option != "help.all" and not option.startswith("data."):
            assert re.search(rf"--{re.escape(option)}\b", whole), option


FLOWS = "generate permeability --out x.safetensors"


@pytest.mark.parametrize(
    "line",
    [
        *(
            "",
            "trian",
            "train",
            "train --task=mnst",
            "train --task x",
            "check",
            "tune",
            "tune nope",
        ),
        *("generate", "generate sourc", "generate source", "generate source --out x --grid a"),
        *(f"{FLOWS} --variance {value}" for value in ("nan", "inf", "-1", "0", "word")),
        *(f"{FLOWS} --lengths {value}" for value in ("0 1", "1", "1e999 1")),
        *(f"{FLOWS} --samples {value}" for value in ("0", "-1", "1.5", "1000000000000000000")),
        *(f"{FLOWS} --grid {value}" for value in ("0", "-3", "1000000")),
        *(f"{FLOWS} --workers 0", f"{FLOWS} --terms 0", "generate source --out /dev/null/x"),
        "generate source --out x --field spe10 --spe10-file gone",
        "generate fields --out x --permeability gone.npy",
        *(
            "reproduce",
            "reproduce nope",
            "reproduce a9a --cell nope",
        ),
    ],
)
def test_wrong_commands_are_one_line(
    line: str, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status: Any = commands.main(line.split())
    except SystemExit as stop:
        status = stop.code
    out, error = capsys.readouterr()
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert error.startswith("error: ")
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


def test_check_is_a_run_that_is_checked(monkeypatch: Any) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(cli, "main", lambda *given: asked.append(given))
    assert commands.main(["check", "runs/a"]) == 0
    assert asked == [(CONFIGS, ["--check", "runs/a"])]


@pytest.mark.parametrize("command", ["train", "tune", "check", "generate", "reproduce"])
def test_every_command_says_how_it_is_used(command: str, capsys: Any) -> None:
    try:
        status: Any = commands.main([command, "--help"])
    except SystemExit as stop:
        status = stop.code
    out, error = capsys.readouterr()
    assert (status or 0, error) == (0, "")
    assert out.startswith(f"usage: sgmcmc {command} ")


def test_hooks_before_a_commit_are_the_checks_of_ci() -> None:
    content = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repository["repo"] for repository in content["repos"]] == ["local"]
    checks = re.findall(
        r"^\.venv/bin/python -m (ruff .*|mypy)$", (ROOT / ".ci/run").read_text(), re.M
    )
    assert [hook["entry"] for hook in content["repos"][0]["hooks"]] == [
        f"python -m {check}" for check in checks
    ]
