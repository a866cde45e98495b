"""The programs of ``programs``, unchanged, on ranks that are threads: each gives the finding that real ranks give."""

from __future__ import annotations

import importlib
import inspect
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from types import CodeType

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from simcoll.backends.engine.outcome import Outcome
from simcoll.backends.threaded.run import run_threaded
from simcoll.errors import ConfigurationError
from simcoll.verifier.findings.finding import Severity, Verdict
from tests.programs.test_programs import BUGS, CORRECT, Program, places

# Ranks that are processes of their own do not have pytest's filters.
pytestmark = pytest.mark.filterwarnings("default")

REAL_PROCESSES = "it ends, signals, forks or inspects its process, of which there is one here"
WALL_CLOCK = "a monitor ends it while a rank is busy, by the wall clock"
NOT_LIKE_GLOO = {
    "bugs/group_used_after_its_end.py": "the backend fails calls of a group that a member has destroyed, Gloo does not",
    "bugs/invalid_not_contiguous.py": "the backend takes tensors with gaps, which Gloo refuses",
}
LEFT_OUT = {
    "bugs/failed_exit_code.py": REAL_PROCESSES,
    "bugs/failed_signal.py": REAL_PROCESSES,
    "correct/data_loader_workers.py": REAL_PROCESSES,
    "correct/signals_and_timers.py": REAL_PROCESSES,
    "correct/subprocesses.py": REAL_PROCESSES,
    "correct/compiled_ddp.py": "what torch.compile makes is one a process, and so is its lock",
    "correct/compiled_functional.py": "what torch.compile makes is one a process, and so is its lock",
    "correct/profiler_on.py": "torch's profiler is one a process",
    "bugs/buffer_of_results_written.py": "how often a result that arrives counts as a write is known of Gloo alone",
    **{program.name: WALL_CLOCK for program in BUGS if program.stall is not None},
    **NOT_LIKE_GLOO,
}
"""Programs that do not run here, and why."""


def chosen(programs: list[Program]) -> list[Program]:
    return [program for program in programs if program.name not in LEFT_OUT]


