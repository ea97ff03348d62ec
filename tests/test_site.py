"""The site of docs is built strictly and offline, is whole, and no link of docs leads nowhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import lightning_sgmcmc

ROOT = Path(__file__).resolve().parents[1]
#: Attributes by which a page makes a browser fetch something without a click.
FETCHED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src")}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Page(HTMLParser):
    """The anchors of a page, what it links to and what it fetches."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name in ("id", "name"):
                self.anchors.add(value)
            if (tag, name) in FETCHED and dict(attrs).get("rel") != "canonical":
                self.fetched.append(value)
            elif (tag, name) == ("a", "href"):
                self.links.append(value)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html")}


def test_pages_fetch_nothing_from_the_net(site: Path, pages: dict[Path, Page]) -> None:
    assert len(pages) > 40
    for path, page in pages.items():
        for link in page.fetched:
            assert not urlsplit(link).netloc, (path, link)
            assert link.startswith("/") or (path.parent / urlsplit(link).path).exists(), (
                path,
                link,
            )
    for style in site.rglob("*.css"):
        assert "url(http" not in style.read_text(), style
    assert (site / "search" / "search_index.json").exists()


def test_links_of_the_site_lead_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    """Also those that are made from docstrings, and those of README as the first page."""
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if path.name == "404.html" or parts.netloc:
                assert parts.scheme in ("", "https", "http"), (path, link)
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), (path.relative_to(site), link)
            if parts.fragment and target in pages:
                known = pages[target].anchors
                assert unquote(parts.fragment) in known, (path.relative_to(site), link)


def test_the_reference_has_every_public_name(site: Path) -> None:
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[-1]
    names = {
        line.split()[0].rpartition(".")[2]
        for line in zlib.decompress(inventory).decode().splitlines()
    }
    assert not set(lightning_sgmcmc.__all__) - names


SOURCES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
]
SOURCES += sorted((ROOT / "docs").rglob("*.md"))


def prose(path: Path) -> str:
    """Return a page without its code, where brackets and parentheses are no links."""
    text = re.sub(r"^( *)```.*?^\1```", "", path.read_text(), flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as a forge and MkDocs both make them."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", path.read_text(), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_of_the_files_lead_somewhere(path: Path) -> None:
    """Read in the repository, where README is a file and not the site's first page."""
    for link in re.findall(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)", prose(path)):
        parts = urlsplit(link)
        if parts.scheme:
            assert parts.scheme == "https", link
            assert re.fullmatch(r"[\w-]+(\.[\w-]+)+", parts.netloc), link
            continue
        target = path.parent / unquote(parts.path) if parts.path else path
        assert target.exists(), link
        if parts.fragment and target.suffix == ".md":
            assert parts.fragment in anchors(target), link
