"""``simcoll estimate TRACE TOPOLOGY``: what the communication of a recorded job costs, and what would change it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcoll.cli.topology_arguments import topology_named, topology_of
from simcoll.core.io import stated_path

if TYPE_CHECKING:
    import networkx as nx

    from simcoll.blackbox.gather import Evidence
    from simcoll.cli.output import Output
    from simcoll.core.trace import Trace
    from simcoll.pricing.compute import Counted
    from simcoll.pricing.job import RecordedJob
    from simcoll.pricing.price import Pricing, PricingScenario

_DEFAULT_MFU = "0.4"
_CHANGES = ("algorithm", "protocol", "slow_link", "straggler", "world_size")


def add_pricing_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a recorded job to the parser of ``estimate``."""
    group = parser.add_argument_group("a recorded job", "black boxes, Flight Recorder dumps, or folders of them")
    group.add_argument(
        "--compute", metavar="HOW", help="between calls: measured, none, or the SECONDS of a step (default: measured)"
    )
    group.add_argument("--flops", metavar="FLOP", help="of one rank in a step, in place of --compute; with --gpu-peak")
    group.add_argument("--gpu-peak", metavar="FLOPS", help="the GPU's peak in operations/s, such as 989e12")
    group.add_argument(
        "--mfu",
        metavar="SHARE",
        help=f"the share of the peak that is reached: of --flops, or of a script's (default: {_DEFAULT_MFU})",
    )
    group.add_argument(
        "--slow-link",
        metavar="A,B,FACTOR",
        action="append",
        default=[],
        help="a link FACTOR times as slow; NODE,FACTOR for all links of a node or host; may be repeated",
    )
    group.add_argument(
        "--straggler",
        metavar="RANK:FACTOR",
        action="append",
        default=[],
        help="a rank whose compute takes FACTOR times as long; RANK:+SECONDS for so much more in each step",
    )
    group.add_argument(
        "--world-size",
        metavar="N",
        type=int,
        help="the same job on N ranks, with more or fewer replicas; of a script, how many ranks it has",
    )
    group.add_argument(
        "--timeline", metavar="FILE", type=stated_path, help="write a Chrome trace-event file, for Perfetto"
    )
    group.add_argument("--picture", action="store_true", help="draw the ranks' time")


PRICING_OPTIONS = ("compute", "flops", "gpu_peak", "mfu", "slow_link", "straggler", "world_size", "timeline", "picture")
"""What goes with a recorded job alone."""


def run_pricing(options: argparse.Namespace, paths: Sequence[Path]) -> int:
    """Price the job that left these records; the exit code of the contract."""
    from simcoll.blackbox.gather import gather
    from simcoll.cli.output import Output
    from simcoll.cli.progress import progress_bar
    from simcoll.cli.verify import unreachable
    from simcoll.errors import BAD_INPUT

    outlet = Output(json=options.json, plain=options.plain)
    try:
        scenarios = scenarios_asked(options)
    except ValueError as error:
        return outlet.refuse(BAD_INPUT, str(error))
    for path in paths:
        if reason := unreachable(path):
            return outlet.refuse(BAD_INPUT, f"{path}: {reason}; give records or their folder")
    with progress_bar(then="pricing", shown=not outlet.plain) as progress:
        evidence = gather(paths, progress=progress)
    for text in (*evidence.unreadable, *(evidence.notes if evidence.traces else ())):
        outlet.warn(text)
    if not evidence.traces:
        places = ", ".join(map(str, paths))
        return outlet.refuse(BAD_INPUT, f"no readable black box (*.simcoll) or Flight Recorder dump in {places}")
    try:
        return _priced(options, evidence, scenarios, outlet)
    except ValueError as error:
        return outlet.refuse(BAD_INPUT, str(error))


Named = tuple[str, Any, "PricingScenario"]
"""A scenario with its name and its topology."""


