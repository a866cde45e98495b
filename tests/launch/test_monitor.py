"""The monitor, on black boxes that this process writes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")


from simcoll.blackbox import Slot
from simcoll.blackbox.accounts import LaunchAccount, LaunchedRank, read_stall
from simcoll.blackbox.format import AWAITED, ON_DEVICE
from simcoll.blackbox.stacks import Stack
from simcoll.blackbox.writer import BlackBoxWriter
from simcoll.core.process import ProcessStat
from simcoll.core.record import Group, Source, State
from simcoll.launch import monitor as module
from simcoll.launch.monitor import Monitor
from simcoll.launch.nodes.head import Others
from simcoll.proof import store
from simcoll.spec.call import Buffer, Call

BUFFER = (Buffer((4,), "float32"),)
CALL = Call("all_reduce", "allreduce", BUFFER, BUFFER, reduce_op="sum")
FIRST, SECOND = Group("1", "", (0, 1)), Group("2", "", (0, 1))


class Job:
    """Two ranks whose boxes this process writes, and the monitor that looks at them; time is what the test says."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, seconds: float | None) -> None:
        self.now = 1000.0
        patch.setattr(module.time, "monotonic", lambda: self.now)
        self.boxes = [
            BlackBoxWriter(folder / f"rank{rank:05d}.simcoll", rank=rank, world_size=2, mode="record", records=64)
            for rank in range(2)
        ]
        for box in self.boxes:
            box.group(FIRST)
            box.group(SECOND)
        account = folder / "launch.json"
        ranks = [{"rank": rank, "pid": 0, "exit_code": None, "ended_ns": 0, "stopped": False} for rank in range(2)]
        account.write_text(json.dumps({"ranks": ranks}))
        self.said: list[str] = []
        self.monitor = Monitor(folder, account, 0, seconds, self.said.append)
        self.monitor.look()

    def waits(self, rank: int, group: int) -> None:
        box = self.boxes[rank]
        line = box.source(Source("train.py", 10 * rank + group, "step", "dist.all_reduce(x)"))
        ticket = box.schedule(Slot(group, 1, box.signature(CALL), line))
        box.advance(ticket, State.STARTED)
        box.mark(ticket, AWAITED)

    def look_after(self, seconds: float) -> bool:
        assert not self.monitor.look()
        self.now += seconds
        return self.monitor.look()


@pytest.fixture(params=[None, 4.0])
def seconds(request: pytest.FixtureRequest) -> float | None:
    value: float | None = request.param
    return value


def test_a_cycle_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float | None) -> None:
    job = Job(tmp_path, monkeypatch, seconds)
    job.waits(0, 0)
    job.waits(1, 1)
    patience = seconds or module.DEFAULT_SECONDS
    assert not job.look_after(patience - 1)
    assert job.look_after(patience + 1)
    assert job.monitor.stall is not None
    assert job.said == []


def test_a_late_rank_ends_it_only_where_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float | None
) -> None:
    job = Job(tmp_path, monkeypatch, seconds)
    job.waits(0, 0)
    ended = job.look_after(31)
    assert ended == (seconds is not None)
    if not ended:
        assert not job.look_after(31)
        [line] = job.said
        assert "rank 1 did not come to all_reduce (collective 1), where rank 0 waited" in line


def test_a_call_that_all_ranks_have_come_to_may_take_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, monkeypatch, 4.0)
    for rank in range(2):
        job.waits(rank, 0)
    assert not job.look_after(6)
    assert job.look_after(9)


def test_a_rank_in_which_simcoll_connects_has_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float | None
) -> None:
    job = Job(tmp_path, monkeypatch, seconds)
    job.waits(0, 0)
    job.waits(1, 1)
    connecting = {1: [Stack((Source(store.__file__, 1, "own_connection"),))]}
    monkeypatch.setattr(Monitor, "_stacks", lambda self, launch, roots: connecting)
    patience = seconds or module.DEFAULT_SECONDS
    assert not job.look_after(patience + module._CONNECT_SECONDS - 1)
    connecting.clear()
    assert job.look_after(6)


def test_a_rank_that_never_connects_does_not_keep_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, monkeypatch, 4.0)
    job.waits(0, 0)
    connecting = {1: [Stack((Source(store.__file__, 1, "own_connection"),))]}
    monkeypatch.setattr(Monitor, "_stacks", lambda self, launch, roots: connecting)
    assert not job.look_after(60)
    assert job.look_after(20)
    assert job.monitor.stall is not None
    assert job.monitor.stall.connecting == {1}


