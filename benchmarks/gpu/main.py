"""All that needs a GPU, in one table: settings (backend, ranks, GPUs) by checks, with the versions that it ran on.

``benchmarks/gpu_check.sh`` starts it. Every check is made in processes of its own or in those of others of its kind:
one that fails, hangs or crashes is one cell, and the rest goes on without it. What cannot be made here says why.
Exits 1 if a check failed. ``--cpu`` makes the checks that need no GPU over Gloo, which tries the program itself.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu.check import Check
from benchmarks.gpu.checks import every_check
from benchmarks.gpu.machine import Machine, this_machine
from benchmarks.gpu.plan import Run, batches, impossible, tried
from benchmarks.gpu.settings import cpu_settings, gpu_settings, unavailable
from benchmarks.gpu.tables import document, markdown, text

LIMIT_SECONDS = 520.0
CORES_A_JOB = 4


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__.partition("\n")[0])
    parser.add_argument("--cpu", action="store_true", help="what needs no GPU, over Gloo: tries the program itself")
    parser.add_argument("--only", metavar="PATTERN", help="checks whose section and name match a regular expression")
    parser.add_argument("--setting", metavar="PATTERN", help="settings whose name matches")
    parser.add_argument("--mode", metavar="MODE", help="one of simcoll's modes: record, check or detail")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every outcome, for programs")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the table for a page of docs/")
    parser.add_argument("--workers", type=int, metavar="N", help="jobs at a time (default: one for each 4 cores)")
    parser.add_argument(
        "--limit",
        type=float,
        default=LIMIT_SECONDS,
        metavar="SECONDS",
        help="start no job later (default: %(default)s)",
    )
    parser.add_argument("--list", action="store_true", help="list settings and checks, and run nothing")
    return parser.parse_args(arguments)


def chosen(asked: argparse.Namespace) -> list[Check]:
    """The checks that were asked for; exits with code 2 where there is none, or the pattern is none."""
    try:
        pattern = re.compile(asked.only or "", re.IGNORECASE)
    except re.error as error:
        raise SystemExit(f"gpu_check: --only {asked.only!r}: {error}") from None
    found = [check for check in every_check() if pattern.search(f"{check.section}: {check.name}")]
    if asked.mode:
        found = [replace(check, modes=(asked.mode,)) for check in found if asked.mode in check.modes]
    if not found:
        sys.stderr.write(f"gpu_check: no check matches --only {asked.only!r}; --list names them\n")
        raise SystemExit(2)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the checks, print the table; the exit code says whether one failed."""
    asked, begun = options(arguments), time.monotonic()
    machine = this_machine()
    checks = chosen(asked)
    settings = cpu_settings() if asked.cpu else gpu_settings(machine)
    settings = tuple(each for each in settings if re.search(asked.setting or "", each.name, re.IGNORECASE))
    if asked.list:
        return _list(checks, machine, asked.cpu)
    if all(unavailable(setting, machine) for setting in settings):
        print(f"gpu_check: skipped: {machine.reason or 'no setting is possible here'}")
        return 0
    found = tried(settings, machine)
    run = Run(asked.workers or max(1, machine.cores // CORES_A_JOB), begun + asked.limit)
    run.make(batches(found, checks, machine))
    outcomes = [*impossible(found, checks, machine), *run.outcomes]
    names = [setting.name for setting in settings]
    if asked.json:
        asked.json.write_text(document(outcomes, machine, time.monotonic() - begun))
    if asked.markdown:
        asked.markdown.write_text(markdown(checks, names, outcomes, machine))
    print(text(checks, names, outcomes, machine))
    print(f"{time.monotonic() - begun:.0f} s")
    return 1 if any(outcome.outcome == "failed" for outcome in outcomes) else 0


def _list(checks: Sequence[Check], machine: Machine, cpu: bool) -> int:
    for setting in cpu_settings() if cpu else gpu_settings(machine):
        print(f"setting: {setting.name}: {unavailable(setting, machine) or 'possible here'}")
    for check in checks:
        print(f"{check.section}: {check.name} ({', '.join(check.modes)})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
