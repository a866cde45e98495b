"""Files are read by other processes with the same result as here; what goes wrong with one costs that one alone."""

import os
import pickle
import signal
import subprocess
from io import FileIO
from pathlib import Path

import numpy as np
import pytest

from simcoll.blackbox import BlackBox, BlackBoxWriter, Slot, UnreadableError, reader_pool
from simcoll.blackbox.reader_pool import read_files
from simcoll.blackbox.reader_wire import Receiver, Sender
from simcoll.core.record import Group, Source
from simcoll.spec.call import Buffer, Call

CALL = Call("all_reduce", "allreduce", (Buffer((4,), "float32"),), (Buffer((4,), "float32"),), reduce_op="sum")


def write(folder, ranks, records=20):
    for rank in range(ranks):
        box = BlackBoxWriter(folder / f"rank{rank:05d}.simcoll", rank=rank, world_size=ranks, mode="record", records=64)
        group = box.group(Group("0", "default_pg", tuple(range(ranks))))
        for sequence in range(1, records + 1):
            ticket = box.schedule(
                Slot(group, sequence, box.signature(CALL), box.source(Source("train.py", 4, "step", "x")))
            )
            box.advance(ticket)
        box.event("exit")
        box.close()
    return sorted(folder.glob("*.simcoll"))


def values(box):
    """What a box states; its times are worked out where it was read like others before it, and later elsewhere."""
    found = (getattr(box, name) for name in BlackBox.__slots__ if name != "times")
    return [one.tolist() if isinstance(one, np.ndarray) else one for one in found]


