"""``simcoll estimate script.py --world-size N TOPOLOGY``: what a script would cost, before it runs anywhere.

A dry run (`simcoll.preflight`) of some of its ranks, the verdict on them, and the price of all ranks: those that did
not run have the programs of those that did and have the same place in their groups (`simcoll.filled_in`).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simcoll.preflight_command import check_dry_run, ranks_asked, sizes_asked
from simcoll.pricing_command import Named, scenarios_asked, show_prices

if TYPE_CHECKING:
    from simcoll.filled_in import Filled
    from simcoll.lone_rank import DryRun
    from simcoll.outlet import Outlet
    from simcoll.preflight import Plan
    from simcoll.verifier.finding import Report

_STEPS = 3


def is_script(subject: str) -> bool:
    """Whether a program is meant, and no record: a Python file, or a folder that Python runs."""
    return subject.lower().endswith((".py", ".pyz")) or os.path.isfile(os.path.join(subject, "__main__.py"))


def run_script_pricing(options: argparse.Namespace, script: Path, arguments: Sequence[str]) -> int:
    """Run, judge and price a script; the exit code of the contract."""
    from simcoll.errors import SimcollError
    from simcoll.outlet import Outlet
    from simcoll.preconditions import BAD_INPUT, RefusedError

    outlet = Outlet(json=options.json)
    try:
        named = _scenarios(options)
        dry_run, plan = _planned(options, script, arguments)
        _check_room(dry_run.world_size, named)
    except RefusedError as error:
        return outlet.refuse(error.code, str(error))
    except (SimcollError, ValueError) as error:
        return outlet.refuse(BAD_INPUT, str(error))
    return _conclude(options, dry_run, plan, named, outlet)


def _scenarios(options: argparse.Namespace) -> list[Named]:
    """The script has as many ranks as are asked for: none of its scenarios changes that."""
    others = argparse.Namespace(**vars(options) | {"world_size": None, "ranks": None})
    return scenarios_asked(others)


def _planned(options: argparse.Namespace, script: Path, arguments: Sequence[str]) -> tuple[DryRun, Plan]:
    """The dry run that the options ask for; raises RefusedError, SimcollError and ValueError."""
    from simcoll.preconditions import check_script, check_torch, prepare_folder

    size, local = sizes_asked(options)
    ranks = ranks_asked(options, size)
    check_dry_run(options)
    check_script(script, compiles=True)
    check_torch()
    folder = prepare_folder(options.out, len(ranks or range(min(size, 64))))
    # Before torch is imported: a program that asks is told that there is no GPU.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from simcoll.lone_rank import DryRun
    from simcoll.preflight import Plan, cores

    memory = None if options.memory is None else int(options.memory * (1 << 30))
    steps = options.steps or _STEPS
    cuda = options.device == "cuda"
    dry_run = DryRun(script, arguments, size, local, folder, steps, options.fake_tensors, memory, cuda, counts=True)
    return dry_run, Plan(ranks, options.timeout, options.jobs or cores())


def _check_room(size: int, named: Sequence[Named]) -> None:
    """Before minutes are spent on a dry run that could not be priced."""
    from simcoll.job_prices import check_room

    for _, topology, _ in named:
        check_room(size, topology)


def _conclude(options: argparse.Namespace, dry_run: DryRun, plan: Plan, named: Sequence[Named], outlet: Outlet) -> int:
    from simcoll.preconditions import BAD_INPUT
    from simcoll.preflight import preflight, remove_earlier
    from simcoll.progress import progress_bar
    from simcoll.verifier.postmortem import exit_code
    from simcoll.warm_torch import warm_up

    remove_earlier(dry_run.folder)
    warm_up()
    with progress_bar("dry run", then="judging") as progress:
        report = preflight(dry_run, plan, progress)
    outlet.save(report, dry_run.folder)
    if code := exit_code(report):
        # The price of a job that would hang or fail says nothing.
        outlet.show(report)
        return code
    try:
        return _priced(options, dry_run, report, named, outlet)
    except ValueError as error:
        return outlet.refuse(BAD_INPUT, str(error))


def _priced(
    options: argparse.Namespace, dry_run: DryRun, report: Report, named: Sequence[Named], outlet: Outlet
) -> int:
    from simcoll.evidence import gather
    from simcoll.filled_in import filled_in
    from simcoll.recorded_job import recorded_job

    boxes = sorted(dry_run.folder.glob("rank*.simcoll"))
    filled = filled_in(gather(boxes).traces, dry_run.world_size)
    job = recorded_job(filled.traces)
    warnings = [f"{found.code}: {found.message}" for found in report.findings]
    notes = [*report.notes, *_assumed(filled), _ended(dry_run, given=options.steps is not None)]
    return show_prices(options, filled.traces, job, named, outlet, notes=notes, warnings=warnings)


def _ended(dry_run: DryRun, *, given: bool) -> str:
    shown = "" if given else "; more with --steps"
    return f"each rank ends after {dry_run.steps} steps of an optimiser{shown}; the records are in {dry_run.folder}"


def _assumed(filled: Filled) -> list[str]:
    """What was taken for granted of ranks that did not run."""
    from simcoll.verifier.ranges import ranks_text

    notes = []
    if filled.stand_ins:
        models = sorted(set(filled.stand_ins.values()))
        notes.append(
            f"{len(filled.stand_ins):,} ranks that did not run are priced with the programs of {ranks_text(models)}, "
            "which have like places in their groups"
        )
    if filled.unlike:
        notes.append(
            f"programs depend on the place in a group, and no rank in the place of {ranks_text(filled.unlike)} ran: "
            "the nearest one stands for each (--ranks)"
        )
    if filled.ungrouped:
        notes.append(f"the groups of {ranks_text(filled.ungrouped)} are not known: they take no part")
    return notes
