"""The command ``simcoll estimate script.py``: prices a script before it runs anywhere.

A dry run (`simcoll.dryrun.driver`) of some of its ranks, the verdict on them, and the price of all ranks: those that
did not run have the programs of those that did and have the same place in their groups (`simcoll.dryrun.extrapolate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simcoll.blackbox.gather import gather
from simcoll.cli.output import Output
from simcoll.cli.preflight import PreflightRequest, preflight
from simcoll.cli.price import NamedScenario, PricingRequest, show_prices
from simcoll.core.ranges import ranks_text
from simcoll.errors import BAD_INPUT, SimcollError
from simcoll.pricing.collective_prices import check_room
from simcoll.pricing.job import recorded_job
from simcoll.verifier.exit_code import exit_code
from simcoll.verifier.findings.finding import Report

if TYPE_CHECKING:
    from simcoll.dryrun.extrapolate import Extrapolation
    from simcoll.dryrun.rank.settings import DryRun


def price_script(dry_run: PreflightRequest, pricing: PricingRequest, output: Output, *, are_steps_given: bool) -> int:
    """Run, judge and price a script; the exit code of the contract."""
    try:
        named = pricing.scenarios()
        size, _ = dry_run.sizes()
        for one in named:
            # Before minutes are spent on a dry run that could not be priced.
            check_room(size, one.topology)
    except (SimcollError, ValueError) as error:
        return output.refuse(BAD_INPUT, str(error))

    def conclude(report: Report, ran: DryRun, output: Output) -> int:
        """Show the findings, or else the prices: the price of a job that would hang or fail has no meaning."""
        if code := exit_code(report):
            output.show(report)
            return code
        try:
            return _priced(pricing, ran, report, named, output, are_steps_given=are_steps_given)
        except ValueError as error:
            return output.refuse(BAD_INPUT, str(error))

    return preflight(dry_run, output, conclude)


def _priced(
    pricing: PricingRequest,
    dry_run: DryRun,
    report: Report,
    named: Sequence[NamedScenario],
    output: Output,
    *,
    are_steps_given: bool,
) -> int:
    from simcoll.dryrun.extrapolate import extrapolate

    boxes = sorted(dry_run.folder.glob("rank*.simcoll"))
    filled = extrapolate(gather(boxes).traces, dry_run.world_size)
    job = recorded_job(filled.traces)
    gaps = () if report.coverage is None else report.coverage.gaps
    warnings = [f"not all of the program is priced: {gap}" for gap in gaps]
    warnings += [f"{found.code}: {found.message}" for found in report.findings]
    notes = [*report.notes, *_assumed(filled), _ended(dry_run, given=are_steps_given)]
    return show_prices(pricing, filled.traces, job, named, output, notes=notes, warnings=warnings)


def _ended(dry_run: DryRun, *, given: bool) -> str:
    shown = "" if given else "; more with --steps"
    return f"each rank ends after {dry_run.steps} steps of an optimiser{shown}; the records are in {dry_run.folder}"


def _assumed(filled: Extrapolation) -> list[str]:
    """Returns notes on the assumptions about ranks that did not run."""
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
