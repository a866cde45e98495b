"""``simcoll estimate script.py --world-size N TOPOLOGY``: what a script would cost, before it runs anywhere.

A dry run (`simcoll.dryrun.driver`) of some of its ranks, the verdict on them, and the price of all ranks: those that
did not run have the programs of those that did and have the same place in their groups (`simcoll.dryrun.extrapolate`).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simcoll.cli.preflight import run_dry, sizes_asked
from simcoll.cli.price import Named, scenarios_asked, show_prices

if TYPE_CHECKING:
    from simcoll.cli.output import Output
    from simcoll.dryrun.extrapolate import Extrapolation
    from simcoll.dryrun.rank.main import DryRun
    from simcoll.verifier.findings.finding import Report

_STEPS = 3


def is_script(subject: str) -> bool:
    """Whether a program is meant, and no record: a Python file, or a folder that Python runs."""
    return subject.lower().endswith((".py", ".pyz")) or os.path.isfile(os.path.join(subject, "__main__.py"))


def run_script_pricing(options: argparse.Namespace, script: Path, arguments: Sequence[str]) -> int:
    """Run, judge and price a script; the exit code of the contract."""
    from simcoll.cli.output import Output
    from simcoll.errors import BAD_INPUT, SimcollError

    outlet = Output(json=options.json, plain=options.plain)
    asked = {"script": script, "arguments": list(arguments), "module": False, "ranks": options.ranks or "auto"}
    run = argparse.Namespace(**vars(options) | asked | {"steps": _STEPS if options.steps is None else options.steps})
    try:
        named = _scenarios(options)
        _check_room(sizes_asked(run)[0], named)
    except (SimcollError, ValueError) as error:
        return outlet.refuse(BAD_INPUT, str(error))
    return run_dry(run, outlet, lambda report, dry_run, outlet: _conclude(options, report, dry_run, named, outlet))


def _scenarios(options: argparse.Namespace) -> list[Named]:
    """The script has as many ranks as are asked for: none of its scenarios changes that."""
    others = argparse.Namespace(**vars(options) | {"world_size": None, "ranks": None})
    return scenarios_asked(others)


def _check_room(size: int, named: Sequence[Named]) -> None:
    """Before minutes are spent on a dry run that could not be priced."""
    from simcoll.pricing.collective_prices import check_room

    for _, topology, _ in named:
        check_room(size, topology)


def _conclude(
    options: argparse.Namespace, report: Report, dry_run: DryRun, named: Sequence[Named], outlet: Output
) -> int:
    """Show the findings, or the prices: that of a job that would hang or fail says nothing."""
    from simcoll.errors import BAD_INPUT
    from simcoll.verifier.postmortem import exit_code

    if code := exit_code(report):
        outlet.show(report)
        return code
    try:
        return _priced(options, dry_run, report, named, outlet)
    except ValueError as error:
        return outlet.refuse(BAD_INPUT, str(error))


def _priced(
    options: argparse.Namespace, dry_run: DryRun, report: Report, named: Sequence[Named], outlet: Output
) -> int:
    from simcoll.blackbox.gather import gather
    from simcoll.dryrun.extrapolate import extrapolate
    from simcoll.pricing.job import recorded_job

    boxes = sorted(dry_run.folder.glob("rank*.simcoll"))
    filled = extrapolate(gather(boxes).traces, dry_run.world_size)
    job = recorded_job(filled.traces)
    warnings = [f"{found.code}: {found.message}" for found in report.findings]
    notes = [*report.notes, *_assumed(filled), _ended(dry_run, given=options.steps is not None)]
    return show_prices(options, filled.traces, job, named, outlet, notes=notes, warnings=warnings)


def _ended(dry_run: DryRun, *, given: bool) -> str:
    shown = "" if given else "; more with --steps"
    return f"each rank ends after {dry_run.steps} steps of an optimiser{shown}; the records are in {dry_run.folder}"


def _assumed(filled: Extrapolation) -> list[str]:
    """What was taken for granted of ranks that did not run."""
    from simcoll.core.ranges import ranks_text

    notes = []
    if filled.stand_ins:
        models = sorted(set(filled.stand_ins.values()))
        notes.append(
            f"{len(filled.stand_ins):,} ranks that did not run are priced with the programs of {ranks_text(models)}, "
            "which have like places in their groups"
        )
    if filled.approximate:
        notes.append(
            "programs depend on the place in a group, and no rank in the place of "
            f"{ranks_text(filled.approximate)} ran: the nearest one stands for each (--ranks)"
        )
    if filled.ungrouped:
        notes.append(f"the groups of {ranks_text(filled.ungrouped)} are not known: they take no part")
    return notes
