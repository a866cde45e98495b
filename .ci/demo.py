"""Run the planted bug on four Gloo ranks under ``simcoll run``, and exit 0 exactly when it is reported.

The report is the last thing on the screen; what is wrong with it, if anything is, follows on stderr.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import cast

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = Path("examples") / "planted_bug.py"
OUT = ROOT / "simcoll-out" / "demo"
MARK = "# the planted bug"
CODE, CULPRIT, RANKS = "SC104", 2, 4
FINDINGS_EXIT = 3


def main() -> int:
    """Run, compare, and say what is missing; the exit code is the demo's."""
    # A report of an earlier demo must not pass for that of this one.
    (OUT / "report.json").unlink(missing_ok=True)
    exit_code = run(OUT)
    wrong = complaints(exit_code, OUT / "report.json")
    for complaint in wrong:
        print(f"demo: {complaint}", file=sys.stderr)
    return 1 if wrong else 0


def run(out: Path) -> int:
    """The exit code of the job, which writes its black boxes and its report to the folder."""
    simcoll = Path(sys.executable).with_name("simcoll")
    command: list[str | Path] = [simcoll, "run", "--out", out, "--standalone", "--nproc-per-node", str(RANKS), SCRIPT]
    print(f"$ simcoll run --nproc-per-node {RANKS} {SCRIPT}", flush=True)
    # torchrun warns about the number of threads where nobody has chosen one.
    environment = {"OMP_NUM_THREADS": "1"} | os.environ
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def complaints(exit_code: int, report: Path) -> list[str]:
    """What differs from the one finding that the planted bug deserves."""
    wrong = [] if exit_code == FINDINGS_EXIT else [f"simcoll run exited {exit_code}, expected {FINDINGS_EXIT}"]
    if not report.exists():
        return [*wrong, "simcoll run left no report.json"]
    findings = cast("list[dict[str, object]]", json.loads(report.read_text(encoding="utf-8"))["findings"])
    if len(findings) != 1:
        return [*wrong, f"report.json has {len(findings)} findings, expected 1"]
    return wrong + unlike(findings[0])


def unlike(finding: dict[str, object]) -> list[str]:
    """The fields of a finding that are not those of the planted bug."""
    expected = {"code": CODE, "culprits": [CULPRIT], "line": planted_line()}
    found = {"code": finding["code"], "culprits": finding["culprits"], "line": line_of(finding, CULPRIT)}
    return [f"{key} is {found[key]}, expected {value}" for key, value in expected.items() if found[key] != value]


def planted_line() -> int:
    """The 1-based line of the script that carries the mark."""
    lines = (ROOT / SCRIPT).read_text(encoding="utf-8").splitlines()
    return 1 + next(index for index, line in enumerate(lines) if MARK in line)


def line_of(finding: dict[str, object], rank: int) -> int | None:
    """The line that the finding gives for a rank, or None."""
    for side in cast("list[dict[str, list[dict[str, object]]]]", finding["sides"]):
        for source in side["source"]:
            if source["rank"] == rank and str(source["file"]).endswith(SCRIPT.name):
                return cast("int", source["line"])
    return None


if __name__ == "__main__":
    sys.exit(main())
