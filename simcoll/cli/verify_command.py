"""``simcoll verify`` as it is typed: the request, and the topology on which its page prices the job."""

from __future__ import annotations

import argparse
from dataclasses import fields

from simcoll.cli.output import Outlet
from simcoll.cli.topology_arguments import is_topology_given, topology_of
from simcoll.cli.verify import Request, verify
from simcoll.launch.preconditions import BAD_INPUT


def run_verify(options: argparse.Namespace) -> int:
    """Carry out ``simcoll verify``; the exit code of the contract."""
    names = [field.name for field in fields(Request) if field.name != "topology"]
    asked = {name: getattr(options, name) for name in names}
    if not is_topology_given(options):
        return verify(Request(**asked))
    outlet = Outlet(json=options.json, plain=options.plain)
    if options.html is None:
        return outlet.refuse(BAD_INPUT, "a topology goes with --html FILE, on whose page the job is priced")
    try:
        topology = topology_of(options)
    except ValueError as error:
        return outlet.refuse(BAD_INPUT, str(error))
    return verify(Request(**asked, topology=topology))