def compiled(program: Program) -> CodeType:
    return compile(program.path.read_text(), str(program.path), "exec")


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs import what lies beside them."""
    monkeypatch.syspath_prepend(str(BUGS[0].path.parent))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("support"):
            del sys.modules[name]


def run(program: Program, *, init: bool) -> Outcome[dict[str, object]]:
    code = compiled(program)

    def body(rank: int) -> dict[str, object]:
        # What a program's variables hold, they hold to its end.
        names: dict[str, object] = {"__name__": "__main__", "__file__": str(program.path)}
        exec(code, names)
        return names

    return run_threaded(program.ranks, body, init=init)


@pytest.mark.slow
@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize("program", chosen(BUGS), ids=str)
def test_planted_bug_is_the_first_finding(program: Program) -> None:
    outcome = run(program, init=False)
    described = f"{outcome.findings}\n{outcome.exceptions}"
    assert outcome.findings, described
    first = outcome.findings[0]
    assert first.code == program.code, described
    assert first.culprits == program.culprits, described
    assert program.place is None or program.place in places(first), described
    codes = [finding.code for finding in outcome.findings if finding.severity is program.severity]
    assert codes == [program.code], described
    assert outcome.ok == (program.severity is not Severity.ERROR)


@pytest.mark.slow
@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize("program", chosen(CORRECT), ids=str)
def test_correct_program_is_silent(program: Program) -> None:
    outcome = run(program, init=False)
    assert outcome.findings == (), outcome.findings
    assert not outcome.exceptions
    assert outcome.report.verdict is Verdict.OK


def test_what_is_left_out_exists() -> None:
    assert set(LEFT_OUT) <= {program.name for program in (*BUGS, *CORRECT)}
    assert len(chosen(BUGS)) >= 110
    assert len(chosen(CORRECT)) >= 40


def test_default_group_is_there_when_it_is_asked_for() -> None:
    def body(rank: int) -> tuple[bool, int, list[float]]:
        value = torch.full((2,), float(rank))
        dist.all_reduce(value)
        return dist.is_initialized(), dist.get_world_size(), value.tolist()

    outcome = run_threaded(3, body)
    assert outcome.ok, outcome.exceptions
    assert outcome.results == dict.fromkeys(range(3), (True, 3, [3.0, 3.0]))
    assert not dist.is_initialized()


@pytest.mark.parametrize("made_before", [True, False])
def test_what_a_module_of_torch_takes_for_a_default_is_no_ranks_group(
    made_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "torch.distributed.nn.functional"

    def body(rank: int) -> list[float]:
        if made_before:
            dist.init_process_group("gloo")
        functional = importlib.import_module(name)
        assert inspect.signature(functional.all_reduce).parameters["group"].default is None
        total: torch.Tensor = functional.all_reduce(torch.full((2,), float(rank)))
        return total.tolist()

    for _ in range(2):
        monkeypatch.delitem(sys.modules, name, raising=False)
        outcome = run_threaded(3, body)
        assert outcome.ok, outcome.exceptions
        assert outcome.results == {rank: [3.0, 3.0] for rank in range(3)}


@pytest.mark.parametrize("backend", ["gloo", "nccl", None])
def test_init_process_group_names_the_group_that_is_there(backend: str | None) -> None:
    def body(rank: int) -> int:
        if not dist.is_initialized():
            raise AssertionError("the group is there")
        dist.init_process_group(backend)
        dist.barrier()
        dist.destroy_process_group()
        assert not dist.is_initialized()
        dist.init_process_group(backend, rank=rank, world_size=2)
        value = torch.ones(1)
        dist.all_reduce(value)
        return int(value.item())

    outcome = run_threaded(2, body)
    assert outcome.ok, (outcome.exceptions, outcome.findings)
    assert outcome.results == {0: 2, 1: 2}


def test_second_init_process_group_is_refused_as_torch_refuses_it() -> None:
    def body(rank: int) -> None:
        dist.init_process_group("gloo")
        with pytest.raises(ValueError, match="twice"):
            dist.init_process_group("gloo")

    assert not run_threaded(2, body).exceptions


def test_each_rank_has_its_own_environment() -> None:
    def body(rank: int) -> list[str | None]:
        os.environ["COLOUR"] = f"colour {rank}"
        dist.barrier()
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "COLOUR")
        return [os.environ.get(name) for name in names]

    before = dict(os.environ)
    outcome = run_threaded(2, body)
    assert outcome.results == {rank: [str(rank), str(rank), "2", f"colour {rank}"] for rank in range(2)}
    assert dict(os.environ) == before


def test_failing_rank_ends_the_others_with_its_exception_as_cause() -> None:
    def body(rank: int) -> None:
        if rank == 1:
            raise ZeroDivisionError("planted")
        dist.all_reduce(torch.ones(1))

    outcome = run_threaded(3, body)
    [finding] = outcome.findings
    assert (finding.code, finding.culprits) == ("SC701", (1,))
    assert all(outcome.exceptions[rank].__cause__ is outcome.exceptions[1] for rank in (0, 2))


def test_exit_with_zero_is_a_normal_end() -> None:
    def body(rank: int) -> None:
        dist.barrier()
        sys.exit(0)

    outcome = run_threaded(2, body)
    assert outcome.ok
    assert not outcome.exceptions


def test_exit_with_another_code_is_that_ranks_failure_alone() -> None:
    def body(rank: int) -> None:
        if rank == 1:
            sys.exit(3)
        dist.barrier()

    outcome = run_threaded(3, body)
    [finding] = outcome.findings
    assert (finding.code, finding.culprits) == ("SC701", (1,))
    assert [state.exit_code for state in outcome.report.ranks] == [-15, 3, -15]


def test_a_skip_is_every_ranks() -> None:
    def body(rank: int) -> None:
        if rank == 1:
            pytest.skip("not here")
        dist.barrier()

    errors = run_threaded(2, body).exceptions
    assert {type(error).__name__ for error in errors.values()} == {"Skipped"}
    assert set(errors) == {0, 1}


def test_same_run_twice() -> None:
    def body(rank: int) -> list[int]:
        got = []
        if rank == 0:
            for _ in range(3):
                value = torch.zeros(1)
                got.append(dist.recv(value))
        else:
            dist.send(torch.ones(1), 0)
        return got

    first, second = (run_threaded(4, body, seed=3) for _ in range(2))
    assert first.results == second.results
    assert first.schedule == second.schedule
    assert run_threaded(4, body, schedule=first.schedule).results == first.results


def test_no_thread_is_left() -> None:
    before = threading.active_count()

    def body(rank: int) -> None:
        thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(1)))
        thread.start()
        thread.join()

    outcome = run_threaded(3, body)
    assert outcome.ok, (outcome.exceptions, outcome.findings)
    assert threading.active_count() == before


def test_ranks_draw_the_same_numbers_from_the_same_seed() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(1).item())

    def body(rank: int) -> list[tuple[float, float, float]]:
        unseeded = draw()
        random.seed(7)
        np.random.seed(7)
        torch.manual_seed(7)
        drawn = []
        for _ in range(4):
            drawn.append(draw())
            dist.barrier()
        return [unseeded, *drawn]

    before = torch.get_rng_state()
    outcome = run_threaded(3, body)
    assert outcome.ok, outcome.exceptions
    assert outcome.results[0][1:] == outcome.results[1][1:] == outcome.results[2][1:]
    assert len({drawn[0][0] for drawn in outcome.results.values()}) == 3
    assert torch.equal(torch.get_rng_state(), before)
    assert run_threaded(3, body).results == outcome.results


def test_sleep_costs_no_time_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)

    def body(rank: int) -> None:
        time.sleep(20.0 * rank)
        dist.barrier()

    outcome = run_threaded(2, body)
    assert slept
    assert max(slept) <= 1.0
    assert outcome.seconds >= 20
    assert [finding.code for finding in outcome.findings] in ([], ["SC801"])


def test_one_run_at_a_time() -> None:
    def body(rank: int) -> None:
        run_threaded(2, body)

    outcome = run_threaded(1, body)
    assert isinstance(outcome.exceptions[0], ConfigurationError)


@pytest.mark.parametrize("seed", range(6))
def test_a_rank_may_join_its_thread_whatever_the_order(seed: int) -> None:
    def body(rank: int) -> None:
        dist.init_process_group("gloo")
        group = dist.new_group()
        thread = threading.Thread(target=lambda: [dist.barrier(group) for _ in range(4)])
        thread.start()
        dist.barrier()
        thread.join()
        dist.destroy_process_group()

    assert run_threaded(4, body, seed=seed, timeout=20.0).ok
