"""``simcoll estimate OP``: what a collective costs, for one size or a range, on one topology or several.

``simcoll estimate TRACE`` prices a recorded job (`simcoll.cli.price`), ``simcoll estimate script.py`` one that
has not run (`simcoll.cli.estimate_script`).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from simcoll.cli.arguments import add_output_arguments
from simcoll.cli.estimate_script import is_script, run_script_pricing
from simcoll.cli.preflight import add_dry_run_arguments
from simcoll.cli.price import PRICING_OPTIONS, add_pricing_arguments, run_pricing
from simcoll.cli.topology_arguments import Commands, add_topology_arguments, topology_named, topology_of
from simcoll.core.io import stated_path

if TYPE_CHECKING:
    from rich.console import RenderableType

    from simcoll.core.estimate import Bottleneck, Estimate
    from simcoll.topology.graph import Topology

_DEFAULT_SIZES = "1KiB:4GiB"
_DEFAULT_FACTOR = 4
_RECORD_SUFFIXES = (".simcoll", ".pkl", ".pickle", ".json")


def add_estimate_command(commands: Commands) -> None:
    """Add ``estimate`` to the command line's parser."""
    about = "what a collective, or a recorded job, costs on a cluster that need not be there"
    parser = commands.add_parser("estimate", help=about, description=f"Say {about}.")
    parser.add_argument(
        "subject",
        metavar="OP|TRACE|SCRIPT",
        nargs="+",
        help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, ...; or what the ranks of a job left: "
        "black boxes, Flight Recorder dumps, folders of them; or script.py, whose own arguments follow -- at the end",
    )
    parser.add_argument(
        "--bytes",
        metavar="SIZE|MIN:MAX",
        help="as nccl-tests counts: the larger of the send and receive buffers; 1GiB, 100MB, 4096, or 1KiB:1GiB "
        f"(default: {_DEFAULT_SIZES})",
    )
    parser.add_argument("--factor", metavar="N", type=int, help="from one size of a range to the next (default: 4)")
    parser.add_argument("--algorithm", metavar="NAME", help="ring, tree, nvls, ... (default: NCCL's choice)")
    parser.add_argument("--protocol", metavar="NAME", help="LL, LL128 or Simple (default: NCCL's choice)")
    parser.add_argument("--engine", choices=("closed", "flow"), default="closed", help="default: closed")
    parser.add_argument("--bare", action="store_true", help="the bare graph, without launch and protocol overheads")
    parser.add_argument(
        "--ranks",
        metavar="LIST",
        help="the ranks that take part, as 0-7,16 (default: all); of a script, those that run",
    )
    parser.add_argument(
        "--compare", metavar="FILE|PRESET", action="append", default=[], help="a further topology; may be repeated"
    )
    parser.add_argument(
        "--svg",
        metavar="FILE",
        type=stated_path,
        help="also draw the topology, with what holds the collectives up marked",
    )
    parser.add_argument("--html", metavar="FILE", type=stated_path, help="also write all of it as one HTML file")
    parser.add_argument("--explain", action="store_true", help="show the terms that the time is made of")
    add_output_arguments(parser)
    add_pricing_arguments(parser)
    add_dry_run_arguments(parser.add_argument_group("a script", "a dry run of its ranks, as simcoll preflight has it"))
    parser.set_defaults(after=[])
    add_topology_arguments(parser)


def run_estimate(options: argparse.Namespace) -> int:
    """Carry out ``simcoll estimate``; the exit code of the contract."""
    from simcoll.cli.output import warn

    first = str(options.subject[0])
    if is_script(first):
        return run_script_pricing(options, Path(first), [*options.subject[1:], *options.after])
    if _is_record(first):
        return run_pricing(options, [Path(path) for path in options.subject])
    if os.path.exists(first):
        warn(f"{first} is taken as the collective; for the file or folder of that name write ./{first}")
    options.op = first
    return _estimate_op(options)


def _is_record(subject: str) -> bool:
    """Whether a path is meant: not where it is a collective's name, but where it exists or looks like a path."""
    from simcoll.spec.table import COLLECTIVES

    path = Path(subject)
    if subject in COLLECTIVES:
        return False
    return (
        os.path.exists(subject) or len(path.parts) > 1 or os.sep in subject or path.suffix.lower() in _RECORD_SUFFIXES
    )


