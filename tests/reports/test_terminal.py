"""The report on a terminal: pinned pictures, and nothing that a terminal would obey."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from simcoll.core.record import Group, Record, Source, State
from simcoll.core.text import plain
from simcoll.reports.html_report import html_report
from simcoll.reports.terminal import TerminalReport, summary_line
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.agreement.compare import compare
from simcoll.verifier.findings.finding import (
    Finding,
    Parting,
    RankState,
    RankStatus,
    Report,
    Severity,
    Summary,
    Verdict,
)
from tests.support.documents import valid_report

TENSORS = (Buffer((20, 10), "float32"),)


def reduction(op: str = "sum") -> Call:
    return Call("all_reduce", "allreduce", TENSORS, TENSORS, reduce_op=op)


def a_report(code: str = "dist.all_reduce(grad)", file: str = "train.py", ranks: int = 4, name: str = "0") -> Report:
    group = Group(name, "default_pg", tuple(range(ranks)))
    records = {
        rank: Record(
            name, 7, reduction("max" if rank == 2 else "sum"), Source(file, 41 + 2 * (rank == 2), "step", code)
        )
        for rank in range(ranks)
    }
    states = tuple(RankState(rank, RankStatus.FAILED, 1) for rank in range(ranks))
    return Report(Verdict.FINDINGS, ranks, "detail", tuple(compare(group, records)), states, agreed=6, last=records)


def drawn(report: Report, width: int = 80, **of: bool) -> str:
    console = Console(file=StringIO(), width=width, no_color=True, **of)
    console.print(TerminalReport(report))
    file = console.file
    assert isinstance(file, StringIO)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


PICTURE = """\
simcoll: 1 error; 6 collectives on 4 ranks agree
  ranks 0-1 and 3  failed (exit code 1)  last call all_reduce #7 of group 0,
                                         scheduled, at train.py:41 in step
  rank 2           failed (exit code 1)  last call all_reduce #7 of group 0,
                                         scheduled, at train.py:43 in step
