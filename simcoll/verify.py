"""``simcoll verify`` and ``simcoll rules``: judge what a job left behind; explain the findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from simcoll.evidence import LAUNCH_PATTERN, Launch, gather, read_launch
from simcoll.outlet import Outlet, write_whole
from simcoll.preconditions import BAD_INPUT
from simcoll.progress import progress_bar
from simcoll.reports.html_report import html_report
from simcoll.reports.rules import render_rule, render_rules_table
from simcoll.stall_file import PATTERN as STALL_PATTERN
from simcoll.stall_file import read_stall, together
from simcoll.verifier.postmortem import exit_code, judge
from simcoll.verifier.rule import Rule
from simcoll.verifier.rules import RULES
from simcoll.verifier.trace import Stall


def verify(paths: Sequence[Path], *, html: Path | None = None, json: bool = False) -> int:
    """Judge black boxes, or the folders that hold them, and show the report; the exit code of the contract.

    A file that cannot be read is named and left out; where none is left, that is an error.
    """
    outlet = Outlet(json=json)
    missing = next((path for path in paths if not path.exists()), None)
    if missing is not None:
        return outlet.refuse(BAD_INPUT, f"{missing}: no such file or folder; give black boxes or their folder")
    with progress_bar() as progress:
        evidence = gather(paths, _launches(paths), progress=progress)
        report = judge(evidence.traces, evidence.outcome, _stall(paths)) if evidence.traces else None
    for text in (*evidence.unreadable, *(evidence.notes if evidence.traces else ())):
        outlet.warn(text)
    if report is None:
        places = ", ".join(str(path) for path in paths)
        return outlet.refuse(BAD_INPUT, f"no readable black box (*.simcoll) or Flight Recorder dump in {places}")
    if html is not None:
        try:
            write_whole(html, html_report(report))
        except OSError as error:
            return outlet.refuse(BAD_INPUT, f"cannot write {html}: {error.strerror}; choose another file")
    outlet.show(report)
    return exit_code(report)


def show_rules(code: str | None, *, json: bool = False) -> int:
    """List the rules, or show the page of one."""
    outlet = Outlet(json=json)
    if code is None:
        outlet.render(render_rules_table(), lambda: [_page(rule) for rule in RULES.values()])
        return 0
    rule = RULES.get(code.upper())
    if rule is None:
        return outlet.refuse(BAD_INPUT, f"unknown code {code!r}: expected one of {', '.join(RULES)}")
    outlet.render(render_rule(rule), lambda: _page(rule))
    return 0


def _launches(paths: Sequence[Path]) -> list[Launch]:
    """The launchers' accounts beside the black boxes; none where the job ran under another launcher."""
    files = [file for path in paths if path.is_dir() for file in sorted(path.glob(LAUNCH_PATTERN))]
    return [launch for launch in map(read_launch, files) if launch.ranks]


def _stall(paths: Sequence[Path]) -> Stall | None:
    """What the monitors saw, where the job stood still."""
    files = [file for path in paths if path.is_dir() for file in sorted(path.glob(STALL_PATTERN))]
    return together(filter(None, map(read_stall, files)))


def _page(rule: Rule) -> dict[str, object]:
    return {**asdict(rule), "severity": rule.severity.value}