def _refuse_job_options(options: argparse.Namespace) -> None:
    from simcoll.errors import PricingError

    if len(options.subject) > 1:
        raise PricingError(f"{options.subject[1]!r:.60} is one argument too many: expected one collective, or records")
    if given := [name for name in PRICING_OPTIONS if getattr(options, name)]:
        raise PricingError(f"--{given[0].replace('_', '-')} goes with a recorded job, not with one collective")


def _estimate_op(options: argparse.Namespace) -> int:
    from simcoll.cli.output import Output
    from simcoll.errors import BAD_INPUT

    outlet = Output(json=options.json, plain=options.plain)
    try:
        _refuse_job_options(options)
        topologies = [topology_of(options), *map(topology_named, options.compare)]
        names = [str(topology.graph.get("name", f"topology {place}")) for place, topology in enumerate(topologies, 1)]
        rows = [[_priced(options, topology, size) for topology in topologies] for size in _sizes(options)]
        _write_files(options, names, topologies, rows)
    except ValueError as error:
        return outlet.refuse(BAD_INPUT, str(error))
    outlet.render(_picture(options, names, rows), lambda: _document(names, rows))
    return 0


def _write_files(
    options: argparse.Namespace, names: Sequence[str], topologies: Sequence[Topology], rows: list[list[Estimate]]
) -> None:
    """The picture, with the bottleneck of the largest size, and the page; raises ValueError."""
    from simcoll.pricing.views.bottlenecks import marks_of_estimate
    from simcoll.topology.file import write_text
    from simcoll.topology.svg import draw

    if options.svg is not None:
        write_text(options.svg, draw(topologies[0], marks_of_estimate(rows[-1][0].bottleneck)))
    if options.html is not None:
        from simcoll.pricing.views.estimate_page import estimate_sheet
        from simcoll.reports.price_page import sheet_page

        write_text(options.html, sheet_page(estimate_sheet(names, topologies, rows)))


def _sizes(options: argparse.Namespace) -> list[int]:
    """A barrier has no bytes, whatever is asked for."""
    from simcoll.core.units import SizeError, parse_range
    from simcoll.spec.table import COLLECTIVES

    spec = COLLECTIVES.get(options.op)
    if spec is not None and spec.measured is None:
        return [0]
    factor = _DEFAULT_FACTOR if options.factor is None else options.factor
    if factor < 2:
        raise SizeError(f"--factor {factor}: expected a whole number of at least 2")
    return parse_range(_DEFAULT_SIZES if options.bytes is None else options.bytes, factor)


def _priced(options: argparse.Namespace, topology: Topology, size: int) -> Estimate:
    from simcoll.core.ranges import parse_ranks
    from simcoll.estimator.estimate import estimate

    return estimate(
        options.op,
        size,
        topology,
        algorithm=options.algorithm,
        protocol=options.protocol,
        engine=options.engine,
        calibrated=not options.bare,
        ranks=None if options.ranks is None else parse_ranks(options.ranks),
    )


def _picture(options: argparse.Namespace, names: Sequence[str], rows: list[list[Estimate]]) -> RenderableType:
    if len(names) > 1:
        return _comparison(names, rows)
    if len(rows) == 1:
        return _one(names[0], rows[0][0], explain=options.explain)
    return _range(names[0], [row[0] for row in rows], explain=options.explain)


def _one(name: str, found: Estimate, *, explain: bool) -> RenderableType:
    from simcoll.core.text import plain
    from simcoll.core.units import counted, show_rate, show_size
    from simcoll.pricing.views.bottlenecks import bottleneck_text
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
    from simcoll.core.units import counted, show_size
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
    from simcoll.core.units import counted, show_size
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
    estimates = [
        {"topology": name, **asdict(found), "bottleneck": _link(found.bottleneck), "terms": dict(found.terms)}
        for row in rows
        for name, found in zip(names, row, strict=True)
    ]
    return {"schema": "simcoll.estimate/1", "estimates": estimates}


def _link(found: Bottleneck | None) -> object:
    """A node may be anything that hashes: its name goes into the document."""
    return None if found is None else asdict(found) | {"source": str(found.source), "target": str(found.target)}


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us"
