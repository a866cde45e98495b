"""What the kernel of this host says while a job runs: its log, and the count of kills in the memory cgroup."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from simcoll.launch.host_watch import HostWatch

XID = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."


def log(path: Path, number: int, age: float = 0.0) -> Path:
    """One file with a record that is so many seconds old; a read of /dev/kmsg gives one record, of a file all."""
    path.write_text(f"3,{number},{(time.monotonic_ns() - int(age * 1e9)) // 1000},-;{XID}\n")
    return path


def group(folder: Path, kills: int, *, v1: bool, hits: int = 0) -> tuple[Path, Path]:
    """A tree of cgroups, and the file that says which one is this process's."""
    place = folder / "memory" / "job" if v1 else folder / "job"
    place.mkdir(parents=True, exist_ok=True)
    name = "memory.oom_control" if v1 else "memory.events"
    counts = f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n" if v1 else f"oom {hits}\noom_kill {kills}\n"
    (place / name).write_text(counts)
    (folder / "own").write_text("9:name=systemd:/\n4:memory:/job\n0::/\n" if v1 else "0::/job\n")
    return folder, folder / "own"


@pytest.mark.parametrize("v1", [True, False], ids=["cgroup v1", "cgroup v2"])
def test_kills_since_the_watch_began_count(v1: bool, tmp_path: Path) -> None:
    cgroups, own = group(tmp_path, 3, v1=v1)
    watch = HostWatch(tmp_path / "none", cgroups, own)
    assert watch.facts().oom_kills == 0
    group(tmp_path, 5, v1=v1)
    assert (watch.facts().oom_kills, watch.facts().limit_hits) == (2, None if v1 else 0)
    group(tmp_path, 5, v1=v1, hits=4)
    assert watch.facts().limit_hits == (None if v1 else 4)


@pytest.mark.parametrize("age", [0.0, 3600.0, -3600.0])
def test_lines_since_the_watch_began_count(age: float, tmp_path: Path) -> None:
    """Their numbers tell: the kernel's clock drifts."""
    begun = time.time_ns()
    watch = HostWatch(log(tmp_path / "kmsg", 41), tmp_path, tmp_path / "none")
    assert (watch.facts().kernel, watch.facts().kernel_read) == ((), True)
    log(tmp_path / "kmsg", 42, age)
    [event] = watch.facts().kernel
    assert event.number == 79
    assert begun <= event.time_ns <= time.time_ns()


def test_a_log_that_was_empty(tmp_path: Path) -> None:
    (tmp_path / "kmsg").touch()
    watch = HostWatch(tmp_path / "kmsg", tmp_path, tmp_path / "none")
    log(tmp_path / "kmsg", 0)
    assert len(watch.facts().kernel) == 1


def test_a_log_that_could_not_be_read_at_first_tells_nothing(tmp_path: Path) -> None:
    """It is not known which of its records are the job's."""
    watch = HostWatch(tmp_path / "kmsg", tmp_path, tmp_path / "none")
    log(tmp_path / "kmsg", 7)
    assert (watch.facts().kernel, watch.facts().kernel_read) == ((), False)


def test_what_may_not_be_read_is_not_known(tmp_path: Path) -> None:
    facts = HostWatch(tmp_path / "kmsg", tmp_path, tmp_path / "own").facts()
    assert (facts.kernel, facts.kernel_read, facts.oom_kills) == ((), False, None)


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="the kernel keeps its log to itself")
def test_the_real_log_is_read_to_its_end() -> None:
    assert HostWatch().facts().kernel_read
