"""Programs whose flow rests on what other ranks send: correct ones are silent in a dry run, and bugs still found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.support.preflights import DryRuns

pytestmark = [pytest.mark.slow]

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
tensor = torch.ones(8)
"""

FLOWS = {
    "early stopping": """
best, bad = float("inf"), 0
for epoch in range(20):
    loss = torch.rand(1) + 1 / (epoch + 1)
    dist.all_reduce(loss)
    if loss.item() < best:
        best, bad = loss.item(), 0
    else:
        bad += 1
    if bad > 1:
        break
    dist.barrier()
""",
    "a flag of uneven data": """
batches = 4 + rank % 3
step = 0
while True:
    flag = torch.tensor(int(step < batches))
    dist.all_reduce(flag, dist.ReduceOp.MIN)
    if not flag:
        break
    dist.all_reduce(torch.rand(100))
    step += 1
""",
    "the least of lengths": """
length = torch.tensor(3 + (rank * 7) % 5)
dist.all_reduce(length, dist.ReduceOp.MIN)
for _ in range(int(length)):
    dist.all_reduce(torch.rand(100))
""",
    "lengths that are gathered": """
lengths = [torch.zeros(1, dtype=torch.long) for _ in range(size)]
dist.all_gather(lengths, torch.tensor([3 + (rank * 7) % 5]))
for _ in range(max(one.item() for one in lengths)):
    dist.all_reduce(torch.rand(100))
""",
    "an error that becomes a plain float": """
error = torch.tensor([8.0 if rank == 1 else 1.0])
worst = float("inf")
while worst > 0.5:
    error /= 2
    most = error.clone()
    dist.all_reduce(most, dist.ReduceOp.MAX)
    worst = float(most)
""",
    "a decision of rank 0": """
for step in range(6):
    stop = torch.tensor([float(torch.rand(()) < 0.3)]) if rank else torch.tensor([float(step == 4)])
    dist.broadcast(stop, 0)
    if stop.item() > 0.5:
        break
    dist.all_reduce(torch.rand(100))
""",
    "overflows that are found": """
for step in range(6):
    loss = torch.tensor(float("inf") if rank == step else 1.0)
    found_inf = torch.isinf(loss).float()
    dist.all_reduce(found_inf, dist.ReduceOp.MAX)
    if found_inf.item():
        continue
    dist.all_reduce(torch.rand(100))
""",
    "inputs that are joined": """
model = DistributedDataParallel(nn.Linear(3, 1))
with model.join():
    for _ in range(2 + rank % 3):
        model(torch.ones(1, 3)).sum().backward()
""",
    "a stop that the last rank says": """
step = 0
while True:
    stop = torch.tensor([float(rank == size - 1 and step == 4)])
    dist.broadcast(stop, size - 1)
    step += 1
    if stop.item():
        break
""",
    "a stop that comes with another guess": """
step = 0
while True:
    lost = torch.zeros(1, dtype=torch.int)
    dist.all_reduce(lost)
    stop = torch.tensor([int(rank == size - 1 and step == 4)])
    dist.broadcast(stop, size - 1)
    step += 1
    if lost.item() > 0:
        continue
    if stop.item() == 1:
        break
""",
    "a stop that becomes an int": """
for step in range(8):
    stop = torch.tensor([float(rank + step == size + 1)])
    dist.all_reduce(stop)
    if int(stop.item()):
        break
    dist.all_reduce(torch.rand(100))
""",
    "an error that becomes another float": """
error, worst = 8.0 if rank == 1 else 1.0, float("inf")
while worst > 0.5:
    error /= 2
    most = torch.tensor([error])
    dist.all_reduce(most, dist.ReduceOp.MAX)
    worst = float(most.item())
""",
    "a perplexity": """
import math
best, bad = float("inf"), 0
while bad < 2:
    loss = torch.rand(1)
    dist.all_reduce(loss)
    perplexity = math.exp(loss.item())
    best, bad = (perplexity, 0) if perplexity < best else (best, bad + 1)
""",
    "a loss that is no number": """
import math
for step in range(4):
    loss = torch.tensor([float("nan") if rank == step else 1.0])
    dist.all_reduce(loss)
    if math.isnan(loss.item()):
        continue
    dist.all_reduce(torch.rand(100))
""",
    "a flag that is asked for its truth": """
for step in range(8):
    stop = torch.tensor(int(rank + step == size + 1))
    dist.all_reduce(stop)
    if stop.is_nonzero():
        break
    dist.all_reduce(torch.rand(100))
""",
    "a stop that follows from a stop": """
for epoch in range(2):
    for step in range(10):
        loss = torch.rand(1)
        dist.all_reduce(loss)
        if loss < 0.4 * size:
            break
        dist.all_reduce(torch.rand(100))
""",
}

