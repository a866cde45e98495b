"""``simcoll topology list | show | import | draw``: presets and files, looked at, converted, drawn."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from simcoll.cli.arguments import add_output_arguments
from simcoll.cli.topology_arguments import Commands, add_topology_arguments, topology_of
from simcoll.core.io import stated_path

if TYPE_CHECKING:
    from simcoll.cli.output import Output
    from simcoll.topology.graph import Topology


def add_topology_command(commands: Commands) -> None:
    """Add ``topology`` and its four commands to the command line's parser."""
    parser = commands.add_parser(
        "topology", help="list, show, import or draw topologies", description="List, show, import or draw topologies."
    )
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


def _action(actions: Commands, name: str, text: str) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    add_output_arguments(parser)
    return parser


def topology(options: argparse.Namespace) -> int:
    """Run one of the four; the exit code of the contract."""
    from simcoll.cli.output import Output
    from simcoll.errors import BAD_INPUT, TopologyError

    outlet = Output(json=options.json, plain=options.plain)
    if options.action == "list":
        return _list(outlet)
    try:
        graph = _asked_for(options)
        for text in graph.graph.get("notes", ()) if options.action != "show" else ():
            outlet.warn(f"note: {text}")
        return {"show": _show, "import": _import, "draw": _draw}[options.action](graph, options, outlet)
    except TopologyError as error:
        return outlet.refuse(BAD_INPUT, str(error))


def _asked_for(options: argparse.Namespace) -> Topology:
    """The argument is another spelling of ``--topology``."""
    from simcoll.errors import TopologyError

    if options.name is not None and options.topology is not None:
        raise TopologyError(f"both {options.name} and --topology {options.topology} are given, expected one of them")
    options.topology = options.topology if options.name is None else options.name
    return topology_of(options)


def _list(outlet: Output) -> int:
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
    outlet.render(table, lambda: {"schema": "simcoll.presets/1", "presets": rows})
    return 0


def _show(graph: Topology, options: argparse.Namespace, outlet: Output) -> int:
    from simcoll.topology.summary import render_summary, summarise

    summary = summarise(graph)
    outlet.render(render_summary(summary), summary.as_json)
    return 0


def _import(graph: Topology, options: argparse.Namespace, outlet: Output) -> int:
    """Without a file to write to, the document goes to stdout."""
    from simcoll.core.text import plain
    from simcoll.core.units import counted
    from simcoll.topology.file import dump_json, write_topology
    from simcoll.topology.format import document_of
    from simcoll.topology.summary import summarise

    if options.out is None:
        outlet.hand_over(dump_json(document_of(graph)).rstrip())
        return 0
    write_topology(options.out, graph)
    summary = summarise(graph)
    said = f"{options.out}: {counted(summary.ranks, 'rank')} on {counted(summary.hosts, 'host')}"
    outlet.render(plain(said), lambda: {**summary.as_json(), "file": str(options.out)})
    return 0


def _draw(graph: Topology, options: argparse.Namespace, outlet: Output) -> int:
    from simcoll.core.text import plain
    from simcoll.topology.file import write_text
    from simcoll.topology.summary import render_tree, summarise
    from simcoll.topology.svg import draw

    if options.out is None:
        outlet.render(render_tree(graph), lambda: {**summarise(graph).as_json(), "svg": draw(graph)})
        return 0
    write_text(options.out, draw(graph))
    outlet.render(plain(str(options.out)), lambda: {**summarise(graph).as_json(), "file": str(options.out)})
    return 0
