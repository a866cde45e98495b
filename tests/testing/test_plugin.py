"""The pytest plugin, as users meet it: each test writes a test file and runs pytest on it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import simcoll.testing  # noqa: F401  # what pytest imports within a test is forgotten after it, which numpy does not survive

pytest_plugins = "pytester"

HEAD = "import unittest\nimport numpy as np\nimport pytest\n"


@pytest.fixture
def run(pytester: pytest.Pytester):
    """Runs pytest on a test file of the given text, in this process or in one of its own."""

    def run_file(text: str, *options: str, apart: bool = False) -> pytest.RunResult:
        pytester.makepyfile(HEAD + text)
        options = "--strict-markers", "-p", "no:cacheprovider", *options
        return pytester.runpytest_subprocess(*options, timeout=120) if apart else pytester.runpytest_inprocess(*options)

    return run_file


def test_a_marked_test_runs_on_every_rank(run) -> None:
    run(
        """
@pytest.fixture
def base(tmp_path):
    return 10

@pytest.mark.simcoll(world_size=3)
def test_sum(comm, rank, world_size, base, tmp_path):
    array = np.full(2, base + rank)
    comm.all_reduce(array)
    assert (comm.rank, comm.size, array[0]) == (rank, world_size, 33)
    (tmp_path / str(rank)).touch()

@pytest.fixture(autouse=True)
def every_rank_was_there(tmp_path):
    yield
    assert len(list(tmp_path.iterdir())) == 3
"""
    ).assert_outcomes(passed=1)


def test_lists_parametrise_the_test(run) -> None:
    result = run(
        """
@pytest.mark.simcoll(world_size=[2, 4], seeds=range(2))
@pytest.mark.parametrize("value", ["a"])
def test_it(comm, world_size, value):
    assert comm.size == world_size

@pytest.mark.simcoll(world_size=2, backend=("simulated",))
def test_backend(rank):
    pass

@pytest.mark.simcoll
@pytest.mark.parametrize("world_size", [2, 3])
def test_own(comm, world_size):
    assert comm.size == world_size
""",
        "-v",
    )
    result.assert_outcomes(passed=7)
    names = set(re.findall(r"::(test_\S+)", result.stdout.str()))
    assert names == {
        *(f"test_it[a-world_size={size}-seed={seed}]" for size in (2, 4) for seed in (0, 1)),
        "test_backend[simulated]",
        "test_own[2]",
        "test_own[3]",
    }


def test_markers_of_classes_and_modules_are_joined(run) -> None:
    run(
        """
pytestmark = pytest.mark.simcoll(backend="simulated")

@pytest.mark.simcoll(world_size=2)
class TestIt:
    def setup_method(self):
        self.size = 2

    def test_inherited(self, comm):
        assert comm.size == self.size

    @pytest.mark.simcoll(world_size=3)
    def test_own(self, comm):
        assert comm.size == 3
"""
    ).assert_outcomes(passed=2)


def test_a_failing_assertion_is_shown_as_ever_with_its_rank_and_the_report(run) -> None:
    result = run(
        """
@pytest.mark.simcoll(world_size=3)
def test_it(comm):
    value = comm.rank * 2
    assert value != 4
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["comm = <ObjectComm of rank 2 of 3, group 0>", ">       assert value != 4", "E       assert 4 != 4"]
    )
    result.stdout.fnmatch_lines(
        ["*- simcoll findings -*", "simcoll: 1 error*", "*SC701*", "3 ranks, backend simulated, seed 0"]
    )
    if sys.version_info >= (3, 11):
        result.stdout.fnmatch_lines(["E       rank 2 of 3"])
    # Nothing of how simcoll came to call it.
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")
    result.stdout.no_fnmatch_line("*simulated.py*")
    result.stdout.no_fnmatch_line("*\x1b*")


def test_ranks_that_disagree_fail_at_the_line_of_the_culprit(run) -> None:
    result = run(
        """
@pytest.mark.simcoll(world_size=3)
def test_it(comm):
    array = np.ones(1)
    if comm.rank == 1:
        comm.all_reduce(array, op="max")
    else:
        comm.all_reduce(array)
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ['>           comm.all_reduce(array, op="max")', "E           simcoll.testing.FindingsError: SC104*"]
    )
    result.stdout.fnmatch_lines(["*- simcoll findings -*", "*culprits: rank 1*"])


def test_a_deadlock_is_reported_and_does_not_hang(run) -> None:
    result = run(
        """
@pytest.mark.simcoll(world_size=2)
def test_it(comm):
    comm.recv(np.zeros(1), 1 - comm.rank)
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [">       comm.recv(*", "*FindingsError: SC204 deadlock-cycle*", "*- simcoll findings -*"]
    )


