"""PyTorch's test_pg_wrapper for NCCL, unedited, with simcoll underneath: on two GPUs, or with two ranks on one.

With simcoll every test passes that passes without. Nothing of PyTorch's text is here: see `test_same_results`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.gpu.machine import Machine, this_machine
from benchmarks.gpu.settings import PRELOADED, SHARED_GPU_NCCL, shared_as_hosts, sharing
from tests.pytorch.test_same_results import TESTS_VARIABLE, Suite, differing, run

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(900)]
REFUSED_BY_DETAIL = {"test_debug_level_detail_no_gloo"}
"""c10d's wrapper refuses a torch without Gloo; simcoll proves over the store, and does not."""

SUITE = Suite("test_pg_wrapper:nccl", 2)


def environment(machine: Machine) -> dict[str, str]:
    """How the two ranks get along with the machine's GPUs."""
    if machine.gpus > 1:
        return {}
    newest = machine.preloaded_nccl or machine.nccl or ()
    return sharing() if newest >= SHARED_GPU_NCCL else shared_as_hosts()


def reason_to_skip(machine: Machine) -> str | None:
    if not os.environ.get(TESTS_VARIABLE):
        return f"{TESTS_VARIABLE} names no folder with PyTorch's test_pg_wrapper.py"
    if machine.gpus == 0:
        return machine.reason
    return None if machine.nccl else "this torch is built without NCCL"


def test_what_passes_in_plain_torch_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = this_machine()
    if reason := reason_to_skip(machine):
        pytest.skip(reason)
    for name, value in environment(machine).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(PRELOADED, raising=False)
    plain, recorded = (run(SUITE, mode, tmp_path / f"{mode}.jsonl") for mode in ("off", "detail"))
    assert plain
    worse = {name for name in differing(plain, recorded) if plain[name].outcome == "passed"} - REFUSED_BY_DETAIL
    assert not worse, {name: recorded[name] for name in worse}
    assert any(result.outcome == "passed" for result in recorded.values()), recorded