class Nodes:
    """The other nodes of a job as a test has them."""

    def __init__(self) -> None:
        self.moves = 0
        self.led = self.ended = False
        self.records: Others | None = None
        self.told_to_end = 0
        self.still = True

    def progress(self, moves: int) -> int:
        return self.moves

    def standing(self) -> Others | None:
        return self.records

    def forget(self) -> None:
        pass

    def still_stand(self) -> bool:
        return self.still

    def end(self) -> None:
        self.told_to_end += 1


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Job, Nodes]:
    """A job that stands in a cycle, whose monitor knows of other nodes."""
    job, nodes = Job(tmp_path, monkeypatch, 4.0), Nodes()
    job.monitor.nodes = nodes  # type: ignore[assignment]
    job.waits(0, 0)
    job.waits(1, 1)
    return job, nodes


def test_ranks_of_other_nodes_that_move_keep_the_job_going(apart: tuple[Job, Nodes]) -> None:
    job, nodes = apart
    nodes.records = Others()
    for _ in range(5):
        assert not job.look_after(3)
        nodes.moves += 1
    assert not job.monitor.look()
    assert job.look_after(5)
    assert nodes.told_to_end == 1


def test_nothing_is_judged_before_the_records_of_all_nodes_are_here(apart: tuple[Job, Nodes]) -> None:
    job, nodes = apart
    assert not job.look_after(60)
    nodes.records = Others()
    assert job.monitor.look()


def test_a_job_of_which_a_node_does_not_say_that_it_stands_goes_on(apart: tuple[Job, Nodes]) -> None:
    job, nodes = apart
    nodes.records, nodes.still = Others(), False
    assert not job.look_after(60)
    assert job.monitor.stall is None


def test_node_0_judges_for_a_node_and_has_it_end(apart: tuple[Job, Nodes], tmp_path: Path) -> None:
    job, nodes = apart
    nodes.records, nodes.led = Others(), True
    assert not job.look_after(600)
    assert job.monitor.own_stall().over
    nodes.ended = True
    assert job.monitor.look()
    assert read_stall(tmp_path / "stall.json") == job.monitor.stall


def test_a_long_transfer_is_nothing_to_speak_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, monkeypatch, None)
    for rank in range(2):
        job.waits(rank, 0)
    assert not job.look_after(600)
    assert job.said == []


def test_a_job_in_which_nobody_waits_may_take_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, monkeypatch, 1.0)
    assert not job.look_after(10_000)


def test_a_job_that_moves_is_not_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, monkeypatch, 4.0)
    job.waits(0, 0)
    for _ in range(5):
        job.waits(1, 1)
        job.now += 3
        assert not job.monitor.look()


def test_what_moves_while_it_is_looked_at_does_not_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, monkeypatch, 4.0)
    job.waits(0, 0)
    judge = module.standstill

    def meanwhile(*arguments: Any) -> Any:
        job.waits(1, 0)
        return judge(*arguments)

    monkeypatch.setattr(module, "standstill", meanwhile)
    assert not job.look_after(6)
    assert job.monitor.stall is None


def test_an_interrupted_job_is_explained_where_it_had_stood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, monkeypatch, None)
    job.waits(0, 0)
    job.monitor.look()
    job.monitor.interrupted()
    job.monitor.ended(LaunchAccount())
    assert read_stall(tmp_path / "stall.json") is None
    job.now += 10
    job.monitor.interrupted()
    # Its end moves it.
    signalled = time.time_ns()
    job.waits(1, 0)
    job.now += 10
    job.monitor.look()
    job.monitor.ended(LaunchAccount())
    stall = read_stall(tmp_path / "stall.json")
    assert stall is not None
    assert stall == job.monitor.stall
    assert stall.seen_ns <= signalled
    assert not stall.over


