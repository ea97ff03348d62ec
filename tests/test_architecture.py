"""Who imports whom, read from the source without running it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("lightning_sgmcmc", "pde", "tasks")
OURS = {*PACKAGES, "scripts", "tests"}


def sources(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def nodes(tree: ast.AST, lazy: bool, typing: bool) -> Iterator[ast.AST]:
    """Yield the nodes that run when a module is imported.

    Args:
        tree: Of the module.
        lazy: Yield what is inside functions too.
        typing: Yield what is there for type checkers alone too.
    """
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and not lazy:
            continue
        if is_type_checking(child) and not typing:
            assert isinstance(child, ast.If)
            for other in child.orelse:
                yield other
                yield from nodes(other, lazy, typing)
            continue
        yield child
        yield from nodes(child, lazy, typing)


def imports(path: Path, root: Path, lazy: bool = True, typing: bool = True) -> set[str]:
    """Return the absolute names that a file imports; ``from a import b`` gives a.b."""
    package = module_name(path, root).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    found = set()
    for node in nodes(ast.parse(path.read_text()), lazy, typing):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{prefix}.{alias.name}" for alias in node.names}
    return found


def top_levels(path: Path, root: Path, lazy: bool = True, typing: bool = True) -> set[str]:
    return {name.split(".")[0] for name in imports(path, root, lazy, typing)}


def dependencies(package: str, root: Path, typing: bool = False) -> dict[str, set[str]]:
    """Return which modules of a package each of its modules needs, inside functions too.

    A module's parents, whose ``__init__`` runs before it, are not counted: Python finds them in
    ``sys.modules`` half done, which hurts only who takes a name from them.
    """
    paths = {module_name(path, root): path for path in sources(root / package)}
    graph = {}
    for name, path in paths.items():
        targets = set()
        for wanted in imports(path, root, typing=typing):
            target = wanted
            while target and target not in paths:
                target = target.rpartition(".")[0]
            if target:
                targets.add(target)
        graph[name] = targets - {name}
    return graph


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules of one circle, nothing if there is none."""
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> list[str]:
        if name in trail:
            return trail[trail.index(name) :]
        if name not in done:
            for target in sorted(graph[name]):
                found = visit(target, [*trail, name])
                if found:
                    return found
            done.add(name)
        return []

    return next(filter(None, (visit(name, []) for name in sorted(graph))), [])


def unpickling(source: str) -> list[str]:
    """Return the expressions by which a file could run what a pickle says."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names]
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            unsafe = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
            found += [name for name in names if name.split(".")[0] in unsafe]
        elif isinstance(node, ast.Call):
            keywords = {k.arg: ast.unparse(k.value) for k in node.keywords}
            called = ast.unparse(node.func)
            unsafe_call = (
                (called == "torch.load" and keywords.get("weights_only") != "True")
                or ("save" not in called and keywords.get("weights_only") == "False")
                or keywords.get("allow_pickle") == "True"
            )
            found += [ast.unparse(node)] * unsafe_call
    return found


FILES = [path for package in PACKAGES for path in sources(ROOT / package)]
SCRIPTS = sources(ROOT / "scripts")


def test_pde_stands_on_numpy_scipy_and_filelock_alone() -> None:
    allowed = {*sys.stdlib_module_names, "numpy", "scipy", "filelock", "pde"}
    # Modules of the extras `fast` and `cluster`, which others import late.
    late = {
        "batch_compiled.py": {"numba"},
        "multifrontal_simd.py": {"numba"},
        "dask_cluster.py": {"distributed"},
    }
    for path in sources(ROOT / "pde"):
        extra = late.get(path.name, set())
        assert top_levels(path, ROOT, lazy=False, typing=False) <= allowed | extra, path
        ours = [name.split(".") for name in imports(path, ROOT, lazy=False, typing=False)]
        early = {part for name in ours if name[0] == "pde" for part in name[1:]}
        assert not any(late.get(f"{name}.py", extra) != extra for name in early), path
        lazy = top_levels(path, ROOT) - allowed - extra
        assert lazy <= {"h5py", "matplotlib", "rich"}, path


@pytest.mark.parametrize(
    ("package", "ours"),
    [
        ("pde", {"pde"}),
        ("lightning_sgmcmc", {"lightning_sgmcmc"}),
        ("tasks", {"tasks", "lightning_sgmcmc", "pde"}),
    ],
)
def test_packages_import_only_what_lies_below(package: str, ours: set[str]) -> None:
    files = sources(ROOT / package)
    assert len(files) > 5
    for path in files:
        assert top_levels(path, ROOT) & OURS <= ours, path


def test_lightning_has_one_name() -> None:
    for path in [*FILES, *SCRIPTS, *sources(ROOT / "tests")]:
        assert not {"pytorch_lightning", "lightning_fabric"} & top_levels(path, ROOT), path


#: Arrows that stand for types alone and would close a circle otherwise.
FOR_TYPES = {
    # A task is sampled by the chain above it, and reports on what was kept of its draws.
    "lightning_sgmcmc.chain.task": {
        "lightning_sgmcmc.chain.chain",
        "lightning_sgmcmc.posterior.kept",
    },
}


def rooms(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return which of a package's files and folders need which others."""

    def room(name: str) -> str:
        return ".".join(name.split(".")[:2])

    found: dict[str, set[str]] = {}
    for name, targets in graph.items():
        found.setdefault(room(name), set()).update(room(t) for t in targets)
    return {name: targets - {name} for name, targets in found.items()}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_circles(package: str) -> None:
    """Neither of files nor of rooms, imports in functions counted; of types but for a few."""
    running = dependencies(package, ROOT)
    assert circle(running) == []
    assert circle(rooms(running)) == []
    with_types = dependencies(package, ROOT, typing=True)
    kept = {name: targets - FOR_TYPES.get(name, set()) for name, targets in with_types.items()}
    assert circle(kept) == []
    assert circle(rooms(kept)) == []
    for name in set(with_types) & set(FOR_TYPES):
        assert with_types[name] - running[name] >= FOR_TYPES[name]  # the list has no more


