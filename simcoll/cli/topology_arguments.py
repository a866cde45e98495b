"""The options by which a command takes a topology: ``--topology FILE|PRESET``, or ``--gpu h100 --nodes 2`` and more.

`add_topology_arguments` adds them to a parser, `topology_of` gives the graph that was asked for. Importing this module
imports nothing but the standard library.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from simcoll.topology.graph import Topology

_CLUSTER = ("gpu", "nodes", "gpus_per_node", "nics_per_node", "nic_gbps", "fabric", "nvlink_domain")
_PRESET = ("gpu", "nodes")
_FILE = ("gpu", "nodes", "gpus_per_node", "nic_gbps", "fabric")


class Commands(Protocol):
    """What argparse's subparsers are used for here."""

    def add_parser(self, name: str, *, help: str, description: str) -> argparse.ArgumentParser:  # noqa: A002
        """A parser for one more command."""


_ABOUT = "a file or preset, or a cluster of like servers"


def add_topology_arguments(parser: argparse.ArgumentParser, about: str = _ABOUT) -> None:
    """Add the options to a parser, as a group of their own."""
    group = parser.add_argument_group("topology", about)
    group.add_argument("--topology", metavar="FILE|PRESET", help="a file, or a name that `simcoll topology list` shows")
    group.add_argument("--gpu", metavar="FAMILY", help="a100, h100, h200, b200, gb200, gb300, ... (default: h100)")
    group.add_argument("--nodes", metavar="N", type=int, help="number of servers (default: 1)")
    group.add_argument("--gpus-per-node", metavar="N", type=int, help="default: 8; 4 for gb200 and gb300")
    group.add_argument("--nics-per-node", metavar="N", type=int, help="default: one per GPU")
    group.add_argument("--nic-gbps", metavar="GBPS", type=float, help="Gbit/s of one NIC (default: 400)")
    group.add_argument("--fabric", metavar="NAME", help="ib, roce, efa, tcpx or tcpxo (default: ib)")
    group.add_argument("--nvlink-domain", metavar="GPUS", type=int, help="default: the node; 72 for gb200 and gb300")


def is_topology_given(options: argparse.Namespace) -> bool:
    """Whether any of the options was used."""
    return options.topology is not None or bool(_given(options, _CLUSTER))


def topology_of(options: argparse.Namespace) -> Topology:
    """The topology that the options ask for; raises TopologyError, one line, for none or for what does not fit."""
    from simcoll.errors import TopologyError
    from simcoll.topology.clusters import cluster

    if options.topology is not None:
        return _named(options.topology, options)
    if not is_topology_given(options):
        raise TopologyError("no topology is given; give --topology FILE|PRESET, or --gpu FAMILY --nodes N")
    return cluster(**_given(options, _CLUSTER))


def topology_named(name: str) -> Topology:
    """A preset, otherwise a file, as it stands; raises TopologyError."""
    from simcoll.topology.file import read_topology
    from simcoll.topology.presets import preset

    return read_topology(name) if _is_file(name) else preset(name)


def _named(name: str, options: argparse.Namespace) -> Topology:
    """A preset by its name, otherwise a file."""
    from simcoll.topology.file import read_topology
    from simcoll.topology.import_hints import Hints
    from simcoll.topology.presets import preset

    if _is_file(name):
        _refuse_others(name, options, _FILE)
        return read_topology(name, Hints(**_given(options, _FILE)))
    topology = preset(name, **_given(options, _PRESET))
    _refuse_others(name, options, _PRESET)
    return topology


def _is_file(name: str) -> bool:
    """What is no preset is a file if it exists or looks like one, so that a name misspelt gets the nearest names."""
    from simcoll.topology.presets import PRESETS

    if name.strip().lower() in PRESETS:
        return False
    path = Path(name)
    looks = len(path.parts) > 1 or path.suffix.lower() in (".json", ".yaml", ".yml", ".xml", ".txt")
    return looks or os.path.exists(name)


def _given(options: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    """The options of these names that were used."""
    found = {name: getattr(options, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _refuse_others(name: str, options: argparse.Namespace, fitting: tuple[str, ...]) -> None:
    from simcoll.errors import TopologyError

    others = [f"--{option.replace('_', '-')}" for option in _given(options, _CLUSTER) if option not in fitting]
    if others:
        raise TopologyError(f"{name} states its own hardware; leave {', '.join(others)} out")
