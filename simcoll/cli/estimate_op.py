"""The command ``simcoll estimate OP``: prices a collective, for one size or a range, on one topology or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simcoll.cli.output import Output
from simcoll.core.ranges import parse_ranks
from simcoll.core.units import SizeError, counted, parse_range, show_rate, show_size
from simcoll.errors import BAD_INPUT, OK
from simcoll.estimator.estimate import estimate, spec_named
from simcoll.spec.collectives import COLLECTIVES
from simcoll.topology.request import TopologyRequest, topology_named

if TYPE_CHECKING:
    from rich.console import RenderableType

    from simcoll.core.estimate import Estimate
    from simcoll.topology.graph import Topology

DEFAULT_SIZES = "1KiB:4GiB"
_DEFAULT_FACTOR = 4


@dataclass(frozen=True, slots=True)
class OpRequest:
    """One collective to be priced; ``bytes``, ``ranks`` and ``compare`` are as typed, ``svg`` and ``html`` files."""

    op: str
    bytes: str | None
    factor: int | None
    algorithm: str | None
    protocol: str | None
    engine: str
    bare: bool
    ranks: str | None
    compare: Sequence[str]
    svg: Path | None
    html: Path | None
    explain: bool
    topology: TopologyRequest

    def sizes(self) -> list[int]:
        """Bytes, in ascending order; raises SizeError. A barrier has none, whatever is asked for."""
        spec = COLLECTIVES.get(self.op)
        if spec is not None and spec.measured is None:
            return [0]
        factor = _DEFAULT_FACTOR if self.factor is None else self.factor
        if factor < 2:
            raise SizeError(f"--factor {factor}: expected a whole number of at least 2")
        return parse_range(DEFAULT_SIZES if self.bytes is None else self.bytes, factor)

    def price(self, topology: Topology, size: int) -> Estimate:
        """The estimate for one size in bytes; raises EstimateError, TopologyError and UsageError."""
        return estimate(
            self.op,
            size,
            topology,
            algorithm=self.algorithm,
            protocol=self.protocol,
            engine=self.engine,
            calibrated=not self.bare,
            ranks=None if self.ranks is None else parse_ranks(self.ranks),
        )


def price_op(request: OpRequest, output: Output) -> int:
    """Price a collective, write the files that were asked for and show the figures; the exit code of the contract."""
    try:
        spec_named(request.op)
        topologies = [request.topology.build(), *map(topology_named, request.compare)]
        names = [str(topology.graph.get("name", f"topology {place}")) for place, topology in enumerate(topologies, 1)]
        rows = [[request.price(topology, size) for topology in topologies] for size in request.sizes()]
        _write_files(request, names, topologies, rows)
    except ValueError as error:
        return output.refuse(BAD_INPUT, str(error))
    output.render(_picture(names, rows, explain=request.explain), lambda: _document(names, rows))
    return OK


def _write_files(
    request: OpRequest, names: Sequence[str], topologies: Sequence[Topology], rows: list[list[Estimate]]
) -> None:
    """The picture, with the bottleneck of the largest size, and the page; raises TopologyError."""
    if request.svg is not None:
        from simcoll.pricing.views.topology_figure import marks_of_estimate
        from simcoll.topology.file import write_text
        from simcoll.topology.svg import draw

        write_text(request.svg, draw(topologies[0], marks_of_estimate(rows[-1][0].bottleneck)))
    if request.html is not None:
        from simcoll.pricing.views.estimate_page import estimate_sheet
        from simcoll.reports.price_page import sheet_page
        from simcoll.topology.file import write_text

        write_text(request.html, sheet_page(estimate_sheet(names, topologies, rows)))


def _picture(names: Sequence[str], rows: list[list[Estimate]], *, explain: bool) -> RenderableType:
    if len(names) > 1:
        return _comparison(names, rows)
    if len(rows) == 1:
        return _one(names[0], rows[0][0], explain=explain)
    return _range(names[0], [row[0] for row in rows], explain=explain)


def _one(name: str, found: Estimate, *, explain: bool) -> RenderableType:
    from simcoll.core.estimate import bottleneck_text
    from simcoll.core.text import plain
    from simcoll.reports.tables import Rows

    size = f" of {show_size(found.bytes)}" if found.bytes else ""
    title = plain(f"{found.op}{size} on {counted(found.ranks, 'rank')} of {name}")
    table = Rows(title=title, title_justify="left", box=None)
    table.show_header = False
    table.add_row("time", _microseconds(found.seconds))
    table.add_row("algorithm", " ".join(filter(None, (found.algorithm, found.protocol))))
    if found.bytes:
        table.add_row("bus bandwidth", show_rate(found.bus_bandwidth))
        table.add_row("algorithm bandwidth", show_rate(found.algorithm_bandwidth))
    if found.bottleneck is not None:
        table.add_row("bottleneck", plain(bottleneck_text(found.bottleneck)))
    for term, seconds in found.terms if explain else ():
        table.add_row(f"  {term}", _microseconds(seconds))
    return table


def _range(name: str, found: list[Estimate], *, explain: bool) -> RenderableType:
    from rich.box import SIMPLE_HEAD

    from simcoll.core.text import plain
    from simcoll.reports.tables import Rows

    title = plain(f"{found[0].op} on {counted(found[0].ranks, 'rank')} of {name}")
    table = Rows(title=title, title_justify="left", box=SIMPLE_HEAD)
    terms = list(dict.fromkeys(term for each in found for term, _ in each.terms)) if explain else []
    table.pad_edge, table.padding = False, (0, 0 if terms else 1, 0, 0)
    for heading in ("size", "time us", *(terms or ("algbw GB/s", "busbw GB/s"))):
        table.add_column(heading.replace(" ", "\n") if terms else heading, justify="right", no_wrap=True)
    table.add_column("algorithm", no_wrap=not terms)
    for each in found:
        parts = dict(each.terms)
        rates = [] if terms else [each.algorithm_bandwidth, each.bus_bandwidth]
        table.add_row(
            show_size(each.bytes),
            _short(each.seconds) if terms else f"{each.seconds * 1e6:,.1f}",
            *(f"{rate / 1e9:,.2f}" for rate in rates),
            *(_short(parts.get(term, 0.0)) for term in terms),
            " ".join(filter(None, (each.algorithm, each.protocol))),
        )
    return table


def _short(seconds: float) -> str:
    """Microseconds in so few characters that all terms fit into a line."""
    return f"{seconds * 1e6:.1f}" if abs(seconds) < 1e-3 else f"{seconds * 1e6:,.0f}"


def _comparison(names: Sequence[str], rows: list[list[Estimate]]) -> RenderableType:
    """Microseconds by size and topology, and how many times as long as on the first."""
    from rich.box import SIMPLE_HEAD

    from simcoll.core.text import plain
    from simcoll.reports.tables import Rows

    table = Rows(title=f"{rows[0][0].op}, microseconds", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("size", justify="right", no_wrap=True)
    for name, found in zip(names, rows[0], strict=True):
        table.add_column(plain(f"{name}, {counted(found.ranks, 'rank')}"), justify="right", overflow="fold")
    for row in rows:
        first = row[0].seconds
        shown = [f"{first * 1e6:,.1f}"]
        shown += [
            f"{each.seconds * 1e6:,.1f}" + (f" (x{each.seconds / first:.2f})" if first else "") for each in row[1:]
        ]
        table.add_row(show_size(row[0].bytes), *shown)
    return table


def _document(names: Sequence[str], rows: list[list[Estimate]]) -> object:
    estimates = [{"topology": name, **found.as_json()} for row in rows for name, found in zip(names, row, strict=True)]
    return {"schema": "simcoll.estimate/1", "estimates": estimates}


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us"
