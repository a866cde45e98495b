"""The one table of collectives.

Everything that simcoll knows of a collective is its row here: how torch.distributed spells it, what every rank must
state alike, who sends how much to whom, what it computes, which algorithms price it. The wrapper, the verifier, the
simulator, the estimator and the reports read this table and know no collective by name.

A call is *proved* when two laws hold. **Agreement**: every rank makes the same :class:`Statement`. **Flow**: what rank
i sends to rank j is what j expects from i, ``sends(i)[j] == receives(j)[i]`` for every i and j. Where agreement on a
count implies the flows (all ranks move equally much), :meth:`CollectiveSpec.flows` is None and only the statement is
compared. The laws are in :mod:`simcoll.spec.flows`, the meaning in :mod:`simcoll.spec.semantics`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from simcoll.spec import flows as laws
from simcoll.spec.call import Buffer, Call
from simcoll.spec.flows import FaultLaw, FlowLaw, Flows, SparseFlow

if TYPE_CHECKING:
    from simcoll.spec.semantics import Result

__all__ = [
    "COLLECTIVES",
    "METHODS",
    "CollectiveSpec",
    "Content",
    "Flows",
    "Kind",
    "Method",
    "Rooted",
    "SparseFlow",
    "Statement",
    "spec_of",
]


class Kind(Enum):
    """What a collective does with data, which decides how strictly shapes are compared."""

    REDUCTION = "reduction"
    MOVEMENT = "movement"
    SYNCHRONISATION = "synchronisation"
    POINT_TO_POINT = "point-to-point"


class Rooted(Enum):
    """Which way the data of a collective with a root goes."""

    FROM_ROOT = "from root"
    TO_ROOT = "to root"


@dataclass(frozen=True, slots=True)
class Method:
    """One c10d method: its name, its OpType, and which buffers and integers its arguments are, in order.

    ``buffers`` names the roles of the leading tensor arguments, ``integers`` those of the plain integers after them.
    ``listed`` methods take what the row divides as a list of one buffer a rank, the others as one buffer.
    ``op_type`` is how ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` and Flight Recorder print it.
    """

    name: str
    op_type: str
    buffers: tuple[str, ...] = ("outputs", "inputs")
    integers: tuple[str, ...] = ()
    coalesced: bool = False
    listed: bool = False


@dataclass(frozen=True, slots=True)
class Content:
    """What a rank states of one tensor; None where the row does not compare it, or where the flows speak for it.

    ``shape`` has no dimensions of size one, and is None for a tensor without elements: nothing of it can go wrong.
    """

    dtype: str
    count: int | None
    shape: tuple[int, ...] | None
    order: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Statement:
    """The ``agree`` fields of one call: what every rank of the group must state alike.

    ``valid`` is False for a call that contradicts itself (:meth:`CollectiveSpec.fault`): where all ranks' calls do, the
    backend refuses them all; where only some do, the others would wait for ranks that were refused.
    """

    op: str
    reduce_op: str | None
    root: int | None
    device: str | None
    contents: tuple[Content, ...]
    valid: bool = True
    form: str | None = None


@dataclass(frozen=True, slots=True)
class CollectiveSpec:
    """One collective.

    ``functions`` are its names in torch.distributed, ``methods`` those of a c10d process group, ``profiling`` those
    that Flight Recorder and the profiler print behind the backend's name. ``measured`` names the buffers that ranks
    compare (``inputs``, ``outputs``, or None), ``agree`` what they compare. ``result`` computes it, ``schedules``
    price it. ``traffic(n)`` is nccl-tests' bus-bandwidth factor for n ranks: bus bandwidth = factor * bytes / seconds.
    ``names_absent`` says that the backend itself waits for every rank and names those that do not come, ``rooted``
    which way the data goes where one rank has another part than the others. ``law_reads`` are the fields of a call,
    beside its buffers, on which the flows rest. ``divided`` names the buffers that hold a part for, or from, each rank.
    """

    name: str
    kind: Kind
    functions: tuple[str, ...]
    methods: tuple[Method, ...]
    profiling: tuple[str, ...]
    measured: str | None
    agree: frozenset[str]
    law: FlowLaw
    fault_law: FaultLaw
    result: Result
    schedules: tuple[str, ...]
    traffic: Callable[[int], float]
    names_absent: bool = False
    rooted: Rooted | None = None
    law_reads: frozenset[str] = frozenset()
    divided: frozenset[str] = frozenset()

    @property
    def in_place(self) -> bool:
        """Whether the buffers that a call reads are those that it writes, however it is spelt."""
        return all(method.buffers == _IN_PLACE for method in self.methods)

    def statement(self, call: Call, group_rank: int, group_size: int) -> Statement:
        """What this call commits every rank of the group to."""
        flows = self.law(call, group_rank, group_size)
        buffers: tuple[Buffer, ...] = () if self.measured is None else getattr(call, self.measured)
        if self.measured is not None and not call.coalesced:
            buffers = buffers[:1]
        return Statement(
            self.name,
            call.reduce_op if "reduce_op" in self.agree else None,
            call.root if "root" in self.agree else None,
            buffers[0].device if buffers and "device" in self.agree else None,
            tuple(self._content(buffer, flows is None) for buffer in buffers),
            self.fault(call, group_rank, group_size) is None,
            call.form,
        )

    def _content(self, buffer: Buffer, counted: bool) -> Content:
        stated = self.agree if counted else frozenset[str]()
        full = buffer.elements > 0
        return Content(
            buffer.dtype,
            buffer.elements if "count" in stated else None,
            buffer.squeezed if "shape" in stated and full else None,
            buffer.order if "order" in stated and full else None,
        )

    def flows(self, call: Call, group_rank: int, group_size: int) -> Flows | None:
        """Who gets how much, or None where the statement's counts say it all."""
        return self.law(call, group_rank, group_size)

    def brings_result(self, call: Call, group_rank: int) -> bool:
        """Whether the call writes a result to this rank's buffers."""
        if self.rooted is None:
            return bool(call.outputs)
        return (call.root == group_rank) == (self.rooted is Rooted.TO_ROOT)

    def sends_inputs(self, call: Call, group_rank: int) -> bool:
        """Whether what this rank's input buffers hold when the call runs reaches anybody."""
        return bool(call.inputs) and (self.rooted is not Rooted.FROM_ROOT or call.root == group_rank)

    def fault(self, call: Call, group_rank: int, group_size: int) -> str | None:
        """What is wrong with this rank's call whatever the others do, or None."""
        return self.fault_law(call, group_rank, group_size)

    def hidden(self, call: Call, unknown: frozenset[str]) -> frozenset[str]:
        """Which of the fields that a record leaves out this call's flows rest on; lists of buffers need no splits."""
        listed = {name for name, buffers in _DIVIDED.items() if len(getattr(call, buffers)) != 1}
        return (self.law_reads & unknown) - listed

    def shows_root(self, call: Call) -> bool:
        """Whether the buffers give this rank away as the root: it alone has a part for, or from, every rank."""
        if self.rooted is None or "root" not in self.law_reads:
            return False
        parts = call.outputs if self.rooted is Rooted.TO_ROOT else call.inputs
        return any(buffer.elements for buffer in parts)

    def needs(self, call: Call, group_rank: int, other: int) -> bool:
        """Whether the call cannot end on this rank unless the other one comes to it; roots may be unknown."""
        if self.kind is Kind.POINT_TO_POINT or self.rooted is None:
            return self.kind is not Kind.POINT_TO_POINT
        return call.root == (group_rank if self.rooted is Rooted.TO_ROOT else other)


_DIVIDED = MappingProxyType({"input_splits": "inputs", "output_splits": "outputs"})
"""The buffer that each list of splits divides."""

_BUFFERED = frozenset({"dtype", "device"})
"""What rows with tensors agree on beside the row itself."""

_IN_PLACE = ("inout",)


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
    )


_TABLE = (
    _spec(
        "all_reduce",
        Kind.REDUCTION,
        [
            Method("allreduce", "ALLREDUCE", _IN_PLACE),
            Method("allreduce_coalesced", "ALLREDUCE_COALESCED", _IN_PLACE, coalesced=True),
        ],
        _meaning("all_reduce"),
        functions=["all_reduce", "all_reduce_coalesced"],
        profiling=["all_reduce", "allreduce_coalesced", "sparse_all_reduce", "all_reduce_sparse"],
        measured="inputs",
        agree=frozenset({"reduce_op", "count", "shape", "order"}),
        schedules=["ring", "tree", "halving_doubling", "hierarchical", "nvls", "nvls_tree", "direct"],
        traffic=lambda n: 2 * (n - 1) / n,
    ),
    _spec(
        "broadcast",
        Kind.MOVEMENT,
        [Method("broadcast", "BROADCAST", _IN_PLACE, ("root",))],
        _meaning("broadcast"),
        functions=["broadcast"],
        profiling=["broadcast", "_broadcast_oop"],
        measured="inputs",
        agree=frozenset({"root", "count", "shape", "order"}),
        fault_law=laws.root_fault,
        schedules=["ring", "tree", "hierarchical", "direct"],
        traffic=lambda n: 1.0,
        rooted=Rooted.FROM_ROOT,
    ),
    _spec(
        "reduce",
        Kind.REDUCTION,
        [Method("reduce", "REDUCE", _IN_PLACE, ("root",))],
        _meaning("reduce"),
        functions=["reduce"],
        profiling=["reduce", "_reduce_oop"],
        measured="inputs",
        agree=frozenset({"reduce_op", "root", "count", "shape", "order"}),
        fault_law=laws.root_fault,
        schedules=["ring", "tree", "hierarchical", "direct"],
        traffic=lambda n: 1.0,
        rooted=Rooted.TO_ROOT,
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
