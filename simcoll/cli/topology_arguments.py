"""The options by which a command takes a topology: ``--topology FILE|PRESET``, or ``--gpu h100 --nodes 2`` and more.

`add_topology_arguments` adds them to a parser, `topology_request` gives what was asked for. Importing this module
imports nothing but the standard library.
"""

from __future__ import annotations

import argparse
from dataclasses import fields

from simcoll.topology.request import TopologyRequest

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


def topology_request(options: argparse.Namespace) -> TopologyRequest:
    """What was given of the options of `add_topology_arguments`."""
    return TopologyRequest(*(getattr(options, field.name) for field in fields(TopologyRequest)))