ORDER = """
@pytest.mark.simcoll(world_size=3, {})
def test_order(comm):
    if comm.rank:
        comm.send(np.zeros(1), 0)
    else:
        assert [comm.recv(np.zeros(1)) for _ in range(2)] == [1, 2]
"""


def test_exploring_says_how_to_replay_what_it_found(run) -> None:
    result = run(ORDER.format("explore=40"))
    result.assert_outcomes(failed=1)
    schedule = re.search(r"replay it with schedule='([0-9:,]+)' in place of explore=40", result.stdout.str())
    assert schedule is not None
    run(ORDER.format(f"schedule={schedule[1]!r}")).assert_outcomes(failed=1)
    run(ORDER.format("schedule=''")).assert_outcomes(passed=1)


def test_the_seed_of_the_command_line_is_for_tests_that_state_none(run) -> None:
    failing = next(str(seed) for seed in range(1, 20) if _fails_with(seed))
    run(ORDER.format(""), "--simcoll-seed", failing).assert_outcomes(failed=1)
    run(ORDER.format("seed=0"), "--simcoll-seed", failing).assert_outcomes(passed=1)
    result = run(ORDER.format(""), "--simcoll-seed", failing)
    result.stdout.fnmatch_lines([f"3 ranks, backend simulated, seed {failing}; the same with schedule=*"])


def _fails_with(seed: int) -> bool:
    import numpy as np

    from simcoll.testing import try_ranks

    def program(comm) -> None:
        if comm.rank:
            comm.send(np.zeros(1), 0)
        else:
            assert [comm.recv(np.zeros(1)) for _ in range(2)] == [1, 2]

    return not try_ranks(3, program, seed=seed).ok


def test_the_fixture_runs_functions_and_fails_on_findings(run) -> None:
    result = run(
        """
def test_right(simcoll_ranks):
    assert simcoll_ranks(3, lambda comm: comm.rank) == [0, 1, 2]

def test_wrong(simcoll_ranks):
    def program(comm):
        if comm.rank:
            comm.barrier()
    simcoll_ranks(3, program)

def test_misspelt(simcoll_ranks):
    simcoll_ranks(3, lambda comm: None, seeed=3)
"""
    )
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        [">       simcoll_ranks(3, program)", ">           comm.barrier()", "*SC702 rank-exited-early*"]
    )
    result.stdout.fnmatch_lines(["*unknown option 'seeed'*did you mean 'seed'?"])


def test_skips_and_expected_failures_pass_through(run) -> None:
    run(
        """
@pytest.mark.simcoll(world_size=2)
def test_skip(comm):
    if comm.rank == 1:
        pytest.skip("not here")
    comm.barrier()

@pytest.mark.simcoll(world_size=2)
def test_unittest(comm):
    raise unittest.SkipTest("not here")

@pytest.mark.simcoll(world_size=2)
def test_expected(comm):
    pytest.xfail("known")

@pytest.mark.xfail(raises=ValueError, strict=True)
@pytest.mark.simcoll(world_size=2)
def test_marked(comm):
    raise ValueError
"""
    ).assert_outcomes(skipped=2, xfailed=2)