def scenarios_asked(options: argparse.Namespace) -> list[Named]:
    """Name, topology and scenario: the job as it is, with what is to change, and on further topologies."""
    from simcoll.pricing.price import PricingScenario

    _refuse_op_options(options)
    topology, scenario = topology_of(options), _asked(options)
    plain = PricingScenario(_choice(options, chosen=False), scenario.compute)
    name = str(topology.graph.get("name", "topology"))
    found: list[Named] = [(name, topology, plain)]
    changes = [f"--{change.replace('_', '-')}" for change in _CHANGES if getattr(options, change)]
    if changes:
        found.append((f"{name}, {_as_given(options)}", topology, scenario))
    others = map(topology_named, options.compare)
    there = replace(plain, world_size=options.world_size)
    return [*found, *((str(other.graph.get("name", "topology")), other, there) for other in others)]


def _as_given(options: argparse.Namespace) -> str:
    """The changes as they were typed."""
    given = [(change.replace("_", " "), getattr(options, change)) for change in _CHANGES]
    listed = [(name, value if isinstance(value, list) else [value]) for name, value in given if value]
    return ", ".join(f"{name} {one}" for name, values in listed for one in values)


def _refuse_op_options(options: argparse.Namespace) -> None:
    from simcoll.errors import PricingError

    given = [name for name in ("bytes", "factor", "ranks") if getattr(options, name) is not None]
    given += ["explain"] if options.explain else []
    if given:
        raise PricingError(f"--{given[0]} goes with one collective, not with a recorded job; leave it out")


def _asked(options: argparse.Namespace) -> PricingScenario:
    from simcoll.pricing.price import PricingScenario
    from simcoll.pricing.what_if import parse_slow_link, parse_straggler

    return PricingScenario(
        _choice(options, chosen=True),
        _compute(options),
        tuple(map(parse_slow_link, options.slow_link)),
        tuple(map(parse_straggler, options.straggler)),
        options.world_size,
    )


def _choice(options: argparse.Namespace, *, chosen: bool) -> Any:
    from simcoll.pricing.collective_prices import Choice

    algorithm, protocol = (options.algorithm, options.protocol) if chosen else (None, None)
    return Choice(algorithm, protocol, options.engine, not options.bare)


def _compute(options: argparse.Namespace) -> Callable[..., Any] | Counted:
    """As was counted or measured, unless said otherwise."""
    from simcoll.errors import PricingError
    from simcoll.pricing.compute import Counted, per_step
    from simcoll.pricing.what_if import parse_compute, parse_peak, parse_share, step_seconds

    peak, share = parse_peak(options.gpu_peak), parse_share(options.mfu or _DEFAULT_MFU)
    if options.flops is None and options.compute in (None, "measured"):
        return Counted(share, peak)
    if options.flops is None:
        _refuse_rates(options)
        return parse_compute(options.compute)
    if options.compute is not None:
        raise PricingError("--compute and --flops say the same thing; give one of them")
    return per_step(step_seconds(options.flops, options.gpu_peak, options.mfu or _DEFAULT_MFU))


def _refuse_rates(options: argparse.Namespace) -> None:
    from simcoll.errors import PricingError

    if options.flops is None and (options.gpu_peak is not None or options.mfu is not None):
        raise PricingError("--gpu-peak and --mfu go with --flops, the operations of a rank in a step")


def _priced(options: argparse.Namespace, evidence: Evidence, named: Sequence[Named], outlet: Output) -> int:
    from simcoll.pricing.job import recorded_job

    job = recorded_job(evidence.traces)
    if not job.counted:
        _refuse_rates(options)
    return show_prices(options, evidence.traces, job, named, outlet, warnings=_errors(evidence))


