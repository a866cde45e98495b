"""What ranks of a dry run send each other: objects, and messages of few numbers, reach whoever receives them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.support.preflights import DryRuns

pytestmark = [pytest.mark.slow]

PROGRAM = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
"""

PROGRAMS = {
    "configuration": """\
objects = [{"layers": 3}, "name"] if rank == 0 else [None, None]
dist.broadcast_object_list(objects, src=0)
for _ in range(objects[0]["layers"]):
    dist.all_reduce(torch.ones(3))
assert objects[1] == "name"
""",
    "from the last rank": """\
objects = [[rank]]
dist.broadcast_object_list(objects, src=size - 1)
assert objects == [[size - 1]]
dist.barrier()
""",
    "scattered": """\
found = [None]
dist.scatter_object_list(found, [f"part {one}" for one in range(size)] if rank == 1 else None, src=1)
assert found == [f"part {rank}"]
dist.barrier()
""",
    "gathered by all": """\
found = [None] * size
dist.all_gather_object(found, [rank] * rank)
for _ in range(len(found[-1])):
    dist.all_reduce(torch.ones(3))
assert found == [[one] * one for one in range(size)]
""",
    "gathered by one": """\
found = [None] * size if rank == 2 else None
dist.gather_object({"rank": rank}, found, dst=2)
if rank == 2 and [one["rank"] for one in found] != list(range(size)):
    dist.all_reduce(torch.ones(3))
dist.barrier()
""",
    "in a group": """\
group = dist.new_group([1, 3])
if rank in (1, 3):
    found = [None, None]
    dist.all_gather_object(found, rank, group=group)
    assert found == [1, 3]
    objects = [rank]
    dist.broadcast_object_list(objects, src=3, group=group)
    assert objects == [3]
dist.barrier()
""",
    "objects as messages": """\
if rank == 0:
    dist.send_object_list([2, "two"], dst=1)
elif rank == 1:
    objects = [None, None]
    dist.recv_object_list(objects, src=0)
    assert objects == [2, "two"]
    for _ in range(objects[0]):
        dist.send(torch.ones(3), 2)
elif rank == 2:
    for _ in range(2):
        dist.recv(torch.ones(3), 1)
""",
    "sizes of messages": """\
if rank > 0:
    size_of = torch.zeros(2, dtype=torch.long)
    dist.recv(size_of, rank - 1)
    assert size_of.tolist() == [rank, 7]
    dist.recv(torch.empty(size_of.tolist()), rank - 1)
if rank < size - 1:
    dist.send(torch.tensor([rank + 1, 7]), rank + 1)
    dist.send(torch.ones(rank + 1, 7), rank + 1)
""",
    "keys of a store": """\
store = dist.distributed_c10d._get_default_store()
own = dist.TCPStore("localhost", 29511, size, rank == 0, wait_for_workers=False)
if rank == 0:
    store.set("layers", "3")
    own.set("name", b"run")
store.wait(["layers"])
for _ in range(int(store.get("layers"))):
    dist.all_reduce(torch.ones(3))
assert own.get("name") == b"run"
dist.barrier()
""",
    "keys of later ranks": """\
store = dist.PrefixStore("mine", dist.distributed_c10d._get_default_store())
store.set(f"{rank}", str(rank * rank))
assert [int(store.get(f"{one}")) for one in range(size)] == [one * one for one in range(size)]
dist.barrier()
""",
    "a number that all add to": """
import time
store = dist.distributed_c10d._get_default_store()
assert store.add("tickets", 1) == rank + 1
assert store.add("tickets", 1) == size + rank + 1
store.add("here", 1)
while int(store.get("here")) < size:
    time.sleep(0.01)
store.add("ready", 2)
while store.add("ready", 0) != 2 * size:
    time.sleep(0.01)
dist.barrier()
""",
    "a number that others add to": """
import time
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    while store.add("done", 0) < size - 1:
        time.sleep(0.01)
    store.set("go", b"on")
else:
    store.add("done", 1)
    while not store.check(["go"]):
        time.sleep(0.01)
dist.barrier()
""",
    "barriers of a store": """
from torch.distributed.elastic.utils.store import barrier
store = dist.distributed_c10d._get_default_store()
for number in range(5):
    barrier(store, size, f"barrier {number}")
dist.barrier()
""",
    "items that ranks take": """
store = dist.distributed_c10d._get_default_store()
taken = 0
while store.add("next", 1) <= 4 * size:
    taken += 1
assert taken == 4
dist.barrier()
""",
    "bytes that all append, a leader that ranks elect": """
store = dist.TCPStore("localhost", 29544, size, rank == 0, wait_for_workers=False)
won = store.compare_set("leader", "", str(rank)) == str(rank).encode()
leader = int(store.get("leader"))
assert won == (rank == leader)
store.append("hosts", f"{rank},")
store.append("hosts", "x,")
dist.broadcast(torch.ones(1), src=leader)
words = store.get("hosts").decode().split(",")
assert sorted(words[:-1]) == [*sorted(map(str, range(size))), *["x"] * size]
dist.barrier()
""",
    "values that change": """
store = dist.TCPStore("localhost", 29544, size, rank == 0, wait_for_workers=False)
other = dist.FileStore("/tmp/not-there", size)
for step in range(2):
    if rank == 1:
        store.set("step", str(step))
        other.set("step", b"\\xff")
    for _ in range(rank + 1):
        store.add("samples", 4)
    dist.barrier()
    assert int(store.get("step")) == step and other.get("step") == b"\\xff"
    assert int(store.get("samples")) == 2 * (step + 1) * size * (size + 1)
    dist.barrier()
if rank == 0:
    store.delete_key("samples")
dist.barrier()
assert not store.check(["samples"])
store.add("kind", 1)
dist.barrier()
if rank == 0:
    store.set("kind", "word")
dist.barrier()
assert store.get("kind") == b"word"
dist.barrier()
""",
    "a queue of work": """
store = dist.PrefixStore("work", dist.distributed_c10d._get_default_store())
if rank == 0:
    for number in range(2 * size):
        store.queue_push("items", str(number))
dist.barrier()
found = [None] * size
dist.all_gather_object(found, [int(store.queue_pop("items")) for _ in range(2)])
assert sorted(sum(found, [])) == list(range(2 * size))
assert store.queue_len("items") == 0
try:
    store.queue_pop("items", False)
    raise SystemExit("the queue is not empty")
except dist.QueueEmptyError:
    dist.barrier()
""",
    "message to an earlier rank": """\
if rank == 3:
    dist.send(torch.tensor([5]), 0)
if rank == 0:
    count = torch.zeros(1, dtype=torch.long)
    dist.recv(count, 3)
    for _ in range(count.item()):
        dist.send(torch.ones(2), 1)
if rank == 1:
    for _ in range(5):
        dist.recv(torch.ones(2), 0)
""",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DryRuns]:
    with DryRuns(tmp_path_factory.mktemp("runs")) as made:
        yield made


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_sent_is_received(name: str, runs: DryRuns, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM + PROGRAMS[name], encoding="utf-8")
    report = runs.report("--world-size", "4", "--timeout", "8", script)
    assert (report["exit_code"], report["findings"]) == (0, [])
    assert not report["coverage"]["gaps"]


