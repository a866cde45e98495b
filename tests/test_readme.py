"""What the pages say holds: links lead somewhere, codes and modes are the program's. test_documents.py runs them."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_the_first_screen_has_the_picture_and_the_two_commands() -> None:
    first = "\n".join(README.splitlines()[:14])
    assert "docs/images/report.svg" in first
    assert "make demo" in first
    assert "make test" in first


def test_the_picture_is_a_report_and_loads_nothing() -> None:
    source = (ROOT / "docs" / "images" / "report.svg").read_text(encoding="utf-8")
    shown = "".join(ElementTree.fromstring(source).itertext()).replace("\u00a0", " ")
    assert "SC104" in shown
    assert "planted_bug.py" in shown
    assert not re.search(r"(href|src)=|@import|url\((?!#)", source)


def test_the_modes_are_those_that_exist() -> None:
    table = README.partition("## Modes")[2].partition("##")[0]
    from simcoll.preconditions import MODES

    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set(MODES)


def test_the_codes_are_those_that_exist() -> None:
    from simcoll.verifier.rules import RULES

    shown = set(re.findall(r"^\| (SC\d{3}) \|", README, re.MULTILINE))
    assert shown <= {str(code) for code in RULES}
