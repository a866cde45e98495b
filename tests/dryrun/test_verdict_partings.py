"""Where ranks parted, and who is wrong, where a line does not tell: lists of messages, loops, pairs of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent, indent
from typing import NamedTuple

import pytest

pytest.importorskip("torch")

from tests.support.preflights import DryRuns

pytestmark = [pytest.mark.slow]

HEAD = """
import os
import torch
import torch.distributed as dist
from torch.distributed import P2POp
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
left, right = (rank - 1) % size, (rank + 1) % size
mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
tp = mesh.get_group("tp")


def wrong(step, who=2):
    return os.environ["RANK"] == str(who) and step == 1


def exchange(ops):
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def sends(x):
    dist.all_reduce(x)


def other(x):
    dist.broadcast(x, 0)


def epoch_of(batches):
    for batch in batches:
        dist.all_reduce(torch.ones(4))


def validate():
    dist.all_reduce(torch.ones(2))


"""
STEPS = """
for step in range(3):
    x, y = torch.ones(4), torch.zeros(4)
    {body}
    dist.all_reduce(torch.ones(3))
dist.destroy_process_group()
"""


class Case(NamedTuple):
    """The statements of a step, or of the whole, and what has to be said: codes, culprits, the line, the others."""

    text: str
    codes: tuple[str, ...]
    culprits: list[int] | None
    line: str
    others: tuple[str, ...] = ()
    steps: bool = True


CASES = {
    "a receive is left out of a list": Case(
        """
        ops = [P2POp(dist.isend, x, right)]
        if not wrong(step):
            ops.append(P2POp(dist.irecv, y, left))
        works = dist.batch_isend_irecv(ops)
        [work.wait() for work in works]
        """,
        ("SC204", "SC304"),
        [2],
        "if not wrong(step):",
    ),
    "a send is left out of a list for one side": Case(
        """
        z, ops = torch.zeros(4), []
        if rank > 0:
            ops += [P2POp(dist.isend, x, rank - 1), P2POp(dist.irecv, y, rank - 1)]
        if rank < size - 1:
            ops.append(P2POp(dist.irecv, z, rank + 1))
            if not wrong(step):
                ops.append(P2POp(dist.isend, x, rank + 1))
        works = dist.batch_isend_irecv(ops)
        [work.wait() for work in works]
        """,
        ("SC204", "SC304"),
        None,
        "if not wrong(step):",
    ),
    "a rank sends one more": Case(
        """
        ops = [P2POp(dist.isend, x, right), P2POp(dist.irecv, y, left)]
        if wrong(step):
            ops.append(P2POp(dist.isend, x, left))
        for work in dist.batch_isend_irecv(ops): work.wait()
        """,
        ("SC204", "SC304"),
        [2],
        "if wrong(step):",
    ),
    "two are left out of a list by one condition in another": Case(
        """
        ops, quick = [P2POp(dist.irecv, y, left)], not wrong(step)
        if step < 5:
            if quick:
                ops.append(P2POp(dist.isend, x, right))
        for work in dist.batch_isend_irecv(ops): work.wait()
        """,
        ("SC204", "SC304"),
        [2],
        "if quick:",
        ("if step < 5:",),
    ),
    "two are left out of a list by two conditions": Case(
        """
        ops, z = [P2POp(dist.irecv, y, left), P2POp(dist.irecv, torch.zeros(4), right)], torch.ones(4)
        if not wrong(step):
            ops.append(P2POp(dist.isend, x, right))
        if step != 1 or not wrong(1):
            ops.append(P2POp(dist.isend, z, left))
        for work in dist.batch_isend_irecv(ops): work.wait()
        """,
        ("SC204", "SC304"),
        [2],
        "if step != 1 or not wrong(1):",
        ("if not wrong(step):",),
    ),
    "a receive is left out of a row of works": Case(
        """
        works = [dist.isend(x, right)]
        if not wrong(step):
            works.append(dist.irecv(y, left))
        [work.wait() for work in works]
        """,
        ("SC204", "SC304"),
        None,
        "if not wrong(step):",
    ),
    "fewer epochs": Case(
        """
        for epoch in range(2 if wrong(1) else 3):
            epoch_of([0] * 3)
            validate()
        dist.broadcast(torch.ones(8), 0)
        """,
        ("SC202",),
        [2],
        "for epoch in range(2 if wrong(1) else 3):",
        steps=False,
    ),
    "fewer batches": Case(
        """
        for epoch in range(3):
            epoch_of([0] * (2 if wrong(1) else 3))
            validate()
        dist.broadcast(torch.ones(8), 0)
        """,
        ("SC202",),
        [2],
        "for batch in batches:",
        steps=False,
    ),
    "fewer rounds of either loop": Case(
        """
        for epoch in [0] * (2 if wrong(1) else 3):
            epoch_of([0] * 3)
        dist.broadcast(torch.ones(8), 0)
        """,
        ("SC202",),
        [2],
        "for batch in batches:",
        ("for epoch in [0] * (2 if wrong(1) else 3):",),
        steps=False,
    ),
    "a pass of a ring": Case(
        """
        x, y = torch.ones(4), torch.zeros(4)
        for hop in range(size - 1):
            if hop == 1 and wrong(1):
                continue
            exchange([P2POp(dist.isend, x, right), P2POp(dist.irecv, y, left)])
        """,
        ("SC304",),
        None,
        "if hop == 1 and wrong(1):",
        steps=False,
    ),
    "a pass of a ring with a barrier": Case(
        """
        x, y = torch.ones(4), torch.zeros(4)
        for hop in range(size - 1):
            if hop == 1 and wrong(1):
                continue
            exchange([P2POp(dist.isend, x, right), P2POp(dist.irecv, y, left)])
            dist.barrier()
        dist.all_reduce(x)
        """,
        ("SC202",),
        [2],
        "if hop == 1 and wrong(1):",
        steps=False,
    ),
    "a call of a pair is left out": Case(
        """
        if not wrong(step):
            dist.all_reduce(x, group=tp)
        dist.all_gather_into_tensor(torch.ones(8), x, group=tp)
        """,
        ("SC202",),
        [2],
        "if not wrong(step):",
    ),
    "a call of a pair is one too many": Case(
        """
        dist.all_reduce(x, group=tp)
        if wrong(step):
            dist.all_reduce(torch.ones(6), group=tp)
        dist.all_gather_into_tensor(torch.ones(8), x, group=tp)
        """,
        ("SC202",),
        [2],
        "if wrong(step):",
    ),
    "a call of a pair has another size": Case(
        "dist.all_reduce(torch.ones(4 + wrong(step)), group=tp)", ("SC102",), [2], ""
    ),
    "the last call of a pair is left out": Case(
        """
        if step == 0 or not wrong(1):
            dist.all_reduce(x, group=tp)
        """,
        ("SC204",),
        [2],
        "if step == 0 or not wrong(1):",
    ),
    "a receive more than is sent": Case(
        """
        if rank == 0:
            for worker in range(1, size):
                dist.send(x, worker)
        else:
            for _ in range(1 + (rank == 2 and step == 1)):
                dist.recv(x, 0)
        """,
        ("SC204", "SC304"),
        [2],
        "for _ in range(1 + (rank == 2 and step == 1)):",
    ),
    "a worker leaves its loop though more is sent": Case(
        """
        x, seen = torch.zeros(1), 0
        if rank == 0:
            for task in [3, 2, 1, 0]:
                for worker in range(1, size):
                    dist.send(torch.tensor([float(task)]), worker)
        while rank > 0:
            dist.recv(x, 0)
            if x.item() <= 0:
                break
            seen += 1
            if rank == 2 and seen == 2:
                break
        dist.destroy_process_group()
        """,
        ("SC304",),
        [2],
        "if rank == 2 and seen == 2:",
        steps=False,
    ),
    "a worker is told to leave its loop though more is sent": Case(
        """
        x = torch.zeros(1)
        if rank == 0:
            for task in [3, 2, 1, 0]:
                for worker in range(1, size):
                    early = worker == 2 and task == 2
                    dist.send(torch.tensor([0.0 if early else float(task)]), worker)
        while rank > 0:
            dist.recv(x, 0)
            if x.item() <= 0:
                break
        dist.destroy_process_group()
        """,
        ("SC304",),
        [],
        "if x.item() <= 0:",
        steps=False,
    ),
    "a call in the wrong group, of pairs": Case(
        """
        dp = mesh.get_group("dp")
        if rank == 2:
            dist.all_reduce(torch.ones(4), group=dp)
        else:
            dist.all_reduce(torch.ones(4), group=tp)
        """,
        ("SC202",),
        [2],
        "if rank == 2:",
        steps=False,
    ),
    "a statement of several lines": Case(
        """
        done = (
            sends(x)
            if not wrong(step)
            else other(
                x,
            )
        )
        """,
        ("SC101",),
        [2],
        "if not wrong(step)",
    ),
    "an early return below a statement of several lines": Case(
        """
        def first():
            if wrong(step):
                return
            dist.all_reduce(x)
        found = [
            first(),
            other(x),
        ]
        """,
        ("SC202",),
        [2],
        "if wrong(step):",
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DryRuns]:
    with DryRuns(tmp_path_factory.mktemp("runs")) as made:
        yield made


@pytest.mark.parametrize("name", CASES)
def test_the_condition_and_the_culprit_are_named(name: str, runs: DryRuns, tmp_path: Path) -> None:
    case = CASES[name]
    text = dedent(case.text).strip()
    path = tmp_path / "train.py"
    path.write_text(HEAD + (STEPS.format(body=indent(text, "    ").strip()) if case.steps else f"{text}\n"))
    report = runs.report("--world-size", 4, "--device", "cpu", path)
    [finding] = [one for one in report["findings"] if one["severity"] == "error"]
    assert finding["code"] in case.codes
    assert case.culprits in (None, finding["culprits"])
    parted = finding["parted"]
    assert (parted["code"] if parted else "") == case.line
    others = parted.get("others", []) if parted else []
    assert tuple(one["code"] for one in others) == case.others
    if case.line:
        assert any(2 in side["ranks"] for side in parted["sides"])
