"""The documentation as a site: it is built without a warning, faults in it end the build, its pages load nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="sphinx is not installed (the dependency group docs has it)")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
STRICT = ("--builder", "html", "--fail-on-warning", "--nitpicky", "--keep-going", "--quiet", "--conf-dir", "docs")


def built(checkout: Path, to: Path) -> subprocess.CompletedProcess[str]:
    """Sphinx's answer, asked as `make docs` does."""
    command = [sys.executable, "-m", "sphinx", *STRICT, "--doctree-dir", str(to / "doctrees"), ".", str(to / "site")]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("docs")
    answer = built(ROOT, to)
    assert (answer.returncode, answer.stderr) == (0, "")
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
    "none": ("docs/one.md", "", None),
    "no such page": ("docs/one.md", "[a](two.md)", "'two.md'"),
    "no such file": ("README.md", "[a](examples/none.py)", "'examples/none.py'"),
    "no such folder": ("docs/one.md", "[a](../other)", "'../other'"),
    "no such heading": ("README.md", "[a](docs/one.md#else)", "local id not found in doc 'docs/one': 'else'"),
    "no such heading here": ("docs/one.md", "[a](#else)", "'else'"),
    "no such picture": ("docs/one.md", "![a](images/none.svg)", "image file not readable: docs/images/none.svg"),
    "no such row": ("docs/index.md", "| [two](two.md) |", "'docs/two'"),
    "a page that none lists": ("docs/folder/two.md", "# Two", "document isn't included in any toctree"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_page_ends_the_build(fault: str, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "docs", checkout / "docs", ignore=lambda _, names: [n for n in names if n[-3:] != ".py"])
    right = "# {}\n\n## Part\n\n[a](../examples) [b](../examples/first.py) [c](../README.md#part) [d](#part)\n\n"
    pages = {
        "docs/index.md": INDEX,
        "docs/one.md": right.format("One"),
        "README.md": right.format("Readme").replace("../", ""),
        "examples/first.py": "print(1)\n",
    }
    page, text, complaint = FAULTS[fault]
    for path, content in {**pages, page: pages.get(page, "") + text + "\n"}.items():
        (checkout / path).parent.mkdir(parents=True, exist_ok=True)
        (checkout / path).write_text(content, encoding="utf-8")
    answer = built(checkout, tmp_path)
    assert (answer.returncode != 0) == (complaint is not None), answer.stderr
    assert (complaint or "") in answer.stderr
