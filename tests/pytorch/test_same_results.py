"""PyTorch's own distributed tests, unedited, with simcoll underneath: each has the result that it has without.

Nothing of PyTorch's text is here. ``distributed_test`` comes with the installed torch; ``test_pg_wrapper`` and
``test_dist2`` come from the folder that ``SIMCOLL_PYTORCH_TESTS`` names. The results without are in
``baseline.json``, for the versions of torch and the texts of suites that it names (``make pytorch-baseline`` adds this
torch's); for others the suite is run without simcoll as well. Where results differ, the tests in question are run once
more, with and without: a test that fails now and then for a reason of its own must not count.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.support.seeds import nightly

pytestmark = [pytest.mark.slow, pytest.mark.gloo, pytest.mark.timeout(900)]

RUNNER = Path(__file__).with_name("runner.py")
BASELINE = Path(__file__).with_name("baseline.json")
TESTS_VARIABLE = "SIMCOLL_PYTORCH_TESTS"
SECONDS = 600

SILENT = {
    "test_Backend_enum_class",
    "test_DistributedDataParallel_requires_grad",
    "test_all_reduce_coalesced_max_complex_unsupported",
    "test_all_reduce_complex_unsupported_ops",
    "test_context_manager",
    "test_destroy_full_group",
    "test_destroy_group",
    "test_dump_DDP_relevant_env_vars",
    "test_get_backend",
    "test_get_rank",
    "test_get_rank_size_full_group",
    "test_get_rank_size_group",
    "test_group_split",
    "test_monitored_barrier_failure_order",
    "test_monitored_barrier_gloo_subgroup",
    "test_monitored_barrier_wait_all_ranks",
    "test_new_subgroups_with_group_param",
    "test_remote_group_merge",
}
"""Tests that pass and make no call on any group, at some number of ranks."""

NEEDS_EIGHT = (
    "test_all_gather_coalesced_group",
    "test_all_gather_group",
    "test_all_reduce_coalesced_group_max",
    "test_all_reduce_coalesced_group_min",
    "test_all_reduce_coalesced_group_product",
    "test_all_reduce_coalesced_group_sum",
    "test_all_reduce_group_max",
    "test_all_reduce_group_min",
    "test_all_reduce_group_product",
    "test_all_reduce_group_sum",
    "test_barrier_group",
    "test_barrier_timeout_group",
    "test_broadcast_group",
    "test_gather_group",
    "test_monitored_barrier_failure_order",
    "test_monitored_barrier_wait_all_ranks",
    "test_reduce_group_max",
    "test_reduce_group_min",
    "test_reduce_group_product",
    "test_reduce_group_sum",
    "test_scatter_group",
)
"""The tests that PyTorch skips with fewer ranks."""


@dataclass(frozen=True)
class Suite:
    """One of PyTorch's suites at one number of ranks; ``only`` selects tests, none means all."""

    name: str
    ranks: int
    only: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}-{self.ranks}"


@dataclass(frozen=True)
class Result:
    """The result of one test."""

    outcome: str
    records: int
    detail: str


Passes: TypeAlias = tuple[dict[str, Result], dict[str, Result]]
"""A suite's results without simcoll, and with it."""


def run(suite: Suite, mode: str, out: Path, only: Iterable[str] = ()) -> dict[str, Result]:
    """Run a suite in a process of its own; the result of each test."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SIMCOLL_MODE")}
    if suite.name == "spawn":
        environment["WORLD_SIZE"] = str(suite.ranks)
    if mode == "off":
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    else:
        environment["SIMCOLL_MODE"] = mode
    command = [sys.executable, str(RUNNER), suite.name, str(out), *(only or suite.only)]
    with out.with_suffix(".log").open("w") as log:
        subprocess.run(command, env=environment, stdout=log, stderr=log, timeout=SECONDS, check=True, cwd=out.parent)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return {line["test"]: Result(line["outcome"], line["records"], line["detail"]) for line in lines}


def torch_version() -> str:
    """Without what is said of the build: where that matters, results differ, and such tests are run again."""
    return importlib.metadata.version("torch").partition("+")[0]


def text_of(suite: Suite) -> str:
    """The SHA-256 of a suite's text."""
    if suite.name == "spawn":
        spec = importlib.util.find_spec("torch")
        assert spec is not None
        assert spec.origin is not None
        path = Path(spec.origin).parent / "testing/_internal/distributed/distributed_test.py"
    else:
        path = Path(os.environ[TESTS_VARIABLE]) / f"{suite.name}.py"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def known_outcomes(suite: Suite) -> dict[str, str] | None:
    """The outcome of each test without simcoll, if it was written down for this torch and this text.

    ``SIMCOLL_PYTORCH_BASELINE=run`` has the suite run all the same.
    """
    if os.environ.get("SIMCOLL_PYTORCH_BASELINE") == "run":
        return None
    known = json.loads(BASELINE.read_text(encoding="utf-8")) if BASELINE.exists() else {}
    found = known.get(torch_version(), {}).get(str(suite))
    return dict(found["outcomes"]) if found is not None and found["text"] == text_of(suite) else None


