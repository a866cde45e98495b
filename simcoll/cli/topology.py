"""``simcoll topology list | show | import | draw``: presets and files, looked at, converted, drawn."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from simcoll.cli.arguments import add_output_arguments, add_topology_arguments, topology_request
from simcoll.cli.output import Output
from simcoll.core.io import stated_path
from simcoll.core.units import counted
from simcoll.errors import BAD_INPUT, OK, TopologyError
from simcoll.topology.file import document_of, dump_json, write_text, write_topology
from simcoll.topology.graph import Topology
from simcoll.topology.request import TopologyRequest
from simcoll.topology.summary import render_summary, render_tree, summarise
from simcoll.topology.svg import draw


class _Actions(Protocol):
    """The part of argparse's subparsers that is used here."""

    def add_parser(self, name: str, *, help: str, description: str) -> argparse.ArgumentParser:  # noqa: A002
        """A parser for one more action."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the four actions of ``topology`` to its parser."""
    actions = parser.add_subparsers(dest="action", metavar="list|show|import|draw", required=True)
    _action(actions, "list", "the presets: servers, racks, cloud instances, fat trees")
    show = _action(actions, "show", "what a preset, a file or a cluster consists of")
    imported = _action(
        actions, "import", "read NCCL's XML, `nvidia-smi topo -m` or ASTRA-sim's, and write simcoll's own format"
    )
    drawn = _action(actions, "draw", "draw a tree on the terminal, or a picture")
    for command in (show, imported, drawn):
        command.add_argument("name", metavar="NAME_OR_FILE", nargs="?", help="a preset or a file, as --topology")
        add_topology_arguments(command)
    imported.add_argument(
        "--out", metavar="FILE", type=stated_path, help="a .json or .yaml file (default: JSON on stdout)"
    )
    drawn.add_argument("--out", metavar="FILE", type=stated_path, help="an SVG file (default: a tree on the terminal)")


def _action(actions: _Actions, name: str, text: str) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    add_output_arguments(parser)
    return parser


def run_command(options: argparse.Namespace) -> int:
    """Carry out ``simcoll topology``; the exit code of the contract."""
    output = Output(json=options.json, plain=options.plain)
    if options.action == "list":
        return _list(output)
    request = ViewRequest(options.action, options.name, topology_request(options), getattr(options, "out", None))
    return view(request, output)


@dataclass(frozen=True, slots=True)
class ViewRequest:
    """One topology, and the action ``show``, ``import`` or ``draw``; ``name`` is short for ``--topology``."""

    action: str
    name: str | None
    topology: TopologyRequest
    out: Path | None

    def graph(self) -> Topology:
        """The topology; raises TopologyError."""
        if self.name is None:
            return self.topology.build()
        if self.topology.topology is not None:
            raise TopologyError(
                f"both {self.name} and --topology {self.topology.topology} are given, expected one of them"
            )
        return replace(self.topology, topology=self.name).build()


def view(request: ViewRequest, output: Output) -> int:
    """Show, convert or draw a topology; the exit code of the contract."""
    try:
        graph = request.graph()
        if request.action == "show":
            summary = summarise(graph)
            output.render(render_summary(summary), summary.as_json)
            return OK
        for text in graph.graph.get("notes", ()):
            output.warn(f"note: {text}")
        return (_import if request.action == "import" else _draw)(graph, request.out, output)
    except TopologyError as error:
        return output.refuse(BAD_INPUT, str(error))


def _list(output: Output) -> int:
    from simcoll.reports.tables import Rows
    from simcoll.topology.presets import PRESETS

    table = Rows()
    for heading in ("preset", "nodes", "GPUs each", "NICs each", "what it is"):
        # A name that is cut cannot be given.
        table.add_column(heading, no_wrap=heading == "preset")
    rows = []
    for row in PRESETS.values():
        nics = f"{row.nics} x {row.nic_gbps:g} Gbit/s {row.fabric}"
        table.add_row(row.name, str(row.nodes), f"{row.gpus} x {row.gpu}", nics, row.about)
        keys = ("name", "about", "nodes", "gpu", "gpus", "nics", "nic_gbps", "fabric", "cpu", "source")
        rows.append({key: getattr(row, key) for key in keys})
    output.render(table, lambda: {"schema": "simcoll.presets/1", "presets": rows})
    return OK


def _import(graph: Topology, out: Path | None, output: Output) -> int:
    """Without a file to write to, the document goes to stdout."""
    if out is None:
        output.hand_over(dump_json(document_of(graph)).rstrip())
        return OK
    write_topology(out, graph)
    summary = summarise(graph)
    text = f"{out}: {counted(summary.ranks, 'rank')} on {counted(summary.hosts, 'host')}"
    output.line(text, lambda: {**summary.as_json(), "file": str(out)})
    return OK


def _draw(graph: Topology, out: Path | None, output: Output) -> int:
    if out is None:
        output.render(render_tree(graph), lambda: {**summarise(graph).as_json(), "svg": draw(graph)})
        return OK
    write_text(out, draw(graph))
    output.line(str(out), lambda: {**summarise(graph).as_json(), "file": str(out)})
    return OK
