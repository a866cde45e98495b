"""One black box a process, and a job that goes on where there can be none."""

from __future__ import annotations

import os
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from simcoll.blackbox.box import NoBox
from simcoll.core.record import Group, Source, State, source_of

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from simcoll.blackbox import read_black_box  # noqa: E402
from simcoll.recorder import recorder as recorder_module  # noqa: E402
from simcoll.recorder.arguments import arguments  # noqa: E402
from simcoll.recorder.recorder import GroupLog, Recorder, box_name  # noqa: E402

WORLD = Group("0", "default_pg", (0, 1))
HERE = Source("train.py", 3, "step", "dist.all_reduce(x)")


def reduced(*shape: int) -> Any:
    return arguments("allreduce", ([torch.zeros(*shape)],), {})


def sent() -> Any:
    return arguments("send", ([torch.zeros(1)], 1, 0), {})


def log_in(folder: Path) -> GroupLog:
    return GroupLog(Recorder(folder, "record", 0, 2), WORLD, 0)


def test_calls_are_numbered_and_messages_by_themselves(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    entries = [log.begin(call, HERE) for call in (reduced(1), sent(), sent(), reduced(2), sent())]
    for entry in entries[:2]:
        entry.started()
        entry.finished()
    entries[3].finished(State.REJECTED)
    box = read_black_box(tmp_path / "rank00000.simcoll")
    records = [box.record(index) for index in range(5)]
    assert [(record.sequence, record.p2p_sequence) for record in records] == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 3)]
    assert [record.state.name for record in records] == ["COMPLETED", "COMPLETED", "SCHEDULED", "REJECTED", "SCHEDULED"]
    assert {record.source for record in records} == {HERE}


def test_the_first_call_that_handles_an_exception_says_where_it_was_raised(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    try:
        raise IndexError("out of range")
    except IndexError:
        for line in (1, 2):
            log.begin(reduced(4), Source("train.py", line, "step"))
    log.begin(reduced(4), HERE)
    [event] = [one.data for one in read_black_box(tmp_path / "rank00000.simcoll").events if one.kind == "handling"]
    assert (event["type"], event["message"], event["sequence"]) == ("IndexError", "out of range", 1)
    assert source_of(event).file == __file__


def test_a_call_made_again_is_prepared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "_PREPARED_LIMIT", 3)
    log = log_in(tmp_path)
    first, again = log.begin(reduced(1), HERE), log.begin(reduced(1), HERE)
    assert first.prepared is again.prepared
    for size in range(2, 9):
        log.begin(reduced(size), HERE)
    later = log.begin(reduced(1), HERE)
    assert (later.prepared.statement, later.prepared.flows) == (first.prepared.statement, first.prepared.flows)
    assert len(read_black_box(tmp_path / "rank00000.simcoll").signatures) == 8


def test_the_boxes_of_earlier_attempts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert box_name(7) == "rank00007.simcoll"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert box_name(7) == "rank00007.attempt2.simcoll"


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    log = log_in(tmp_path / "file" / "boxes")
    entry = log.begin(reduced(1), HERE)
    entry.started()
    entry.finished()
    log.recorder.event("exit")
    log.recorder.close()
    assert (type(log.recorder.box), entry.sequence) == (NoBox, 1)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"simcoll: rank 0: no black box in {tmp_path / 'file' / 'boxes'}: ")
    assert line.endswith("; the job goes on unrecorded")


def counts(ranks: Any, out: Path) -> None:
    """A job whose boxes cannot be made goes on, proved as before."""

    def program(rank: int) -> object:
        error = ranks.error_of(lambda: dist.all_reduce(torch.ones(1 + rank)))
        dist.all_reduce(tensor := torch.ones(1))
        return type(error).__name__, float(tensor)

    ended = ranks.run(program, SIMCOLL_OUT=str(out))
    assert [rank.answer for rank in ended] == [("CollectiveMismatchError", 2.0)] * 2
    for place, rank in enumerate(ended):
        [line] = [line for line in rank.output.splitlines() if line.startswith("simcoll:")]
        assert line.startswith(f"simcoll: rank {place}: no black box in {out}: ")


@pytest.mark.slow
@pytest.mark.gloo
def test_a_job_goes_on_without_a_folder(ranks: Any) -> None:
    counts(ranks, Path("/proc/nowhere"))


@pytest.mark.slow
@pytest.mark.gloo
def test_a_job_goes_on_where_the_disk_is_full(ranks: Any, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk needs root")
    try:
        counts(ranks, disk)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
@pytest.mark.gloo
def test_a_forked_helper_of_a_rank_does_not_write_into_its_box(ranks: Any) -> None:
    """As the workers of a data loader, which inherit the group and end in their own way."""

    def program(rank: int) -> object:
        dist.all_reduce(torch.ones(1))
        pid = os.fork()
        if pid == 0:
            import atexit

            atexit._run_exitfuncs()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        dist.all_reduce(torch.ones(1))
        return status

    assert ranks(program) == [0, 0]
    assert [record.sequence for record in ranks.records(0)] == [1, 2]
    assert [event.kind for event in ranks.box(0).events] == ["creating", "created", "exit"]
    assert ranks.box(0).pid != os.getpid()


@pytest.mark.slow
@pytest.mark.gloo
def test_states_and_times_follow_the_call(ranks: Any) -> None:
    def program(rank: int) -> object:
        dist.all_reduce(torch.ones(1))
        work = dist.broadcast(torch.ones(1), 0, async_op=True)
        work.get_future().wait()
        group = dist.new_group(timeout=timedelta(seconds=5))
        dist.barrier(group)
        return None

    ranks(program)
    records = ranks.records(1)
    assert [record.call.op for record in records] == ["all_reduce", "broadcast", "barrier"]
    assert [record.state for record in records] == [State.COMPLETED] * 3
    assert [record.asynchronous for record in records][1] is True
    for record in records:
        assert 0 < record.scheduled_ns <= record.started_ns <= record.finished_ns
