"""The summary, the last calls and the timeline as a reader sees them: pinned pictures, and lines that fit."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console, RenderableType

from simcoll.core.record import Group, Record, Source, State
from simcoll.reports.overview import TimelineText, instant, job_text, place_text, render_histories, render_summary
from simcoll.reports.terminal import TerminalReport
from simcoll.spec.call import Call
from simcoll.verifier.findings.finding import (
    Activity,
    Cell,
    Column,
    History,
    Mark,
    Narrowed,
    Place,
    Progress,
    Report,
    Summary,
    Timeline,
    Verdict,
)

NOON = 1_790_856_000 * 10**9
WORLD = Group("0", "default_pg", tuple(range(8)))
PAIRS = tuple(Group(str(n + 1), "mesh_tp", (2 * n, 2 * n + 1)) for n in range(4))
LINE = Source("train.py", 41, "step", "dist.all_reduce(grad)")
REDUCE = Call("all_reduce", "allreduce")


def record(number: int, state: State = State.COMPLETED, group: str = "0", at_ns: int = NOON) -> Record:
    return Record(group, number, REDUCE, LINE, state, scheduled_ns=at_ns)


def waiting(*ranks: int, **of: object) -> Place:
    call = record(184, State.STARTED)
    place = Place(ranks, Activity.WAITS, "stopped", WORLD, 1, call, inside=True, since_ns=NOON + 187 * 10**9)
    return replace(place, **of)  # type: ignore[arg-type]


def summary() -> Summary:
    busy = Place((3,), Activity.OWN_CODE, "stopped", WORLD, 1, record(183), line=Source("data.py", 7, "load"))
    progress = (
        Progress("default_pg", 8, (WORLD,), tuple(range(8)), record(183), record(183)),
        Progress("mesh_tp", 2, PAIRS, tuple(range(8)), record(90, group="2"), record(92, group="4")),
    )
    return Summary(
        8, 8, ("detail",), NOON, NOON + 200 * 10**9, progress, (waiting(0, 1, 2, 4, 5, 6, 7), busy), ("root",)
    )


def drawn(picture: RenderableType, width: int = 80) -> str:
    console = Console(file=StringIO(), width=width, no_color=True)
    console.print(picture)
    assert isinstance(console.file, StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


PICTURE = """\
  job       8 ranks recorded in mode detail, 2026-10-01 12:00:00 to 12:03:20 UTC
  finished  default_pg (ranks 0-7): all_reduce #183 at train.py:41 in step
            4 groups mesh_tp of 2 ranks (ranks 0-7): #90 (group 2) to #92 (group
            4)
  now       ranks 0-2 and 4-7  wait in all_reduce #184 of default_pg at
                               train.py:41 in step since 12:03:07; stopped
            rank 3             is in its own code at data.py:7 in load after
                               all_reduce #183 of default_pg at train.py:41 in
                               step; stopped"""


def test_the_picture_of_a_summary() -> None:
    assert drawn(render_summary(summary())) == PICTURE


def test_a_report_begins_with_it_and_a_clean_one_is_one_line() -> None:
    report = Report(Verdict.FINDINGS, 8, "detail", (), (), 183, summary=summary())
    assert PICTURE in drawn(TerminalReport(report))
    clean = replace(report, verdict=Verdict.OK)
    assert drawn(TerminalReport(clean)) == "simcoll: 183 collectives on 8 ranks agree"


def test_a_job_that_still_waits_has_more_than_a_line() -> None:
    found = summary()
    waiting = replace(found, places=tuple(replace(place, process="") for place in found.places))
    screen = drawn(TerminalReport(Report(Verdict.OK, 8, "record", (), (), 183, summary=waiting)))
    assert "ranks 0-2 and 4-7  wait in all_reduce #184" in screen


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (Place((1,), Activity.UNSEEN, "running"), "no call recorded"),
        (Place((1,), Activity.FAILED, "failed", reason="was killed by SIGKILL"), "failed: was killed by SIGKILL"),
        (
            waiting(1, activity=Activity.FAILED, process="failed", reason="raised ValueError"),
            "failed in all_reduce #184 of default_pg at train.py:41 in step: raised ValueError",
        ),
        (
            waiting(1, activity=Activity.OPEN, process="running"),
            "has all_reduce #184 of default_pg at train.py:41 in step open since 12:03:07",
        ),
        (
            waiting(1, 2, activity=Activity.ENDED, process="finished", inside=False),
            "ended after all_reduce #184 of default_pg at train.py:41 in step",
        ),
        (
            waiting(1, 2, group=PAIRS[0], groups=2, process="running", since_ns=0),
            "wait in all_reduce #184 of 2 groups mesh_tp at train.py:41 in step",
        ),
        (
            waiting(1, record=Record("0", 3, Call("send", "send"), p2p_sequence=5), process="running"),
            "waits in send message #5 of default_pg since 12:03:07",
        ),
    ],
)
def test_places_in_words(place: Place, text: str) -> None:
    assert place_text(place) == text


def test_what_the_data_is_from() -> None:
    dumps = Summary(1024, 1000, ("flight recorder",), unknown=("reduce_op", "root"))
    assert job_text(dumps) == "1,000 of 1,024 ranks recorded by torch's Flight Recorder"


def test_no_time_is_too_late_for_a_calendar() -> None:
    assert instant(2**64 - 1).year >= 2554


@pytest.mark.parametrize("width", [80, 120])
def test_many_ranks_and_groups_fit(width: int) -> None:
    ranks = tuple(range(4096))
    groups = [Progress(f"mesh_{n}", 4096, (Group(str(n), f"mesh_{n}", ranks),), ranks, record(n)) for n in range(40)]
    places = [waiting(*range(first, 4096, 40)) for first in range(40)]
    text = drawn(render_summary(replace(summary(), progress=tuple(groups), places=tuple(places))), width)
    assert max(map(len, text.splitlines())) <= width
    assert len(text.splitlines()) < 90
    assert "and 32 more kinds of groups" in text
    assert "at 32 more places" in text


@pytest.mark.parametrize("width", [60, 80])
def test_a_long_path_keeps_its_line_number(width: int) -> None:
    far = replace(record(1), source=Source("/a/very/long/path" * 12 + "/train.py", 4107, "step"))
    place = replace(waiting(1), record=far)
    progress = Progress("default_pg", 8, (WORLD,), tuple(range(8)), far, far)
    text = drawn(render_summary(replace(summary(), progress=(progress,), places=(place,))), width)
    text += drawn(render_histories([History((0,), (far,), (WORLD,))]), width)
    assert "".join(text.split()).count("path/train.py:4107instep") == 3


def test_what_is_hidden_is_said_and_counted() -> None:
    shown = Narrowed(("mesh_tp",), (0, 1), 2, 1)
    text = drawn(TerminalReport(Report(Verdict.FINDINGS, 8, "detail", (), (), 5, shown=shown)))
    assert "simcoll: 2 errors, 1 warning; 5 collectives on 8 ranks agree" in text
    assert "shown: group mesh_tp and ranks 0-1; the verdict is that of the whole job" in text
    assert "hidden: 3 findings on other groups or ranks" in text


def test_the_last_calls() -> None:
    histories = [History((0, 1), (record(1), record(2, State.STARTED)), (WORLD, WORLD)), History((2,), (), ())]
    assert drawn(render_histories(histories)) == (
        "last calls of ranks 0-1\n"
        "  12:00:00.000  all_reduce  #1  default_pg  completed  train.py:41 in step\n"
        "  12:00:00.000  all_reduce  #2  default_pg  started    train.py:41 in step\n"
        "last calls of rank 2\n"
        "  no call recorded"
    )
    assert "and 84 more ranks" in drawn(render_histories([History((rank,), (), ()) for rank in range(100)]))


def a_timeline(numbers: list[int], total: int) -> Timeline:
    columns = [Column(number - 1, WORLD, 1, number, False, NOON) for number in numbers]
    done, odd = Cell(Mark.DONE, "all_reduce"), Cell(Mark.DONE, "all_gather", True)
    waits, absent = Cell(Mark.OPEN, "all_reduce"), Cell(Mark.ABSENT)
    rows = (
        ((0, 1, 2, 4), (*[done] * (len(numbers) - 1), waits)),
        ((3,), (odd, *[done] * (len(numbers) - 2), absent)),
    )
    return Timeline(tuple(columns), rows, total)


TIMELINE = """\
timeline: 4 of 184 calls: those near findings, and the last ones
                            1 1
                          : 8 8
  number              1 2 : 3 4
  group               a a : a a
  ranks 0-2, 4        R R : R R~
  rank 3              G!R : R .

  G all_gather   R all_reduce
  ~ not ended   x failed or refused   ! differs from the others   . never made
  : calls between are left out
  a group 0 (default_pg, ranks 0-7)"""


def test_the_picture_of_a_timeline() -> None:
    picture = drawn(TimelineText(a_timeline([1, 2, 183, 184], 184)))
    assert [line.replace(":", "").split() for line in picture.splitlines()] == [
        line.replace(":", "").split() for line in TIMELINE.splitlines()
    ]
    assert "  ranks 0-2, 4        R R : R R~" in picture
    assert "  rank 3              G!R : R ." in picture


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_long_timeline_has_blocks_that_fit(width: int) -> None:
    text = drawn(TimelineText(a_timeline(list(range(900, 1000)), 1000)), width)
    assert max(map(len, text.splitlines())) <= width
    letters = "".join(line for line in text.splitlines() if line.startswith("  ranks 0-2, 4 "))
    assert letters.removeprefix("  ranks").count("R") == 100


def test_many_rows_are_counted() -> None:
    one = a_timeline([1, 2], 2)
    rows = tuple(((rank,), one.rows[0][1]) for rank in range(100))
    assert "and 76 more ranks in 76 more rows" in drawn(TimelineText(replace(one, rows=rows)))


def test_a_timeline_of_nothing() -> None:
    assert drawn(TimelineText(Timeline((), (), 0))) == "timeline: no call was recorded"


def test_letters_are_never_shared_while_there_are_any() -> None:
    ops = ["all_reduce", "reduce", "reduce_scatter", "recv", "rot", "rat"]
    columns = tuple(Column(n, WORLD, 1, n, True, 0) for n in range(len(ops)))
    text = drawn(TimelineText(Timeline(columns, (((0,), tuple(Cell(Mark.DONE, op) for op in ops)),), len(ops))))
    legend = next(line for line in text.splitlines() if "reduce_scatter" in line)
    letters = [word for word in legend.split() if len(word) == 1]
    assert len(set(letters)) == len(ops)
    assert "' message" in text
