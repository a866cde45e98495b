"""The training examples: dry runs of the right ones are silent and record what real runs do; planted bugs are found.

``*_bug.py`` states what is found, in the form of ``programs/bugs``, and at which world sizes nothing is wrong. Of 64
ranks of the right ones some are run; the others follow the same lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from simcoll.blackbox.gather import gather
from simcoll.verifier.findings.finding import Verdict
from tests.support.forked import ForkServer, Result
from tests.support.preflights import DryRuns
from tests.support.recorded_calls import calls, sized_by_others
from tests.support.seeds import nightly
from tests.support.stated import Stated, marked_line, stated

pytest.importorskip("torch")

pytestmark = [pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "training"
RIGHT = sorted(path for path in FOLDER.glob("*.py") if not path.stem.endswith("_bug"))
PLANTED = sorted(FOLDER.glob("*_bug.py"))
ARGUMENTS = {("llama_3d.py", 2): ["--pp", "1"]}
SIZED_BY_OTHERS = {FOLDER / name for name in ("expert_parallel.py", "llama_3d.py", "pipeline_parallel.py")}
"""Where ranks tell each other sizes: of experts' parts, and of the objects by which stages tell each other shapes."""

SOME_OF_64 = "0,1,62,63"


@dataclass(frozen=True)
class Real:
    """A run on real Gloo."""

    result: Result
    out: Path


