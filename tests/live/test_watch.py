"""Real jobs while they run: a slow rank, one that hangs, one that is killed, and jobs that left their files."""

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import jsonschema  # type: ignore[import-untyped]
import pytest

from simcoll.blackbox.accounts import write_stall
from simcoll.blackbox.remote_ranks import NODES_FILE, RemoteRank, write_remote
from simcoll.core.clock import AHEAD_NS
from simcoll.core.record import UNKNOWN_SOURCE
from simcoll.core.trace import Stall
from simcoll.live.document import job_document, job_schema
from simcoll.live.metrics import JobMetrics
from simcoll.live.now import Doing, Motion
from simcoll.live.state_text import doing_text
from simcoll.live.watch import JobWatch
from simcoll.verifier.findings.finding import Severity, errors_of
from tests.support.jobs import write_job, write_job_that_failed, write_job_that_waits, write_job_that_was_ended

PROGRAM = """
import os, signal, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(8)
for step in range(2000):
    time.sleep(0.05 if rank == 1 else 0.005)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor)
    if step == 40 and rank == 1 and sys.argv[1] == "hang":
        time.sleep(600)
    if step == 40 and rank == 1 and sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
"""
SECONDS = 120


@pytest.fixture
def job(tmp_path):
    """Start the program on three ranks; its watch."""
    started = []

    def start(kind, *options):
        (tmp_path / "program.py").write_text(PROGRAM if kind in ("slow", "hang", "kill") else kind)
        folder = tmp_path / "out"
        command = [sys.executable, "-m", "simcoll", "run", "--out", str(folder), "--nproc-per-node", "3", *options]
        started.append(
            subprocess.Popen(
                [*command, str(tmp_path / "program.py"), kind[:4]],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        return JobWatch(folder)

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def until(watch, holds):
    """Look until something holds of the job; the look at which it does."""
    limit = time.monotonic() + SECONDS
    while time.monotonic() < limit:
        job = watch.look()
        if job is not None and holds(job):
            return job
        time.sleep(0.25)
    raise AssertionError(f"not seen in {SECONDS} s; last: {job and (job.motion, job.why)}")


def test_a_slow_rank_is_named_while_the_job_moves(job):
    seen = until(job("slow", "--mode", "record"), lambda job: job.ranks[0].calls > 60 and len(job.ranks) == 3)
    assert seen.motion is Motion.MOVING
    assert not errors_of(seen.findings)
    assert "wait for rank 1" in seen.why
    assert seen.ranks[1].late > 0.4 > 0.2 > seen.ranks[1].waiting
    assert seen.ranks[0].waiting > 0.4
    assert seen.step_seconds == pytest.approx(0.055, abs=0.05)
    (group,) = seen.groups
    assert group.group.ranks == (0, 1, 2)
    assert group.finished >= 55


def test_a_job_that_hangs_stands_and_says_for_whom(job):
    watch = job("hang", "--mode", "detail")
    seen = until(watch, lambda job: job.motion is Motion.STANDING)
    assert [finding.code for finding in seen.findings] == ["SC201"]
    assert seen.findings[0].culprits == (1,)
    assert [one.doing for one in seen.ranks] == [Doing.WAITS, Doing.RUNS, Doing.WAITS]
    assert [one.waits_for for one in seen.ranks] == [(1,), (), (1,)]
    (group,) = seen.groups
    assert (group.finished, group.came, group.absent) == (82, (0, 2), (1,))
    assert "rank 1" in seen.why
    assert seen.still_seconds >= 1


DDP = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
for step in range(10):
    model(torch.ones(2, 4)).sum().backward()
if dist.get_rank() == 1:
    time.sleep(600)
model(torch.ones(2, 4)).sum().backward()
"""


SLOW_DDP = """
import time, torch, torch.distributed as dist
KIND = "{kind}"

class Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()
    @staticmethod
    def backward(ctx, gradient):
        if KIND == "backward" and dist.get_rank() == 3:
            time.sleep(0.1)
        return gradient

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(64, 64) for _ in range(4)])
    def forward(self, value):
        if KIND == "forward" and dist.get_rank() == 3:
            time.sleep(0.3)
        for layer in self.layers:
            value = Passed.apply(layer(value))
        return value

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=0.02)
for step in range(60):
    time.sleep(0.02)
    model(torch.ones(4, 64)).sum().backward()
