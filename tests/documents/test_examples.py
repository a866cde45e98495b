"""Every example is run by the command in its own docstring, and ends as its docstring says.

``simcoll: SC104 rank 2`` is a report with exactly that finding, those culprits and exit code 3; ``clean`` is exit 0,
no finding and one line that says how many collectives agree; ``handled`` is a program that catches what it asks for;
``passes`` is a test file.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
FINDINGS_EXIT = 3
LIMIT = 120.0

pytestmark = [pytest.mark.slow, pytest.mark.gloo]


@dataclass(frozen=True, slots=True)
class Promise:
    """What an example's docstring says: the command, and how it ends."""

    command: tuple[str, ...]
    outcome: str
    culprits: tuple[int, ...]


def promise(script: Path) -> Promise:
    """Read a docstring; raises ValueError where a line is missing."""
    text = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    run = re.search(r"^Run: (.+)$", text, re.MULTILINE)
    outcome = re.search(r"^simcoll: (clean|handled|passes|SC\d{3})((?: rank \d+)*)$", text, re.MULTILINE)
    if run is None or outcome is None:
        raise ValueError(f"{script.name}: expected the lines 'Run: COMMAND' and 'simcoll: OUTCOME' in the docstring")
    return Promise(tuple(shlex.split(run[1])), outcome[1], tuple(map(int, re.findall(r"\d+", outcome[2]))))


def run(script: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Run the command of the docstring from the root, with its output folder set."""
    program, *arguments = promise(script).command
    if program == "simcoll":
        arguments[1:1] = ["--out", str(out)]
    environment = os.environ | {"SIMCOLL_OUT": str(out)}
    command = [str(BIN / program), *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=LIMIT, check=False
    )


def report(out: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return document


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_docstring_names_its_own_script(script: Path) -> None:
    assert promise(script).command[-1] == f"examples/{script.name}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_ends_as_it_says(script: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    expected, done = promise(script), run(script, tmp_path)
    shown = f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    if expected.outcome == "handled":
        assert done.returncode == 0, shown
        assert "Detected mismatch between collectives on ranks" in done.stdout, shown
    elif expected.outcome == "passes":
        assert done.returncode == 0, shown
        assert re.search(r"\d+ passed in", done.stdout), shown
    elif expected.outcome == "clean":
        assert done.returncode == 0, shown
        assert (report(tmp_path)["verdict"], report(tmp_path)["findings"]) == ("ok", []), shown
    else:
        assert done.returncode == FINDINGS_EXIT, shown
        found = [(finding["code"], tuple(finding["culprits"])) for finding in report(tmp_path)["findings"]]
        assert found == [(expected.outcome, expected.culprits)], shown


def test_the_demo_checks_what_it_shows(tmp_path: Path) -> None:
    """Its check must be able to fail: a report on another code, or none at all, is refused."""
    pytest.importorskip("torch")
    program = (
        "import runpy, sys, pathlib; demo = runpy.run_path('.ci/demo.py'); "
        "print(demo['complaints'](0, pathlib.Path(sys.argv[1]) / 'report.json'))"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    answer = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=LIMIT, check=True)
    assert "exited 0, expected 3" in answer.stdout
    assert "no report.json" in answer.stdout
