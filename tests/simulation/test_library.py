"""The library: a scenario for every finding code, on simulated ranks, on threads and on real Gloo, with one verdict."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from simcoll.simulation.backends import Run, run_simulated, run_threaded
from simcoll.simulation.player import Result, read_results
from simcoll.simulation.rank_steps import check_steps
from simcoll.simulation.reader import read_scenario
from simcoll.simulation.report import differences, unmet
from simcoll.simulation.scenario import Scenario
from simcoll.verifier.findings.finding import Report, Severity
from simcoll.verifier.findings.rules import RULES
from tests.support.forked import ForkServer, Pool
from tests.support.forked import Result as Job
from tests.support.random_scenarios import random_scenario
from tests.support.scenarios import parse_scenario

LIBRARY = Path(__file__).parents[2] / "examples" / "scenarios"
CODES = [code for code, rule in RULES.items() if not rule.unplayed]
NEEDS_A_GPU = {"SC107": "a tensor of another device needs the device"}
ENDS = re.compile('kind = "(crash|exit|skip|extra)"')
RANDOM = [
    seed
    for seed in (*range(0, 24, 2), *range(101, 149, 2))
    # What Gloo says of a message whose other end is gone depends on which of the two was faster.
    if not ("isend" in random_scenario(seed) and ENDS.search(random_scenario(seed)))
]
"""Seeds: the even ones are right, the odd ones have a fault."""


def scenario_of(code: str) -> Scenario:
    return read_scenario(LIBRARY / f"{code}.toml")


def simulated(scenario: Scenario) -> Run:
    return run_simulated(scenario, None, seed=scenario.seed, sends=scenario.sends)


def lines(report: Report) -> list[set[int]]:
    """The lines that each finding names."""
    return [
        {one.source.line for side in finding.sides for one in side.sources if one.source.file.endswith(".toml")}
        for finding in report.findings
    ]


def test_every_code_has_one() -> None:
    assert sorted(path.stem for path in LIBRARY.glob("*.toml")) == sorted(CODES)


@pytest.mark.parametrize("code", CODES)
def test_it_shows_its_code_and_nothing_else(code: str) -> None:
    scenario = scenario_of(code)
    check_steps(scenario)
    run = simulated(scenario)
    assert unmet(scenario, run.report, None) == []
    assert [finding.code for finding in run.report.findings] == [code]
    assert scenario.title
    assert RULES[code].severity in (Severity.ERROR, run.report.findings[0].severity)


@pytest.mark.parametrize("code", [code for code in CODES if code != "SC801"])
def test_findings_name_lines_of_the_file(code: str) -> None:
    scenario = scenario_of(code)
    text = (LIBRARY / f"{code}.toml").read_text(encoding="utf-8").splitlines()
    [named] = lines(simulated(scenario).report)
    assert named
    for line in named:
        assert text[line - 1].startswith(("op", "kind", "[[groups]]", "overrides")), text[line - 1]


@pytest.mark.slow
@pytest.mark.parametrize("code", [code for code in CODES if code not in NEEDS_A_GPU])
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch renames its functions
def test_threads_say_the_same(code: str) -> None:
    scenario = scenario_of(code)
    run = run_threaded(scenario, seed=scenario.seed)
    assert unmet(scenario, run.report, None) == []
    assert_named(run.report, scenario)


def assert_named(report: Report, scenario: Scenario) -> None:
    """A write is seen when the data leaves or when the program waits, whichever comes first."""
    [named], [also] = lines(report), lines(simulated(scenario).report)
    assert named <= also


class Runs:
    """Scenarios on real Gloo, two at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._program = folder / "rank.py"
        self._program.write_text("import sys\nfrom simcoll.simulation.gloo_rank import main\nmain(sys.argv[1:])\n")
        self._pool = Pool(2)
        self._futures: dict[str, Future[tuple[Job, Path]]] = {}

    def start(self, name: str, path: Path) -> None:
        def run(server: ForkServer) -> tuple[Job, Path]:
            out = self._folder / name
            out.mkdir()
            ranks = read_scenario(path).ranks
            return server.run(self._program, out, ranks=ranks, stall=2, arguments=[str(path), str(out)]), out

        self._futures.setdefault(name, self._pool.submit(run))

    def result(self, name: str) -> tuple[Job, Path]:
        return self._futures[name].result()

    def close(self) -> None:
        self._pool.close()


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("scenarios")
    started = Runs(folder)
    for item in request.session.items:
        if "played" in getattr(item, "fixturenames", ()) and item.module is request.module:
            chosen = item.callspec.params
            if "code" in chosen:
                started.start(chosen["code"], LIBRARY / f"{chosen['code']}.toml")
            else:
                path = folder / f"random{chosen['seed']}.toml"
                path.write_text(random_scenario(chosen["seed"]))
                started.start(path.stem, path)
    yield started
    started.close()


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.parametrize("code", [code for code in CODES if code not in NEEDS_A_GPU])
def test_gloo_says_the_same(code: str, played: Runs) -> None:
    scenario = scenario_of(code)
    real, out = played.result(code)
    assert unmet(scenario, real.report, None) == [], real.output
    compare(scenario, real, out)
    assert_named(real.report, scenario)


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.parametrize("seed", RANDOM)
def test_gloo_says_the_same_of_any(seed: int, played: Runs) -> None:
    real, out = played.result(f"random{seed}")
    compare(read_scenario(out.parent / f"random{seed}.toml"), real, out)


