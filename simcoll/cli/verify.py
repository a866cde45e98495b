"""``simcoll verify`` and ``simcoll rules``: judge what a job left behind; explain the findings.

``simcoll verify`` as it is typed: the request, and the topology on which its page prices the job.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from json import dumps
from pathlib import Path
from stat import S_ISDIR
from typing import TYPE_CHECKING

from simcoll.blackbox.gather import LAUNCH_PATTERN, Evidence, gather, matching, outcome_of, read_launch
from simcoll.blackbox.stall_file import PATTERN as STALL_PATTERN
from simcoll.blackbox.stall_file import read_stall, together
from simcoll.cli.output import Output
from simcoll.cli.progress import progress_bar
from simcoll.cli.topology_arguments import is_topology_given, topology_of
from simcoll.core.io import write_whole
from simcoll.core.ranges import parse_ranks
from simcoll.core.trace import LaunchOutcome, Stall, Trace
from simcoll.errors import BAD_INPUT
from simcoll.pricing.views.recorded_trace import recorded
from simcoll.reports.rules import render_rule, render_rules_table
from simcoll.reports.sarif import sarif_report
from simcoll.reports.trace_event import write_trace_events
from simcoll.simulation.library import scenario_path, scenario_text
from simcoll.verifier.findings.finding import Finding, Report, Verdict
from simcoll.verifier.findings.rule import Rule
from simcoll.verifier.findings.rules import RULES
from simcoll.verifier.postmortem import exit_code, judge
from simcoll.verifier.views.selection import Selection, SelectionError
from simcoll.verifier.views.view import View, charted, viewed


def run_verify(options: argparse.Namespace) -> int:
    """Carry out ``simcoll verify``; the exit code of the contract."""
    names = [field.name for field in fields(VerifyRequest) if field.name != "topology"]
    asked = {name: getattr(options, name) for name in names}
    if not is_topology_given(options):
        return verify(VerifyRequest(**asked))
    outlet = Output(json=options.json, plain=options.plain)
    if options.html is None:
        return outlet.refuse(BAD_INPUT, "a topology goes with --html FILE, on whose page the job is priced")
    try:
        topology = topology_of(options)
    except ValueError as error:
        return outlet.refuse(BAD_INPUT, str(error))
    return verify(VerifyRequest(**asked, topology=topology))


if TYPE_CHECKING:
    from simcoll.topology.graph import Topology

_CALLS = re.compile("0*[1-9][0-9]{0,6}")


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What ``simcoll verify`` is asked for. ``ranks`` and ``last`` are as typed; ``srcroot`` is where sources lay.

    ``groups``, ``ranks``, ``last`` and ``timeline`` say what is shown; what is judged is always the whole job.
    ``topology`` is where the page prices it.
    """

    paths: Sequence[Path]
    html: Path | None = None
    sarif: Path | None = None
    trace_events: Path | None = None
    srcroot: Path | None = None
    groups: Sequence[str] = ()
    ranks: str | None = None
    last: str | None = None
    timeline: bool = False
    json: bool = False
    plain: bool = False
    topology: Topology | None = None

    def view(self) -> View:
        """What is shown; raises ValueError where a value cannot be read."""
        ranks = () if self.ranks is None else tuple(parse_ranks(self.ranks))
        if self.last is not None and _CALLS.fullmatch(self.last) is None:
            raise ValueError(f"--last {self.last!r:.80}: expected how many calls, such as 20")
        last = None if self.last is None else int(self.last)
        return View(Selection(tuple(self.groups), ranks), last, self.timeline)


def verify(request: VerifyRequest) -> int:
    """Judge records (black boxes, Flight Recorder dumps), and show the report; the exit code of the contract.

    A file that cannot be read is named and left out; where none is left, that is an error.
    """
    outlet = Output(json=request.json, plain=request.plain)
    try:
        view = request.view()
    except ValueError as error:
        return outlet.refuse(BAD_INPUT, str(error))
    for path in request.paths:
        if reason := unreachable(path):
            return outlet.refuse(BAD_INPUT, f"{path}: {reason}; give records or their folder")
    with progress_bar(shown=not request.plain) as progress:
        evidence = gather(request.paths, progress=progress)
        report = judged(evidence) if evidence.traces else _failed_at_once(evidence)
    for text in (*evidence.unreadable, *(evidence.notes if evidence.traces else ())):
        outlet.warn(text)
    if report is None:
        places = ", ".join(str(path) for path in request.paths)
        return outlet.refuse(BAD_INPUT, f"no readable black box (*.simcoll) or Flight Recorder dump in {places}")
    try:
        shown = viewed(report, evidence.traces, view)
    except SelectionError as error:
        return outlet.refuse(BAD_INPUT, str(error))
    if request.trace_events is not None and (
        refused := write_timeline(request.trace_events, evidence.traces, report.findings, outlet)
    ):
        return outlet.refuse(BAD_INPUT, refused)
    return _hand_out(request, report, shown, lambda: _page(request, shown, evidence, view, outlet), outlet)


