"""The documentation as a site: it is built without a warning, faults in it end the build, its pages load nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.reports.browser import AXE, opened, started
from tests.support.seeds import nightly

pytest.importorskip("sphinx", reason="sphinx is not installed (the dependency group docs has it)")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
STRICT = ("--builder", "html", "--fail-on-warning", "--nitpicky", "--keep-going", "--quiet", "--conf-dir", "docs")


def built(checkout: Path, to: Path) -> subprocess.CompletedProcess[str]:
    """Sphinx's answer, asked as `make docs` does."""
    command = [sys.executable, "-m", "sphinx", *STRICT, "--doctree-dir", str(to / "doctrees"), ".", str(to / "site")]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("docs")
    answer = built(ROOT, to)
    assert answer.returncode == 0, answer.stderr
    return to / "site"


def test_every_page_is_there(site: Path) -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert len(pages) > 50
    assert [page for page in pages if not (site / page.relative_to(ROOT)).with_suffix(".html").exists()] == []


def test_make_docs_asks_the_same() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.partition("\ndocs:")[2].partition("\n\n")[0]
    assert [option for option in STRICT if option not in recipe.split()] == []


INDEX = "# Index\n\n## Pages\n\n| page |\n|---|\n| [one](one.md) |\n| [README](../README.md) |\n"
FAULTS = {
    "no such page": ("docs/one.md", "[a](two.md)", "'two.md'"),
    "no such file": ("README.md", "[a](examples/none.py)", "'examples/none.py'"),
    "no such folder": ("docs/one.md", "[a](../other)", "'../other'"),
    "no such heading": ("README.md", "[a](docs/one.md#else)", "local id not found in doc 'docs/one': 'else'"),
    "no such heading here": ("docs/one.md", "[a](#else)", "'else'"),
    "no such picture": ("docs/one.md", "![a](images/none.svg)", "image file not readable: docs/images/none.svg"),
    "no such row": ("docs/index.md", "| [two](two.md) |", "'docs/two'"),
    "a page that none lists": ("docs/folder/two.md", "# Two", "document isn't included in any toctree"),
}


def built_with(faults: Iterable[tuple[str, str, str]], folder: Path) -> subprocess.CompletedProcess[str]:
    """Sphinx's answer on a small site with these faults."""
    checkout = folder / "checkout"
    shutil.copytree(ROOT / "docs", checkout / "docs", ignore=lambda _, names: [n for n in names if n[-3:] != ".py"])
    right = "# {}\n\n## Part\n\n[a](../examples) [b](../examples/first.py) [c](../README.md#part) [d](#part)\n\n"
    pages = {
        "docs/index.md": INDEX,
        "docs/one.md": right.format("One"),
        "README.md": right.format("Readme").replace("../", ""),
        "examples/first.py": "print(1)\n",
    }
    for page, text, _ in faults:
        pages[page] = pages.get(page, "") + text + "\n\n"
    for path, content in pages.items():
        (checkout / path).parent.mkdir(parents=True, exist_ok=True)
        (checkout / path).write_text(content, encoding="utf-8")
    return built(checkout, folder)


def test_a_site_without_a_fault_is_built(tmp_path: Path) -> None:
    answer = built_with([], tmp_path)
    assert answer.returncode == 0, answer.stderr


def test_every_fault_in_a_page_is_said_and_ends_the_build(tmp_path: Path) -> None:
    """In one build: each build takes seconds."""
    answer = built_with(FAULTS.values(), tmp_path)
    assert answer.returncode != 0
    assert [fault for fault, (_, _, complaint) in FAULTS.items() if complaint not in answer.stderr] == []


@pytest.mark.parametrize("fault", [pytest.param(fault, marks=nightly(True)) for fault in FAULTS])
def test_each_fault_alone_ends_the_build(fault: str, tmp_path: Path) -> None:
    answer = built_with([FAULTS[fault]], tmp_path)
    assert answer.returncode != 0
    assert FAULTS[fault][2] in answer.stderr


