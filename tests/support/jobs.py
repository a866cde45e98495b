"""Folders as jobs leave them: correct and wrong ones, black boxes and all that lies beside them, dumps, topologies."""

from __future__ import annotations

import json
import os
import pickle
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from simcoll import fat_tree, preset, write_topology
from simcoll.blackbox import BlackBoxWriter, Slot
from simcoll.blackbox.accounts import write_stall
from simcoll.blackbox.format import AWAITED
from simcoll.core.record import Group, Source, State
from simcoll.core.trace import Stall
from simcoll.spec.call import Buffer, Call

WORLD = Group("0", "default_pg", (0, 1, 2, 3))
HALVES = (Group("1", "tp", (0, 1)), Group("2", "tp", (2, 3)))
LINES = tuple(Source("train.py", 10 + number, "step", f"call_{number}()") for number in range(6))


def tensor(*shape: int) -> Buffer:
    return Buffer(shape, "float32")


def all_reduce(count: int, reduce_op: str = "sum") -> Call:
    return Call("all_reduce", "allreduce", (tensor(count),), (tensor(count),), reduce_op=reduce_op)


def message(op: str, peer: int) -> Call:
    inputs, outputs = ((tensor(3),), ()) if op == "send" else ((), (tensor(3),))
    return Call(op, op, inputs, outputs, peer=peer)