@pytest.fixture
def started(monkeypatch):
    """The processes that were started."""
    found = []
    start = subprocess.Popen

    def noted(*arguments, **options):
        found.append(start(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(reader_pool.subprocess, "Popen", noted)
    return found


@pytest.mark.slow
def test_other_processes_read_what_this_one_does(tmp_path, started):
    paths = write(tmp_path, 12)
    (tmp_path / "rank00003.simcoll").write_bytes(b"nothing")
    here, apart = read_files(paths, workers=0), read_files(paths, workers=2)
    assert not started[2:]
    assert all(process.poll() is not None for process in started)
    assert [str(one) if isinstance(one, UnreadableError) else values(one) for one in here] == [
        str(one) if isinstance(one, UnreadableError) else values(one) for one in apart
    ]
    sound = [one for one in apart if isinstance(one, BlackBox)]
    assert len(sound) == 11
    assert all(one.slots.flags.writeable for one in sound)
    assert len({id(one.groups[0]) for one in sound}) == len({id(one.signatures[0]) for one in sound}) == 1


@pytest.mark.slow
def test_a_process_that_dies_costs_one_file(tmp_path, started):
    paths = write(tmp_path, 40)

    def kill_once(done, total):
        if done == 5:
            started[0].kill()

    outcomes = read_files(paths, workers=1, progress=kill_once)
    lost = [one for one in outcomes if isinstance(one, UnreadableError)]
    assert len(outcomes) == 40
    assert [one.rank for one in outcomes if isinstance(one, BlackBox)] == [
        rank for rank in range(40) if isinstance(outcomes[rank], BlackBox)
    ]
    assert len(lost) <= 1
    assert all("ended by SIGKILL; leave the file out" in str(one) for one in lost)


@pytest.mark.slow
def test_a_file_that_takes_too_much_memory_is_named(tmp_path):
    paths = write(tmp_path, 2)
    with paths[0].open("r+b") as file:
        file.truncate(1 << 30)
    large = tmp_path / "large.json"
    large.write_bytes(b'{"version": "2.10", "entries": [' + b" " * (96 << 20) + b"]}")
    outcomes = read_files([*paths, large], workers=1, limit=64 << 20)
    assert [type(one) for one in outcomes] == [BlackBox, BlackBox, UnreadableError]
    assert str(outcomes[2]) == f"{large}: cannot be read within 64 MiB of memory; leave it out"


@pytest.mark.parametrize("executable", ["/nowhere/python", "/bin/false"])
def test_where_no_process_can_be_started_files_are_read_here(tmp_path, monkeypatch, executable):
    monkeypatch.setattr(reader_pool.sys, "executable", executable)
    outcomes = read_files(write(tmp_path, 3), workers=2)
    assert [one.rank for one in outcomes] == [0, 1, 2]


@pytest.mark.slow
def test_an_interruption_leaves_no_process(tmp_path, started):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_files(write(tmp_path, 8), workers=2, progress=interrupt)
    assert started
    assert all(process.poll() is not None for process in started)


def test_few_files_are_read_here(tmp_path, started):
    seen = []
    outcomes = read_files(write(tmp_path, 3), progress=lambda done, total: seen.append((done, total)))
    assert len(outcomes) == 3
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert not started


def test_many_files_and_large_ones_are_read_apart(tmp_path, monkeypatch):
    dump = tmp_path / "trace"
    dump.write_bytes(b"")
    os.truncate(dump, 1 << 30)
    box = tmp_path / "a.simcoll"
    tried: list[int] = []
    monkeypatch.setattr(reader_pool, "cores", lambda: 6)
    assert reader_pool._workers_for([dump], tried.extend) == 1
    assert reader_pool._workers_for([box] * 100, tried.extend) == 0
    assert not tried
    # Files that are waited for, and files that are at hand: by the time of the clock beside that of the processor.
    for waited, count, cores in ((True, 6, 6), (True, 16, 500), (False, 0, 6)):
        clock = iter((0.0, 10.0 if waited else 1.0))
        monkeypatch.setattr(reader_pool, "cores", lambda cores=cores: cores)
        monkeypatch.setattr(reader_pool.time, "perf_counter", lambda clock=clock: next(clock))
        monkeypatch.setattr(reader_pool.time, "thread_time", iter((0.0, 1.0)).__next__)
        tried.clear()
        assert reader_pool._workers_for([box] * 5000, tried.extend) == count
        assert tried == [*range(128)]


def test_a_reader_that_fails_costs_one_file(tmp_path, monkeypatch):
    def fail(fd, name, page, known=None):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("simcoll.blackbox.file_kinds.read_open_box", fail)
    (outcome,) = read_files(write(tmp_path, 1))
    assert str(outcome).endswith("cannot be read (ZeroDivisionError: oops); leave it out, and report this")


@pytest.mark.slow
def test_sigint_does_not_reach_a_reading_process(tmp_path, started):
    def interrupt(done, total):
        if done == 1:
            # From its very beginning it is out of a terminal's reach.
            assert os.getsid(started[0].pid) == started[0].pid
            started[0].send_signal(signal.SIGINT)

    outcomes = read_files(write(tmp_path, 30), workers=1, progress=interrupt)
    assert all(isinstance(one, BlackBox) for one in outcomes)
    assert len(started) == 1


@pytest.mark.parametrize("value", [print, BlackBoxWriter, Path("/")])
def test_nothing_is_made_of_an_answer_but_what_readers_send(value):
    read, write = os.pipe()
    with FileIO(read) as answers, FileIO(write, "w") as pipe:
        Sender(pipe).send(value)
        with pytest.raises(pickle.UnpicklingError):
            Receiver(answers, {}).receive()


def test_arrays_arrive_whole(tmp_path):
    (box,) = read_files(write(tmp_path, 1, records=200))
    assert np.array_equal(box.slots["sequence"], np.arange(137, 201))


@pytest.mark.slow
def test_what_was_read_here_and_apart_is_one_object(tmp_path, monkeypatch):
    monkeypatch.setattr(reader_pool, "_MANY_FILES", 4)
    monkeypatch.setattr(reader_pool, "_TRIED", 4)
    monkeypatch.setattr(reader_pool, "_WAITED", 0)
    boxes = read_files(write(tmp_path, 8))
    assert len({id(box.groups[0]) for box in boxes}) == len({id(box.sources[0]) for box in boxes}) == 1