╭─ SC104 reduce-op-mismatch (error) ───────────────────────────────────────────╮
│ rank 2 reduces with max, ranks 0-1 and 3 reduce with sum                     │
│ in group 0 (default_pg, ranks 0-3), collective 7                             │
│                                                                              │
│ ranks 0-1 and 3  all_reduce  >>reduce op sum<<  dtype float32  shape [20,    │
│                  10]  on cpu                                                 │
│                  at train.py:41 in step                                      │
│                    dist.all_reduce(grad)                                     │
│                                                                              │
│ rank 2           all_reduce  >>reduce op max<<  dtype float32  shape [20,    │
│                  10]  on cpu                                                 │
│                  at train.py:43 in step                                      │
│                    dist.all_reduce(grad)                                     │
│                                                                              │
│ culprits: rank 2                                                             │
│ advice: Pass the same reduce op on every rank.                               │
╰──────────────────────────────────────────────────────────────────────────────╯"""


def test_the_picture_of_one_finding() -> None:
    assert drawn(a_report()) == PICTURE


@pytest.mark.parametrize(
    ("agreed", "ranks", "line"),
    [
        (1234, 4, "simcoll: 1,234 collectives on 4 ranks agree"),
        (1, 2, "simcoll: 1 collective on 2 ranks agrees"),
        (0, 1, "simcoll: no collective was recorded on all of 1 rank"),
    ],
)
def test_a_clean_run_is_one_line(agreed: int, ranks: int, line: str) -> None:
    states = tuple(RankState(rank, RankStatus.FINISHED, 0) for rank in range(ranks))
    assert drawn(Report(Verdict.OK, ranks, "detail", (), states, agreed)) == line


def test_one_line_says_how_many_ranks_left_a_record() -> None:
    report = Report(Verdict.OK, 4, "dump", (), (), 0, summary=Summary(4, 3))
    assert summary_line(report) == "simcoll: no collective was recorded on all of 4 ranks, of which 3 left a record"


def test_collectives_that_all_ranks_recorded_and_none_agrees() -> None:
    report = replace(a_report(), agreed=0)
    assert summary_line(report) == "simcoll: 1 error; no collective on 4 ranks is proved to agree"


@pytest.mark.parametrize(
    ("messages", "line"),
    [(1, "simcoll: 1 message on 4 ranks agrees"), (78, "simcoll: 78 messages on 4 ranks agree")],
)
def test_a_job_that_only_sends_and_receives(messages: int, line: str) -> None:
    assert summary_line(Report(Verdict.OK, 4, "detail", (), (), messages=messages)) == line
    wrong = replace(a_report(), agreed=0, messages=messages)
    assert summary_line(wrong) == line.replace("simcoll: ", "simcoll: 1 error; ")
    dry = summary_line(Report(Verdict.OK, 0, "preflight", (), (), messages=messages))
    assert dry.endswith(f": they agree on {line.split(' on ')[0].removeprefix('simcoll: ')}")


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("ranks", [4, 4096])
def test_every_line_fits(width: int, ranks: int) -> None:
    text = drawn(a_report("x = " + "long_name + " * 40, "/a/very/long/" * 12 + "train.py", ranks), width)
    assert max(map(len, text.splitlines())) <= width
    assert len(text.splitlines()) < 80
    assert "rank 2" in text


def test_many_ranks_are_ranges() -> None:
    assert "ranks 0-1 and 3-4095" in drawn(a_report(ranks=4096))


def test_markup_and_control_characters_are_shown_not_obeyed() -> None:
    hostile = "\x1b[31m[red]x[/red]\x07\u202e\r\n"
    console = Console(file=StringIO(), width=80, force_terminal=True, color_system="truecolor")
    console.print(TerminalReport(a_report(hostile, hostile, name=hostile)))
    file = console.file
    assert isinstance(file, StringIO)
    text = file.getvalue()
    assert "\x07" not in text
    assert "\u202e" not in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "\x1b" not in plain
    assert "[red]x[/red]" in plain


def test_no_majority_and_unknown_fields_are_said() -> None:
    report = a_report()
    finding: Finding = report.findings[0]
    other = Finding(
        finding.code, finding.severity, "m", finding.group, 7, (0, 1), unknown=("root", "order"), sides=finding.sides
    )
    text = drawn(Report(Verdict.FINDINGS, 4, "record", (other,), ()))
    assert "culprits: no majority names one" in text
    assert "unknown: root, memory order (the records do not say)" in text


def test_what_matched_before_is_listed() -> None:
    report = a_report()
    finding = report.findings[0]
    earlier = tuple(Record("0", n, reduction(), state=State.COMPLETED) for n in (5, 6))
    other = Finding(finding.code, finding.severity, "m", finding.group, 7, sides=finding.sides, before=earlier)
    assert "before: all_reduce #5, all_reduce #6" in drawn(Report(Verdict.FINDINGS, 4, "record", (other,), ()))


def test_a_signal_has_its_name() -> None:
    states = (
        RankState(0, RankStatus.STOPPED, -15),
        RankState(1, RankStatus.FAILED, -9),
        RankState(2, RankStatus.FAILED, 3),
    )
    shown = drawn(Report(Verdict.FAILED, 3, "record", (), states))
    assert all(text in shown for text in ("stopped (SIGTERM)", "failed (SIGKILL)", "failed (exit code 3)"))


def test_paths_are_as_seen_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a job"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert drawn(a_report(file=f"{folder}/train.py")) == PICTURE
    said = f"{folder}/a.py, ({folder}/b.py), {folder}, {folder}/, /x{folder}/c.py, {folder}s/d.py"
    assert plain(said).plain == f"a.py, (b.py), {folder}, {folder}/, /x{folder}/c.py, {folder}s/d.py"
    monkeypatch.chdir("/")
    assert plain("/x/train.py").plain == "/x/train.py"
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert plain("/x/train.py").plain == "/x/train.py"


def test_a_finding_without_sides_has_one_empty_line() -> None:
    finding = Finding("SC801", Severity.WARNING, "m", Group("0", "default_pg", (0, 1)), ranks=(0, 1), culprits=(1,))
    lines = drawn(Report(Verdict.FINDINGS, 2, "record", (finding,), ())).splitlines()
    assert [line.strip("│ ") for line in lines[3:7]] == [
        "m",
        "in group 0 (default_pg, ranks 0-1)",
        "",
        "culprits: rank 1",
    ]


def test_callers_and_the_line_that_parted_the_ranks_are_drawn() -> None:
    report = a_report()
    (finding,) = report.findings
    line = Source("utils.py", 6, "mean", "dist.all_reduce(t)")
    callers = [Source("train.py", 41 + number, "step", f"mean(x{number})") for number in range(2)]
    sides = tuple(
        replace(side, sources=(replace(side.sources[0], source=replace(line, callers=(caller,))),))
        for side, caller in zip(finding.sides, callers, strict=True)
    )
    parted = Parting(Source("train.py", 40, "step", "if late:"), (((2,), "took it"), ((0, 1, 3), "did not take it")))
    told = replace(finding, sides=sides, parted=parted)
    text = " ".join(drawn(replace(report, findings=(told,)), width=200).replace("│", " ").split())
    assert "at train.py:42 in step mean(x1) into utils.py:6 in mean dist.all_reduce(t)" in text
    assert "ranks parted at: train.py:40: if late: (rank 2 took it, ranks 0-1 and 3 did not take it)" in text
    page = html_report(replace(report, findings=(told,)))
    assert "into utils.py:6 in mean" in page
    assert "Ranks parted at" in page
    document = valid_report(replace(report, findings=(told,)))
    found: Any = document["findings"]
    assert found[0]["parted"]["line"] == 40
    assert found[0]["parted"]["sides"][0] == {"ranks": [2], "did": "took it"}
    assert found[0]["sides"][1]["source"][0]["callers"] == [{"file": "train.py", "line": 42, "function": "step"}]