def test_warnings_fail_or_are_only_shown(run) -> None:
    text = """
@pytest.mark.simcoll(world_size=2{})
def test_it(comm, request):
    array = np.ones(2)
    comm.all_reduce(array, async_op=True)
    request.config.kept = array
"""
    result = run(text.format(", fail_on='error'"), "-rP")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*- simcoll findings -*", "*SC501*"])
    run(text.format("")).assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("", "expected on how many ranks"),
        ("world_size=0", "world_size=0: expected a whole number, at least 1"),
        ("world_size=[]", "world_size=[]: expected at least one value"),
        ("world_size=[2, 0]", "world_size=0"),
        ("world_size='2'", "world_size='2'"),
        ("2, backend='nccl'", "backend='nccl': expected one of 'simulated', 'threaded', 'gloo'"),
        ("2, ['simulated', 'mpi']", "backend='mpi'"),
        ("word_size=2", "unknown option 'word_size': *did you mean 'world_size'?"),
        ("2, world_size=2", "world_size is given twice"),
        ("2, 'gloo', 3", "3 values without names"),
        ("2, seeds=3", "seeds=3: expected a list"),
        ("2, seed=1, seeds=[1]", "seed and seeds are both given"),
        ("2, explore=0", "explore=0"),
        ("2, 'gloo', explore=3", "explore is for the backend 'simulated' and 'threaded', and this is 'gloo'"),
        ("2, schedule='x'", "schedule 'x'"),
        ("2, timeout=-1", "timeout=-1"),
    ],
)
def test_a_marker_that_makes_no_sense_is_an_error_of_collection(run, marker: str, message: str) -> None:
    result = run(f"@pytest.mark.simcoll({marker})\ndef test_named(comm): pass\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*::test_named: pytest.mark.simcoll: {message.replace('[', '[[]')}*"])


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("async def test_named(comm): pass", "it is async"),
        ("async def test_named(comm): yield", "it is async"),
        ("@hypothesis.given(hypothesis.strategies.integers())\ndef test_named(number): pass", "@given would draw"),
    ],
)
def test_what_ranks_cannot_run_is_refused(run, test: str, message: str) -> None:
    result = run(f"import hypothesis.strategies\n@pytest.mark.simcoll(2)\n{test}\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*::test_named: pytest.mark.simcoll: {message}*"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def test_it(rank): pass", "the fixture 'rank' is for tests marked with pytest.mark.simcoll"),
        ("def test_it(comm): pass", "the fixture 'comm' is for tests marked"),
        ("def test_it(world_size): pass", "the fixture 'world_size' is for tests marked"),
        ("@pytest.mark.simcoll(2, 'threaded')\ndef test_it(comm): pass", "'comm' is for the backend 'simulated'"),
        (
            "@pytest.fixture\ndef mine(rank): pass\n@pytest.mark.simcoll(2)\ndef test_it(mine): pass",
            "a fixture asks for 'rank': fixtures are set up once for all ranks",
        ),
        (
            "@pytest.mark.simcoll([2, 3])\nclass TestIt(unittest.TestCase):\n    def test_it(self): pass",
            "*TestIt::test_it: pytest.mark.simcoll: several values of world_size",
        ),
    ],
)
def test_a_fixture_out_of_place_says_so(run, text: str, message: str) -> None:
    result = run(text)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*{message}*"])


def test_fixtures_of_ones_own_with_such_names_win(run) -> None:
    run(
        """
@pytest.fixture
def rank():
    return "mine"

@pytest.mark.parametrize("comm", [1])
def test_unmarked(rank, comm):
    assert (rank, comm) == ("mine", 1)

@pytest.mark.simcoll(2, "simulated")
def test_marked(rank, world_size):
    assert (rank, world_size) == ("mine", 2)
"""
    ).assert_outcomes(passed=2)


def test_the_marker_and_the_option_are_listed(pytester: pytest.Pytester) -> None:
    pytester.runpytest_inprocess("--markers").stdout.fnmatch_lines(["@pytest.mark.simcoll(world_size, backend=None*"])
    pytester.runpytest_inprocess("--help").stdout.fnmatch_lines(["*--simcoll-seed=N*"])


UNITTEST = """
@pytest.mark.simcoll(2, {!r})
class TestIt(unittest.TestCase):
    def setUp(self):
        self.size = 2

    def test_right(self):
        import torch.distributed as dist
        self.assertEqual(dist.get_world_size(), self.size)

    def test_wrong(self):
        import torch.distributed as dist
        self.assertEqual(dist.get_rank(), 0)

    def test_skipped(self):
        self.skipTest("not here")
"""

WITH_TORCH = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
MODES = [pytest.param("threaded"), pytest.param("gloo", marks=pytest.mark.gloo)]


@WITH_TORCH
@pytest.mark.slow
@pytest.mark.parametrize("backend", MODES)
def test_methods_of_unittest_run_on_every_rank(run, backend: str) -> None:
    result = run(UNITTEST.format(backend), apart=True)
    result.assert_outcomes(passed=1, failed=1, skipped=1)
    result.stdout.fnmatch_lines([">       self.assertEqual(dist.get_rank(), 0)", "*AssertionError: 1 != 0*"])