def test_a_failure_that_follows_from_real_objects_is_found(runs: DryRuns, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    wrong = (
        "found = [None] * size\ndist.all_gather_object(found, rank)\n"
        "if found[0] != 1:\n    raise RuntimeError('the first rank is 0')\n"
    )
    script.write_text(PROGRAM + wrong, encoding="utf-8")
    report = runs.report("--world-size", "4", script)
    assert report["exit_code"] == 3
    assert [one["code"] for one in report["findings"]] == ["SC701"]


def test_more_exchanges_than_passes_leave_the_dry_run_incomplete(runs: DryRuns, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    many = (
        "store = dist.distributed_c10d._get_default_store()\nfor step in range(8):\n    store.add('seen', 1)\n"
        "    dist.barrier()\n    assert store.add('seen', 0) == (step + 1) * size\n    dist.barrier()\n"
    )
    script.write_text(PROGRAM + many, encoding="utf-8")
    report = runs.report("--world-size", "3", script)
    assert (report["exit_code"], report["findings"]) == (0, [])


def test_a_key_that_no_rank_sets_leaves_the_dry_run_incomplete(runs: DryRuns, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    waits = "if rank == 0:\n    dist.distributed_c10d._get_default_store().wait(['never'])\ndist.barrier()\n"
    script.write_text(PROGRAM + waits, encoding="utf-8")
    report = runs.report("--world-size", "3", script)
    assert (report["exit_code"], report["findings"]) == (0, [])
    assert report["coverage"]["gaps"] == ["rank 0 failed on guessed values"]
