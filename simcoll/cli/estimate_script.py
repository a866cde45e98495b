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
from simcoll.core.units import counted
from simcoll.errors import BAD_INPUT, SimcollError
from simcoll.launch.preconditions import PreconditionError, check_script
from simcoll.pricing.collective_prices import check_room
from simcoll.pricing.job import recorded_job
from simcoll.verifier.exit_code import exit_code
from simcoll.verifier.findings.finding import Report

if TYPE_CHECKING:
    from simcoll.core.trace import Trace
    from simcoll.dryrun.extrapolate import Extrapolation
    from simcoll.dryrun.rank.settings import DryRun


def price_script(dry_run: PreflightRequest, pricing: PricingRequest, output: Output, *, are_steps_given: bool) -> int:
    """Run, judge and price a script; the exit code of the contract."""
    try:
        check_script(dry_run.script, compiles=False)
        named = pricing.scenarios()
        size, _ = dry_run.sizes()
        for one in named:
            # Before minutes are spent on a dry run that could not be priced.
            check_room(size, one.topology)
    except PreconditionError as error:
        return output.refuse(error.code, str(error))
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
    traces = gather(boxes).traces
    filled = extrapolate(traces, dry_run.world_size)
    job = recorded_job(filled.traces)
    gaps = () if report.coverage is None else report.coverage.gaps
    if not job.calls:
        return output.refuse(BAD_INPUT, f"nothing to price: {_why_empty(traces, dry_run, gaps)}")
    warnings = [f"not all of the program is priced: {gap}" for gap in gaps]
    warnings += [f"{found.code}: {found.message}" for found in report.findings]
    notes = [*report.notes, *_assumed(filled), _ended(traces, dry_run, given=are_steps_given)]
    return show_prices(pricing, filled.traces, job, named, output, notes=notes, warnings=warnings)


_MORE_STEPS = 10


def _why_empty(traces: Sequence[Trace], dry_run: DryRun, gaps: Sequence[str]) -> str:
    """The reason why ranks made no call that has a price, and what to do."""
    from simcoll.dryrun.rank.settings import log_name

    if dry_run.steps is not None and _made_steps(traces):
        steps = counted(dry_run.steps, "step")
        more = dry_run.steps * _MORE_STEPS
        return f"each rank ended after {steps} of an optimiser, before its first collective (--steps {more})"
    said = f"its output is in {dry_run.folder / log_name(min((trace.rank for trace in traces), default=0))}"
    if not any(trace.groups for trace in traces):
        return f"the program never created a process group{_as_far(gaps)}; {said}"
    return f"the program made no collective and no message whose two ends are known{_as_far(gaps)}; {said}"


def _as_far(gaps: Sequence[str]) -> str:
    """The reasons why a rank was not followed further; that it left no record is none."""
    from simcoll.dryrun.report import NO_RECORD

    found = [gap for gap in gaps if not gap.endswith(NO_RECORD)]
    return f", as far as its ranks were followed ({'; '.join(found)})" if found else ""


def _made_steps(traces: Sequence[Trace]) -> bool:
    """True if a rank was ended after its steps."""
    from simcoll.dryrun.rank.event_kinds import STEPS_MADE

    return any(event.kind == STEPS_MADE for trace in traces for event in trace.events)


def _ended(traces: Sequence[Trace], dry_run: DryRun, *, given: bool) -> str:
    where = f"the records are in {dry_run.folder}"
    if given and not _made_steps(traces):
        steps = f"no optimiser made {counted(dry_run.steps or 0, 'step')}, so that --steps ended no rank"
        return f"{steps} (a script's own options follow -- at the end); {where}"
    shown = "" if given else "; more with --steps"
    return f"each rank ends after {dry_run.steps} steps of an optimiser{shown}; {where}"


def _assumed(filled: Extrapolation) -> list[str]:
    """Returns notes on the assumptions about ranks that did not run."""
    notes = []
    if filled.stand_ins:
        models = sorted(set(filled.stand_ins.values()))
        notes.append(
            f"{len(filled.stand_ins):,} ranks that did not run are priced with the programs of {ranks_text(models)}, "
            "which have like places in their groups; that they agree was not checked (simcoll preflight does)"
        )
    if filled.approximate:
        notes.append(
            "programs depend on the place in a group, and no rank in the place of "
            f"{ranks_text(filled.approximate)} ran: the nearest one stands for each (--ranks)"
        )
    if filled.ungrouped:
        notes.append(f"the groups of {ranks_text(filled.ungrouped)} are not known: they take no part")
    return notes
