"""The operations of a scenario: torch.distributed's functions, and other actions of a rank.

A row has the c10d method of a function, and the form in which the function takes the method's arguments. The collective
itself is defined by the row of :mod:`simcoll.spec.collectives` that the method belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from simcoll.spec.collectives import METHODS
from simcoll.spec.table import CollectiveSpec, Method


@dataclass(frozen=True, slots=True)
class Verb:
    """One function of torch.distributed: its name, its c10d method, the roles of its leading arguments in order.

    ``rank`` is the keyword by which it takes a root or a peer as a group rank. ``asynchronous`` functions always
    return at once, ``blocking`` ones never do.
    """

    name: str
    method: str
    buffers: tuple[str, ...] = ()
    rank: str = ""
    asynchronous: bool = False
    blocking: bool = False

    @property
    def spec(self) -> CollectiveSpec:
        """The row of the collective."""
        return METHODS[self.method][0]

    @property
    def spelling(self) -> Method:
        """The c10d method."""
        return METHODS[self.method][1]


_TABLE = (
    Verb("all_reduce", "allreduce", ("inout",)),
    Verb("all_reduce_coalesced", "allreduce_coalesced", ("inout",)),
    Verb("broadcast", "broadcast", ("inout",), rank="group_src"),
    Verb("reduce", "reduce", ("inout",), rank="group_dst"),
    Verb("all_gather", "allgather", ("outputs", "inputs")),
    Verb("all_gather_into_tensor", "_allgather_base", ("outputs", "inputs")),
    Verb("gather", "gather", ("inputs", "outputs"), rank="group_dst"),
    Verb("scatter", "scatter", ("outputs", "inputs"), rank="group_src"),
    Verb("reduce_scatter", "reduce_scatter", ("outputs", "inputs")),
    Verb("reduce_scatter_tensor", "_reduce_scatter_base", ("outputs", "inputs")),
    Verb("all_to_all", "alltoall", ("outputs", "inputs")),
    Verb("all_to_all_single", "alltoall_base", ("outputs", "inputs")),
    Verb("barrier", "barrier"),
    Verb("monitored_barrier", "monitored_barrier", blocking=True),
    Verb("send", "send", ("inputs",), rank="group_dst", blocking=True),
    Verb("recv", "recv", ("outputs",), rank="group_src", blocking=True),
    Verb("isend", "send", ("inputs",), rank="group_dst", asynchronous=True),
    Verb("irecv", "recv", ("outputs",), rank="group_src", asynchronous=True),
)

VERBS: Mapping[str, Verb] = MappingProxyType({verb.name: verb for verb in _TABLE})
"""Every function that a scenario's ``op`` may name."""

ACTIONS: Mapping[str, str] = MappingProxyType(
    {
        "wait": "wait for the asynchronous calls of the name that `call` states",
        "write": "write to the named `buffer`",
        "compute": "compute for `seconds`, without a collective",
        "parameters": "what DistributedDataParallel does first: state the model's `parameters`",
        "new_group": "make the `group` here, and not at the start",
        "destroy_group": "destroy the `group`",
    }
)
"""The other operations that a scenario's ``op`` may name, and what they do."""

_TAKES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "wait": frozenset({"call"}),
        "write": frozenset({"buffer"}),
        "compute": frozenset({"seconds"}),
        "parameters": frozenset({"group", "parameters"}),
        "new_group": frozenset({"group"}),
        "destroy_group": frozenset({"group"}),
    }
)


def keys_of(op: str) -> frozenset[str]:
    """The keys of a scenario that describe a call of this op; raises KeyError for an unknown op."""
    verb = VERBS.get(op)
    return frozenset({"op"}) | (_TAKES[op] if verb is None else _keys(verb))


def _keys(verb: Verb) -> frozenset[str]:
    spec, method = verb.spec, verb.spelling
    found = {"group", *(spec.agree & {"reduce_op", "root", "tag"}), *(spec.law_reads - {"root"})}
    if spec.measured is not None:
        found |= {"shape", "dtype", "device", "order", "buffer"}
    if method.coalesced:
        found.add("shapes")
    if method.buffers == ("outputs", "inputs"):
        found.add("output")
    if method.listed:
        found.add("parts")
    if "tag" in spec.agree:
        found.add("peer")
    if not verb.blocking:
        found.add("async")
    return frozenset(found)
