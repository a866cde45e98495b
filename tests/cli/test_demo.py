"""``simcoll demo``: exit code 0 exactly when the planted bug is reported."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from simcoll.cli.demo import CODE, CULPRIT, demo_report, main, missed


def test_the_planted_bug_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    said = capsys.readouterr().out
    assert CODE in said
    assert "the planted bug" in said


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert [finding["culprits"] for finding in document["findings"]] == [[CULPRIT]]


def test_anything_else_is_a_complaint() -> None:
    report = demo_report()
    (finding,) = report.findings
    assert missed(report) == []
    assert missed(replace(report, findings=()))
    assert missed(replace(report, findings=(finding, finding)))
    assert missed(replace(report, findings=(replace(finding, culprits=(1,)),)))
    assert missed(replace(report, findings=(replace(finding, code="SC101"),)))
    assert missed(replace(report, findings=(replace(finding, sides=()),)))


@pytest.mark.slow
def test_it_needs_no_torch() -> None:
    script = "import sys; sys.modules['torch'] = None; from simcoll.cli.demo import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