def compare(scenario: Scenario, real: Job, out: Path) -> None:
    results = {rank: found for rank in range(scenario.ranks) if (found := read_results(out, rank))}
    run = simulated(scenario)
    assert differences(run, Run("gloo", real.report, results)) == [], real.output
    if not any(real.exit_codes):
        assert set(results) >= {rank for rank, found in run.results.items() if found}


@pytest.mark.slow
@pytest.mark.parametrize("seed", RANDOM)
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch renames its functions
def test_threads_say_the_same_of_any(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "random.toml"
    path.write_text(random_scenario(seed))
    scenario = read_scenario(path)
    assert differences(simulated(scenario), run_threaded(scenario, seed=0)) == []


EXPECTED = """[[expect.findings]]
code = "SC104"
culprits = 2
sequence = 2
"""


@pytest.mark.parametrize(
    ("code", "old", "new", "said"),
    [
        ("SC104", "culprits = 2", "culprits = 3", "finding 1: SC104 has culprits rank 2, expected rank 3"),
        ("SC104", "sequence = 2", "sequence = 7", "finding 1: SC104 has sequence 2, expected 7"),
        ("SC104", '"SC104"', '"SC103"', "finding 1: expected SC103, found SC104"),
        ("SC104", EXPECTED, "[expect]\nfindings = []\n[topology]\ngpu='h100'", "expected no further one, found SC104"),
        ("SC104", 'reduce_op = "max"', 'reduce_op = "sum"', "expected SC104, there is none"),
        ("SC104", "culprits = 2", 'severity = "warning"', "SC104 has severity error, expected warning"),
        ("SC502", "culprits = 0", 'group = "late"', "SC502 is of the group 'default_pg', expected 'late'"),
        ("SC401", "culprits = 2", 'group = "world"', "SC401 is of no group, expected 'the world'"),
        ("SC104", "[[expect.", "[expect]\nseconds = 3\n[[expect.", "there is no topology"),
    ],
)
def test_what_is_not_as_expected_is_said(code: str, old: str, new: str, said: str) -> None:
    text = (LIBRARY / f"{code}.toml").read_text(encoding="utf-8")
    assert old in text
    scenario = parse_scenario(text.replace(old, new))
    [problem] = unmet(scenario, simulated(scenario).report, None)
    assert said in problem


def test_what_two_backends_say_otherwise() -> None:
    one, other = simulated(scenario_of("SC104")), replace(simulated(scenario_of("SC103")), backend="other")
    assert differences(one, other) == [
        "only simulated finds SC104 (error) in the group of ranks 0-3, collective 2, culprits rank 2",
        "only other finds SC103 (error) in the group of ranks 0-3, collective 1, culprits rank 1",
    ]
    assert differences(one, one) == []


def test_results_that_differ_are_said() -> None:
    one = simulated(parse_scenario('ranks = 2\n[[calls]]\nop = "all_reduce"'))
    other = replace(one, backend="other", results={0: [Result(3, 12 + 0j)], 1: [Result(3, 13 + 0j)]})
    assert differences(one, other) == ["rank 1: the outputs of line 3 add up to 12+0j on simulated, 13+0j on other"]
