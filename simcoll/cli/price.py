"""The command ``simcoll estimate TRACE``: prices the communication of a recorded job, and changes to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import networkx as nx
from rich.console import Group

from simcoll.blackbox.gather import RunRecords, gather
from simcoll.cli.files import write_timeline
from simcoll.cli.output import Output
from simcoll.cli.progress import progress_bar
from simcoll.cli.records import check_reachable, judged, no_records, warn_of_damage
from simcoll.core.process import rare_collections
from simcoll.core.trace import Trace
from simcoll.errors import BAD_INPUT, OK, PricingError
from simcoll.plan.rates import reached
from simcoll.pricing.collective_prices import EstimateOptions
from simcoll.pricing.compute import Counted, per_step
from simcoll.pricing.job import RecordedJob, recorded_job
from simcoll.pricing.price import Pricing, PricingScenario, price_job
from simcoll.pricing.views.document import pricing_document
from simcoll.pricing.views.notes import notes_of, notes_on_replay
from simcoll.pricing.views.text import PricingPicture, PricingText
from simcoll.pricing.what_if import (
    parse_compute,
    parse_peak,
    parse_share,
    parse_slow_link,
    parse_straggler,
    slowed,
    step_seconds,
)
from simcoll.topology.graph import Topology, ranks
from simcoll.topology.request import TopologyRequest, topology_named
from simcoll.verifier.agreement.matched_calls import MatchedCalls
from simcoll.verifier.findings.finding import errors_of

_DEFAULT_MFU = "0.4"
_CHANGES = ("algorithm", "protocol", "slow_link", "straggler", "world_size")


@dataclass(frozen=True, slots=True)
class NamedScenario:
    """A scenario with its name and its topology."""

    name: str
    topology: Topology
    scenario: PricingScenario


@dataclass(frozen=True, slots=True)
class PricingRequest:
    """The options of pricing a job: the method, the changes, and the files to write; texts are as typed.

    ``compare`` names the further topologies on which it is priced.
    """

    topology: TopologyRequest
    compare: Sequence[str]
    algorithm: str | None
    protocol: str | None
    engine: str
    bare: bool
    compute: str | None
    flops: str | None
    gpu_peak: str | None
    mfu: str | None
    slow_link: Sequence[str]
    straggler: Sequence[str]
    world_size: int | None
    timeline: Path | None
    picture: bool
    svg: Path | None
    html: Path | None

    def scenarios(self) -> list[NamedScenario]:
        """The job as it is, with the changes, and on further topologies; raises TopologyError, PricingError."""
        topology, scenario = self.topology.build(), self._changed()
        unchanged = PricingScenario(self._choice(chosen=False), scenario.compute)
        name = str(topology.graph.get("name", "topology"))
        found = [NamedScenario(name, topology, unchanged)]
        if changes := self._changes():
            found.append(NamedScenario(f"{name}, {changes}", topology, scenario))
        others = map(topology_named, self.compare)
        there = replace(unchanged, world_size=self.world_size)
        return [*found, *(NamedScenario(str(other.graph.get("name", "topology")), other, there) for other in others)]

    def refuse_rates(self) -> None:
        """Raise PricingError for rates without the operations that they go with."""
        if self.flops is None and (self.gpu_peak is not None or self.mfu is not None):
            raise PricingError("--gpu-peak and --mfu go with --flops, the operations of a rank in a step")

    def _changes(self) -> str:
        """The changes as they were typed."""
        given = [(change.replace("_", " "), getattr(self, change)) for change in _CHANGES]
        listed = [(name, value if isinstance(value, list) else [value]) for name, value in given if value]
        return ", ".join(f"{name} {one}" for name, values in listed for one in values)

    def _changed(self) -> PricingScenario:
        return PricingScenario(
            self._choice(chosen=True),
            self._compute(),
            tuple(map(parse_slow_link, self.slow_link)),
            tuple(map(parse_straggler, self.straggler)),
            self.world_size,
        )

    def _choice(self, *, chosen: bool) -> EstimateOptions:
        algorithm, protocol = (self.algorithm, self.protocol) if chosen else (None, None)
        return EstimateOptions(algorithm, protocol, self.engine, not self.bare)

    def _compute(self) -> Callable[..., Any] | Counted:
        """The counted or measured computation, unless an option gives it."""
        peak, share = parse_peak(self.gpu_peak), parse_share(self.mfu or _DEFAULT_MFU)
        if self.flops is None:
            if self.compute is None or self.compute == "measured":
                fitted = reached if self.mfu is None and self.gpu_peak is None else None
                return Counted(share, peak, fitted)
            self.refuse_rates()
            return parse_compute(self.compute)
        if self.compute is not None:
            raise PricingError("--compute and --flops say the same thing; give one of them")
        return per_step(step_seconds(self.flops, self.gpu_peak, self.mfu or _DEFAULT_MFU))


@rare_collections()
def price_records(request: PricingRequest, paths: Sequence[Path], output: Output) -> int:
    """Price the job that left these records; the exit code of the contract."""
    try:
        scenarios = request.scenarios()
    except ValueError as error:
        return output.refuse(BAD_INPUT, str(error))
    check_reachable(paths)
    with progress_bar(then="pricing", shown=not output.plain) as progress:
        records = gather(paths, progress=progress)
    warn_of_damage(records)
    if not records.traces:
        raise no_records(paths)
    try:
        calls = MatchedCalls.of(records.traces)
        job = recorded_job(records.traces, calls)
        if not job.counted:
            request.refuse_rates()
        return show_prices(request, records.traces, job, scenarios, output, warnings=_errors(records, calls))
    except ValueError as error:
        return output.refuse(BAD_INPUT, str(error))


def show_prices(
    request: PricingRequest,
    traces: Sequence[Trace],
    job: RecordedJob,
    named: Sequence[NamedScenario],
    output: Output,
    *,
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> int:
    """Price a job in each scenario and show it; raises PricingError, TopologyError and EstimateError."""
    _refuse_empty(job)
    named = _fitting(named, job)
    priced = [price_job(job, one.topology, one.scenario, one.name) for one in named]
    # The job with its changes, or else as it is, is shown in full.
    as_is = named[0]
    main = [one for one, asked in zip(priced, named, strict=True) if asked.topology is as_is.topology][-1]
    notes = [*notes, *notes_of(traces, job, as_is.scenario), *notes_on_replay(main)]
    if request.timeline is not None:
        notes += _write_timeline(request.timeline, main)
    if request.svg is not None:
        _draw(request.svg, _as_priced(named, priced, main), main)
    if request.html is not None:
        _write_page(request.html, _as_priced(named, priced, main), priced, main, notes, warnings)
    picture = [PricingPicture(main)] if request.picture else []
    text = PricingText(main, priced, notes, warnings)
    output.render(Group(text, *picture), lambda: pricing_document(priced, notes, warnings))
    return OK


def _fitting(named: Sequence[NamedScenario], job: RecordedJob) -> Sequence[NamedScenario]:
    """Without the job as it is, where the topology has room for the smaller one alone that is asked for."""
    smaller = len(named) > 1 and named[1].scenario.world_size is not None
    return named[1:] if smaller and len(ranks(named[0].topology)) < job.world_size else named


def _as_priced(named: Sequence[NamedScenario], priced: Sequence[Pricing], main: Pricing) -> nx.DiGraph[Any]:
    """The topology that ``main`` was priced on, slow links included."""
    place = next(place for place, one in enumerate(priced) if one is main)
    return slowed(named[place].topology, named[place].scenario.slow_links)


def _refuse_empty(job: RecordedJob) -> None:
    if not job.calls:
        raise PricingError("the records hold no collective and no message whose two ends are known; nothing to price")


def _errors(records: RunRecords, calls: MatchedCalls) -> list[str]:
    """A warning where the job was wrong: it is priced as it was recorded all the same."""
    codes = dict.fromkeys(found.code for found in errors_of(judged(records, calls)[0].findings))
    if not codes:
        return []
    return [
        f"the job has findings of severity error ({', '.join(codes)}; see simcoll verify): priced as far as recorded"
    ]


def _draw(path: Path, topology: nx.DiGraph[Any], priced: Pricing) -> None:
    """The topology with the links that hold the job up for longest; raises TopologyError."""
    from simcoll.pricing.views.topology_figure import marks_of_job
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
    """Write the trace-event file; returns its omissions."""
    from simcoll.pricing.views.predicted_trace import predicted

    timeline = predicted(priced)
    write_timeline(path, timeline)
    return [timeline.note] if timeline.note else []