def write_timeline(path: Path, traces: Sequence[Trace], findings: Sequence[Finding], outlet: Output) -> str:
    """Write what the ranks recorded, and what was found, as a trace-event file; gives why it cannot be written."""
    timeline = recorded(traces, findings=findings)
    try:
        write_trace_events(path, timeline)
    except OSError as error:
        return f"cannot write {path}: {error.strerror}; choose another file"
    if timeline.note:
        outlet.warn(timeline.note)
    return ""


def _page(request: VerifyRequest, shown: Report, evidence: Evidence, view: View, outlet: Output) -> str:
    from simcoll.reports.html_report import html_report

    chart = charted(shown, evidence.traces, view.selection)
    if request.topology is None:
        return html_report(shown, chart)
    from simcoll.pricing.views.page import priced_report

    try:
        return html_report(shown, chart, **priced_report(evidence.traces, request.topology))
    except ValueError as error:
        outlet.warn(f"the job cannot be priced on this topology: {error}")
        return html_report(shown, chart)


def _hand_out(request: VerifyRequest, report: Report, shown: Report, page: Callable[[], str], outlet: Output) -> int:
    """Write the files that were asked for, then show the report. SARIF is for gates, and has every finding."""
    code = exit_code(report)
    files: list[tuple[Path | None, Callable[[], str]]] = [
        (request.html, page),
        (request.sarif, lambda: dumps(sarif_report(report, code, _source_root(request)), indent=2) + "\n"),
    ]
    for path, text in files:
        if path is not None:
            try:
                write_whole(path, text())
            except OSError as error:
                return outlet.refuse(BAD_INPUT, f"cannot write {path}: {error.strerror}; choose another file")
    outlet.show(shown, speeds=True)
    return code


def unreachable(path: Path) -> str:
    """Why nothing can be read at a path; empty where something is there."""
    try:
        if S_ISDIR(path.stat().st_mode):
            os.scandir(path).close()
    except FileNotFoundError:
        return "no such file or folder"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return ""


def _source_root(request: VerifyRequest) -> Path:
    return Path.cwd() / (request.srcroot or "")


def show_rules(code: str | None, *, json: bool = False, plain: bool = False) -> int:
    """List the rules, or show the page of one."""
    outlet = Output(json=json, plain=plain)
    if code is None:
        outlet.render(render_rules_table(), lambda: [_rule_page(rule) for rule in RULES.values()])
        return 0
    rule = RULES.get(code.upper())
    if rule is None:
        return outlet.refuse(BAD_INPUT, f"unknown code {code!r}: expected one of {', '.join(RULES)}")
    outlet.render(render_rule(rule, scenario_text(rule.code)), lambda: _rule_page(rule))
    return 0


def judged(evidence: Evidence) -> Report:
    """What the verifier finds in a job, with what its launchers and monitors saw of it."""
    return judge(evidence.traces, _outcome(evidence), _stall(evidence))


def _failed_at_once(evidence: Evidence) -> Report | None:
    """The report on ranks that failed before they recorded anything; None where no launcher tells of that."""
    outcome = None if evidence.unreadable else _outcome(evidence)
    report = None if outcome is None else judge((), outcome)
    return report if report is not None and report.verdict is Verdict.FAILED else None


def _outcome(evidence: Evidence) -> LaunchOutcome | None:
    """The launchers' accounts that lie beside the records; None where the job ran under another launcher."""
    launches = [launch for launch in map(read_launch, _beside(evidence, LAUNCH_PATTERN)) if launch.ranks]
    return outcome_of(launches) if launches else None


def _stall(evidence: Evidence) -> Stall | None:
    """What the monitors saw, where the job stood still."""
    return together(filter(None, map(read_stall, _beside(evidence, STALL_PATTERN))))


def _beside(evidence: Evidence, pattern: str) -> list[Path]:
    return [file for folder in evidence.folders for file in matching(folder, pattern)]


def _rule_page(rule: Rule) -> dict[str, object]:
    path = scenario_path(rule.code)
    return {**asdict(rule), "severity": rule.severity.value, "scenario": None if path is None else str(path)}
