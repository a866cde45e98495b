"""``simcoll verify``: judge the records of a job."""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simcoll.blackbox.gather import RunRecords, gather
from simcoll.blackbox.reader_pool import Progress
from simcoll.cli.arguments import (
    add_executor_argument,
    add_github_argument,
    add_output_arguments,
    add_report_files,
    add_strict_argument,
    add_topology_arguments,
    check_github,
    request_of,
)
from simcoll.cli.files import sarif_text, write_file, write_recorded_timeline
from simcoll.cli.output import Output, warn
from simcoll.cli.progress import progress_bar
from simcoll.cli.records import check_reachable, failed_at_once, judged, no_records, warn_of_damage
from simcoll.core.executors import opened
from simcoll.core.io import stated_path
from simcoll.core.process import rare_collections
from simcoll.core.ranges import parse_ranks
from simcoll.core.trace import Trace
from simcoll.errors import BAD_INPUT, ExecutorError, SimcollError, UsageError
from simcoll.topology.request import TopologyRequest
from simcoll.verifier.exit_code import exit_code
from simcoll.verifier.findings.finding import Report
from simcoll.verifier.views.chart import Chart
from simcoll.verifier.views.requested import View, charted, viewed
from simcoll.verifier.views.selection import Selection

if TYPE_CHECKING:
    from simcoll.topology.graph import Topology

_CALLS = re.compile("0*[1-9][0-9]{0,6}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``verify`` to its parser."""
    add_output_arguments(parser)
    add_github_argument(parser)
    add_strict_argument(parser)
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        type=stated_path,
        help="black boxes or Flight Recorder dumps, or folders of them",
    )
    files = parser.add_argument_group("files")
    add_report_files(files)
    files.add_argument(
        "--srcroot",
        metavar="DIR",
        type=stated_path,
        help="where the job's sources lay; SARIF names files relative to it",
    )
    shown = parser.add_argument_group("what is shown (judged is always the whole job)")
    shown.add_argument(
        "--group", metavar="NAME", dest="groups", action="append", default=[], help="only this group; may be repeated"
    )
    shown.add_argument("--ranks", metavar="LIST", help="only these ranks, such as 0-3,8")
    shown.add_argument("--last", metavar="N", help="the last N calls of each rank, and N before each finding")
    shown.add_argument("--timeline", action="store_true", help="a picture of ranks by collectives, in order of time")
    add_executor_argument(parser)
    add_topology_arguments(parser, "where the job ran: --html prices the job there and draws its bottleneck")


def run_command(options: argparse.Namespace) -> int:
    """Carry out ``simcoll verify``; the exit code of the contract."""
    return verify(request_of(VerifyRequest, options))


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """The options of ``simcoll verify``. ``ranks`` and ``last`` are as typed; ``srcroot`` is the sources' root folder.

    ``groups``, ``ranks``, ``last`` and ``timeline`` select what is shown; the whole job is always judged.
    ``topology`` is the one on which the page prices it.
    """

    paths: Sequence[Path]
    html: Path | None
    sarif: Path | None
    trace_events: Path | None
    srcroot: Path | None
    groups: Sequence[str]
    ranks: str | None
    last: str | None
    timeline: bool
    json: bool
    plain: bool
    strict: bool
    github: bool
    executor: str | None
    topology: TopologyRequest

    def page_topology(self) -> Topology | None:
        """The topology on which the page prices the job; raises UsageError without a page, and TopologyError."""
        if not self.topology.is_given:
            return None
        if self.html is None:
            raise UsageError("a topology goes with --html FILE, on whose page the job is priced")
        return self.topology.build()

    def view(self) -> View:
        """Returns the selection to show; raises UsageError where a value cannot be read."""
        ranks = () if self.ranks is None else tuple(parse_ranks(self.ranks))
        if self.last is not None and _CALLS.fullmatch(self.last) is None:
            raise UsageError(f"--last {self.last!r:.80}: expected how many calls, such as 20")
        last = None if self.last is None else int(self.last)
        return View(Selection(tuple(self.groups), ranks), last, self.timeline)


@rare_collections()
def verify(request: VerifyRequest) -> int:
    """Judge records (black boxes, Flight Recorder dumps), and show the report; the exit code of the contract.

    A file that cannot be read is named and left out; where none is left, that is an error.
    """
    output = Output(json=request.json, plain=request.plain, github=request.github)
    try:
        check_github(github=request.github, json=request.json)
        topology, view = request.page_topology(), request.view()
        check_reachable(request.paths)
        with progress_bar(shown=not request.plain) as progress:
            records = _gathered(request, progress)
            report, traces = judged(records) if records.traces else (failed_at_once(records), ())
        warn_of_damage(records)
        if report is None:
            raise no_records(request.paths)
        shown = viewed(report, traces, view)
        chart = functools.partial(charted, shown, traces, view.selection)
        _write_files(request, traces, report, lambda: _page(shown, chart(), records, topology))
    except ExecutorError as error:
        return output.refuse(error.code, str(error))
    except SimcollError as error:
        return output.refuse(BAD_INPUT, str(error))
    output.show(shown, speeds=True)
    return exit_code(report, strict=request.strict)


def _gathered(request: VerifyRequest, progress: Progress | None) -> RunRecords:
    if request.executor is None:
        return gather(request.paths, progress=progress)
    # A worker has a working directory of its own.
    paths = [path.absolute() for path in request.paths]
    with opened(request.executor) as spread:
        return gather(paths, progress=progress, spread=spread)


def _write_files(request: VerifyRequest, traces: Sequence[Trace], report: Report, page: Callable[[], str]) -> None:
    """Write the files that were asked for; raises UsageError. SARIF is for gates, and has every finding."""
    if request.trace_events is not None:
        write_recorded_timeline(request.trace_events, traces, report.findings)
    if request.html is not None:
        write_file(request.html, page())
    if request.sarif is not None:
        write_file(
            request.sarif,
            sarif_text(report, exit_code(report, strict=request.strict), Path.cwd() / (request.srcroot or "")),
        )


def _page(shown: Report, chart: Chart | None, records: RunRecords, topology: Topology | None) -> str:
    from simcoll.reports.html_report import html_report

    if topology is None:
        return html_report(shown, chart)
    from simcoll.pricing.views.page import priced_report

    try:
        return html_report(shown, chart, **priced_report(records.traces, topology))
    except ValueError as error:
        warn(f"the job cannot be priced on this topology: {error}")
        return html_report(shown, chart)
