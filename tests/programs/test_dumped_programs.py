"""Real Gloo programs that leave Flight Recorder dumps: one planted bug each, or none at all.

The header ``# expect: SC202 culprits=1`` states the first finding (``nothing`` is a report without any), ``# <- bug``
marks the line that it must name, ``unknown=`` a field that the report must call unknown, ``parted=12`` the line at
which the ranks parted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import pytest

from simcoll.verifier.exit_code import exit_code
from simcoll.verifier.findings.finding import Report
from simcoll.verifier.flight_recorder import read_dump, traces_of
from simcoll.verifier.postmortem import judge
from tests.support.forked import ForkServer, Pool

pytestmark = [pytest.mark.slow, pytest.mark.gloo]

PROGRAMS = Path(__file__).parents[1] / "programs" / "dumps"
MARK = "# <- bug"
RANKS = 4
TORCH = {"TORCH_FR_BUFFER_SIZE": "2000"}


@dataclass(frozen=True)
class Program:
    """One program, what its header says, and in which form its ranks dump."""

    name: str
    header: str
    form: str

    def __str__(self) -> str:
        return f"{self.name} {self.form}"

    @property
    def path(self) -> Path:
        return PROGRAMS / f"{self.name}.py"

    @property
    def code(self) -> str:
        return self.header.split()[2]

    def stated(self, name: str) -> str:
        return next((word.partition("=")[2] for word in self.header.split() if word.startswith(f"{name}=")), "")

    @property
    def culprits(self) -> tuple[int, ...]:
        return tuple(int(rank) for rank in self.stated("culprits").split(",") if rank.isdecimal())

    @property
    def line(self) -> int:
        [line] = [number for number, text in enumerate(self.path.read_text().splitlines(), 1) if text.endswith(MARK)]
        return line


def _programs() -> list[Program]:
    found = []
    for index, path in enumerate(sorted(PROGRAMS.glob("*.py"))):
        header = path.read_text().splitlines()[0]
        if header.startswith("# expect: "):
            # Those that only their lines tell apart need them.
            json = index % 2 and "code=lines" not in header
            found.append(Program(path.stem, header, "json" if json else "pickle"))
    return found


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Program, Future[Report]]]:
    """All programs, several at a time: most of them do nothing but wait."""
    pool = Pool(3, TORCH)
    yield {one: pool.submit(_job(one, tmp_path_factory.mktemp(one.name))) for one in _programs()}
    pool.close()


def _job(program: Program, folder: Path) -> Callable[[ForkServer], Report]:
    def run(server: ForkServer) -> Report:
        server.run_bare(program.path, folder, ranks=RANKS, arguments=[str(folder), program.form])
        dumps = [read_dump(path) for path in sorted(folder.glob("trace_rank_*"))]
        print((folder / "output.txt").read_text())
        return judge(traces_of(dumps))

    return run


@pytest.mark.parametrize("program", _programs(), ids=str)
def test_the_dumps_of_a_program_tell_its_bug(program: Program, reports: dict[Program, Future[Report]]) -> None:
    report = reports[program].result()
    print(*report.findings, *report.notes, sep="\n")
    if field := program.stated("unknown"):
        assert any("do not state" in note and field.split("_")[0] in note for note in report.notes)
    if program.code == "nothing":
        assert report.findings == ()
        assert exit_code(report) == 0
        return
    first = report.findings[0]
    assert (first.code, first.culprits) == (program.code, program.culprits)
    assert exit_code(report) == 3
    # Gloo's JSON has no source lines.
    assert program.form == "json" or program.line in {
        source.source.line for side in first.sides for source in side.sources
    }
    assert program.stated("unknown") in {"", *first.unknown}
    if line := program.stated("parted"):
        assert first.parted is not None
        assert first.parted.source.line == int(line)
