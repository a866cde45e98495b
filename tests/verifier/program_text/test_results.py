"""Whether a function reads the result of an asynchronous call before a barrier that would wait for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simcoll.core.record import Record, Source, State
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.halts.async_misuse import never_waited, read_early
from simcoll.verifier.program_text.results import read_before_wait, reads_between
from simcoll.verifier.program_text.syntax import text_of
from tests.verifier.halts.test_async_misuse import traces

READ = [
    "dist.all_reduce(x, async_op=True)\nprint(x.sum())\ndist.barrier()",
    "work = dist.all_reduce(x, async_op=True)\ny = 2 * x\ndist.barrier()",
    "dist.broadcast(tensor=x, src=0, async_op=True)\ny = x[0]\ndist.barrier()",
    "dist.all_gather_into_tensor(x, y, async_op=True)\nif x.max() > 0:\n    pass\ndist.barrier()",
    "dist.all_reduce(x, async_op=True)\nwith lock:\n    total += x\ndist.barrier()",
    "dist.all_reduce(x, async_op=True)\nx = x / 2\ndist.barrier()",
    "for k in steps:\n    dist.all_reduce(x, async_op=True)\n    print(x.sum())\ndist.barrier()",
    "for k in steps:\n    if k:\n        dist.all_reduce(x, async_op=True)\n    y += x\nif y:\n    dist.barrier()",
    "if late:\n    dist.all_reduce(x, async_op=True)\nprint(x.sum())\ndist.barrier()",
]
NOT_READ = [
    "dist.all_reduce(x, async_op=True)\ndist.barrier()\nprint(x)",
    "dist.all_reduce(x, async_op=True)\nprint(x.shape, len(x), x.size(0))\ndist.barrier()",
    "dist.all_gather_into_tensor(y, x, async_op=True)\nprint(x.sum())\ndist.barrier()",
    "dist.gather(x, parts, dst=0, async_op=True)\nprint(x.sum())\ndist.barrier()",
    "dist.all_reduce(x, async_op=True)\nx = make()\nprint(x)\ndist.barrier()",
    "dist.all_reduce(x, async_op=True)\nif verbose:\n    print(x)\ndist.barrier()",
    "dist.all_reduce(x, async_op=True)\ndist.all_reduce(x, async_op=True)\ndist.barrier()",
    "works.append(dist.all_reduce(x, async_op=True))\nprint(x)\ndist.barrier()",
    "dist.all_reduce(x[1:], async_op=True)\nprint(x)\ndist.barrier()",
    "dist.all_reduce(x, async_op=True)\n\ndef later():\n    print(x)\ndist.barrier()",
    "reduce_all(x)\nprint(x)\ndist.barrier()",
    "for k in steps:\n    dist.all_reduce(x, async_op=True)\n    if k:\n        continue\n    print(x)\ndist.barrier()",
    "for k in steps:\n    dist.all_reduce(x, async_op=True)\n    x = make()\nprint(x)\ndist.barrier()",
    "for k in steps:\n    print(x)\n    dist.all_reduce(x, async_op=True)\ndist.barrier()",
    "for k in steps:\n    dist.barrier()\n    dist.all_reduce(x, async_op=True)\n    print(x)",
]


def lines(folder: Path, body: str) -> tuple[Source, Source]:
    """The line of the asynchronous call of a function with this body, or its first one, and that of its barrier."""
    path, text = folder / "train.py", ["def step(x, y):", *(f"    {line}" for line in body.splitlines())]
    path.write_text("\n".join(text))
    last = next(number for number, line in enumerate(text, 1) if line.endswith("dist.barrier()"))
    call = next((number for number, line in enumerate(text, 1) if "async_op" in line), 2)
    first, second = (Source(str(path), number, "step", text[number - 1].strip()) for number in (call, last))
    return first, second


@pytest.mark.parametrize("body", READ)
def test_a_result_that_is_read_before_the_barrier(tmp_path: Path, body: str) -> None:
    call, barrier = lines(tmp_path, body)
    assert reads_between(call, barrier)


@pytest.mark.parametrize("body", NOT_READ)
def test_a_result_of_which_the_text_tells_no_reading(tmp_path: Path, body: str) -> None:
    call, barrier = lines(tmp_path, body)
    assert not reads_between(call, barrier)


def test_a_text_that_is_not_what_the_ranks_ran_tells_nothing(tmp_path: Path) -> None:
    call, barrier = lines(tmp_path, READ[0])
    assert not reads_between(call, replace(barrier, code="other()"))
    Path(call.file).unlink()
    text_of.cache_clear()
    assert not reads_between(call, barrier)


def test_a_barrier_does_not_end_a_call_whose_result_was_read_before_it(tmp_path: Path) -> None:
    tensors = (Buffer((4,), "float32"),)
    reduced = Call("all_reduce", "allreduce", tensors, tensors, reduce_op="sum")
    for name, body, expected in (("read", READ[0], 1), ("unread", NOT_READ[0], 0)):
        (tmp_path / name).mkdir()
        call, barrier = lines(tmp_path / name, body)
        records = [
            Record("0", 1, reduced, call, State.STARTED, True, False, scheduled_ns=1),
            Record("0", 2, Call("barrier", "barrier"), barrier, State.COMPLETED, False, True, scheduled_ns=2),
        ]
        assert len(never_waited(traces(records, records))) == expected


EARLY = [
    ("work = dist.all_reduce(x, async_op=True)\ny = x.sum().item()\nwork.wait()", 3),
    ("work = dist.all_gather_into_tensor(x, torch.ones(4), async_op=True)\ny = x.sum()\nwork.wait()", 3),
    ("work = dist.irecv(x, src=0)\nlog()\nprint(f'{x}')\nwork.wait()", 4),
    ("work = dist.all_gather_into_tensor(x, y, async_op=True)\nwith timer():\n    y = y + x\nwork.wait()", 4),
    ("work = dist.all_gather(x, y, async_op=True)\ny = torch.cat(x)\nwork.wait()", 3),
    ("work = dist.all_gather(x, y, async_op=True)\ny = x[0] - x[1]\nwork.wait()", 3),
    ("work = dist.broadcast(x, 0, async_op=True)\nif x[0] > 2:\n    work.wait()", 3),
    ("works.append(dist.all_reduce(x, async_op=True))\ntotal += x.view(-1)\nfor work in works:\n    work.wait()", 3),
]
IN_TIME = [
    "work = dist.all_reduce(x, async_op=True)\nwork.wait()\nprint(x.sum())",
    "work = dist.all_gather_into_tensor(x, y, async_op=True)\nprint(y.sum())\nwork.wait()",
    "work = dist.all_reduce(x, async_op=True)\nprint(x.shape, x.numel(), x is None, len(x))\nwork.wait()",
    "work = dist.all_reduce(x, async_op=True)\ntotal = x\nwaiting.append(x)\nfinish(x)\nview = x.view(-1)\nwork.wait()",
    "work = dist.all_gather(x, y, async_op=True)\nparts = x + [y]\nx *= 2\nwork.wait()",
    "work = dist.all_reduce(x, async_op=True)\ntorch.cuda.synchronize()\nprint(x.sum())\nwork.wait()",
    "work = dist.all_reduce(x, async_op=True)\nother.wait()\nprint(x.sum())\nwork.wait()",
    "work = dist.all_reduce(x, async_op=True)\nif verbose:\n    print(x.sum())\nwork.wait()",
    "work = dist.all_reduce(x, async_op=True)\nif overlap:\n    work.wait()\nprint(x.sum())",
    "work = dist.all_reduce(x, async_op=True)\nx = make()\nprint(x.sum())\nwork.wait()",
    "work = dist.all_reduce(x, async_op=True)\ndef end():\n    work.wait()\nend()\nprint(x.sum())",
    "works.append(dist.all_reduce(x, async_op=True))\ndrain(works)\nprint(x.sum())",
    "works.append(dist.all_reduce(x, async_op=True))\nflush()\nprint(x.sum())",
    "pending = self.pending\npending.append(dist.all_reduce(x, async_op=True))\nself.drain()\ny = x / 2",
    "work = dist.all_reduce(x, async_op=True)\ny = sum(x.norm() for x in y)\nwork.wait()",
    "work = dist.all_reduce(x, async_op=overlap)\ny = x * 2 if not overlap else None\nwork.wait()",
    "work = dist.all_reduce(x, async_op=overlap)\ny = overlap or x * 2\nwork.wait()",
    "work = dist.all_reduce(x, async_op=True)\ntorch.futures.wait_all(futures)\ny = x * 2\nwork.wait()",
    "self.work = dist.all_reduce(x, async_op=True)\nself.finish()\nprint(x.sum())",
    "source = dist.recv(x)\nprint(x.sum(), source)",
    "work = dist.all_reduce(x, async_op=True)\nreturn work.wait(), x.mean()",
    "work = dist.all_reduce(x, async_op=True)\nwhile not work.is_completed():\n    pass\nprint(x.sum())",
    "work = dist.gather(x, parts, dst=0, async_op=True)\nprint(x.sum())\nwork.wait()",
    "work = dist.all_reduce(x, async_op=True).get_future()\nprint(x.sum())\nwork.wait()",
]


@pytest.mark.parametrize(("body", "line"), EARLY)
def test_a_result_that_is_read_before_its_wait(tmp_path: Path, body: str, line: int) -> None:
    call, _ = lines(tmp_path, f"{body}\ndist.barrier()")
    reading = read_before_wait(call)
    assert reading is not None
    assert reading.line == line


@pytest.mark.parametrize("body", IN_TIME)
def test_a_result_of_which_the_text_tells_no_reading_before_its_wait(tmp_path: Path, body: str) -> None:
    call, _ = lines(tmp_path, f"{body}\ndist.barrier()")
    assert read_before_wait(call) is None


def test_a_line_that_reads_early_is_a_finding_with_both_lines_unless_the_call_was_synchronous(tmp_path: Path) -> None:
    call, _ = lines(tmp_path, f"{EARLY[0][0]}\ndist.barrier()")
    tensors = (Buffer((4,), "float32"),)
    kind = Call("all_reduce", "allreduce", tensors, tensors, reduce_op="sum")
    record = Record("0", 1, kind, call, State.COMPLETED, asynchronous=True, awaited=True)
    [finding] = read_early(traces([record], [replace(record, asynchronous=False, awaited=False)]))
    assert (finding.code, finding.ranks) == ("SC501", (0,))
    assert [one.source.line for one in finding.sides[0].sources] == [2, 3]