@WITH_TORCH
@pytest.mark.slow
@pytest.mark.parametrize("backend", MODES)
def test_torch_programs_run_on_every_rank(run, backend: str) -> None:
    result = run(
        f"""
import torch
import torch.distributed as dist

@pytest.fixture
def base():
    return 10

@pytest.mark.simcoll(world_size=[1, 2], backend={backend!r})
def test_right(rank, world_size, base):
    tensor = torch.full((2,), rank + base)
    dist.all_reduce(tensor)
    assert tensor[0] == sum(range(world_size)) + base * world_size

@pytest.mark.simcoll(world_size=2, backend={backend!r})
def test_assert(rank, base):
    assert rank != 1, base

@pytest.mark.simcoll(world_size=3, backend={backend!r})
def test_disagree(rank):
    tensor = torch.ones(2)
    if rank == 1:
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    else:
        dist.all_reduce(tensor)

@pytest.mark.simcoll(world_size=2, backend={backend!r})
def test_skip(rank):
    pytest.skip("not here")
""",
        apart=True,
    )
    result.assert_outcomes(passed=2, failed=2, skipped=1)
    result.stdout.fnmatch_lines([">       assert rank != 1, base", "E       AssertionError: 10"])
    result.stdout.fnmatch_lines([">           dist.all_reduce(tensor, op=dist.ReduceOp.MAX)", "*FindingsError: SC104*"])
    result.stdout.fnmatch_lines(["*- simcoll findings -*"])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["prepend", pytest.param("append", marks=pytest.mark.nightly), "importlib"])
def test_it_works_with_xdist_and_every_import_mode(pytester: pytest.Pytester, mode: str) -> None:
    pytester.makepyfile(
        HEAD
        + """
@pytest.mark.simcoll(world_size=[2, 3, 4])
def test_right(comm, world_size):
    assert len(comm.all_gather_object(comm.rank)) == world_size

@pytest.mark.simcoll(world_size=2)
def test_wrong(comm):
    comm.all_reduce(np.ones(1 + comm.rank))
"""
    )
    result = pytester.runpytest_subprocess("-n", "2", f"--import-mode={mode}", "-p", "no:cacheprovider", timeout=120)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines([">       comm.all_reduce(*", "*FindingsError: SC102*", "*- simcoll findings -*"])


@pytest.mark.cold
def test_unused_it_imports_neither_numpy_nor_torch(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import sys\ndef test_it(): assert not {'numpy', 'torch', 'rich'} & set(sys.modules)\n")
    result = pytester.runpytest_subprocess("-p", "no:hypothesispytest", "-p", "no:cacheprovider", timeout=60)
    result.assert_outcomes(passed=1)


def test_the_report_has_the_width_and_the_colours_of_the_terminal(run, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "@pytest.mark.simcoll(2)\ndef test_it(comm): comm.all_reduce(np.ones(1 + comm.rank))\n"
    monkeypatch.setenv("COLUMNS", "120")
    lines = run(text).stdout.lines
    assert max(len(line) for line in lines if line.startswith("╭")) == 120
    assert "\x1b" not in "\n".join(lines)
    shown = run(text, "--color=yes").stdout.str().partition("simcoll findings")[2]
    assert "\x1b[31m" in shown


def test_nothing_is_left_behind(pytester: pytest.Pytester) -> None:
    """The state before and after tests that pass, fail, are stuck, and skip."""
    pytester.makepyfile(
        HEAD
        + """
import os, sys, threading

def state():
    return (
        threading.enumerate(), os.getcwd(), dict(os.environ), sys.excepthook, threading.excepthook, sys.stdout.name,
        sys.path[:],
    )

def test_before():
    pytest.before = state()

@pytest.mark.simcoll(2)
def test_right(comm): pass

@pytest.mark.simcoll(2)
def test_wrong(comm): assert comm.rank

@pytest.mark.simcoll(2)
def test_stuck(comm): comm.recv(np.zeros(1), 1 - comm.rank)

@pytest.mark.simcoll(2)
def test_skip(comm): pytest.skip("")

def test_after(request):
    before, after = pytest.before, state()
    before[2].pop("PYTEST_CURRENT_TEST"), after[2].pop("PYTEST_CURRENT_TEST")
    assert before == after
    for item in request.session.items:
        assert item.obj is getattr(item.module, item.name), item
"""
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=60).assert_outcomes(passed=3, failed=2, skipped=1)


def test_the_plugin_is_what_the_package_registers() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "--trace-config", "--version", "--version"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
        timeout=60,
    )
    assert "simcoll" in answer.stdout + answer.stderr