LOADED = {"script": "src", "img": "src", "source": "srcset", "iframe": "src", "object": "data", "video": "src"}
LOADING_LINKS = {"stylesheet", "preload", "icon", "modulepreload", "prefetch", "preconnect", "dns-prefetch"}


class Resources(HTMLParser):
    """What a page loads by itself, and where its links lead, as the page states it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        stated = {name: value or "" for name, value in attrs}
        if (loaded := stated.get(LOADED.get(tag, ""))) is not None:
            self.loaded.append(loaded)
        elif tag == "link" and LOADING_LINKS & set(stated.get("rel", "").split()):
            self.loaded.append(stated["href"])
        elif tag == "a" and "href" in stated:
            self.links.append(stated["href"])


def is_elsewhere(address: str) -> bool:
    return bool(re.match(r"(?:[a-z]+:)?//", address))


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    found = {str(page.relative_to(site)): Resources(page).loaded for page in site.rglob("*.html")}
    assert {page: elsewhere for page, loaded in found.items() if (elsewhere := [*filter(is_elsewhere, loaded)])} == {}
    styles = {style.name: style.read_text(encoding="utf-8") for style in site.rglob("*.css")}
    assert len(styles) > 2
    fetched = r"(?:@import\s*|url\()\s*[\"']?((?:https?:)?//[^\"')\s]+)"
    assert {name: there for name, text in styles.items() if (there := re.findall(fetched, text))} == {}


def test_what_pages_load_and_link_to_is_in_the_site(site: Path) -> None:
    """Also what raw HTML in a page asks for, of which Sphinx knows nothing."""
    missing = []
    for page in site.rglob("*.html"):
        found = Resources(page)
        for address in (*found.loaded, *found.links):
            path = urlsplit(address).path
            if path and not is_elsewhere(address) and not urlsplit(address).scheme:
                missing += [(page.name, address)] if not (page.parent / unquote(path)).exists() else []
    assert missing == []


READ = ["docs/index", "docs/tutorial", "docs/rules/SC104", "docs/architecture", "docs/api", "README", "examples/index"]
SIDEWAYS = """() => [...document.querySelectorAll('article *')].filter(one => {
    const box = one.getBoundingClientRect();
    if (box.width === 0 || box.right <= document.documentElement.clientWidth + 1) return false;
    for (let up = one; up; up = up.parentElement)
        if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(up).overflowX)) return false;
    return true;
}).map(one => one.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as found:
        yield found


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
@pytest.mark.parametrize("name", READ)
def test_a_page_is_read_in_a_browser(site: Path, browser: Any, name: str, width: int, scheme: str) -> None:
    """On a phone and on a desk; what axe finds serious: names, contrasts, what the keyboard reaches."""
    page, size = site / f"{name}.html", {"width": width, "height": 900}
    with opened(browser, page, color_scheme=scheme, viewport=size) as found:
        assert found.complaints == []
        assert [url for url in found.requests if not url.startswith((site.as_uri(), "data:"))] == []
        assert found.page.evaluate(SIDEWAYS) == []
        assert found.page.evaluate("document.documentElement.scrollWidth") <= width
        violations = []
        if AXE.exists():
            found.page.evaluate(AXE.read_text(encoding="utf-8"))
            violations = found.page.evaluate("axe.run().then(found => found.violations)")
    serious = [one for one in violations if one["impact"] in ("serious", "critical")]
    assert [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in serious] == []


def test_axe_is_there() -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not there, so pages are read without it: npm ci in reports/page/vendor brings it")


def test_the_first_page_leads_to_the_index(site: Path, browser: Any) -> None:
    page = browser.new_page(offline=True)
    page.goto((site / "index.html").as_uri(), wait_until="commit")  # it leads on by itself, at any moment
    page.wait_for_url("**/docs/index.html")
    assert page.inner_text("h1").startswith("Documentation")
    page.close()
