"""The time of records goes on steadily, and is one for all processes of a job on a host."""

import os
import subprocess
import sys
import time

import pytest

from simcoll.core import clock


def ahead_of_a_child(**variables: str) -> int:
    program = "from simcoll.core.clock import AHEAD_NS; print(AHEAD_NS)"
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | variables, capture_output=True, check=True)
    return int(done.stdout)


def test_it_does_not_follow_a_wall_clock_that_is_set(monkeypatch, tmp_path):
    before, wall = clock.now_ns(), time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: wall() - 3600 * 10**9)
    assert before <= clock.now_ns() < before + 60 * 10**9
    # A file that is written now is none of an hour ago.
    os.utime(tmp_path, ns=(time.time_ns(), time.time_ns()))
    assert clock.written_ns(os.stat(tmp_path)) >= before - 10**9


@pytest.mark.slow
def test_processes_below_have_the_same(monkeypatch):
    monkeypatch.setattr(clock, "AHEAD_NS", 10**18)
    assert ahead_of_a_child(**clock.stated()) == 10**18


@pytest.mark.slow
@pytest.mark.parametrize("said", ["", "another-boot 5", "x", " 7"])
def test_what_another_host_says_is_not_taken(said):
    assert abs(ahead_of_a_child(**{clock.VARIABLE: said}) - (time.time_ns() - time.monotonic_ns())) < 60 * 10**9
