"""The hook of mkdocs.yml: pages that are made of README, notebooks and docstrings."""

from __future__ import annotations

import ast
import base64
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]

#: Files outside docs that are pages of the site.
PAGES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}

SCHEDULES = [
    f"lightning_sgmcmc.chain.schedules.{name}"
    for name in ("ConstantStep", "BlockDecay", "PolynomialDecay", "CyclicalCosine", "WarmupCosine")
]

#: Pages of the reference: title, and packages, whose ``__all__`` they show, or single names.
REFERENCE = {
    "task": (
        "Tasks and laws",
        [
            "lightning_sgmcmc.module.SGMCMCModule",
            "lightning_sgmcmc.metrics",
            "lightning_sgmcmc.chain.adapters.LowRankLinear",
            "lightning_sgmcmc.chain.adapters.add_adapters",
        ],
    ),
    "samplers": ("Samplers", ["lightning_sgmcmc.samplers"]),
    "preconditioners": ("Metrics", ["lightning_sgmcmc.preconditioners"]),
    "priors": ("Priors", ["lightning_sgmcmc.priors"]),
    "chain": ("Chains, minibatches, step sizes", ["lightning_sgmcmc.chain", *SCHEDULES]),
    "target": ("Potential and gradients", ["lightning_sgmcmc.target"]),
    "posterior": (
        "Draws and prediction",
        ["lightning_sgmcmc.run.load.load_posterior", "lightning_sgmcmc.posterior"],
    ),
    "diagnostics": ("Diagnostics", ["lightning_sgmcmc.diagnostics"]),
    "baselines": ("Baselines", ["lightning_sgmcmc.baselines"]),
    "callbacks": ("Callbacks", ["lightning_sgmcmc.callbacks"]),
    "pde": ("Darcy flow", ["pde"]),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files of docs.

    Args:
        files: What MkDocs found in docs.
        config: The configuration of the site.
    """
    for uri, name in PAGES.items():
        files.append(File.generated(config, uri, content=moved((ROOT / name).read_text())))
    for name in REFERENCE:
        files.append(File.generated(config, f"reference/{name}.md", content=reference(name)))
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        text, pictures = rendered(notebook)
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=text))
        for uri, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{uri}", content=picture))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Link what docstrings name by Sphinx's roles, such as a class, where the reference has it.

    Args:
        html: A page.
        **_: What MkDocs says of the page besides.
    """
    link = r'<autoref identifier="\1\2" optional><code>\2</code></autoref>'
    return re.sub(r":(?:class|meth|func|attr|mod):<code>~?([\w.]*?)(\w+)</code>", link, html)


def moved(text: str) -> str:
    """Return a page of the repository's root with its links as seen from docs."""
    links = {name: uri for uri, name in PAGES.items()}
    text = re.sub(r"\]\(docs/", "](", text)
    text = re.sub(r"\]\((notebooks/[\w-]+)\.ipynb\)", r"](\1.md)", text)
    return re.sub(r"\]\((\w+\.md)", lambda m: f"]({links.get(m[1], m[1])}", text)


def reference(name: str) -> str:
    """Return a page of the reference, with a block for every public name."""
    title, places = REFERENCE[name]
    lines = [f"# {title}", ""]
    for place in places:
        package = ROOT / place.replace(".", "/") / "__init__.py"
        names = [f"{place}.{n}" for n in public(package)] if package.exists() else [place]
        for path in names:
            lines += [f"::: {path}", ""]
    return "\n".join(lines)


def public(file: Path) -> list[str]:
    """Return ``__all__`` of a module, which is not imported for it."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    raise ValueError(f"{file} has no __all__")


def rendered(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by their file names."""
    cells: list[dict[str, Any]] = json.loads(notebook.read_text())["cells"]
    text = [f"*This page is the notebook [{notebook.name}]({notebook.name}).*"]
    pictures: dict[str, bytes] = {}
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            text.append(source)
            continue
        text.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                uri = f"{notebook.stem}-{len(pictures)}.png"
                pictures[uri] = base64.b64decode("".join(data["image/png"]))
                text.append(f"![Picture that this cell draws]({uri})")
            else:
                said = "".join(output.get("text", data.get("text/plain", "")))
                text.append(f"```text\n{said.rstrip()}\n```")
    # The title first, then the word on where the page is from.
    text[0], text[1] = text[1], text[0]
    return "\n\n".join(text) + "\n", pictures
