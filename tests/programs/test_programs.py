"""Small realistic programs, each run on real Gloo ranks under ``detail``: one planted bug each, or none at all.

Those of ``IN_THE_BACKGROUND`` run under ``check`` as well, where the ranks go on until they are told.

``programs/bugs``: the header ``# expect: SC104 culprits=2 ranks=4`` states the first finding, and ``# <- bug`` marks
the line that it must name (``file=`` where it stands in another file, ``line=none`` where no line of the program can be
named); ``stall=2`` runs it under the monitor with that ``--stall``, ``severity=warning`` is a finding that fails no
job. ``programs/correct``: everything here is legal, however unusual: no finding, no failure. The ranks of most are
forked from an interpreter that has torch already
(``programs/forkserver.py``); some run under the command itself.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from simcoll.blackbox.accounts import read_launch
from simcoll.blackbox.gather import files_of, gather
from simcoll.verifier.exit_code import exit_code
from simcoll.verifier.findings.finding import Finding, Severity, Verdict
from simcoll.verifier.postmortem import judge
from tests.support.forked import ForkServer, Pool, Result
from tests.support.stated import Stated, marked_line

pytestmark = [pytest.mark.slow, pytest.mark.gloo]

PROGRAMS = Path(__file__).parents[1] / "programs"
LIMIT_SECONDS = 60
UNDER_THE_COMMAND = (
    "bugs/reduce_op_nested_module.py",
    "bugs/op_in_ddp_hook.py",
    "bugs/failed_division.py",
    "correct/subprocesses.py",
)


@dataclass(frozen=True)
class Program:
    """One program and what its header says."""

    name: str
    header: str
    mode: str = "detail"
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join([self.name, *self.arguments, self.mode])

    @property
    def path(self) -> Path:
        return PROGRAMS / self.name

    @property
    def stated(self) -> Stated:
        return Stated(self.header)

    @property
    def ranks(self) -> int:
        [size] = self.stated.sizes
        return size

    @property
    def code(self) -> str:
        return self.stated.code

    @property
    def severity(self) -> Severity:
        return Severity(self.stated.value("severity") or "error")

    @property
    def culprits(self) -> tuple[int, ...]:
        return self.stated.culprits

    @property
    def place(self) -> tuple[str, int] | None:
        """The file and line that the finding must name."""
        if self.stated.value("line") == "none":
            return None
        path = self.path.parent / (self.stated.value("file") or self.path.name)
        return str(path), marked_line(path)

    @property
    def stall(self) -> float | None:
        """After how long without progress the monitor ends it."""
        return float(seconds) if (seconds := self.stated.value("stall")) else None


def programs(folder: str) -> list[Program]:
    paths = sorted((PROGRAMS / folder).glob("*.py"))
    return [Program(f"{folder}/{path.name}", path.read_text().splitlines()[0]) for path in paths]


BUGS = programs("bugs")
CORRECT = programs("correct")
IN_THE_BACKGROUND = (
    "bugs/hang_came_too_late.py",
    "bugs/invalid_splits_sum.py",
    "bugs/op_in_finally.py",
    "bugs/op_swapped_pair.py",
    "bugs/p2p_dtype_half.py",
    "bugs/p2p_dtype_wider.py",
    "bugs/p2p_size_any_source_aborts.py",
    "bugs/p2p_size_from_any_source.py",
    "bugs/p2p_size_too_large.py",
    "bugs/p2p_tag_mismatch.py",
    "bugs/reduce_op_after_many.py",
    "bugs/root_own_rank.py",
    "bugs/size_in_thread.py",
    "bugs/splits_moe_dispatch.py",
    "correct/any_source_receive.py",
    "correct/compiled_ddp.py",
    "correct/data_loader_workers.py",
    "correct/ddp_join_uneven_inputs.py",
    "correct/destroy_and_again.py",
    "correct/elastic_exit_in_turn.py",
    "correct/every_rank_handles_exception.py",
    "correct/exchange_before_send_completes.py",
    "correct/fsdp2_training.py",
    "correct/many_small_steps.py",
    "correct/messages_of_all_kinds.py",
    "correct/monitored_barriers.py",
    "correct/opposite_orders_async.py",
    "correct/pipeline.py",
    "correct/receives_given_up.py",
    "correct/ring_of_messages.py",
    "correct/slow_rank.py",
    "correct/threads_on_own_groups.py",
    "correct/timeout_handled.py",
)


def in_modes(found: list[Program]) -> list[Program]:
    """All of them under ``detail``, the chosen ones under ``check`` too."""
    return found + [replace(program, mode="check") for program in found if program.name in IN_THE_BACKGROUND]


class Runs:
    """Every selected program, two at a time: ranks wait for each other more than they compute."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = Pool(2)
        self._futures: dict[Program, Future[Result]] = {}

    def start(self, program: Program) -> None:
        if program not in self._futures:
            self._futures[program] = self._pool.submit(lambda server: self._run(server, program))

    def result(self, program: Program) -> Result:
        return self._futures[program].result()

    def _run(self, server: ForkServer, program: Program) -> Result:
        out = self._folder / str(program).replace("/", "-")
        out.mkdir()
        options = {"stall": program.stall, "mode": program.mode, "arguments": program.arguments}
        return server.run(program.path, out, ranks=program.ranks, **options)

    def close(self) -> None:
        self._pool.close()


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    started = Runs(tmp_path_factory.mktemp("programs"))
    for item in request.session.items:
        if "runs" in getattr(item, "fixturenames", ()) and item.module is request.module:
            started.start(item.callspec.params["program"])
    yield started
    started.close()