def write_baseline() -> None:
    """Run every suite that can run here without simcoll, and write its outcomes down for this torch."""
    known = json.loads(BASELINE.read_text(encoding="utf-8")) if BASELINE.exists() else {}
    suites = known.setdefault(torch_version(), {})
    for suite in SUITES:
        if reason := reason_to_skip(suite):
            print(f"{suite}: {reason}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            results = run(suite, "off", Path(folder) / "off.jsonl")
        outcomes = {name: result.outcome for name, result in sorted(results.items())}
        suites[str(suite)] = {"text": text_of(suite), "outcomes": outcomes}
    BASELINE.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def first_passes(suite: Suite, folder: Path) -> Passes:
    """Both passes, or the one with simcoll beside what is known of the other."""
    if (known := known_outcomes(suite)) is None:
        return with_and_without(suite, folder)
    return {name: Result(outcome, 0, "") for name, outcome in known.items()}, run(
        suite, "detail", folder / "detail.jsonl"
    )


def with_and_without(suite: Suite, folder: Path, only: Iterable[str] = ()) -> Passes:
    """Both passes at once: ranks wait more than they compute. test_dist2 has a fixed port and takes turns."""
    workers = 1 if suite.name == "test_dist2" else 2
    with ThreadPoolExecutor(workers) as pool:
        passes = [pool.submit(run, suite, mode, folder / f"{mode}.jsonl", only) for mode in ("off", "detail")]
        plain, recorded = (each.result() for each in passes)
        return plain, recorded


def differing(plain: Mapping[str, Result], recorded: Mapping[str, Result]) -> list[str]:
    """The tests whose outcome is not the same."""
    outcome = {name: result.outcome for name, result in recorded.items()}
    return [name for name, result in plain.items() if outcome.get(name) != result.outcome]


def torch_has(file: str) -> bool:
    """Whether the installed torch has a file; to look for it imports nothing."""
    spec = importlib.util.find_spec("torch")
    return spec is not None and spec.origin is not None and (Path(spec.origin).parent / file).exists()


NIGHTLY = (Suite("spawn", 2), Suite("spawn", 8, NEEDS_EIGHT))
SUITES = (Suite("spawn", 4), Suite("test_pg_wrapper", 4), Suite("test_dist2", 2), *NIGHTLY)


def reason_to_skip(suite: Suite) -> str | None:
    """Why a suite cannot run here."""
    if suite.name == "spawn":
        return None
    if not os.environ.get(TESTS_VARIABLE):
        return f"{TESTS_VARIABLE} names no folder with PyTorch's {suite.name}.py"
    if suite.name == "test_dist2" and not torch_has("distributed/_dist2.py"):
        return "this torch has no torch.distributed._dist2"
    return None


@pytest.fixture(scope="module")
def passes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Suite, Future[Passes]]]:
    """The selected suites, two at a time."""
    mine = (item for item in request.session.items if "passes" in _fixtures(item) and item.module is request.module)
    selected = [item.callspec.params["suite"] for item in mine]
    with ThreadPoolExecutor(2) as pool:
        yield {
            suite: pool.submit(first_passes, suite, tmp_path_factory.mktemp(str(suite)))
            for suite in selected
            if reason_to_skip(suite) is None
        }


def _fixtures(item: Any) -> tuple[str, ...]:
    return tuple(getattr(item, "fixturenames", ()))


@pytest.mark.parametrize("suite", [pytest.param(suite, marks=nightly(suite in NIGHTLY)) for suite in SUITES], ids=str)
def test_results_are_the_same(suite: Suite, passes: dict[Suite, Future[Passes]], tmp_path: Path) -> None:
    if reason := reason_to_skip(suite):
        pytest.skip(reason)
    plain, recorded = passes[suite].result()
    assert plain
    assert plain.keys() == recorded.keys()
    if suspects := differing(plain, recorded):
        for before, after in zip((plain, recorded), with_and_without(suite, tmp_path, suspects), strict=True):
            before.update(after)
    found = {name: (plain[name].outcome, recorded[name]) for name in differing(plain, recorded)}
    assert not found, found
    passed = [name for name, result in recorded.items() if result.outcome == "passed"]
    assert passed
    unseen = {name for name in passed if recorded[name].records == 0} - SILENT
    assert not unseen, f"the wrapper saw no call of {sorted(unseen)}"


if __name__ == "__main__":
    write_baseline()
