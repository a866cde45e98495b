"""The checks of `benchmarks/gpu_check.sh` as tests: a setting and a section each; skipped with reasons elsewhere."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping

import pytest

pytest.importorskip("torch")

from benchmarks.gpu.checks import every_check
from benchmarks.gpu.machine import Machine, this_machine
from benchmarks.gpu.main import LIMIT_SECONDS
from benchmarks.gpu.plan import Run, batches, impossible, tried
from benchmarks.gpu.settings import Setting, gpu_settings

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(900)]

SETTINGS = ("nccl-alone", "nccl-shared", "nccl-as-hosts", "nccl-gpus", "gloo-shared")
"""In the order of `gpu_settings`, whose names tell how many GPUs there are."""

SECTIONS = tuple(dict.fromkeys(check.section for check in every_check()))


@functools.lru_cache(maxsize=1)
def machine() -> Machine:
    return this_machine()


@functools.lru_cache(maxsize=1)
def settings() -> Mapping[Setting, str | None]:
    """Each setting, and why it is impossible here."""
    return tried(gpu_settings(machine()), machine())


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("number", range(len(SETTINGS)), ids=SETTINGS)
def test_no_check_fails(number: int, section: str) -> None:
    setting, reason = list(settings().items())[number]
    if reason:
        pytest.skip(reason)
    checks = [check for check in every_check() if check.section == section]
    chosen = {setting: reason}
    run = Run(max(1, machine().cores // 4), time.monotonic() + LIMIT_SECONDS)
    run.make(batches(chosen, checks, machine()))
    outcomes = [*run.outcomes, *impossible(chosen, checks, machine())]
    assert [outcome for outcome in outcomes if outcome.outcome == "failed"] == []
    if not any(outcome.outcome == "ok" for outcome in outcomes):
        pytest.skip("; ".join(sorted({outcome.reason for outcome in outcomes})))
