"""``simcoll.dump``: a rank's black box and stacks on demand, from any thread, without a word where all goes well."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import simcoll
from simcoll.blackbox import BlackBoxWriter, Slot, read_black_box
from simcoll.blackbox.stacks import read_stacks
from simcoll.cli import main
from simcoll.core.record import Group, Source
from simcoll.recorder.dump import write_stacks
from simcoll.spec.call import Buffer, Call

CALL = Call("all_reduce", "allreduce", (Buffer((4,), "float32"),), (Buffer((4,), "float32"),), reduce_op="sum")


def filled(path: Path, calls: int = 20) -> BlackBoxWriter:
    box = BlackBoxWriter(path, rank=0, world_size=2, mode="record", records=16)
    group = box.group(Group("0", "default_pg", (0, 1)))
    for sequence in range(1, calls + 1):
        box.advance(box.schedule(Slot(group, sequence, box.signature(CALL), box.source(Source("a.py", sequence, "f")))))
    return box


def stated(path: Path) -> tuple[object, ...]:
    box = read_black_box(path)
    return (
        *(box.rank, box.world_size, box.groups, box.signatures, box.sources, box.events, box.dropped, box.problems),
        box.slots.tolist(),
    )


@pytest.mark.parametrize("calls", [0, 3, 16, 40])
def test_a_copy_reads_as_the_box_does(tmp_path: Path, calls: int) -> None:
    box = filled(tmp_path / "box", calls)
    box.save(tmp_path / "copy")
    assert stated(tmp_path / "copy") == stated(tmp_path / "box")
    live, copy = read_black_box(tmp_path / "box"), read_black_box(tmp_path / "copy")
    assert (live.dumped_ns, live.seen_ns, copy.closed_ns) == (0, 0, 0)
    assert copy.seen_ns == copy.dumped_ns > copy.created_ns
    assert sorted(path.name for path in tmp_path.iterdir()) == ["box", "copy"]


def test_a_copy_tells_of_its_moment_and_the_next_replaces_it(tmp_path: Path) -> None:
    box = filled(tmp_path / "box", 3)
    box.save(tmp_path / "copy")
    box.schedule(Slot(0, 4, 0, 0))
    assert len(read_black_box(tmp_path / "copy").slots) == 3
    box.save(tmp_path / "copy")
    assert len(read_black_box(tmp_path / "copy").slots) == 4


def test_the_own_file_is_flushed_in_place_under_any_name(tmp_path: Path) -> None:
    box = filled(tmp_path / "box")
    (tmp_path / "link").symlink_to(tmp_path)
    before = (tmp_path / "box").stat()
    box.save(tmp_path / "link" / "box")
    assert (tmp_path / "box").stat().st_ino == before.st_ino
    assert (tmp_path / "box").stat().st_mtime_ns == before.st_mtime_ns
    assert read_black_box(tmp_path / "box").dumped_ns == 0


def test_a_box_whose_file_was_removed_is_written_again(tmp_path: Path) -> None:
    box = filled(tmp_path / "box")
    before = stated(tmp_path / "box")
    (tmp_path / "box").unlink()
    box.save(tmp_path / "box")
    assert stated(tmp_path / "box") == before


def test_a_closed_box_can_be_copied(tmp_path: Path) -> None:
    box = filled(tmp_path / "box")
    box.close()
    box.save(tmp_path / "copy")
    assert stated(tmp_path / "copy") == stated(tmp_path / "box")
    assert read_black_box(tmp_path / "copy").closed_ns > 0


def test_copies_of_a_box_that_is_written_to_are_whole(tmp_path: Path) -> None:
    box = filled(tmp_path / "box", 0)
    stop = threading.Event()

    def write() -> None:
        sequence = 0
        while not stop.is_set():
            sequence += 1
            source = box.source(Source("a.py", sequence % 500, "f"))
            box.advance(box.schedule(Slot(0, sequence, box.signature(CALL), source)))

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            box.save(tmp_path / "copy")
            assert read_black_box(tmp_path / "copy").problems == ()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_two_jobs_with_one_process_id_do_not_meet_in_a_draft(tmp_path: Path) -> None:
    # As in containers on two hosts, whose ranks are process 1 on each, and which write into one folder.
    barrier = threading.Barrier(4)

    def create() -> None:
        barrier.wait()
        for _ in range(5):
            filled(tmp_path / "rank00000.simcoll", 2)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.name for path in tmp_path.iterdir()] == ["rank00000.simcoll"]
    assert read_black_box(tmp_path / "rank00000.simcoll").problems == ()


def test_stacks_name_the_threads_and_are_added_at_the_end(tmp_path: Path) -> None:
    go = threading.Event()
    helper = threading.Thread(target=go.wait, name="loader")
    helper.start()
    try:
        write_stacks(tmp_path / "stacks", "rank 3")
        once = (tmp_path / "stacks").read_text()
        write_stacks(tmp_path / "stacks", "rank 3")
    finally:
        go.set()
        helper.join()
    assert once.startswith("simcoll: ")
    assert "stacks of rank 3" in once
    assert ": loader\n" in once
    assert "in write_stacks" not in once
    main = read_stacks(tmp_path / "stacks")[-1]
    assert main.frames[0].function == "test_stacks_name_the_threads_and_are_added_at_the_end"
    assert (tmp_path / "stacks").read_text().count("stacks of rank 3") == 2


def test_without_a_recording_it_says_how_to_have_one(tmp_path: Path) -> None:
    program = "import simcoll; simcoll.dump()"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "ConfigurationError: nothing to dump" in done.stderr
    assert "SIMCOLL_MODE=record" in done.stderr
    assert "torch" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.parametrize("mode", ["record", "check", "detail"])
def test_ranks_dump_while_they_run(ranks, tmp_path: Path, mode: str) -> None:
    import torch
    import torch.distributed as dist

    def program(rank: int) -> tuple[str, str]:
        for _ in range(3):
            dist.all_reduce(torch.ones(2))
        answers: list[Path] = []
        thread = threading.Thread(target=lambda: answers.append(simcoll.dump(tmp_path / "copies")))
        thread.start()
        thread.join()
        return str(simcoll.dump()), str(answers[0])

    assert ranks(program, mode=mode) == [(str(ranks.boxes), str(tmp_path / "copies"))] * 2
    names = ["rank00000.simcoll", "rank00000.stacks.txt", "rank00001.simcoll", "rank00001.stacks.txt"]
    assert sorted(path.name for path in (tmp_path / "copies").iterdir()) == names
    assert set(names) <= {path.name for path in ranks.boxes.iterdir()}
    for rank in (0, 1):
        box = read_black_box(tmp_path / "copies" / f"rank{rank:05d}.simcoll")
        assert (len(box.slots), box.problems, box.closed_ns) == (3, (), 0)
        assert "in program" in (ranks.boxes / f"rank{rank:05d}.stacks.txt").read_text()


@pytest.mark.slow
@pytest.mark.gloo
def test_a_folder_that_cannot_be_written_is_said_in_one_line_and_the_rank_goes_on(ranks, tmp_path: Path) -> None:
    import torch
    import torch.distributed as dist

    (tmp_path / "file").write_text("")

    def program(rank: int) -> list[str]:
        dist.all_reduce(torch.ones(2))
        said = []
        for folder in (tmp_path / "file", tmp_path / "file" / "below", "/proc/none", tmp_path / ("x" * 300)):
            error = ranks.error_of(lambda folder=folder: simcoll.dump(folder))
            assert type(error) is simcoll.SimcollError
            said.append(str(error))
        dist.all_reduce(torch.ones(2))
        return said

    for rank, said in enumerate(ranks(program)):
        assert all(text.startswith(f"rank {rank}: cannot dump into ") and "\n" not in text for text in said)
        assert all("give a folder that this rank may write to" in text for text in said)


@pytest.mark.slow
@pytest.mark.gloo
def test_a_full_disk_is_said_and_no_half_copy_stays(ranks, tmp_path: Path) -> None:
    import torch
    import torch.distributed as dist

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    def program(rank: int) -> str:
        dist.all_reduce(torch.ones(2))
        kept, os.pwrite = os.pwrite, full
        error = ranks.error_of(lambda: simcoll.dump(tmp_path / f"copies{rank}"))
        os.pwrite = kept
        dist.all_reduce(torch.ones(2))
        return str(error)

    assert all("No space left on device; give a folder" in text for text in ranks(program))
    for rank in (0, 1):
        assert [path.name for path in (tmp_path / f"copies{rank}").iterdir()] == [f"rank{rank:05d}.stacks.txt"]


@pytest.mark.slow
@pytest.mark.gloo
def test_a_forked_child_of_a_rank_has_nothing_to_dump(ranks, tmp_path: Path) -> None:
    import torch
    import torch.distributed as dist

    def program(rank: int) -> int:
        dist.all_reduce(torch.ones(2))
        pid = os.fork()
        if pid == 0:
            error = ranks.error_of(lambda: simcoll.dump(tmp_path / "copies"))
            os._exit(0 if type(error) is simcoll.ConfigurationError else 1)
        return os.waitpid(pid, 0)[1]

    assert ranks(program) == [0, 0]
    assert not (tmp_path / "copies").exists()


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.parametrize("records", ["16", "65536"])
def test_dumps_of_a_job_that_runs_are_judged_without_a_false_alarm(ranks, tmp_path: Path, records: str) -> None:
    import torch
    import torch.distributed as dist

    def program(rank: int) -> int:
        half, stop = dist.new_group([0, 1]), threading.Event()

        def dump() -> None:
            # At moments of its own on each rank; the last one after the last call.
            for number in range(8):
                stop.wait(0.03 * (1 + rank))
                simcoll.dump(tmp_path / f"copies{number}")

        thread = threading.Thread(target=dump)
        thread.start()
        going = torch.ones(1)
        while going.item():
            dist.all_reduce(torch.ones(2))
            if rank < 2:
                dist.broadcast(torch.ones(2), 0, group=half)
                (dist.send if rank == 0 else dist.recv)(torch.ones(3), 1 - rank)
            pending = dist.all_reduce(torch.ones(4), async_op=True)
            going = torch.tensor([1.0 if thread.is_alive() else 0.0])
            dist.broadcast(going, 2)
            pending.wait()
        stop.set()
        thread.join()
        return 0

    ranks(program, 3, mode="record", SIMCOLL_RECORDS=records)
    assert len([*tmp_path.glob("copies*")]) == 8
    for folder in tmp_path.glob("copies*"):
        assert main(["verify", str(folder)]) == 0