"""


@pytest.mark.parametrize("kind", ["forward", "backward", "even"])
def test_a_slow_rank_in_ddp_is_named_by_all_that_speak_of_the_job(job, kind):
    """Its calls are asynchronous, and the others wait for it in C++; the report says it when the job has ended."""
    watch = job(SLOW_DDP.replace("{kind}", kind), "--mode", "record", "--nproc-per-node", "8")
    seen = until(watch, lambda job: len(job.ranks) == 8 and job.ranks[0].calls > 60)
    late = [one.rank for one in seen.ranks if (one.late or 0) > 0.2]
    metrics = JobMetrics()
    metrics.take(seen, watch.tails)
    shown = re.search(r'^simcoll_rank_late_ratio\{rank="3"\} (\S+)$', metrics.text(), re.MULTILINE)
    ended = until(watch, lambda job: job.over and (watch.folder / "report.json").exists())
    report = json.loads((watch.folder / "report.json").read_text())
    culprits = [one["culprits"] for one in report["findings"] if one["code"] == "SC801"]
    assert errors_of(ended.findings) == []
    if kind == "even":
        assert (late, culprits) == ([], [])
        assert "wait for rank" not in seen.why
        return
    assert (late, culprits) == ([3], [[3]])
    assert "the others wait for rank 3" in seen.why
    assert seen.ranks[0].waiting > 0.2
    assert seen.step_seconds > 0.1
    assert shown is not None
    assert float(shown[1]) > 0.2


def test_a_wait_that_only_torch_sees_is_one(job):
    """DistributedDataParallel waits in C++ for the futures of its buckets."""
    seen = until(job(DDP, "--mode", "detail"), lambda job: job.motion is Motion.STANDING)
    assert [one.doing for one in seen.ranks] == [Doing.WAITS, Doing.RUNS, Doing.WAITS]
    assert [one.waits_for for one in seen.ranks] == [(1,), (), (1,)]
    assert [(one.code, one.culprits) for one in seen.findings] == [("SC201", (1,))]
    assert "ranks 0 and 2 wait in all_reduce" in seen.why


def test_a_killed_rank_is_the_cause(job):
    seen = until(job("kill", "--mode", "record"), lambda job: job.motion is Motion.ENDED and job.told)
    assert seen.ranks[1].doing is Doing.FAILED
    assert seen.ranks[1].exit_code == -signal.SIGKILL
    assert [finding.code for finding in seen.findings] == ["SC701"]
    assert seen.findings[0].culprits == (1,)


def test_ranks_are_not_touched_by_a_look(tmp_path):
    write_job(tmp_path / "job")
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "job").iterdir()}
    JobWatch(tmp_path / "job").look()
    assert before == {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "job").iterdir()}


def test_a_job_that_ended_well(tmp_path):
    write_job(tmp_path / "job")
    seen = JobWatch(tmp_path / "job").look()
    assert seen.motion is Motion.ENDED
    assert seen.why == "all ranks 0-3 ended"
    assert {view.group.name: view.finished for view in seen.groups} == {"0": 24, "1": 16, "2": 16}
    assert not seen.findings


def test_a_wrong_call_is_found(tmp_path):
    write_job(tmp_path / "job", wrong=[2])
    seen = JobWatch(tmp_path / "job").look()
    assert [finding.code for finding in seen.findings] == ["SC104"]
    assert seen.why.endswith("(SC104)")


def test_processes_that_are_gone_are_said_to_be(tmp_path, monkeypatch):
    write_job_that_waits(tmp_path / "job")
    monkeypatch.setattr("simcoll.live.watch.Processes.gone", lambda *process: True)
    seen = JobWatch(tmp_path / "job").look()
    assert {one.doing for one in seen.ranks} == {Doing.GONE}
    assert seen.motion is Motion.ENDED
    assert "is gone" in seen.why


def test_a_failure_is_one_also_where_the_launcher_came_first(tmp_path):
    write_job_that_failed(tmp_path / "job")
    seen = JobWatch(tmp_path / "job").look()
    said = [doing_text(one) for one in seen.ranks]
    assert said == ["stopped (SIGTERM)"] * 2 + ["raised RuntimeError (SIGTERM)", "raised ValueError (exit code 1)"]


def test_the_times_of_a_job_that_ended_stand_still(tmp_path, monkeypatch):
    write_job_that_failed(tmp_path / "job")
    watch = JobWatch(tmp_path / "job")
    first = watch.look()
    later = time.time_ns() + 10**12
    monkeypatch.setattr("simcoll.live.watch.now_ns", lambda: later)
    again = watch.look()
    assert [one.for_seconds for one in first.ranks] == [one.for_seconds for one in again.ranks]
    assert first.still_seconds == again.still_seconds < 100
    assert again.calls_per_second is None


def test_a_job_that_was_ended_for_a_stall_keeps_its_finding(tmp_path, monkeypatch):
    """As in the report: that its ranks were then stopped is no end that is well."""
    write_job_that_was_ended(tmp_path / "job")
    monkeypatch.setattr("simcoll.live.watch.Processes.gone", lambda *process: True)
    seen = JobWatch(tmp_path / "job").look()
    assert [(one.code, one.severity, one.culprits) for one in seen.findings] == [("SC201", Severity.ERROR, (3,))]
    assert seen.motion is Motion.ENDED
    assert seen.why.endswith("(SC201)")


def test_the_stall_of_an_earlier_run_is_not_this_ones(tmp_path):
    write_job(tmp_path / "job")
    write_stall(tmp_path / "job" / "stall.json", Stall(1, 2, {3: UNKNOWN_SOURCE}, blocked=frozenset({0, 1, 2})))
    assert not JobWatch(tmp_path / "job").look().findings


def test_a_rank_for_which_others_wait_a_moment_is_not_missing(tmp_path, monkeypatch):
    write_job_that_waits(tmp_path / "job")
    monkeypatch.setattr("simcoll.live.watch.Processes.gone", lambda *process: False)
    monkeypatch.setattr("simcoll.live.watch._STILL_SECONDS", 0.0)
    seen = JobWatch(tmp_path / "job", 1000.0).look()
    assert (seen.motion, seen.findings) == (Motion.MOVING, ())
    seen = JobWatch(tmp_path / "job", 0.0).look()
    assert [(seen.motion, [one.code for one in seen.findings])] == [(Motion.STANDING, ["SC201"])]


def test_a_folder_without_records_is_no_job_yet(tmp_path):
    assert JobWatch(tmp_path).look() is None
    write_job(tmp_path / "job")
    watch = JobWatch(tmp_path)
    assert watch.look().world_size == 4


def test_a_file_that_cannot_be_read_leaves_the_others(tmp_path):
    write_job(tmp_path / "job")
    (tmp_path / "job" / "rank00001.simcoll").write_bytes(b"torn")
    seen = JobWatch(tmp_path / "job").look()
    assert [one.rank for one in seen.ranks] == [0, 2, 3]
    assert (seen.world_size, seen.unseen) == (4, (1,))
    assert "; there is no record of rank 1 that can be read: " in seen.why


def test_a_node_of_which_nothing_is_heard_is_named(tmp_path, monkeypatch):
    write_job_that_waits(tmp_path / "job")
    monkeypatch.setattr("simcoll.live.watch.Processes.gone", lambda *process: False)
    for rank in (2, 3):
        (tmp_path / "job" / f"rank{rank:05d}.simcoll").unlink()
    long_ago = time.time_ns() - 18 * 10**9
    told = [RemoteRank(2, 1, "b", "started barrier", True, long_ago), RemoteRank(3, 2, "c", "x", True, long_ago)]
    write_remote(tmp_path / "job" / NODES_FILE, [told[0], replace(told[1], silent_ns=long_ago)])
    seen = JobWatch(tmp_path / "job").look()
    assert "; nothing was heard of c (rank 3) for 18" in seen.why
    assert seen.why.endswith("; rank 2 records on other nodes, as node 0 was told")
    assert [doing_text(one)[:8] for one in seen.ranks[2:]] == ["waits 18", "not hear"]
    jsonschema.validate(job_document(seen), job_schema())


def test_records_that_cannot_be_judged_leave_all_else(tmp_path, monkeypatch):
    def judged(*given):
        raise KeyError(4)

    write_job_that_failed(tmp_path / "job")
    monkeypatch.setattr("simcoll.live.judging.judge", judged)
    seen = JobWatch(tmp_path / "job").look()
    assert (seen.motion, len(seen.ranks), seen.findings) == (Motion.ENDED, 4, ())
    assert seen.why.endswith("; these records could not be judged: KeyError: 4")


@pytest.mark.parametrize("set_by", [3600, -3600])
def test_ranks_whose_clock_was_another_wait_no_hour(tmp_path, monkeypatch, set_by):
    """That of their host was set since they began: their record has the monotonic clock beside it."""
    with monkeypatch.context() as patched:
        for place in ("ring.AHEAD_NS", "header.AHEAD_NS"):
            patched.setattr(f"simcoll.blackbox.{place}", AHEAD_NS - set_by * 10**9)
        write_job_that_waits(tmp_path / "job")
    monkeypatch.setattr("simcoll.live.watch.Processes.gone", lambda *process: False)
    seen = JobWatch(tmp_path / "job", 1800.0).look()
    assert seen.motion is Motion.MOVING
    assert [0 <= one.for_seconds < 600 for one in seen.ranks] == [True] * 4
    assert [0 <= view.for_seconds < 600 for view in seen.groups] == [True] * len(seen.groups)
    assert 0 <= seen.still_seconds < 600
