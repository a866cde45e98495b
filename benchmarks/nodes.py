"""What node 0 takes for many nodes that share no folder: CPU time, memory, the time until it has all records.

The other nodes are pretended: processes of this machine, twenty nodes each, that speak the real protocol over
the loopback address. Each node has eight ranks, whose black boxes hold a thousand records.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import socket
import tempfile
import threading
import time
from multiprocessing.synchronize import Event
from pathlib import Path

from simcoll.blackbox import BlackBoxWriter, Slot
from simcoll.blackbox.accounts import LAUNCH_SCHEMA
from simcoll.blackbox.format import AWAITED
from simcoll.core.record import Group, Source, State
from simcoll.core.trace import Stall
from simcoll.launch.nodes.head import Head
from simcoll.launch.nodes.meeting import Door, Meeting
from simcoll.launch.nodes.member import Member, OwnNode
from simcoll.spec.call import Buffer, Call

RANKS = 8
TOGETHER = 20
CALLS = 1000
SECRET = "ab" * 32
SECONDS = 10.0
LOST_SECONDS = 10.0
CALL = Call("all_reduce", "allreduce", (Buffer((4,), "float32"),), (Buffer((4,), "float32"),), reduce_op="sum")


def account(folder: Path, node: int) -> Path:
    """The launcher's account of a node whose ranks have ended."""
    folder.mkdir()
    ranks = [
        {"rank": rank, "pid": 0, "exit_code": 0, "ended_ns": 1, "stopped": False}
        for rank in range(node * RANKS, (node + 1) * RANKS)
    ]
    path = folder / f"launch-host{node}-1.json"
    path.write_text(json.dumps({"schema": LAUNCH_SCHEMA, "node": node, "host": f"host{node}", "ranks": ranks}))
    return path


def write_rank(folder: Path, rank: int, world: int) -> None:
    """A black box as a rank leaves it."""
    box = BlackBoxWriter(folder / f"rank{rank:05d}.simcoll", rank=rank, world_size=world, mode="record")
    group, call = box.group(Group("0", "default_pg", tuple(range(world)))), box.signature(CALL)
    line = box.source(Source("train.py", 7, "step", "dist.all_reduce(x)"))
    for number in range(CALLS):
        box.advance(box.schedule(Slot(group, number + 1, call, line, state=State.STARTED, flags=AWAITED)))
    box.close()


def pretend(folder: Path, numbers: range, nodes: int, port: int, written: Event, begin: Event, end: Event) -> None:
    """Be these nodes until node 0 has said its last word."""
    own = []
    for node in numbers:
        path = account(folder / f"out{node}", node)
        for rank in range(node * RANKS, (node + 1) * RANKS):
            write_rank(path.parent, rank, nodes * RANKS)
        own.append((node, OwnNode(path.parent, path, 0, lambda: Stall(1, 2), moves=1)))
    written.set()
    begin.wait()
    door = Door(port, SECRET, "0" * 16)
    members = [Member(Meeting(node, nodes, "127.0.0.1", door, shared=False), one, LOST_SECONDS) for node, one in own]
    end.wait()
    threads = [threading.Thread(target=member.finish) for member in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Stretch:
    """What this process takes from here on."""

    def __init__(self) -> None:
        self._begun, self._used = time.monotonic(), time.process_time()

    def text(self) -> str:
        """The time that has passed, the CPU time, and the most memory so far."""
        passed, used = time.monotonic() - self._begun, time.process_time() - self._used
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        return f"{passed:5.1f} s, {used:5.2f} s of CPU ({100 * used / passed:.0f} % of a core), {memory} MiB at most"


def measure(nodes: int, folder: Path) -> None:
    """Print what each part of a job's life takes at node 0."""
    begin, end = multiprocessing.Event(), multiprocessing.Event()
    with socket.create_server(("127.0.0.1", 0), backlog=512) as door:
        port = door.getsockname()[1]
        pretended = []
        for first in range(1, nodes, TOGETHER):
            written = multiprocessing.Event()
            numbers = range(first, min(first + TOGETHER, nodes))
            work = folder, numbers, nodes, port, written, begin, end
            process = multiprocessing.Process(target=pretend, args=work)
            process.start()
            pretended.append((process, written))
        for _, written in pretended:
            written.wait()
        head = Head(door, SECRET, account(folder / "out0", 0), folder / "out0" / ".drafts", nodes, LOST_SECONDS)
        stretch = Stretch()
        begin.set()
        while head.progress(0) < nodes - 1:
            time.sleep(0.05)
        print(f"{nodes - 1} nodes, {(nodes - 1) * RANKS:,} ranks are known after  {stretch.text()}")
        stretch = Stretch()
        time.sleep(SECONDS)
        print(f"while the job runs                           {stretch.text()}")
        stretch = Stretch()
        while head.standing() is None:
            time.sleep(0.05)
        print(f"all records, to judge a job that stands      {stretch.text()}")
        stretch = Stretch()
        end.set()
        remarks = head.finish(lambda: False, 60.0, lambda: set())
        print(f"all last records, at the end                 {stretch.text()}")
        head.conclude(0, "here")
        head.close()
        print(f"{len(list((folder / 'out0').glob('rank*')))} records came, {len(remarks)} nodes were lost")
        for process, _ in pretended:
            process.join()


def main() -> None:
    """Measure in a folder of its own; 200 nodes of 8 ranks take 7 GB there twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=201, help="with node 0 (201)")
    parser.add_argument("--folder", type=Path, default=None, help="where there is room (the system's temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measure(options.nodes, Path(folder))


if __name__ == "__main__":
    main()
