"""Correct jobs on NCCL, whatever the moment of their dumps, the size of their rings and the ranks that left none."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.verifier.flight_recorder import read_dump, traces_of
from simcoll.verifier.postmortem import judge
from tests.support.flight_dumps import MINOR_VERSIONS, START_NS
from tests.support.nccl_jobs import SECOND, NcclJob


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 1 << 32), st.sampled_from([2, 4, 6]), st.sampled_from(MINOR_VERSIONS), st.sampled_from([7, 20, 2000])
)
def test_correct_jobs_are_silent(
    tmp_path_factory: pytest.TempPathFactory, seed: int, size: int, minor: int, ring: int
) -> None:
    chance, folder = random.Random(seed), tmp_path_factory.mktemp("job")
    job = NcclJob(chance, size, minor)
    for _ in range(chance.randrange(5, 80)):
        job.step()
    moment = chance.choice((chance.randrange(START_NS, job.end_ns), job.end_ns + 5 * SECOND))
    report = judge(traces_of([read_dump(path) for path in _dumps(job, folder, moment, ring)]))
    assert report.findings == ()


def _dumps(job: NcclJob, folder: Path, moment_ns: int, ring: int) -> list[Path]:
    """The dumps of most ranks, each seen and written within two seconds."""
    paths = []
    for rank in range(job.size):
        seen = moment_ns + job.chance.randrange(2 * SECOND)
        if not rank or job.chance.random() < 0.9:
            paths.append(job.dump(folder, rank, seen, seen + job.chance.randrange(2 * SECOND), ring))
    return paths