class RealRuns:
    """Real runs, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = ForkServer()
        self._made: dict[tuple[Path, int], Real] = {}

    def run(self, script: Path, size: int) -> Real:
        if (script, size) not in self._made:
            out = self._folder / f"{script.stem}-{size}"
            out.mkdir()
            given = ARGUMENTS.get((script.name, size), [])
            self._made[script, size] = Real(self._server.run(script, out, ranks=size, arguments=given), out)
        return self._made[script, size]

    def close(self) -> None:
        self._server.close()


@pytest.fixture(scope="module")
def training_dry_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DryRuns]:
    with DryRuns(tmp_path_factory.mktemp("dry")) as dry_runs:
        yield dry_runs


@pytest.fixture(scope="module")
def training_real_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRuns]:
    runs = RealRuns(tmp_path_factory.mktemp("real"))
    yield runs
    runs.close()


def at_sizes(script: Path, sizes: Sequence[int]) -> list[Any]:
    """A script at each size, the largest one on every change, the others in ``make nightly``."""
    return [pytest.param(script, size, id=f"{script.stem}-{size}", marks=nightly(size != max(sizes))) for size in sizes]


REAL = [one for path in RIGHT for one in at_sizes(path, (2, 4, 8) if path.stem == "llama_3d" else (2, 4))]
DRY = [one for path in RIGHT for one in at_sizes(path, (2, 4, 8, 64))]


def dry(script: Path, size: int) -> list[object]:
    return ["--world-size", size, script, *ARGUMENTS.get((script.name, size), [])]


@pytest.mark.gloo
@pytest.mark.parametrize(("script", "size"), REAL)
def test_a_right_example_trains_and_every_call_is_proved(script: Path, size: int, training_real_runs: RealRuns) -> None:
    result = training_real_runs.run(script, size).result
    assert not any(result.exit_codes), result.output
    assert (result.report.findings, result.report.verdict) == ((), Verdict.OK), result.report.findings
    losses = [float(text) for text in re.findall(r"loss (\d+\.\d+)", result.output)]
    assert losses[-1] < losses[0]


@pytest.mark.gloo
@pytest.mark.parametrize(("script", "size"), REAL)
def test_a_dry_run_records_what_the_real_run_does(
    script: Path, size: int, training_dry_runs: DryRuns, training_real_runs: RealRuns
) -> None:
    recorded = training_dry_runs.traces("--device", "cpu", *dry(script, size))
    unsized = sized_by_others(recorded)
    real = gather([training_real_runs.run(script, size).out]).traces
    for mine, other in zip(calls(recorded, unsized), calls(real, unsized), strict=True):
        assert mine == other
    assert not unsized or script in SIZED_BY_OTHERS


@pytest.mark.parametrize(("script", "size"), DRY)
def test_a_dry_run_of_a_right_example_is_silent(script: Path, size: int, training_dry_runs: DryRuns) -> None:
    some = ["--ranks", SOME_OF_64] if size == 64 else []
    report = training_dry_runs.report(*some, *dry(script, size))
    assert (report["exit_code"], report["verdict"], report["findings"]) == (0, "ok", [])


LONG = ("ddp_bug", "expert_parallel_bug", "fsdp2_bug", "llama_3d_bug")
"""The planted variants whose dry runs are of 16 ranks or more; ``make nightly`` makes them."""


def found() -> list[Any]:
    return [
        pytest.param(path, one, size, id=f"{path.stem}-{size}", marks=nightly(path.stem in LONG))
        for path in PLANTED
        for one in stated(path, "expect")
        for size in one.sizes
    ]


def silent() -> list[Any]:
    return [
        pytest.param(path, size, id=f"{path.stem}-{size}", marks=nightly(path.stem in LONG or size != min(one.sizes)))
        for path in PLANTED
        for one in stated(path, "silent")
        for size in one.sizes
    ]


@pytest.mark.parametrize(("script", "expected", "size"), found())
def test_a_planted_bug_is_found(script: Path, expected: Stated, size: int, training_dry_runs: DryRuns) -> None:
    report = training_dry_runs.report("--world-size", size, script.relative_to(ROOT))
    assert report["exit_code"] == 3
    [finding] = report["findings"]
    assert (finding["code"], tuple(finding["culprits"])) == (expected.code, expected.culprits)
    sources = [source for side in finding["sides"] for source in side["source"]]
    assert (script.name, marked_line(script)) in {(Path(one["file"]).name, one["line"]) for one in sources}


@pytest.mark.parametrize(("script", "size"), silent())
def test_a_planted_bug_does_not_show_at_other_sizes(script: Path, size: int, training_dry_runs: DryRuns) -> None:
    report = training_dry_runs.report("--world-size", size, script.relative_to(ROOT))
    assert (report["exit_code"], report["verdict"], report["findings"]) == (0, "ok", [])


def test_each_example_has_a_planted_variant() -> None:
    assert [f"{path.stem}_bug" for path in RIGHT] == [path.stem for path in PLANTED]
    assert len(RIGHT) >= 6
    assert all(stated(path, "expect") and stated(path, "silent") for path in PLANTED)


PAGE = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
SHOWN = re.findall(
    r"^```console\n\$ simcoll preflight --world-size (\d+) (\S+)\n```\n\n```text\n(.*?)^```$",
    PAGE,
    re.MULTILINE | re.DOTALL,
)


def test_each_planted_bug_is_on_the_page() -> None:
    """What the page's own test leaves to this file (its note says so) is all here."""
    assert sorted(script for _, script, _ in SHOWN) == [str(path.relative_to(ROOT)) for path in PLANTED]
    assert PAGE.count("not run: tests/documents/test_examples_training.py") == len(SHOWN)


@pytest.mark.parametrize(
    ("size", "script", "text"),
    [pytest.param(*shown, id=(stem := Path(shown[1]).stem), marks=nightly(stem in LONG)) for shown in SHOWN],
)
def test_the_page_shows_what_is_printed(size: str, script: str, text: str, training_dry_runs: DryRuns) -> None:
    _, out = training_dry_runs.run("--world-size", size, script)
    printed = plain((out / "shown.txt").read_text(encoding="utf-8"))
    assert [line for line in text.splitlines() if plain(line) not in printed] == []


def test_the_page_shows_every_planted_bug() -> None:
    assert sorted(Path(script).stem for _, script, _ in SHOWN) == sorted(path.stem for path in PLANTED)


def plain(text: str) -> str:
    """The words of a report without its frames and the breaks of its lines."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())