def show_prices(
    options: argparse.Namespace,
    traces: Sequence[Trace],
    job: RecordedJob,
    named: Sequence[Named],
    outlet: Output,
    *,
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> int:
    """Price a job in each scenario and show it; raises PricingError, TopologyError and EstimateError."""
    from rich.console import Group

    from simcoll.pricing.price import price_job
    from simcoll.pricing.views.document import pricing_document
    from simcoll.pricing.views.notes import notes_of, notes_on_replay
    from simcoll.pricing.views.picture import PricingPicture
    from simcoll.pricing.views.text import PricingText

    _refuse_empty(job)
    named = _fitting(named, job)
    priced = [price_job(job, topology, scenario, name) for name, topology, scenario in named]
    # Shown in full is the job with what is to change, or as it is.
    main = [one for one, (_, topology, _) in zip(priced, named, strict=True) if topology is named[0][1]][-1]
    for text in warnings:
        outlet.warn(text)
    notes = [*notes, *notes_of(traces, job, named[0][2]), *notes_on_replay(main)]
    if options.timeline is not None:
        notes += _write_timeline(options.timeline, main)
    if options.svg is not None:
        _draw(options.svg, _as_priced(named, priced, main), main)
    if options.html is not None:
        _write_page(options.html, _as_priced(named, priced, main), priced, main, notes, warnings)
    picture = [PricingPicture(main)] if options.picture else []
    outlet.render(Group(PricingText(main, priced, notes), *picture), lambda: pricing_document(priced, notes, warnings))
    return 0


def _fitting(named: Sequence[Named], job: RecordedJob) -> Sequence[Named]:
    """Without the job as it is, where the topology has room for the smaller one alone that is asked for."""
    from simcoll.topology.graph import ranks

    smaller = len(named) > 1 and named[1][2].world_size is not None
    return named[1:] if smaller and len(ranks(named[0][1])) < job.world_size else named


def _as_priced(named: Sequence[Named], priced: Sequence[Pricing], main: Pricing) -> nx.DiGraph[Any]:
    """The topology that ``main`` was priced on, slow links included."""
    from simcoll.pricing.what_if import slowed

    place = next(place for place, one in enumerate(priced) if one is main)
    _, topology, scenario = named[place]
    return slowed(topology, scenario.slow_links)


def _refuse_empty(job: RecordedJob) -> None:
    from simcoll.errors import PricingError

    if not job.calls:
        raise PricingError("the records hold no collective and no message whose two ends are known; nothing to price")


def _errors(evidence: Evidence) -> list[str]:
    """A warning where the job was wrong: it is priced as it was recorded all the same."""
    from simcoll.cli.verify import judged
    from simcoll.verifier.findings.finding import Severity

    codes = dict.fromkeys(found.code for found in judged(evidence).findings if found.severity is Severity.ERROR)
    if not codes:
        return []
    return [
        f"the job has findings of severity error ({', '.join(codes)}; see simcoll verify): priced as far as recorded"
    ]


def _draw(path: Path, topology: nx.DiGraph[Any], priced: Pricing) -> None:
    """The topology with the links that hold the job up for longest; raises TopologyError."""
    from simcoll.pricing.views.bottlenecks import marks_of_job
    from simcoll.topology.file import write_text
    from simcoll.topology.svg import draw

    write_text(path, draw(topology, marks_of_job(priced)))


def _write_page(
    path: Path,
    topology: nx.DiGraph[Any],
    priced: Sequence[Pricing],
    main: Pricing,
    notes: Sequence[str],
    warnings: Sequence[str],
) -> None:
    from simcoll.pricing.views.page import pricing_sheet
    from simcoll.reports.price_page import sheet_page
    from simcoll.topology.file import write_text

    write_text(path, sheet_page(pricing_sheet(main, priced, topology, notes, warnings)))


def _write_timeline(path: Path, priced: Pricing) -> list[str]:
    """Write the trace-event file; gives what it leaves out."""
    from simcoll.errors import PricingError
    from simcoll.pricing.views.predicted_trace import predicted
    from simcoll.reports.trace_event import write_trace_events

    timeline = predicted(priced)
    try:
        write_trace_events(path, timeline)
    except OSError as error:
        raise PricingError(f"cannot write {path}: {error.strerror}; choose another file") from error
    return [timeline.note] if timeline.note else []
