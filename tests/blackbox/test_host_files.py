"""The files that tell of a job's hosts: what ``simcoll run`` leaves, saved kernel logs, NCCL RAS documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simcoll.blackbox.accounts import LaunchAccount, LaunchedRank
from simcoll.blackbox.host_files import fact_files, job_facts, read_host, write_host
from simcoll.verifier.causes.facts import HostFacts, KernelEvent, KernelEventKind, LostNode
from tests.verifier.causes.test_nccl_ras import document

TIME = 1_763_946_123_250_000_000
XID = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
OLD = "2025-11-23T01:02:03,250000+00:00 NVRM: Xid (PCI:0000:3b:00): 48, DBE"


def launch(host: str, *ranks: int, ended_ns: int = TIME + 10**9) -> LaunchAccount:
    entries = tuple(LaunchedRank(rank, 1, ended_ns, pid=100 + rank) for rank in ranks)
    return LaunchAccount(entries, host=host, world_size=4)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    events = (
        KernelEvent(KernelEventKind.XID, XID, TIME, 79, "0000:3b:00"),
        KernelEvent(KernelEventKind.OUT_OF_MEMORY, "Out of memory: Killed process 12 (python)", 0, pid=12),
    )
    facts = HostFacts(
        "node-3", events, kernel_read=True, oom_kills=2, limit_hits=1, lost=(LostNode(1, "b", (2, 3), 12.5),)
    )
    write_host(tmp_path / "host.json", facts)
    assert read_host(tmp_path / "host.json") == facts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema": "simcoll.host/2"}',
        json.dumps({"schema": "simcoll.host/1", "host": "a", "kernel_read": True, "oom_kills": 0, "kernel": [7]}),
        json.dumps(
            {"schema": "simcoll.host/1", "host": "a", "kernel_read": True, "oom_kills": 0, "kernel": [], "lost": [{}]}
        ),
        "[" * 100_000,
    ],
)
def test_other_files_are_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "host.json").write_text(text)
    assert read_host(tmp_path / "host.json") is None


def test_the_facts_of_a_job(tmp_path: Path) -> None:
    write_host(tmp_path / "host-a-7.json", HostFacts("a", (), kernel_read=False, oom_kills=1))
    (tmp_path / "dmesg-b.txt").write_text(f"2025-11-24T01:02:03,250000+00:00 {XID}\n{OLD}\nusb 1-1: new device\n")
    (tmp_path / "ncclras.json").write_text(json.dumps(document()))
    (tmp_path / "notes.txt").write_text(XID)
    files = fact_files(tmp_path)
    assert [path.name for path in files] == ["dmesg-b.txt", "host-a-7.json", "ncclras.json"]
    known = job_facts((), [launch("a", 0, 1), launch("b", 2, 3)], files)
    assert (known.hosts, known.pids[3]) == ({0: "a", 1: "a", 2: "b", 3: "b"}, 103)
    by_host = {one.host: one for one in known.by_host}
    assert by_host["a"].oom_kills == 1
    assert [event.number for event in by_host["b"].kernel if event.time_ns] == [48, 79]
    assert len(known.ras) == 2
    assert known.ranks_on("b") == (2, 3)
    assert known.of_pid("b", 103) == 3


def test_lines_of_another_time_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "dmesg").write_text(f"2025-11-24T01:02:03,250000+00:00 {XID}\n[   12.5] {OLD.partition(' ')[2]}\n")
    known = job_facts((), [launch("a", 0, ended_ns=TIME - 3600 * 10**9)], fact_files(tmp_path))
    [one] = known.by_host
    assert (one.host, [event.number for event in one.kernel]) == ("a", [48])


def test_a_line_in_two_files_is_kept_once_with_its_time(tmp_path: Path) -> None:
    write_host(tmp_path / "host.json", HostFacts("a", (KernelEvent(KernelEventKind.XID, XID, TIME, 79, "0000:3b:00"),)))
    (tmp_path / "dmesg.txt").write_text(f"{XID}\n")
    [one] = job_facts((), [launch("a", 0)], fact_files(tmp_path)).by_host
    assert [event.time_ns for event in one.kernel] == [TIME]


def test_a_log_whose_host_nobody_names(tmp_path: Path) -> None:
    (tmp_path / "dmesg.txt").write_text(f"{XID}\n")
    [one] = job_facts((), [launch("a", 0), launch("b", 1)], fact_files(tmp_path)).by_host
    assert one.host == ""