SENT_ON = {
    "a size that goes on as a message": """
sizes = [torch.zeros(1, dtype=torch.long) for _ in range(size)]
dist.all_gather(sizes, torch.tensor([2 + (rank * 7) % 4]))
batch = torch.ones(sum(int(one) for one in sizes), 3)
if rank == 0:
    dist.send(torch.tensor(batch.shape), 3)
    dist.send(batch, 3)
elif rank == 3:
    shape = torch.zeros(2, dtype=torch.long)
    dist.recv(shape, 0)
    dist.recv(torch.empty(shape.tolist()), 0)
""",
    "workers that ask unequally often": """
task = torch.zeros(2)
if rank == 0:
    left = size - 1
    while left:
        worker = dist.recv(task)
        if task[0] < 0:
            left -= 1
        else:
            dist.send(task + 1, worker)
else:
    for number in range(rank):
        dist.send(torch.tensor([1.0, number]), 0)
        dist.recv(task, 0)
    dist.send(torch.tensor([-1.0, 0.0]), 0)
""",
    "a peer of the same number as a size": """
count = torch.tensor([3])
dist.all_reduce(count, dist.ReduceOp.MAX)
assert int(count) == 3
if rank == 0:
    dist.send(torch.ones(2), 3)
elif rank == 3:
    dist.recv(torch.ones(2), 0)
""",
}
"""A rank that reads no guess receives what another one has made of one."""

TWO = "the least of lengths", "a decision of rank 0"
FLOWS[" then ".join(TWO)] = "".join(FLOWS[flow] for flow in TWO)
FLOWS["more stops than passes"] = FLOWS["a stop that follows from a stop"].replace("range(2)", "range(9)")

BUGS = {
    "none": "dist.all_reduce(tensor)",
    "skipped": "if rank != 5:\n    dist.all_reduce(tensor)",
    "skipped check": "if rank != 5:\n    dist.monitored_barrier()",
    "other operator": "dist.all_reduce(tensor, dist.ReduceOp.MAX if rank == 5 else dist.ReduceOp.SUM)",
}
"""What comes after the reads."""

CODES = {"skipped": "SC202", "other operator": "SC104", "skipped check": "SC202"}

SILENT = ["early stopping", "a flag of uneven data", "an error that becomes a plain float", *list(FLOWS)[-2:]]

WITH_BUGS = list(FLOWS)[:-1]
FLOWS |= SENT_ON

FLOWS["rows of a size that rank 0 gives"] = """
used = torch.rand(1000)
dist.all_reduce(used)
kept = torch.zeros(1000)
kept.copy_(used)
mask = kept < size / 2
count = mask.sum()
dist.broadcast(count, 0)
rows = torch.cat([torch.zeros(int(count) - 3), torch.zeros(3)])
kept[mask] = rows
"""

FLOWS["a decision on an array of many numbers"] = """
counts = torch.zeros(600)
counts[7 * rank] = 10 + rank
dist.all_reduce(counts)
for _ in range(1 + int(counts.numpy().argmax()) % 3):
    dist.all_reduce(torch.rand(100))
"""
GUESSED = "more stops than passes", "a decision on an array of many numbers"
"""What follows from more numbers, or in more steps, than ranks run again for."""

CASES = [
    ("rows of a size that rank 0 gives", "none", 4),
    ("a decision on an array of many numbers", "none", 4),
    ("the least of lengths", "skipped check", 6),
    *((flow, "none", 4 if number % 2 else 8) for number, flow in enumerate(SILENT)),
    *((flow, "none", 4) for flow in SENT_ON),
    *((flow, list(CODES)[number % 2], 6) for number, flow in enumerate(WITH_BUGS)),
]


class Scripts:
    """The scripts of the cases, and their dry runs."""

    def __init__(self, folder: Path, runs: DryRuns) -> None:
        self._folder = folder
        self._runs = runs

    def arguments(self, case: tuple[str, str, int]) -> tuple[object, ...]:
        flow, bug, size = case
        script = self._folder / f"train{CASES.index(case)}.py"
        script.write_text(f"{HEAD}{FLOWS[flow]}{BUGS[bug]}\ndist.barrier()\n", encoding="utf-8")
        return "--world-size", size, "--timeout", 60, "--jobs", 1, script

    def begin(self, case: tuple[str, str, int]) -> None:
        self._runs.begin(*self.arguments(case))

    def __getitem__(self, case: tuple[str, str, int]) -> dict[str, Any]:
        return self._runs.report(*self.arguments(case))


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripts]:
    """All chosen cases, in dry runs that go on while the first are judged."""
    with DryRuns(tmp_path_factory.mktemp("dry")) as runs:
        scripts = Scripts(tmp_path_factory.mktemp("ways"), runs)
        for item in request.session.items:
            if "reports" in getattr(item, "fixturenames", ()) and item.module is request.module:
                scripts.begin(item.callspec.params["case"])
        yield scripts


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)).replace(" ", "_"))
def test_only_bugs_are_found(case: tuple[str, str, int], reports: Scripts) -> None:
    flow, bug, _ = case
    report = reports[case]
    found = [(one["code"], one["culprits"]) for one in report["findings"]]
    assert found == ([] if bug == "none" else [(CODES[bug], [5])]), report["notes"]
    lines = (HEAD + FLOWS[flow]).count("\n")
    for finding in report["findings"]:
        assert {source["line"] for side in finding["sides"] for source in side["source"]} & {lines + 1, lines + 2}
    parted = any("went different ways at" in note for note in report["notes"])
    assert parted == (flow in GUESSED), report["notes"]
