"""``simcoll.testing``: what is given back, what is raised, what is left behind."""

from __future__ import annotations

import _thread
import contextlib
import functools
import os
import signal
import sys
import threading
import time
import traceback
import unittest
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simcoll.errors import CollectiveMismatchError, ConfigurationError
from simcoll.testing import FindingsError, run_ranks, try_ranks
from simcoll.topology.graph import flat

THREADED = pytest.param("threaded", marks=pytest.mark.slow)
GLOO = pytest.param("gloo", marks=[pytest.mark.slow, pytest.mark.gloo])
EVERYWHERE = pytest.mark.parametrize("backend", ["simulated", THREADED, GLOO])
WITH_TORCH = pytest.mark.parametrize("backend", [THREADED, GLOO])


class OwnError(Exception):
    """A user's exception whose constructor takes something else than its text."""

    def __init__(self, rank: int, *, reason: str) -> None:
        super().__init__(f"{rank}: {reason}")


@pytest.fixture(autouse=True)
def _needs_torch(request: pytest.FixtureRequest) -> None:
    if getattr(request.node, "callspec", None) is not None and request.node.callspec.params.get("backend") in (
        "threaded",
        "gloo",
    ):
        pytest.importorskip("torch")


class Side:
    """One rank's side of a program that is the same on every backend."""

    def __init__(self, given: Any) -> None:
        self._comm = None if isinstance(given, int) else given
        self.rank: int = given if isinstance(given, int) else given.rank

    def sum(self, value: float, op: str = "sum") -> float:
        if self._comm is not None:
            array = np.array([value])
            self._comm.all_reduce(array, op=op)
            return float(array[0])
        import torch
        import torch.distributed as dist

        tensor = torch.tensor([value])
        dist.all_reduce(tensor, op={"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}[op])
        return float(tensor)

    def barrier(self) -> None:
        self.sum(0)

    def receive(self, source: int) -> None:
        if self._comm is not None:
            self._comm.recv(np.zeros(1), source)
        else:
            import torch
            import torch.distributed as dist

            dist.recv(torch.zeros(1), source)


@EVERYWHERE
def test_results_come_in_rank_order(backend: str) -> None:
    offset = 10.0  # a closure

    def program(given: Any) -> tuple[int, float]:
        side = Side(given)
        return side.rank, side.sum(offset + side.rank)

    assert run_ranks(3, program, backend=backend) == [(0, 33.0), (1, 33.0), (2, 33.0)]


def test_a_function_with_an_argument_is_simulated_by_default() -> None:
    assert run_ranks(2, lambda comm: (comm.Get_rank(), comm.Get_size())) == [(0, 2), (1, 2)]


@pytest.mark.slow
def test_a_function_without_one_runs_on_torch_by_default() -> None:
    dist = pytest.importorskip("torch.distributed")
    assert run_ranks(2, lambda: (dist.get_rank(), dist.get_world_size())) == [(0, 2), (1, 2)]


@WITH_TORCH
def test_torch_ranks_may_take_their_rank(backend: str) -> None:
    assert run_ranks(2, lambda rank: rank * 2, backend=backend) == [0, 2]


def test_other_arguments_are_bound() -> None:
    assert run_ranks(2, functools.partial(lambda factor, comm: factor * comm.rank, 3)) == [0, 3]
    assert run_ranks(2, functools.partial(lambda comm, factor: factor * comm.rank, factor=3)) == [0, 3]


@EVERYWHERE
def test_the_first_failure_is_raised_as_it_is(backend: str) -> None:
    def program(given: Any) -> None:
        side = Side(given)
        side.barrier()
        assert side.rank != 1, "one is wrong"
        side.barrier()

    with pytest.raises(AssertionError, match="one is wrong") as caught:
        run_ranks(3, program, backend=backend)
    assert type(caught.value) is AssertionError
    # pytest shows where it was raised: the traceback ends in the program, and knows nothing of how it was called.
    steps = traceback.extract_tb(caught.value.__traceback__)
    assert steps[-1].name == "program"
    assert steps[-1].filename == __file__
    assert [step.filename for step in steps[1:-1] if "simcoll" in step.filename and "tests" not in step.filename] in (
        [],
        [sys.modules["simcoll.testing.run"].__file__],
    )
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__ == ["rank 1 of 3"]


@EVERYWHERE
def test_an_exception_of_the_users_own_arrives(backend: str) -> None:
    def program(given: Any) -> None:
        raise OwnError(Side(given).rank, reason="no")

    expected = RuntimeError if backend == "gloo" else OwnError  # one that cannot be unpickled arrives as its text
    with pytest.raises(expected, match="0: no"):
        run_ranks(2, program, backend=backend)


@EVERYWHERE
def test_ranks_that_disagree_fail_with_the_report(backend: str) -> None:
    def program(given: Any) -> None:
        side = Side(given)
        side.sum(1, op="max" if side.rank == 2 else "sum")

    with pytest.raises(FindingsError) as caught:
        run_ranks(4, program, backend=backend)
    assert [(finding.code, finding.culprits) for finding in caught.value.findings] == [("SC104", (2,))]
    assert caught.value.report is caught.value.outcome.report
    text = str(caught.value)
    assert text.startswith("simcoll: 1 error")
    assert "SC104 reduce-op-mismatch" in text
    assert "test_testing.py" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100


@EVERYWHERE
def test_a_deadlock_fails_at_once_with_the_cycle(backend: str) -> None:
    def program(given: Any) -> None:
        side = Side(given)
        side.receive(1 - side.rank)

    with pytest.raises(FindingsError, match="none of them can go on"):
        run_ranks(2, program, backend=backend)


@EVERYWHERE
def test_a_rank_that_ends_early_is_named(backend: str) -> None:
    def program(given: Any) -> None:
        side = Side(given)
        if side.rank:
            side.barrier()

    with pytest.raises(FindingsError) as caught:
        run_ranks(3, program, backend=backend)
    assert [(finding.code, finding.culprits) for finding in caught.value.findings] == [("SC702", (0,))]


def _unittest_skip() -> None:
    raise unittest.SkipTest("not here")


@EVERYWHERE
@pytest.mark.parametrize("skip", [_unittest_skip, lambda: pytest.skip("not here")])
def test_a_skip_passes_through(backend: str, skip: Callable[[], None]) -> None:
    def program(given: Any) -> None:
        side = Side(given)
        if side.rank == 1:
            skip()
        side.barrier()

    with pytest.raises((unittest.SkipTest, pytest.skip.Exception), match="not here"):
        run_ranks(3, program, backend=backend)


@EVERYWHERE
def test_an_exit_that_says_that_all_is_well_is_an_end_like_any_other(backend: str) -> None:
    def program(given: Any) -> None:
        Side(given).barrier()
        sys.exit(0)

    assert run_ranks(2, program, backend=backend) == [None, None]


@EVERYWHERE
def test_an_exit_code_is_a_failure(backend: str) -> None:
    def program(given: Any) -> None:
        side = Side(given)
        if side.rank == 1:
            sys.exit(3)
        side.barrier()

    outcome = try_ranks(3, program, backend=backend)
    assert [finding.code for finding in outcome.findings] == ["SC701"]
    assert outcome.findings[0].ranks == (1,)
    assert "exited with code 3" in outcome.findings[0].message
    with pytest.raises(SystemExit):
        run_ranks(3, program, backend=backend)


@EVERYWHERE
def test_a_rank_that_computes_for_ever_is_ended(backend: str) -> None:
    def program(given: Any) -> None:
        side = Side(given)
        while side.rank == 1:
            time.sleep(0.01)
        side.barrier()

    with pytest.raises(TimeoutError, match=r"0\.5 s"):
        run_ranks(2, program, backend=backend, timeout=0.5)


def test_the_timeout_says_where_the_rank_is() -> None:
    def program(comm: Any) -> None:
        while comm.rank == 1:
            time.sleep(0.01)

    with pytest.raises(TimeoutError, match=r"rank 1 is at .*test_testing\.py:\d+ in program"):
        run_ranks(2, program, timeout=0.1)


def test_warnings_fail_too_but_where_they_are_not_to() -> None:
    def program(comm: Any) -> Any:
        array = np.ones(2)
        comm.all_reduce(array, async_op=True)
        return array

    assert [finding.code for finding in try_ranks(2, program).findings] == ["SC501"]
    assert len(run_ranks(2, program, fail_on="error")) == 2
    with pytest.raises(FindingsError, match="SC501"):
        run_ranks(2, program)


def test_what_a_program_handles_is_its_own_business() -> None:
    def program(comm: Any) -> str:
        with pytest.raises(CollectiveMismatchError):
            comm.all_reduce(np.zeros(comm.rank + 1))
        return "handled"

    assert try_ranks(2, program).results == {0: "handled", 1: "handled"}


def receives_in_the_order_of_ranks(given: Any) -> None:
    """Right in the default order only."""
    if isinstance(given, int):
        import torch
        import torch.distributed as dist

        if given:
            dist.send(torch.full((1,), given), 0)
        else:
            assert [dist.recv(torch.zeros(1, dtype=torch.int64)) for _ in range(2)] == [1, 2]
    elif given.rank:
        given.send(np.zeros(1), 0)
    else:
        assert [given.recv(np.zeros(1)) for _ in range(2)] == [1, 2]


@pytest.mark.parametrize("backend", ["simulated", THREADED])
def test_exploring_finds_an_order_that_fails_and_its_schedule_replays_it(backend: str) -> None:
    run_ranks(3, receives_in_the_order_of_ranks, backend=backend)
    found = try_ranks(3, receives_in_the_order_of_ranks, backend=backend, explore=30)
    assert not found.ok
    assert found.schedule
    again = try_ranks(3, receives_in_the_order_of_ranks, backend=backend, schedule=found.schedule)
    assert {rank: type(error) for rank, error in again.exceptions.items()} == {
        rank: type(error) for rank, error in found.exceptions.items()
    }
    with pytest.raises(AssertionError):
        run_ranks(3, receives_in_the_order_of_ranks, backend=backend, schedule=found.schedule)


def test_exploring_a_right_program_gives_its_results() -> None:
    assert run_ranks(2, lambda comm: comm.all_gather_object(comm.rank), explore=5) == [[0, 1], [0, 1]]


def test_a_seed_gives_the_same_order_again() -> None:
    def program(comm: Any) -> list[int]:
        if comm.rank == 0:
            return [comm.recv(np.zeros(1)) for _ in range(7)]
        comm.send(np.zeros(1), 0)
        return []

    orders = [run_ranks(8, program, seed=seed)[0] for seed in (0, 1, 2, 1)]
    assert orders[1] == orders[3]
    assert len({tuple(order) for order in orders}) > 1


def test_a_topology_gives_virtual_time() -> None:
    outcome = try_ranks(2, lambda comm: comm.barrier(), topology=flat(ranks=2, bandwidth=1e9, latency=1.0))
    assert outcome.seconds >= 1.0


def test_buffered_sends_are_asked_for() -> None:
    def program(comm: Any) -> None:
        comm.send(np.zeros(1), 1 - comm.rank)
        comm.recv(np.zeros(1), 1 - comm.rank)

    run_ranks(2, program, sends="buffered")
    with pytest.raises(FindingsError, match="SC204"):
        run_ranks(2, program)


async def _coroutine(comm: Any) -> None: ...


def _generator(comm: Any) -> Any:
    yield comm


@pytest.mark.parametrize(
    ("world_size", "fn", "options", "message"),
    [
        (0, lambda comm: None, {}, "world_size=0"),
        (2.0, lambda comm: None, {}, r"world_size=2\.0"),
        (True, lambda comm: None, {}, "world_size=True"),
        (2, 5, {}, "5 is a int"),
        (2, lambda a, b: None, {}, "needs a, b"),
        (2, lambda *, a: None, {}, "needs a"),
        (2, _coroutine, {}, "coroutine"),
        (2, _generator, {}, "generator"),
        (2, lambda comm: None, {"backend": "nccl"}, "backend='nccl'.*'simulated', 'threaded', 'gloo'"),
        (2, lambda comm: None, {"seed": "x"}, "seed='x'"),
        (2, lambda comm: None, {"explore": 0}, "explore=0"),
        (2, lambda comm: None, {"timeout": 0}, "timeout=0"),
        (2, lambda comm: None, {"timeout": float("nan")}, "timeout=nan"),
        (2, lambda comm: None, {"schedule": "soon"}, "schedule 'soon'"),
        (2, lambda comm: None, {"schedule": "1:1", "explore": 3}, "both given"),
        (2, lambda comm: None, {"sends": "slowly"}, "sends is 'slowly'"),
        (2, lambda comm: None, {"fail_on": "info"}, "fail_on='info'"),
        (2, lambda comm: None, {"backend": "gloo", "explore": 3}, "explore is for"),
        (2, lambda comm: None, {"backend": "threaded", "sends": "either"}, "sends is for"),
    ],
)
def test_what_cannot_be_is_refused(world_size: Any, fn: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run_ranks(world_size, fn, **options)


@pytest.mark.slow
@pytest.mark.gloo
class TestRealProcesses:
    """What only ranks that are processes do."""

    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        pytest.importorskip("torch")

    def test_a_killed_rank_is_named_with_its_signal(self) -> None:
        def program(rank: int) -> None:
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            Side(rank).barrier()

        outcome = try_ranks(2, program, backend="gloo")
        assert [(finding.code, finding.ranks) for finding in outcome.findings] == [("SC701", (1,))]
        with pytest.raises(ChildProcessError, match="rank 1 ended with SIGKILL"):
            run_ranks(2, program, backend="gloo")

    def test_a_backward_pass_that_torch_refuses_after_a_fork_says_what_to_do(self) -> None:
        def program(rank: int) -> None:
            raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing.")

        with pytest.raises(RuntimeError, match=r"(?s)fork-based.*run the test in a process of its own") as raised:
            run_ranks(2, program, backend="gloo")
        assert raised.traceback[-1].name == "program"

    def test_a_result_that_cannot_travel_is_named(self) -> None:
        with pytest.raises(TypeError, match="rank 0 returned a function, which cannot be sent"):
            run_ranks(1, lambda rank: lambda: None, backend="gloo")

    def test_large_results_travel(self) -> None:
        assert [len(one) for one in run_ranks(2, lambda rank: b"x" * 3_000_000, backend="gloo")] == [3_000_000] * 2

    def test_tensors_travel(self) -> None:
        import torch

        assert [one.tolist() for one in run_ranks(2, lambda rank: torch.full((2,), rank), backend="gloo")] == [
            [0, 0],
            [1, 1],
        ]

    def test_what_ranks_print_is_seen(self, capfd: pytest.CaptureFixture[str]) -> None:
        # In one piece: what two ranks print may mix.
        run_ranks(2, lambda rank: os.write(1, b"I am %d\n" % rank), backend="gloo")
        assert sorted(capfd.readouterr().out.splitlines()) == ["I am 0", "I am 1"]

    def test_a_rank_that_computes_longer_than_others_wait_is_left_alone(self) -> None:
        def program(rank: int) -> float:
            if rank == 0:
                time.sleep(3.5)  # longer than a job may stand still of which it is proved that it cannot go on
            return Side(rank).sum(rank)

        assert run_ranks(2, program, backend="gloo") == [1.0, 1.0]

    def test_backward_runs_in_ranks_of_a_process_that_has_run_it(self) -> None:
        import torch

        def program(rank: int) -> list[float]:
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
            model(torch.full((1, 2), float(rank))).sum().backward()
            return [float(value) for value in model.module.weight.grad.flatten()]

        torch.ones(1, requires_grad=True).sum().backward()
        assert run_ranks(2, program, backend="gloo") == [[0.5, 0.5]] * 2


def _passes(given: Any) -> None:
    Side(given).barrier()


def _fails(given: Any) -> None:
    side = Side(given)
    assert side.rank
    side.barrier()


def _disagrees(given: Any) -> None:
    side = Side(given)
    side.sum(1, op="max" if side.rank else "sum")


def _is_stuck(given: Any) -> None:
    side = Side(given)
    if side.rank:
        side.barrier()


def _changes_what_it_finds(given: Any) -> None:
    """What ranks change of their environment is their own where they are processes, or threads with torch."""
    if isinstance(given, int):
        os.environ["SIMCOLL_TEST_RANK"] = str(given)


def _state() -> dict[str, object]:
    """What a run may have changed of the process."""
    found: dict[str, object] = {
        "threads": {thread.name for thread in threading.enumerate()},
        "cwd": os.getcwd(),
        "environment": dict(os.environ),
        "hooks": (sys.excepthook, threading.excepthook, sys.stdout, sys.stderr, sys.path[:]),
        "filters": warnings.filters[:],
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
        "thread": (_thread.start_new_thread, threading.Thread.start, time.sleep, os.environ.__class__),
    }
    if "torch" in sys.modules:
        import torch
        import torch.distributed as dist

        found["torch"] = (dist.init_process_group, dist.ProcessGroup, dist.is_initialized(), torch.get_num_threads())
        found["c10d"] = dict(vars(dist.distributed_c10d))
    return found


@EVERYWHERE
@pytest.mark.parametrize("program", [_passes, _fails, _disagrees, _is_stuck, _changes_what_it_finds])
def test_nothing_is_left_behind(backend: str, program: Callable[[Any], None]) -> None:
    run_ranks(2, _passes, backend=backend)  # what is imported stays
    before, children = _state(), _children()
    try_ranks(2, program, backend=backend)
    after = _state()
    assert after.keys() == before.keys()
    for name in before:
        assert after[name] == before[name], name
    assert _children() <= children


def _children() -> set[int]:
    """The processes that this one has started, ended ones that nobody has waited for included."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            head, _, rest = path.read_text().rpartition(")")
            if int(rest.split()[1]) == os.getpid():
                found.add(int(head.split()[0]))
    return found


def test_an_interrupt_ends_the_ranks() -> None:
    threads = threading.active_count()

    def program(comm: Any) -> None:
        if comm.rank == 0:
            time.sleep(0.2)  # a lock that is about to be waited for would not notice it
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            while True:
                time.sleep(0.01)
        comm.barrier()

    with pytest.raises(KeyboardInterrupt):
        run_ranks(3, program)
    assert threading.active_count() == threads


def test_runs_beside_each_other_and_within_each_other_do_not_meet() -> None:
    def inner(comm: Any) -> int:
        values: list[list[int]] = run_ranks(2, lambda below: below.all_gather_object(below.rank + 10 * comm.rank))
        return values[0][1]

    found: dict[int, list[int]] = {}

    def outer(number: int) -> None:
        found[number] = run_ranks(3, inner)

    threads = [threading.Thread(target=outer, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [1, 11, 21] for number in range(4)}


def test_a_thread_that_a_rank_has_started_may_call_for_it() -> None:
    def program(comm: Any) -> float:
        array = np.ones(1)
        thread = threading.Thread(target=comm.all_reduce, args=(array,))
        thread.start()
        thread.join()
        return float(array[0])

    assert run_ranks(3, program) == [3.0, 3.0, 3.0]


def test_warnings_as_errors_are_the_ranks_own() -> None:
    def program(comm: Any) -> None:
        if comm.rank == 1:
            warnings.warn("deprecated", DeprecationWarning, stacklevel=1)
        comm.barrier()

    with pytest.raises(DeprecationWarning):
        run_ranks(2, program)
