"""What the pages say holds: commands exist, codes and modes are the program's, code compiles."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [str(block) for block in found]


def commands() -> list[list[str]]:
    """Every command line that a page shows, without variables set in front of it."""
    lines = [line for page in PAGES for block in blocks(page, "console") for line in block.splitlines()]
    split = [shlex.split(line[2:], comments=True) for line in lines if line.startswith("$ ")]
    return [[word for word in words if not re.match(r"[A-Z_]+=(?!.*\s)\S*$", word)] for words in split]


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


def test_make_targets_exist() -> None:
    targets = {words[1] for words in commands() if words[0] == "make"}
    assert targets >= {"demo", "test"}
    assert targets <= set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def test_simcoll_commands_exist() -> None:
    from simcoll import cli

    shown = {words[1] for words in commands() if words[0] == "simcoll"}
    assert {"run", "verify"} <= shown
    for command in sorted(shown - {"run"}):
        answer = subprocess.run([sys.executable, "-m", "simcoll", command, "--help"], capture_output=True, check=False)
        assert answer.returncode == 0, command
    assert callable(cli.main)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_python_blocks_compile(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block, str(page), "exec")


RUN = [ROOT / "docs" / "simulate.md", ROOT / "docs" / "testing.md"]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda path: path.name)
def test_python_blocks_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    """As one file of tests: what stands outside of a test runs when the file is imported."""
    pytest.importorskip("torch")
    file = tmp_path / "test_page.py"
    file.write_text("\n\n".join([*blocks(page, "python"), "def test_page(): pass\n"]), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers", str(file)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_the_modes_are_those_that_exist() -> None:
    table = README.partition("## Modes")[2].partition("##")[0]
    from simcoll.preconditions import MODES

    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set(MODES)


def test_the_codes_are_those_that_exist() -> None:
    from simcoll.verifier.rules import RULES

    shown = set(re.findall(r"^\| (SC\d{3}) \|", README, re.MULTILINE))
    assert shown <= {str(code) for code in RULES}