@pytest.mark.parametrize(("package", "most"), [("lightning_sgmcmc", 18), ("pde", 8)])
def test_few_rooms(package: str, most: int) -> None:
    found = [
        p for p in (ROOT / package).iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()
    ]
    assert len(found) <= most


def test_the_module_is_glue() -> None:
    path = ROOT / "lightning_sgmcmc" / "module.py"
    assert len(path.read_text().splitlines()) <= 250


def test_a_chain_knows_nothing_above_it() -> None:
    above = ("adaptation", "baselines", "callbacks", "diagnostics", "module", "posterior", "run")
    graph = dependencies("lightning_sgmcmc", ROOT)
    for name, targets in graph.items():
        if name.startswith("lightning_sgmcmc.chain"):
            assert not [t for t in targets if t.split(".")[1:2] and t.split(".")[1] in above], name


@pytest.mark.parametrize("path", [*FILES, *SCRIPTS], ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_unpickles(path: Path) -> None:
    assert unpickling(path.read_text()) == []


def test_the_reader_of_imports_sees_what_it_should(tmp_path: Path) -> None:
    """The tests above are only as good as these helpers."""
    package = tmp_path / "p"
    package.mkdir()
    (package / "__init__.py").write_text("from p.a import x\n")
    (package / "a.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "import os.path as o\n"
        "from . import b\n"
        "if TYPE_CHECKING:\n    import torch\nelse:\n    import json\n"
        "def f():\n    import rich\n"
        "class C:\n    import csv\n"
        "x = 1\n"
    )
    (package / "b.py").write_text("if TYPE_CHECKING:\n    from p.a import x\n")
    now = {"typing", "os", "p", "json", "csv"}
    assert top_levels(package / "a.py", tmp_path, lazy=False, typing=False) == now
    assert top_levels(package / "a.py", tmp_path) == now | {"torch", "rich"}
    assert "p.b" in imports(package / "a.py", tmp_path)
    assert circle(dependencies("p", tmp_path)) == []
    assert set(circle(dependencies("p", tmp_path, typing=True))) == {"p.a", "p.b"}
    (package / "b.py").write_text("def f():\n    from .a import x\n")
    assert set(circle(dependencies("p", tmp_path))) == {"p.a", "p.b"}
    assert unpickling("import pickle\ntorch.load(f)\nnp.load(f, allow_pickle=True)\n") != []
    assert len(unpickling("torch.load(f)\ntorch.load(f, weights_only=True)\n")) == 1
    assert len(unpickling("t.fit(m, weights_only=False)\nt.save(m, weights_only=False)\n")) == 1