def test_what_sleeps_in_an_interrupted_job_waits_for_what_it_has_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, monkeypatch, None)
    used = {0: ("S", 1.0), 1: ("S", 1.0), 2: ("S", 1.0), 3: ("T", 1.0), 4: ("R", 1.0)}

    def running(account: LaunchAccount) -> dict[int, ProcessStat]:
        return {rank: ProcessStat(state, 1, seconds, 0.0) for rank, (state, seconds) in used.items()}

    monkeypatch.setattr(module, "_running", running)
    job.monitor.look()
    job.now += 1
    job.monitor.look()
    used[2] = "S", 9.0
    job.now += 10
    job.monitor.interrupted()
    job.monitor.ended(LaunchAccount())
    stall = read_stall(tmp_path / "stall.json")
    assert stall is not None
    assert [sorted(one) for one in (stall.blocked, stall.busy, stall.stopped)] == [[0, 1], [2], [3]]


@pytest.mark.parametrize("damage", ["absent", "torn", "foreign"])
def test_what_cannot_be_read_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    job = Job(tmp_path, monkeypatch, 1.0)
    path = tmp_path / "rank00001.simcoll"
    if damage == "absent":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:5000] if damage == "torn" else b"\0" * 9000)
    (tmp_path / "launch.json").write_text("{")
    job.waits(0, 0)
    assert not job.monitor.look()
    assert job.monitor.pids() == []


def test_what_the_monitor_cannot_judge_is_said_once_and_ends_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, monkeypatch, 4.0)
    job.waits(0, 0)

    def fail(*arguments: object) -> None:
        raise IndexError("odd")

    monkeypatch.setattr(module, "standstill", fail)
    assert not job.look_after(60)
    assert not job.look_after(60)
    assert job.said == ["this job cannot be judged while it runs: IndexError: odd"]


ON_CUDA = (Buffer((4,), "float32", "cuda", 0),)
QUEUED = Call("all_reduce", "allreduce", ON_CUDA, ON_CUDA, reduce_op="sum")


class DeviceJob(Job):
    """The same with calls that devices run while the hosts go on."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, seconds: float | None) -> None:
        super().__init__(folder, patch, seconds)
        self.made = [0, 0]

    def queues(self, rank: int, *, runs: bool = False, ends: bool = False) -> None:
        box = self.boxes[rank]
        self.made[rank] += 1
        line = box.source(Source("train.py", self.made[rank], "step", "dist.all_reduce(x)"))
        ticket = box.schedule(Slot(0, self.made[rank], box.signature(QUEUED), line, state=State.STARTED, flags=AWAITED))
        if runs or ends:
            box.mark(ticket, ON_DEVICE)
        if ends:
            box.advance(ticket)

    def goes_on(self, seconds: int, **how: bool) -> list[bool]:
        """Rank 0 queues a call each second."""
        looks = []
        for _ in range(seconds):
            self.queues(0, **how)
            self.now += 1
            looks.append(self.monitor.look())
        return looks


def test_what_hosts_queue_behind_a_device_that_stands_is_no_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float | None
) -> None:
    job = DeviceJob(tmp_path, monkeypatch, seconds)
    job.queues(0, ends=True)
    job.queues(1, ends=True)
    job.queues(0, runs=True)
    looks = job.goes_on(40)
    assert any(looks) == (seconds is not None)
    if seconds is None:
        [line] = job.said
        assert "rank 1 did not come to all_reduce (collective 2), where the device of rank 0 waited" in line


def test_calls_that_devices_end_are_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Rank 1 is far behind: as long as anything ends, the job moves."""
    job = DeviceJob(tmp_path, monkeypatch, seconds)
    job.queues(0, runs=True)
    for _ in range(40):
        job.queues(1, ends=True)
        assert not any(job.goes_on(1))
    assert job.said == []


def test_without_times_of_a_device_whatever_hosts_add_is_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float | None
) -> None:
    job = DeviceJob(tmp_path, monkeypatch, seconds)
    assert not any(job.goes_on(40))
    assert job.look_after((seconds or 31) + 1) == (seconds is not None)


@pytest.mark.parametrize(("later_ns", "kept"), [(10**9, True), (60 * 10**9, False)])
def test_how_a_job_stood_that_torch_aborts_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later_ns: int, kept: bool
) -> None:
    job = DeviceJob(tmp_path, monkeypatch, None)
    job.queues(0, runs=True)
    assert not job.look_after(31)
    aborted = LaunchedRank(0, -6, time.time_ns() + later_ns)
    job.monitor.ended(LaunchAccount((aborted, LaunchedRank(1, -15, aborted.ended_ns, stopped=True))))
    stall = read_stall(tmp_path / "stall.json")
    assert (stall is not None) == kept
    if stall is not None:
        assert not stall.over
