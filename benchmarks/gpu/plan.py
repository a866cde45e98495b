"""Which jobs `gpu_check` starts, in which order, and what becomes of each cell of its table."""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.gpu.check import Check, SkippedCheck
from benchmarks.gpu.checks import every_check
from benchmarks.gpu.job import Outcome, run_job
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.settings import Setting, unavailable
from benchmarks.gpu.verified import false_alarms

PLAIN_FAILS = "fails without simcoll too"
PROBE = "all_reduce"
PROBE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Batch:
    """Checks that share the processes of one job."""

    setting: Setting
    mode: str
    checks: tuple[Check, ...]

    @property
    def quiet(self) -> bool:
        """Whether nothing else may run beside it."""
        return any(check.quiet for check in self.checks)

    @property
    def verified(self) -> bool:
        """Whether its black boxes must hold nothing wrong."""
        return all(check.verified for check in self.checks) and self.checks[0].run is not None


def probed(setting: Setting, folder: Path) -> str | None:
    """Why not even plain torch makes a first call on a setting, or None: whole columns would be tried in vain."""
    probe = next(check for check in every_check() if check.name == PROBE)
    outcome = run_job(setting, "off", [replace(probe, seconds=PROBE_SECONDS)], folder)[0]
    return f"{PLAIN_FAILS}: {outcome.reason}" if outcome.outcome == "failed" else None


def impossible(settings: Mapping[Setting, str | None], checks: Sequence[Check], machine: Machine) -> list[Outcome]:
    """Every cell that cannot be made here, with its reason; ``settings`` say why one of them cannot be at all."""
    found = []
    for setting, check in itertools.product(settings, checks):
        reason = settings[setting] or check.unmet(setting, machine)
        if reason is not None:
            found += [Outcome(setting.name, check.name, mode, "skipped", reason) for mode in check.modes]
    return found


def batches(settings: Mapping[Setting, str | None], checks: Sequence[Check], machine: Machine) -> list[Batch]:
    """What is made here: checks that start alike and may share processes do."""
    found: list[Batch] = []
    for setting in [setting for setting, reason in settings.items() if reason is None]:
        shared: dict[tuple[str, str, bool], list[Check]] = {}
        for check in checks:
            if check.unmet(setting, machine) is not None:
                continue
            for mode in check.modes:
                if check.alone or check.job is not None:
                    found.append(Batch(setting, mode, (check,)))
                else:
                    shared.setdefault((mode, check.start, check.verified), []).append(check)
        found += [Batch(setting, mode, tuple(each)) for (mode, _, _), each in shared.items()]
    # The longest first; those that need a quiet machine when all others are done.
    return sorted(found, key=lambda batch: (batch.quiet, -len(batch.checks)))


def tried(settings: Sequence[Setting], machine: Machine) -> dict[Setting, str | None]:
    """Why each setting is impossible here (None: it is not): what is known of it, then a first call in plain torch."""
    known = {setting: unavailable(setting, machine) for setting in settings}
    open_ones = [setting for setting, reason in known.items() if reason is None]
    with tempfile.TemporaryDirectory(prefix="simcoll-gpu-", ignore_cleanup_errors=True) as scratch:
        folders = [Path(scratch) / str(number) for number, _ in enumerate(open_ones)]
        with ThreadPoolExecutor(max(1, machine.cores // 2)) as pool:
            return known | dict(zip(open_ones, pool.map(probed, open_ones, folders), strict=True))


class Run:
    """Makes batches until the time is up; outcomes come in as they are known."""

    def __init__(self, workers: int, deadline: float) -> None:
        self.outcomes: list[Outcome] = []
        self._workers = workers
        self._deadline = deadline
        self._lock = threading.Lock()

    def make(self, planned: Sequence[Batch]) -> None:
        """Make all of them: several at a time, then those that need a quiet machine one by one."""
        with tempfile.TemporaryDirectory(prefix="simcoll-gpu-", ignore_cleanup_errors=True) as scratch:
            for quiet, workers in ((False, self._workers), (True, 1)):
                with ThreadPoolExecutor(workers) as pool:
                    chosen = [(number, batch) for number, batch in enumerate(planned) if batch.quiet is quiet]
                    for outcomes in pool.map(partial(self._made, Path(scratch)), chosen):
                        with self._lock:
                            self.outcomes += outcomes

    def _made(self, scratch: Path, numbered: tuple[int, Batch]) -> list[Outcome]:
        number, batch = numbered
        if time.monotonic() > self._deadline:
            return [
                Outcome(
                    batch.setting.name, check.name, batch.mode, "skipped", "the time was up: see --limit and --only"
                )
                for check in batch.checks
            ]
        folder = scratch / f"batch{number}"
        folder.mkdir()
        if batch.checks[0].job is not None:
            return [_launched(batch, batch.checks[0], folder)]
        outcomes = run_job(batch.setting, batch.mode, batch.checks, folder)
        if batch.verified:
            outcomes += false_alarms(batch.setting, batch.mode, folder)
        return [self._against_plain(outcome, batch, folder) for outcome in outcomes]

    def _against_plain(self, outcome: Outcome, batch: Batch, folder: Path) -> Outcome:
        """Where a check failed that must work without simcoll: whether it does."""
        check = next((check for check in batch.checks if check.name == outcome.check), None)
        if outcome.outcome != "failed" or check is None or not check.plain or time.monotonic() > self._deadline:
            return outcome
        plain = run_job(batch.setting, "off", [check], folder / f"plain{batch.checks.index(check)}")
        if plain[0].outcome != "failed":
            return outcome
        return replace(outcome, outcome="skipped", reason=f"{PLAIN_FAILS}: {plain[0].reason}")


def _launched(batch: Batch, check: Check, folder: Path) -> Outcome:
    """A check that starts a job of its own."""
    name, mode = batch.setting.name, batch.mode
    assert check.job is not None, check.name
    try:
        figures = check.job(batch.setting, mode, folder)
    except SkippedCheck as reason:
        return Outcome(name, check.name, mode, "skipped", str(reason))
    except Exception as error:
        return Outcome(name, check.name, mode, "failed", f"{type(error).__name__}: {error!s:.600}")
    return Outcome(name, check.name, mode, "ok", "", dict(figures or {}))