def steps(rank: int) -> list[tuple[int, Call]]:
    """What a correct rank calls in each of its steps, with the group's index."""
    half = rank // 2 * 2
    other = "recv" if rank % 2 else "send"
    return [
        (0, all_reduce(200)),
        (0, Call("broadcast", "broadcast", (tensor(7),), (tensor(7),), root=1)),
        (1, all_reduce(3, "max")),
        (1, message(other, 1 - rank % 2)),
        (0, Call("barrier", "barrier")),
        (1, Call("broadcast", "broadcast", (tensor(rank // 2 + 1),), (tensor(rank // 2 + 1),), root=half % 2)),
    ]


def write_box(
    path: Path, rank: int, *, records: int, rounds: int, wrong: bool = False, closed: bool = True
) -> BlackBoxWriter:
    """One rank of four; a ``wrong`` one states another operator in the last step but one."""
    box = BlackBoxWriter(path, rank=rank, world_size=4, mode="record", records=records)
    groups = [box.group(WORLD), box.group(HALVES[rank // 2])]
    sequence, messages = [0, 0], 0
    for number in range(rounds):
        for line, (group, call) in enumerate(steps(rank)):
            if wrong and number == rounds - 2 and line == 0:
                call = all_reduce(200, "max")
            point_to_point = call.op in ("send", "recv")
            sequence[group] += not point_to_point
            messages += point_to_point
            ticket = box.schedule(
                Slot(
                    groups[group],
                    sequence[group],
                    box.signature(call),
                    box.source(LINES[line]),
                    p2p_sequence=messages if point_to_point else 0,
                    state=State.STARTED,
                    flags=AWAITED,
                )
            )
            box.mark(ticket, AWAITED)
            box.advance(ticket)
    if closed:
        box.event("exit")
        box.close()
    return box


def write_job(
    folder: Path,
    *,
    records: int = 64,
    rounds: int = 8,
    wrong: Sequence[int] = (),
    launched: bool = True,
    closed: bool = True,
) -> None:
    """The folder of a job of four ranks that ran to its end; where it is not ``closed``, their processes still run."""
    folder.mkdir()
    for rank in range(4):
        path = folder / f"rank{rank:05d}.simcoll"
        write_box(path, rank, records=records, rounds=rounds, wrong=rank in wrong, closed=closed)
    if launched and closed:
        ranks = [
            {"rank": rank, "local_rank": rank, "pid": 100 + rank, "exit_code": 0, "signal": None, "ended_ns": 1}
            | {"stopped": False, "message": ""}
            for rank in range(4)
        ]
        document = {"schema": "simcoll.launch/1", "host": "n0", "node": 0, "world_size": 4, "attempt": 0, "error": None}
        (folder / "launch.json").write_text(json.dumps(document | {"interrupted": None, "ranks": ranks}))


def write_stalled_job(folder: Path) -> None:
    """A job that was ended while one rank did not come, with what its monitor saw."""
    folder.mkdir()
    for rank in range(4):
        rounds = 7 if rank == 3 else 8
        write_box(folder / f"rank{rank:05d}.simcoll", rank, records=64, rounds=rounds, closed=False)
        (folder / f"rank{rank:05d}.stacks.txt").write_text(
            'Thread 0x1 (most recent call first):\n  File "a", line 1 in f\n'
        )
    seen = Stall(1, 10**18, {3: LINES[0]}, blocked=frozenset({0, 1, 2}), busy=frozenset({3}))
    write_stall(folder / "stall.json", seen)
    (folder / "report.json").write_text("{}")


def write_job_that_waits(folder: Path) -> None:
    """A job as it is while ranks 0 to 2 wait in their second collective, to which rank 3 has not come."""
    folder.mkdir()
    for rank in range(4):
        box = BlackBoxWriter(folder / f"rank{rank:05d}.simcoll", rank=rank, world_size=4, mode="record", records=64)
        group = box.group(WORLD)
        for number in range(1 if rank == 3 else 2):
            ticket = box.schedule(
                Slot(group, number + 1, box.signature(all_reduce(200)), box.source(LINES[number]), state=State.STARTED)
            )
            box.mark(ticket, AWAITED)
            if number == 0:
                box.advance(ticket)


def write_job_that_was_ended(folder: Path) -> None:
    """The same job after its monitor has ended it."""
    write_job_that_waits(folder)
    now = time.time_ns()
    seen = Stall(now - 5 * 10**9, now, {3: LINES[0]}, blocked=frozenset({0, 1, 2}), busy=frozenset({3}))
    write_stall(folder / "stall.json", seen)


def write_job_that_failed(folder: Path, *, over: bool = True) -> None:
    """A job whose rank 3 raised an exception; the launcher stopped the others, of which rank 2 was failing already.

    ``over``: its launcher, this process, does not start the ranks again.
    """
    folder.mkdir()
    now = time.time_ns()
    ranks = []
    for rank in range(4):
        path = folder / f"rank{rank:05d}.simcoll"
        box = write_box(path, rank, records=64, rounds=8, closed=False)
        if rank > 1:
            box.event("exception", type="ValueError" if rank == 3 else "RuntimeError", message="bad batch")
            box.event("exit")
            box.close()
        end = {"exit_code": 1 if rank == 3 else -15, "stopped": rank != 3, "ended_ns": now - 10**9 + rank}
        ranks.append({"rank": rank, "local_rank": rank, "pid": 100 + rank, "signal": None, "message": "", **end})
    document = {"schema": "simcoll.launch/1", "host": socket.gethostname(), "pid": os.getpid(), "over": over}
    (folder / "launch.json").write_text(json.dumps(document | {"world_size": 4, "ranks": ranks}))


def dump_of(rank: int) -> dict[str, object]:
    """A Flight Recorder dump of a rank of two."""
    frames = [{"name": "step", "filename": "train.py", "line": 7}]
    entries = [
        {"record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number + 1}
        | {"p2p_seq_id": 0, "op_id": number + 1, "profiling_name": "nccl:all_reduce", "time_created_ns": 1000 + number}
        | {"input_sizes": ((4, 4),), "input_dtypes": ["Float"], "output_sizes": ((4, 4),), "output_dtypes": ["Float"]}
        | {"state": "completed", "time_discovered_started_ns": 1, "time_discovered_completed_ns": 2, "retired": True}
        | {"timeout_ms": 600000, "is_p2p": False, "frames": frames, "duration_ms": 0.5}
        for number in range(12)
    ]
    configuration = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.10", "pg_config": configuration, "pg_status": {}, "entries": entries, "rank": rank}


def write_dumps(folder: Path) -> None:
    folder.mkdir()
    for rank in range(2):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump_of(rank), protocol=2))
        (folder / f"dump_{rank}.json").write_text(json.dumps(dump_of(rank)))


XML = """<system version="1">
<cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49">
<pci busid="0000:01:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"><gpu dev="0" sm="80" rank="0"/></pci>
<pci busid="0000:02:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"><gpu dev="1" sm="80" rank="1"/></pci>
</cpu>
</system>
"""
MATRIX = (
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\nGPU0\t X \tNV12\tPXB\t0-31\nGPU1\tNV12\t X \tSYS\t0-31\nNIC0\tPXB\tSYS\t X \n"
)
NETWORK = "topology: [Ring, Switch]\nnpus_count: [4, 2]\nbandwidth: [200.0, 100]\nlatency: [50, 500.0]\n"


def write_topologies(folder: Path) -> None:
    """A file of each format that a topology is read from."""
    folder.mkdir()
    write_topology(folder / "preset.json", preset("dgx-h100"))
    write_topology(folder / "tree.yaml", fat_tree(nodes=4))
    for name, text in (("topo.xml", XML), ("matrix.txt", MATRIX), ("network.yml", NETWORK)):
        (folder / name).write_text(text, encoding="utf-8")
