"""What goes wrong above the groups is written down once: refusals by torch.distributed, the exception at the end."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from simcoll.blackbox import read_black_box  # noqa: E402
from tests.support.calls import ones  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.gloo]


def events(ranks: Any, rank: int, kind: str) -> list[dict[str, Any]]:
    return [event.data for event in ranks.box(rank).events if event.kind == kind]


def line_of(function: Callable[..., object], text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(place for place, line in enumerate(lines) if text in line)


def test_a_call_that_torch_refuses_is_written_with_its_function_and_line(ranks: Any) -> None:
    def program(rank: int) -> object:
        error = None
        if rank == 1:
            error = ranks.error_of(lambda: dist.all_reduce("no tensor"))
        dist.barrier()
        return str(error)

    message = ranks(program)[1]
    [rejected] = events(ranks, 1, "rejected")
    assert (rejected["function"], rejected["type"], rejected["group"]) == ("all_reduce", "TypeError", None)
    assert rejected["message"] == message
    assert rejected["source"][:2] == [__file__, line_of(program, "no tensor")]
    assert events(ranks, 0, "rejected") == []


def test_a_call_that_the_backend_refuses_is_written_once_with_its_place(ranks: Any) -> None:
    def program(rank: int) -> object:
        dist.barrier()
        error = ranks.error_of(lambda: dist.all_gather([ones(1)], ones(1)))
        dist.barrier()
        return type(error)

    assert ranks(program) == [RuntimeError] * 2
    [rejected] = events(ranks, 0, "rejected")
    assert (rejected["function"], rejected["group"], rejected["sequence"]) == ("all_gather", "0", 2)
    assert "invalid output tensor list" in rejected["message"]
    assert rejected["source"][:2] == [__file__, line_of(program, "all_gather(")]


def test_a_mismatch_is_no_refusal(ranks: Any) -> None:
    def program(rank: int) -> object:
        ranks.error_of(lambda: dist.all_reduce(ones(1 + rank)))
        ranks.error_of(lambda: dist.broadcast_object_list([0] * (rank + 1), src=rank))
        work = dist.all_reduce(ones(1 + rank), async_op=True)
        ranks.error_of(work.wait)
        return None

    ranks(program)
    for rank in range(2):
        assert events(ranks, rank, "rejected") == events(ranks, rank, "failed") == []


def fails(rank: int) -> object:
    dist.barrier()
    if rank == 1:
        return [] + torch.zeros(2) @ torch.zeros(3)
    return None


def test_the_exception_that_ends_a_rank_is_written_with_the_users_line(ranks: Any) -> None:
    ended = ranks.run(fails)
    assert [rank.exit_code for rank in ended] == [0, 1]
    [raised] = events(ranks, 1, "exception")
    assert raised["type"] == "RuntimeError"
    assert raised["source"][:3] == [__file__, line_of(fails, "@ torch"), "fails"]
    assert raised["api"] is None
    assert "Traceback" in ended[1].output
    assert events(ranks, 0, "exception") == []
    assert len(events(ranks, 0, "exit")) == 1


def test_the_function_whose_check_ended_the_rank_is_named(ranks: Any) -> None:
    def program(rank: int) -> object:
        return dist.broadcast("no tensor", 0)

    assert [rank.exit_code for rank in ranks.run(program)] == [1, 1]
    [raised] = events(ranks, 0, "exception")
    assert (raised["type"], raised["api"]) == ("TypeError", "broadcast")


def test_a_failure_inside_a_call_is_not_its_check(ranks: Any) -> None:
    class Refuses:
        def __reduce__(self) -> Any:
            raise ValueError("not to be pickled")

    def program(rank: int) -> object:
        return dist.all_gather_object([None], Refuses())

    assert [rank.exit_code for rank in ranks.run(program, 1)] == [1]
    [raised] = events(ranks, 0, "exception")
    assert (raised["type"], raised["api"]) == ("ValueError", None)
    assert raised["source"][2] == "__reduce__"


def test_an_exception_before_any_group_is_written_where_a_launcher_started_the_rank(ranks: Any) -> None:
    def program(rank: int) -> object:
        raise KeyError("config")

    assert [rank.exit_code for rank in ranks.run(program, backend=None)] == [1, 1]
    [raised] = events(ranks, 1, "exception")
    assert (raised["type"], raised["source"][1]) == ("KeyError", line_of(program, "raise"))


def test_a_hook_that_was_there_before_is_called(ranks: Any) -> None:
    def program(rank: int) -> object:
        import simcoll

        simcoll.disable()
        sys.excepthook = lambda kind, error, traceback: print("mine:", error)
        simcoll.enable("record", ranks.boxes)
        raise ValueError("as it was")

    [ended] = ranks.run(program, 1)
    assert "mine: as it was" in ended.output
    assert len(events(ranks, 0, "exception")) == 1


CHILDREN = """
import multiprocessing, sys
import torch.distributed as dist
from torch.multiprocessing.spawn import _wrap

def main(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    dist.barrier()
    if rank == 1:
        raise ValueError("bad data")
    dist.destroy_process_group()

context, (store, error) = multiprocessing.get_context("fork"), sys.argv[1:]
alone = [context.Process(target=main, args=(0, store)), context.Process(target=main, args=(1, store))]
caught = [context.Process(target=_wrap, args=(main, rank, (store,), f"{error}{rank}")) for rank in range(2)]
for child in caught if error else alone:
    child.start()
for child in caught if error else alone:
    child.join()
"""


@pytest.mark.parametrize("error", ["", "error"], ids=["multiprocessing", "torch's spawn"])
def test_an_exception_that_ends_a_process_started_by_the_program(error: str, tmp_path: Path) -> None:
    """The parent's class prints it, and the function of torch's ``spawn`` catches it and writes it to a file."""
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(CHILDREN)
    environment = {**os.environ, "SIMCOLL_MODE": "record", "SIMCOLL_OUT": str(out)}
    words = [sys.executable, str(script), str(tmp_path / "store"), error and str(tmp_path / error)]
    subprocess.run(words, env=environment, check=True, capture_output=True, timeout=60)
    raised: list[list[dict[str, Any]]] = [
        [event.data for event in read_black_box(out / f"rank0000{rank}.simcoll").events if event.kind == "exception"]
        for rank in range(2)
    ]
    assert raised[0] == []
    [found] = raised[1]
    assert (found["type"], found["message"], found["source"][2]) == ("ValueError", "bad data", "main")
