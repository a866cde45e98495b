"""Ranks that are killed, stopped or kept busy at random calls: every round's report names the fault."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from simcoll.verifier.findings.finding import Severity
from tests.support.forked import ForkServer, Pool, Result
from tests.support.seeds import drawn

pytestmark = [pytest.mark.slow, pytest.mark.gloo]

PROGRAM = Path(__file__).parents[1] / "programs" / "faults.py"
ROUNDS = 200
CALLS = 40
RANKS = 3
STALL_SECONDS = 6.5
"""Longer than a new connection to the store takes where its reverse DNS lookup goes unanswered (5 s)."""


@dataclass(frozen=True)
class Fault:
    """One round, drawn from its seed."""

    seed: int
    kind: str
    mode: str
    victim: int
    place: int

    @classmethod
    def drawn(cls, seed: int) -> Fault:
        choose = random.Random(seed)
        kind, mode = choose.choice(["kill", "kill", "stop", "delay"]), choose.choice(["record", "detail"])
        return cls(seed, kind, mode, choose.randrange(RANKS), choose.randrange(CALLS))

    def strike(self, server: ForkServer, out: Path) -> Result:
        arguments = [self.kind, str(self.victim), str(self.place), str(self.seed)]
        return server.run(PROGRAM, out, ranks=RANKS, stall=STALL_SECONDS, mode=self.mode, arguments=arguments)


@pytest.fixture(scope="module")
def rounds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Any]]:
    """The selected rounds, five at a time: they wait more than they compute."""
    pool = Pool(5)
    mine = (item for item in request.session.items if "rounds" in _fixtures(item) and item.module is request.module)
    seeds = [item.callspec.params["seed"] for item in mine]
    folder = tmp_path_factory.mktemp("faults")
    yield {seed: pool.submit(partial(_round, seed, folder)) for seed in seeds}
    pool.close()


def _fixtures(item: pytest.Item) -> list[str]:
    names: list[str] = getattr(item, "fixturenames", [])
    return names


def _round(seed: int, folder: Path, server: ForkServer) -> Result:
    out = folder / str(seed)
    out.mkdir()
    return Fault.drawn(seed).strike(server, out)


@pytest.mark.parametrize("seed", range(drawn(ROUNDS, 5)))
def test_the_report_names_the_fault(seed: int, rounds: dict[int, Any]) -> None:
    fault = Fault.drawn(seed)
    check(rounds[seed].result(), fault.kind, fault.victim)


def check(result: Result, kind: str, victim: int) -> None:
    errors = [finding for finding in result.report.findings if finding.severity is Severity.ERROR]
    assert len(errors) == 1, (result.report.findings, result.output)
    [finding] = errors
    described = f"{finding}\n{result.output}"
    assert finding.culprits == (victim,), described
    if kind == "kill":
        assert finding.code == "SC701", described
        assert "SIGKILL" in finding.message
    else:
        assert finding.code == "SC201", described
        lines = [source.source.code for side in finding.sides for source in side.sources]
        named = "SIGSTOP" in finding.message if kind == "stop" else any("time.sleep(60)" in line for line in lines)
        assert named, described
