"""The one table of collectives.

All facts about a collective are in its row: its names in torch.distributed, the fields that every rank must state
alike, the flows between ranks, its meaning, the algorithms that price it. The wrapper, the
verifier, the simulator, the estimator and the reports read this table and know no collective by name. The fields of a
row are those of :mod:`simcoll.spec.table`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from simcoll.spec import flows as laws
from simcoll.spec.call import Call
from simcoll.spec.flows import FaultLaw, FlowLaw

if TYPE_CHECKING:
    from simcoll.spec.semantics import Result

from simcoll.spec.table import IN_PLACE, CollectiveSpec, Kind, Method, Rooted
from simcoll.spec.value_laws import ValueLaw

_BUFFERED = frozenset({"dtype", "device"})
"""The fields that rows with tensors agree on besides the row itself."""


def _meaning(name: str) -> Result:
    """A function of :mod:`simcoll.spec.semantics`. That imports numpy, which pricing a collective does without."""

    def result(calls: Sequence[Call], inputs: Any) -> Any:
        from simcoll.spec import semantics

        return getattr(semantics, name)(calls, inputs)

    return result


def _spec(
    name: str,
    kind: Kind,
    methods: Sequence[Method],
    result: Result,
    *,
    functions: Sequence[str],
    profiling: Sequence[str] = (),
    measured: str | None,
    agree: frozenset[str] = frozenset(),
    law: FlowLaw = laws.counted,
    fault_law: FaultLaw = laws.no_fault,
    schedules: Sequence[str],
    traffic: Callable[[int], float],
    names_absent: bool = False,
    rooted: Rooted | None = None,
    law_reads: frozenset[str] = frozenset(),
    divided: frozenset[str] = frozenset(),
    values: ValueLaw | None = None,
    ends_earlier: bool = False,
) -> CollectiveSpec:
    return CollectiveSpec(
        name,
        kind,
        tuple(functions),
        tuple(methods),
        tuple(profiling),
        measured,
        frozenset({"op"}) | agree | (_BUFFERED if measured else frozenset()),
        law,
        fault_law,
        result,
        tuple(schedules),
        traffic,
        names_absent,
        rooted,
        law_reads,
        divided,
        values,
        ends_earlier,
    )


_TABLE = (
    _spec(
        "all_reduce",
        Kind.REDUCTION,
        [
            Method("allreduce", "ALLREDUCE", IN_PLACE),
            Method("allreduce_coalesced", "ALLREDUCE_COALESCED", IN_PLACE, coalesced=True),
        ],
        _meaning("all_reduce"),
        functions=["all_reduce", "all_reduce_coalesced"],
        profiling=["all_reduce", "allreduce_coalesced", "sparse_all_reduce", "all_reduce_sparse"],
        measured="inputs",
        agree=frozenset({"reduce_op", "count", "shape", "order"}),
        schedules=["ring", "tree", "halving_doubling", "hierarchical", "nvls", "nvls_tree", "direct"],
        traffic=lambda n: 2 * (n - 1) / n,
        values=ValueLaw(reduced=True, replicated=True),
    ),
    _spec(
        "broadcast",
        Kind.MOVEMENT,
        [Method("broadcast", "BROADCAST", IN_PLACE, ("root",))],
        _meaning("broadcast"),
        functions=["broadcast"],
        profiling=["broadcast", "_broadcast_oop"],
        measured="inputs",
        agree=frozenset({"root", "count", "shape", "order"}),
        fault_law=laws.root_fault,
        schedules=["ring", "tree", "hierarchical", "direct"],
        traffic=lambda n: 1.0,
        rooted=Rooted.FROM_ROOT,
        values=ValueLaw(replicated=True),
    ),
    _spec(
        "reduce",
        Kind.REDUCTION,
        [Method("reduce", "REDUCE", IN_PLACE, ("root",))],
        _meaning("reduce"),
        functions=["reduce"],
        profiling=["reduce", "_reduce_oop"],
        measured="inputs",
        agree=frozenset({"reduce_op", "root", "count", "shape", "order"}),
        fault_law=laws.root_fault,
        schedules=["ring", "tree", "hierarchical", "direct"],
        traffic=lambda n: 1.0,
        rooted=Rooted.TO_ROOT,
        values=ValueLaw(reduced=True),
    ),
    _spec(
        "all_gather",
        Kind.MOVEMENT,
        [
            Method("allgather", "ALLGATHER", listed=True),
            Method("_allgather_base", "_ALLGATHER_BASE"),
            Method("all_gather_single", "_ALLGATHER_BASE"),
            Method("allgather_coalesced", "ALLGATHER_COALESCED", coalesced=True, listed=True),
            Method("allgather_into_tensor_coalesced", "ALLGATHER_INTO_TENSOR_COALESCED", coalesced=True),
            Method("all_gather_single_coalesced", "ALLGATHER_INTO_TENSOR_COALESCED", coalesced=True),
        ],
        _meaning("all_gather"),
        functions=["all_gather", "all_gather_into_tensor", "all_gather_single", "all_gather_coalesced"],
        profiling=[
            "all_gather",
            "_all_gather_base",
            "all_gather_single",
            "all_gather_v",
            "all_gather_into_tensor_coalesced",
            "ALLGATHER_coalesced",
        ],
        measured="inputs",
        agree=frozenset({"count", "shape", "order"}),
        law=laws.all_gather,
        fault_law=laws.all_gather_fault,
        schedules=["ring", "bruck", "pat", "hierarchical", "nvls", "direct"],
        traffic=lambda n: (n - 1) / n,
        divided=frozenset({"outputs"}),
        values=ValueLaw(received_in_parts=True, replicated=True),
    ),
    _spec(
        "gather",
        Kind.MOVEMENT,
        [
            Method("gather", "GATHER", integers=("root",), listed=True),
            Method("gather_single", "GATHER", integers=("root",)),
            Method("gather_into_tensor", "GATHER", integers=("root",)),
        ],
        _meaning("gather"),
        functions=["gather"],
        profiling=["gather"],
        measured="inputs",
        agree=frozenset({"root"}),
        law=laws.gather,
        fault_law=laws.gather_fault,
        schedules=["direct", "tree"],
        traffic=lambda n: (n - 1) / n,
        rooted=Rooted.TO_ROOT,
        law_reads=frozenset({"root"}),
        divided=frozenset({"outputs"}),
        values=ValueLaw(received_in_parts=True),
    ),
    _spec(
        "scatter",
        Kind.MOVEMENT,
        [Method("scatter", "SCATTER", integers=("root",), listed=True)],
        _meaning("scatter"),
        functions=["scatter"],
        profiling=["scatter"],
        measured="outputs",
        agree=frozenset({"root"}),
        law=laws.scatter,
        fault_law=laws.scatter_fault,
        schedules=["direct", "tree"],
        traffic=lambda n: (n - 1) / n,
        rooted=Rooted.FROM_ROOT,
        law_reads=frozenset({"root"}),
        divided=frozenset({"inputs"}),
        values=ValueLaw(sent_in_parts=True),
    ),
    _spec(
        "reduce_scatter",
        Kind.REDUCTION,
        [
            Method("reduce_scatter", "REDUCE_SCATTER", listed=True),
            Method("_reduce_scatter_base", "_REDUCE_SCATTER_BASE"),
            Method("reduce_scatter_single", "_REDUCE_SCATTER_BASE"),
            Method("reduce_scatter_tensor_coalesced", "REDUCE_SCATTER_TENSOR_COALESCED", coalesced=True),
            Method("reduce_scatter_single_coalesced", "REDUCE_SCATTER_TENSOR_COALESCED", coalesced=True),
        ],
        _meaning("reduce_scatter"),
        functions=["reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"],
        profiling=[
            "reduce_scatter",
            "_reduce_scatter_base",
            "reduce_scatter_single",
            "reduce_scatter_v",
            "reduce_scatter_tensor_coalesced",
            "REDUCE_SCATTER_coalesced",
        ],
        measured="outputs",
        agree=frozenset({"reduce_op", "count", "shape", "order"}),
        law=laws.reduce_scatter,
        fault_law=laws.reduce_scatter_fault,
        schedules=["ring", "halving_doubling", "pat", "hierarchical", "nvls", "direct"],
        traffic=lambda n: (n - 1) / n,
        divided=frozenset({"inputs"}),
        values=ValueLaw(sent_in_parts=True, reduced=True),
    ),
    _spec(
        "all_to_all",
        Kind.MOVEMENT,
        [
            Method("alltoall", "ALLTOALL", listed=True),
            Method("alltoall_base", "ALLTOALL_BASE"),
            Method("all_to_all_single", "ALLTOALL_BASE"),
        ],
        _meaning("all_to_all"),
        functions=["all_to_all", "all_to_all_single"],
        profiling=["all_to_all", "all_to_all_single", "all_to_all_v_single"],
        measured="inputs",
        law=laws.all_to_all,
        fault_law=laws.all_to_all_fault,
        schedules=["pairwise", "direct", "bruck", "hierarchical"],
        traffic=lambda n: (n - 1) / n,
        law_reads=frozenset({"input_splits", "output_splits"}),
        divided=frozenset({"inputs", "outputs"}),
        values=ValueLaw(sent_in_parts=True, received_in_parts=True),
    ),
    _spec(
        "barrier",
        Kind.SYNCHRONISATION,
        [Method("barrier", "BARRIER", ())],
        _meaning("barrier"),
        functions=["barrier"],
        profiling=["barrier", "all_reduce_barrier"],
        measured=None,
        schedules=["tree", "ring", "direct"],
        traffic=lambda n: 1.0,
        ends_earlier=True,
    ),
    _spec(
        "monitored_barrier",
        Kind.SYNCHRONISATION,
        [Method("monitored_barrier", "MONITORED_BARRIER", ())],
        _meaning("barrier"),
        functions=["monitored_barrier"],
        profiling=["monitored_barrier"],
        measured=None,
        schedules=["direct"],
        traffic=lambda n: 1.0,
        names_absent=True,
    ),
    _spec(
        "send",
        Kind.POINT_TO_POINT,
        [Method("send", "SEND", ("inputs",), ("peer", "tag"))],
        _meaning("point_to_point"),
        functions=["send", "isend"],
        profiling=["send"],
        measured="inputs",
        agree=frozenset({"count", "tag"}),
        fault_law=laws.peer_fault,
        schedules=["direct"],
        traffic=lambda n: 1.0,
    ),
    _spec(
        "recv",
        Kind.POINT_TO_POINT,
        [
            Method("recv", "RECV", ("outputs",), ("peer", "tag")),
            Method("recv_anysource", "RECVANYSOURCE", ("outputs",), ("tag",)),
        ],
        _meaning("point_to_point"),
        functions=["recv", "irecv"],
        profiling=["recv", "recvAnySource"],
        measured="outputs",
        agree=frozenset({"count", "tag"}),
        fault_law=laws.peer_fault,
        schedules=["direct"],
        traffic=lambda n: 1.0,
    ),
)

COLLECTIVES: Mapping[str, CollectiveSpec] = MappingProxyType({spec.name: spec for spec in _TABLE})
"""Every row, by name."""

METHODS: Mapping[str, tuple[CollectiveSpec, Method]] = MappingProxyType(
    {method.name: (spec, method) for spec in _TABLE for method in spec.methods}
)
"""The row and spelling of each c10d method."""


def spec_of(call: Call) -> CollectiveSpec:
    """The row of a call; raises KeyError for an op that the table does not have."""
    return COLLECTIVES[call.op]
