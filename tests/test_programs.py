"""Small realistic programs, each run on real Gloo ranks under ``detail``: one planted bug each, or none at all.

``programs/bugs``: the header ``# expect: SC104 culprits=2 ranks=4`` states the first finding, and ``# <- bug`` marks
the line that it must name (``file=`` where it stands in another file, ``line=none`` where no line of the program can be
named), ``severity=warning`` a finding that fails no job. ``programs/correct``: everything here is legal, however
unusual: no finding, no failure. The ranks of most are forked from an interpreter that has torch already
(``programs/forkserver.py``); some run under the command itself.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from simcoll.evidence import files_of, gather, read_launch
from simcoll.verifier.finding import Finding, Report, Severity, Verdict
from simcoll.verifier.postmortem import exit_code, judge

pytestmark = [pytest.mark.slow, pytest.mark.gloo]

PROGRAMS = Path(__file__).parent / "programs"
MARK = "# <- bug"
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

    @property
    def path(self) -> Path:
        return PROGRAMS / self.name

    @property
    def ranks(self) -> int:
        return int(self._stated("ranks"))

    @property
    def code(self) -> str:
        return self.header.split()[2]

    @property
    def severity(self) -> Severity:
        return Severity(self._stated("severity") or "error")

    @property
    def culprits(self) -> tuple[int, ...]:
        return tuple(int(rank) for rank in self._stated("culprits").split(",") if rank)

    @property
    def place(self) -> tuple[str, int] | None:
        """The file and line that the finding must name."""
        if self._stated("line") == "none":
            return None
        path = self.path.parent / (self._stated("file") or self.path.name)
        [line] = [number for number, text in enumerate(path.read_text().splitlines(), 1) if text.endswith(MARK)]
        return str(path), line

    def _stated(self, name: str) -> str:
        found = re.search(rf"\b{name}=(\S*)", self.header)
        return found.group(1) if found else ""


def programs(folder: str) -> list[Program]:
    paths = sorted((PROGRAMS / folder).glob("*.py"))
    return [Program(f"{folder}/{path.name}", path.read_text().splitlines()[0]) for path in paths]


BUGS = programs("bugs")
CORRECT = programs("correct")


@dataclass(frozen=True)
class Result:
    """What became of one program."""

    exit_codes: list[int]
    report: Report
    output: str


class ForkServer:
    """The process that forks the ranks; it runs one program at a time."""

    def __init__(self) -> None:
        command = [sys.executable, str(PROGRAMS / "forkserver.py")]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROGRAMS.parent
        )

    def run(self, program: Program, out: Path) -> Result:
        request = {"script": str(program.path), "ranks": program.ranks, "out": str(out), "limit": LIMIT_SECONDS}
        request["mode"] = "detail"
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        evidence = gather(files_of(out), [read_launch(out / "launch.json")])
        return Result(answer["exit_codes"], judge(evidence.boxes, evidence.outcome), (out / "output.txt").read_text())

    def close(self) -> None:
        self._process.communicate()


class Runs:
    """Every selected program, two at a time: ranks wait for each other more than they compute."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own = threading.local()
        self._servers: list[ForkServer] = []
        self._pool = ThreadPoolExecutor(2)
        self._futures: dict[str, Future[Result]] = {}

    def start(self, program: Program) -> None:
        if program.name not in self._futures:
            self._futures[program.name] = self._pool.submit(self._run, program)

    def result(self, program: Program) -> Result:
        return self._futures[program.name].result()

    def _run(self, program: Program) -> Result:
        if not hasattr(self._own, "server"):
            self._own.server = ForkServer()
            self._servers.append(self._own.server)
        out = self._folder / program.name.replace("/", "-")
        out.mkdir()
        server: ForkServer = self._own.server
        return server.run(program, out)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        for server in self._servers:
            server.close()


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    started = Runs(tmp_path_factory.mktemp("programs"))
    for item in request.session.items:
        if "runs" in getattr(item, "fixturenames", ()):
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
    codes = [finding.code for finding in report.findings if finding.severity is program.severity]
    assert codes == [program.code], f"one cause gives one finding: {report.findings}"
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
    assert result.report.agreed > 0 or result.report.ranks[0].last is not None
    assert "simcoll" not in result.output, result.output


@pytest.mark.parametrize("program", BUGS, ids=lambda program: program.name)
def test_planted_bug_is_the_first_finding(program: Program, runs: Runs) -> None:
    check_found(program, runs.result(program))


@pytest.mark.parametrize("program", CORRECT, ids=lambda program: program.name)
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
    result = Result([done.returncode], judge(evidence.boxes, evidence.outcome), done.stderr)
    if name.startswith("bugs/"):
        check_found(program, result)
        assert done.returncode == 3
    else:
        check_silent(result)


def test_there_are_enough_programs() -> None:
    assert len(BUGS) >= 40
    assert len(CORRECT) >= 30
