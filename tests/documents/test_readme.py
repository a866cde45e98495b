"""What the README says holds: the picture is a report, codes and modes are the program's. test_documents.py runs it."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


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
    from simcoll.launch.preconditions import MODES

    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set(MODES)


def test_the_codes_are_those_that_exist() -> None:
    from simcoll.verifier.findings.rules import RULES

    shown = set(re.findall(r"^\| (SC\d{3}) \|", README, re.MULTILINE))
    assert shown == {str(code) for code in RULES}
