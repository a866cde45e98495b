"""``simcoll status`` and ``simcoll top``: one line and an exit code, a picture, a document, keys."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import jsonschema  # type: ignore[import-untyped]
import pytest
from rich.console import Console

from simcoll.cli import main
from simcoll.cli.top import chosen
from simcoll.live.document import job_document, job_schema
from simcoll.live.screen import FILTERS, ORDERS, JobScreen, ScreenState, ranks_shown
from simcoll.live.watch import JobWatch
from tests.support.jobs import write_job, write_job_that_failed, write_job_that_waits, write_job_that_was_ended


@pytest.fixture
def folder(tmp_path):
    write_job(tmp_path / "job")
    return tmp_path / "job"


@pytest.fixture
def standing(tmp_path, monkeypatch):
    """A job of which rank 3 has not come, and whose processes seem to be there."""
    write_job_that_waits(tmp_path / "standing")
    monkeypatch.setattr("simcoll.live.watch.Processes.gone", lambda *process: False)
    return tmp_path / "standing"


def test_status_of_a_job_that_ended_well(folder, capsys):
    assert main(["status", str(folder)]) == 0
    assert capsys.readouterr().out == "ended: all ranks 0-3 ended\n"


@pytest.mark.parametrize("plain", [[], ["--plain"]])
def test_status_is_one_line_where_it_is_piped(standing, plain, capsys):
    assert main(["status", "--stall", "0.1", *plain, str(standing)]) == 4
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("standing: for ")
    assert len(line) > 80


def test_status_of_a_job_with_a_finding(tmp_path, capsys):
    write_job(tmp_path / "wrong", wrong=[1])
    assert main(["status", str(tmp_path / "wrong")]) == 3
    assert "(SC104)" in capsys.readouterr().out


def test_status_of_a_job_that_stands(standing, capsys):
    assert main(["status", str(standing), "--stall", "0.1"]) == 4
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("standing: for ")
    assert "wait in" in said
    assert "for rank 3" in said


def test_a_job_that_is_due_to_stand_is_waited_for(standing, capsys):
    watch = JobWatch(standing, 1e6)
    watch.look()
    assert watch.due is not None
    assert watch.stall is None
    assert main(["status", "--stall", "1", str(standing)]) == 4
    assert capsys.readouterr().out.startswith("standing: for ")


def test_a_report_does_not_speak_of_processes_that_outlast_the_job(tmp_path, monkeypatch, capsys):
    write_job(tmp_path / "job", closed=False)
    monkeypatch.setattr("simcoll.live.watch.Processes.gone", lambda *process: False)
    assert main(["status", str(tmp_path / "job")]) == 0
    assert capsys.readouterr().out.startswith("moving: ")
    assert main(["verify", "--json", str(tmp_path / "job")]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []


def test_a_report_on_a_job_that_runs_tells_what_status_tells(standing, folder, capsys):
    assert main(["verify", "--json", str(standing)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(one["code"], one["severity"], one["culprits"]) for one in report["findings"]] == [
        ("SC201", "warning", [3])
    ]
    (note,) = [note for note in report["notes"] if note.startswith("the job runs: standing: for ")]
    assert "for rank 3; " in note
    assert main(["verify", "--json", str(folder)]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []


@pytest.mark.parametrize("command", [["status"], ["top", "--once"]])
@pytest.mark.parametrize("kind", ["ended", "standing"])
def test_the_document_fits_its_schema(folder, standing, command, kind, capsys):
    code = main([*command, str(folder if kind == "ended" else standing), "--json", "--stall", "0.1"])
    assert code == (0 if kind == "ended" else 4)
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, job_schema())
    assert document["motion"] == kind
    assert [one["rank"] for one in document["ranks"]] == [0, 1, 2, 3]


@pytest.mark.parametrize(("given", "why"), [("missing", "expected the folder"), ("empty", "no readable black box")])
@pytest.mark.parametrize("command", [["status"], ["top", "--once"]])
def test_a_folder_without_a_job_is_refused(tmp_path, command, given, why, capsys):
    (tmp_path / "empty").mkdir()
    assert main([*command, str(tmp_path / given)]) == 2
    said = capsys.readouterr()
    assert why in " ".join(said.err.split())
    assert said.out == ""


@pytest.mark.parametrize("version", [0, 255])
@pytest.mark.parametrize("command", [["status"], ["top", "--once"], ["metrics", "--once"]])
def test_files_of_another_version_are_told(folder, version, command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    files = sorted(folder.glob("*.simcoll"))
    why = f"found black box format {version}, expected 1 to "

    def age(file):
        file.write_bytes(file.read_bytes()[:8] + version.to_bytes(4, "little") + file.read_bytes()[12:])

    age(files[2])
    assert main([*command, str(folder)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    if command[0] != "metrics":
        assert f"there is no record of rank 2 that can be read: {files[2]}: {why}" in said
    for file in files:
        age(file)
    assert main([*command, str(folder)]) == 2
    assert f"{files[0].name}: {why}" in " ".join(capsys.readouterr().err.split())


def test_top_takes_the_newest_job(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["top", "--once"]) == 2
    (tmp_path / "simcoll-out").mkdir()
    write_job(tmp_path / "simcoll-out" / "first")
    write_job(tmp_path / "simcoll-out" / "second", wrong=[1])
    os.utime(tmp_path / "simcoll-out" / "first", (1, 1))
    capsys.readouterr()
    assert main(["top", "--once"]) == 3
    assert "second" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_picture_fits_its_columns_and_keeps_the_line_of_each_rank(standing, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["top", "--once", "--stall", "0.1", str(standing)]) == 4
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    rows = [line for line in lines if re.match(r"[0-3]  +\S", line)]
    assert len(rows) == 4
    assert all(re.search(r"\.py:\d+( |$)", row) for row in rows)


def test_a_picture_says_how_bad_a_finding_is_and_has_no_heading_without_rows(standing, capsys):
    main(["top", "--once", "--stall", "0.1", str(standing)])
    said = capsys.readouterr().out
    assert "SC201 (warning) rank 3 did not come" in said
    assert "group " in said
    job = JobWatch(standing, 0.1).look()
    assert job is not None
    Console(file=sys.stdout).print(JobScreen(replace(job, groups=()), ScreenState()))
    assert "not come for" not in capsys.readouterr().out


def test_a_plain_picture_is_ascii(standing, capsys):
    main(["top", "--once", "--plain", str(standing)])
    said = capsys.readouterr().out
    assert said.isascii()
    assert "rank 3; does " in said


def test_looks_are_printed_until_the_job_has_ended(folder, capsys):
    assert main(["top", "--json", "--interval", "0.1", str(folder)]) == 0
    assert [json.loads(line)["motion"] for line in capsys.readouterr().out.splitlines()] == ["ended"]


@pytest.mark.parametrize("again", [True, False])
def test_looks_go_on_while_the_launcher_may_start_the_ranks_again(tmp_path, again, capsys, monkeypatch):
    write_job_that_failed(tmp_path / "job", over=False)
    clock = iter(range(0, 1000, 20))

    def starts(seconds):
        if again:
            monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
            write_job(tmp_path / "next")
            for path in (tmp_path / "next").iterdir():
                path.rename(tmp_path / "job" / path.name.replace(".simcoll", ".attempt1.simcoll"))

    monkeypatch.setattr("simcoll.cli.top.time.sleep", starts)
    monkeypatch.setattr("simcoll.cli.top.time.monotonic", lambda: next(clock))
    assert main(["top", "--json", str(tmp_path / "job")]) == (0 if again else 3)
    looks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["error"] for one in looks[0]["ranks"]] == [None, None, "RuntimeError", "ValueError"]
    assert [one["code"] for one in looks[-1]["findings"]] == ([] if again else ["SC701"])


@pytest.mark.parametrize("kind", ["wrong", "stalled"])
def test_the_last_of_several_looks_has_the_findings(tmp_path, kind, capsys, monkeypatch):
    """Judging goes on beside the looks: the end of a job does not overtake it."""
    monkeypatch.setattr("simcoll.live.watch.Processes.gone", lambda *process: True)
    monkeypatch.setattr("simcoll.cli.top._SETTLE_SECONDS", 0.0)
    if kind == "wrong":
        write_job(tmp_path / "job", wrong=[1])
    else:
        write_job_that_was_ended(tmp_path / "job")
    assert main(["top", "--json", "--interval", "0.1", str(tmp_path / "job")]) == 3
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [one["code"] for one in last["findings"]] == ["SC104" if kind == "wrong" else "SC201"]


def test_an_interval_of_nothing_is_refused(folder, capsys):
    assert main(["top", "--interval", "0", str(folder)]) == 2
    assert "--interval" in capsys.readouterr().err


def test_keys_change_what_is_shown(standing, folder):
    job = JobWatch(standing, 0.1).look()
    choice = ScreenState()
    orders = set()
    for _ in ORDERS:
        choice = chosen(choice, "s", job)
        orders.add(choice.order)
    assert orders == set(ORDERS)
    shown = {}
    for _ in FILTERS:
        choice = chosen(choice, "f", job)
        shown[choice.shown] = [one.rank for one in ranks_shown(job, choice)]
    assert shown == {"all": [0, 1, 2, 3], "waiting": shown["waiting"], "not waiting": shown["not waiting"], "ended": []}
    assert sorted(shown["waiting"] + shown["not waiting"]) == [0, 1, 2, 3]
    of_group = JobWatch(folder).look()
    groups = [chosen(ScreenState(group=number), "g", of_group).group for number in (None, 0, 1, 2)]
    assert groups == [0, 1, 2, None]
    assert {one.rank for one in ranks_shown(of_group, ScreenState(group=1))} == {0, 1}
    assert [chosen(ScreenState(rank=rank), "r", job).rank for rank in (None, 0, 3)] == [0, 1, None]
    assert chosen(ScreenState(), "p", job).paused
    assert chosen(ScreenState(first=1), "k", job).first == 0
    assert chosen(ScreenState(), "x", job) == ScreenState()


@pytest.mark.parametrize(("end", "code"), [(b"q", 0), (signal.SIGTERM, 143)])
def test_a_terminal_shows_it_and_is_left_as_it_was(folder, end, code):
    mine, theirs = pty.openpty()
    command = [sys.executable, "-m", "simcoll", "top", "--interval", "0.2", str(folder)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment) as process:
        os.close(theirs)
        said, limit = b"", time.monotonic() + 60
        while b"q quit" not in said and time.monotonic() < limit:
            said += os.read(mine, 1 << 16)
        os.write(mine, b"srx")
        time.sleep(0.5)
        if isinstance(end, bytes):
            os.write(mine, end)
        else:
            process.send_signal(end)
        while True:
            try:
                said += os.read(mine, 1 << 16)
            except OSError:
                break
        error = process.stderr.read()
    os.close(mine)
    assert process.returncode == code, error
    # The screen that was there before, and the cursor.
    assert b"\x1b[?1049l" in said
    assert b"\x1b[?25h" in said
    assert b"all ranks 0-3 ended" in said
    assert b"process 1" in said or b"process" in said


def test_a_document_can_be_made_of_any_look(folder):
    jsonschema.validate(job_document(JobWatch(folder).look()), job_schema())