def check_found(program: Program, result: Result) -> None:
    """The first finding is the planted bug, with its culprits and its line."""
    report = result.report
    assert report.findings, f"nothing was found\n{result.output}"
    first = report.findings[0]
    described = f"{first}\n{result.output}"
    assert first.code == program.code, described
    assert first.culprits == program.culprits, described
    if program.place is not None:
        assert program.place in places(first), described
    # A busy machine makes stragglers of its own.
    codes = [finding.code for finding in report.findings if finding.code != "SC801"]
    assert (codes, first.severity) == ([program.code], program.severity), f"one cause, one finding: {report.findings}"
    assert exit_code(report) == (3 if program.severity is Severity.ERROR else 0)


def places(finding: Finding) -> set[tuple[str, int]]:
    """The lines that the culprits' sides name; all sides' where nobody is in the minority."""
    culprits = set(finding.culprits)
    sides = [side for side in finding.sides if not culprits or culprits & set(side.ranks)]
    if all(side.call is None for side in sides):
        # A rank that did not come made no call: the line is where the others wait for it.
        sides = list(finding.sides)
    return {(source.source.file, source.source.line) for side in sides for source in side.sources}


def check_silent(result: Result) -> None:
    """No finding, no failure."""
    assert not any(result.exit_codes), result.output
    assert result.report.findings == (), result.report.findings
    assert result.report.verdict is Verdict.OK
    assert result.report.agreed > 0 or 0 in result.report.last
    assert "simcoll" not in result.output, result.output


@pytest.mark.parametrize("program", in_modes(BUGS), ids=str)
def test_planted_bug_is_the_first_finding(program: Program, runs: Runs) -> None:
    check_found(program, runs.result(program))


@pytest.mark.parametrize("program", in_modes(CORRECT), ids=str)
def test_correct_program_is_silent(program: Program, runs: Runs) -> None:
    check_silent(runs.result(program))


@pytest.mark.parametrize("name", UNDER_THE_COMMAND)
def test_the_command_says_the_same(name: str, tmp_path: Path) -> None:
    [program] = [program for program in (*BUGS, *CORRECT) if program.name == name]
    out = tmp_path / "out"
    command = [sys.executable, "-m", "simcoll", "run", "--mode", "detail", "--out", str(out), "--standalone"]
    arguments = [f"--nproc-per-node={program.ranks}", str(program.path)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=False)
    evidence = gather(files_of(out), [read_launch(out / "launch.json")])
    result = Result([done.returncode], judge(evidence.traces, evidence.outcome), done.stderr)
    if name.startswith("bugs/"):
        check_found(program, result)
        assert done.returncode == 3
    else:
        check_silent(result)


def test_there_are_enough_programs() -> None:
    assert len(BUGS) >= 40
    assert len(CORRECT) >= 30
