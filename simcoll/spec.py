"""The one table of collectives.

Everything that simcoll knows of a collective is its row here: how torch.distributed spells it, what every rank must
state alike, who sends how much to whom, what it computes, which algorithms price it. The wrapper, the verifier, the
simulator, the estimator and the reports read this table and know no collective by name.

A call is *proved* when two laws hold. **Agreement**: every rank makes the same :class:`Statement`. **Flow**: what rank
i sends to rank j is what j expects from i, ``sends(i)[j] == receives(j)[i]`` for every i and j. Where agreement on a
count implies the flows (all ranks move equally much), :func:`flows` is None and only the statement is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TypeAlias

from simcoll import semantics
from simcoll.call import Buffer, Call
from simcoll.semantics import Result

SparseFlow: TypeAlias = Mapping[int, int]
"""Elements by peer, a group rank; a peer that is absent exchanges nothing."""


class Kind(Enum):
    """What a collective does with data, which decides how strictly shapes are compared."""

    REDUCTION = "reduction"
    MOVEMENT = "movement"
    SYNCHRONISATION = "synchronisation"
    POINT_TO_POINT = "point-to-point"


@dataclass(frozen=True, slots=True)
class Method:
    """One c10d method: its name, its OpType, and which buffers and integers its arguments are, in order.

    ``buffers`` names the roles of the leading tensor arguments, ``integers`` those of the plain integers after them.
    ``op_type`` is how ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` and Flight Recorder print it.
    """

    name: str
    op_type: str
    buffers: tuple[str, ...] = ("outputs", "inputs")
    integers: tuple[str, ...] = ()
    coalesced: bool = False


@dataclass(frozen=True, slots=True)
class Flows:
    """Elements that one rank sends to, and expects from, each peer (group ranks)."""

    sends: SparseFlow
    receives: SparseFlow


@dataclass(frozen=True, slots=True)
class Content:
    """What a rank states of one tensor. ``count`` and ``shape`` are None where the flows speak for them."""

    dtype: str
    count: int | None
    shape: tuple[int, ...] | None
    order: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Statement:
    """The ``agree`` fields of one call: what every rank of the group must state alike."""

    op: str
    reduce_op: str | None
    root: int | None
    device: str | None
    contents: tuple[Content, ...]


FlowLaw: TypeAlias = Callable[[Call, int, int], "Flows | None"]


@dataclass(frozen=True, slots=True)
class CollectiveSpec:
    """One collective. ``measured`` names the buffers that ranks compare (``inputs``, ``outputs``, or None).

    ``traffic(n)`` is nccl-tests' bus-bandwidth factor for n ranks: bus bandwidth = factor * bytes / seconds.
    """

    name: str
    kind: Kind
    functions: tuple[str, ...]
    methods: tuple[Method, ...]
    profiling: tuple[str, ...]
    measured: str | None
    compares_shape: bool
    agree: frozenset[str]
    law: FlowLaw
    result: Result
    schedules: tuple[str, ...]
    traffic: Callable[[int], float]

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
        )

    def _content(self, buffer: Buffer, counted: bool) -> Content:
        shaped = counted and self.compares_shape
        return Content(
            buffer.dtype,
            buffer.elements if counted else None,
            buffer.squeezed if shaped else None,
            buffer.order if shaped else None,
        )

    def flows(self, call: Call, group_rank: int, group_size: int) -> Flows | None:
        """Who gets how much, or None where the statement's counts say it all."""
        return self.law(call, group_rank, group_size)


def _counted(call: Call, group_rank: int, group_size: int) -> Flows | None:
    """Every rank moves the count that it states: agreement on it is enough."""
    return None


def _gather_law(call: Call, group_rank: int, group_size: int) -> Flows:
    root = call.root or 0
    mine = call.inputs[0].elements if call.inputs else 0
    receives = {peer: buffer.elements for peer, buffer in enumerate(call.outputs)} if group_rank == root else {}
    return Flows({root: mine}, receives)


def _scatter_law(call: Call, group_rank: int, group_size: int) -> Flows:
    root = call.root or 0
    mine = call.outputs[0].elements if call.outputs else 0
    sends = {peer: buffer.elements for peer, buffer in enumerate(call.inputs)} if group_rank == root else {}
    return Flows(sends, {root: mine})


def _all_gather_law(call: Call, group_rank: int, group_size: int) -> Flows | None:
    if call.coalesced or len(call.outputs) != group_size or len(call.inputs) != 1:
        return None
    mine = call.inputs[0].elements
    if all(buffer.elements == mine for buffer in call.outputs):
        return None
    return Flows(dict.fromkeys(range(group_size), mine), {j: b.elements for j, b in enumerate(call.outputs)})


def _reduce_scatter_law(call: Call, group_rank: int, group_size: int) -> Flows | None:
    if call.coalesced or len(call.inputs) != group_size or len(call.outputs) != 1:
        return None
    mine = call.outputs[0].elements
    if all(buffer.elements == mine for buffer in call.inputs):
        return None
    return Flows({j: b.elements for j, b in enumerate(call.inputs)}, dict.fromkeys(range(group_size), mine))


def _all_to_all_law(call: Call, group_rank: int, group_size: int) -> Flows:
    return Flows(
        _parts(call.inputs, call.input_splits, group_size), _parts(call.outputs, call.output_splits, group_size)
    )


def _parts(buffers: Sequence[Buffer], splits: tuple[int, ...] | None, group_size: int) -> SparseFlow:
    """Elements by peer: a list has one buffer a peer; a single buffer is cut along its first dimension."""
    if len(buffers) != 1 or (group_size == 1 and not splits):
        return {peer: buffer.elements for peer, buffer in enumerate(buffers)}
    whole = buffers[0]
    if not splits:
        return dict.fromkeys(range(group_size), whole.elements // group_size)
    row = _row_elements(whole)
    return {peer: rows * row for peer, rows in enumerate(splits)}


def _row_elements(buffer: Buffer) -> int:
    elements = 1
    for size in buffer.shape[1:]:
        elements *= size
    return elements


_ALWAYS = frozenset({"op", "dtype", "device"})
_IN_PLACE = ("inout",)


def _spec(
    name: str,
    kind: Kind,
    methods: Sequence[Method],
    result: Result,
    *,
    functions: Sequence[str],
    profiling: Sequence[str] = (),
    measured: str | None,
    compares_shape: bool = True,
    agree: frozenset[str] = frozenset(),
    law: FlowLaw = _counted,
    schedules: Sequence[str],
    traffic: Callable[[int], float],
) -> CollectiveSpec:
    return CollectiveSpec(
        name,
        kind,
        tuple(functions),
        tuple(methods),
        tuple(profiling),
        measured,
        compares_shape,
        _ALWAYS | agree,
        law,
        result,
        tuple(schedules),
        traffic,
    )


_TABLE = (
    _spec(
        "all_reduce",
        Kind.REDUCTION,
        [
            Method("allreduce", "ALLREDUCE", _IN_PLACE),
            Method("allreduce_coalesced", "ALLREDUCE_COALESCED", _IN_PLACE, coalesced=True),
        ],
        semantics.all_reduce,
        functions=["all_reduce", "all_reduce_coalesced"],
        profiling=["all_reduce", "allreduce", "allreduce_coalesced", "all_reduce_barrier"],
        measured="inputs",
        agree=frozenset({"reduce_op", "count", "shape", "order"}),
        schedules=["ring", "tree", "halving_doubling", "hierarchical", "nvls", "nvls_tree", "direct"],
        traffic=lambda n: 2 * (n - 1) / n,
    ),
    _spec(
        "broadcast",
        Kind.MOVEMENT,
        [Method("broadcast", "BROADCAST", _IN_PLACE, ("root",))],
        semantics.broadcast,
        functions=["broadcast"],
        profiling=["broadcast"],
        measured="inputs",
        agree=frozenset({"root", "count", "shape", "order"}),
        schedules=["ring", "tree", "hierarchical", "direct"],
        traffic=lambda n: 1.0,
    ),
    _spec(
        "reduce",
        Kind.REDUCTION,
        [Method("reduce", "REDUCE", _IN_PLACE, ("root",))],
        semantics.reduce,
        functions=["reduce"],
        profiling=["reduce"],
        measured="inputs",
        agree=frozenset({"reduce_op", "root", "count", "shape", "order"}),
        schedules=["ring", "tree", "hierarchical", "direct"],
        traffic=lambda n: 1.0,
    ),
    _spec(
        "all_gather",
        Kind.MOVEMENT,
        [
            Method("allgather", "ALLGATHER"),
            Method("_allgather_base", "ALLGATHER_BASE"),
            Method("all_gather_single", "ALLGATHER_BASE"),
            Method("allgather_coalesced", "ALLGATHER_COALESCED", coalesced=True),
            Method("allgather_into_tensor_coalesced", "ALLGATHER_INTO_TENSOR_COALESCED", coalesced=True),
            Method("all_gather_single_coalesced", "ALLGATHER_INTO_TENSOR_COALESCED", coalesced=True),
        ],
        semantics.all_gather,
        functions=["all_gather", "all_gather_into_tensor", "all_gather_single", "all_gather_coalesced"],
        profiling=["all_gather", "_all_gather_base", "all_gather_into_tensor_coalesced", "all_gather_coalesced"],
        measured="inputs",
        agree=frozenset({"count", "shape", "order"}),
        law=_all_gather_law,
        schedules=["ring", "bruck", "pat", "hierarchical", "nvls", "direct"],
        traffic=lambda n: (n - 1) / n,
    ),
    _spec(
        "gather",
        Kind.MOVEMENT,
        [Method("gather", "GATHER", integers=("root",)), Method("gather_single", "GATHER", integers=("root",))],
        semantics.gather,
        functions=["gather"],
        profiling=["gather"],
        measured="inputs",
        agree=frozenset({"root"}),
        law=_gather_law,
        schedules=["direct", "tree"],
        traffic=lambda n: (n - 1) / n,
    ),
    _spec(
        "scatter",
        Kind.MOVEMENT,
        [Method("scatter", "SCATTER", integers=("root",))],
        semantics.scatter,
        functions=["scatter"],
        profiling=["scatter"],
        measured="outputs",
        agree=frozenset({"root"}),
        law=_scatter_law,
        schedules=["direct", "tree"],
        traffic=lambda n: (n - 1) / n,
    ),
    _spec(
        "reduce_scatter",
        Kind.REDUCTION,
        [
            Method("reduce_scatter", "REDUCE_SCATTER"),
            Method("_reduce_scatter_base", "_REDUCE_SCATTER_BASE"),
            Method("reduce_scatter_single", "_REDUCE_SCATTER_BASE"),
            Method("reduce_scatter_tensor_coalesced", "REDUCE_SCATTER_TENSOR_COALESCED", coalesced=True),
            Method("reduce_scatter_single_coalesced", "REDUCE_SCATTER_TENSOR_COALESCED", coalesced=True),
        ],
        semantics.reduce_scatter,
        functions=["reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"],
        profiling=["reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"],
        measured="outputs",
        agree=frozenset({"reduce_op", "count", "shape", "order"}),
        law=_reduce_scatter_law,
        schedules=["ring", "halving_doubling", "pat", "hierarchical", "nvls", "direct"],
        traffic=lambda n: (n - 1) / n,
    ),
    _spec(
        "all_to_all",
        Kind.MOVEMENT,
        [
            Method("alltoall", "ALLTOALL"),
            Method("alltoall_base", "ALLTOALL_BASE"),
            Method("all_to_all_single", "ALLTOALL_BASE"),
        ],
        semantics.all_to_all,
        functions=["all_to_all", "all_to_all_single"],
        profiling=["all_to_all", "alltoall", "alltoall_base", "all_to_all_single"],
        measured="inputs",
        compares_shape=False,
        law=_all_to_all_law,
        schedules=["pairwise", "direct", "bruck", "hierarchical"],
        traffic=lambda n: (n - 1) / n,
    ),
    _spec(
        "barrier",
        Kind.SYNCHRONISATION,
        [Method("barrier", "BARRIER", ())],
        semantics.barrier,
        functions=["barrier"],
        profiling=["barrier"],
        measured=None,
        schedules=["tree", "ring", "direct"],
        traffic=lambda n: 1.0,
    ),
    _spec(
        "monitored_barrier",
        Kind.SYNCHRONISATION,
        [Method("monitored_barrier", "MONITORED_BARRIER", ())],
        semantics.barrier,
        functions=["monitored_barrier"],
        profiling=["monitored_barrier"],
        measured=None,
        schedules=["direct"],
        traffic=lambda n: 1.0,
    ),
    _spec(
        "send",
        Kind.POINT_TO_POINT,
        [Method("send", "SEND", ("inputs",), ("peer", "tag"))],
        semantics.point_to_point,
        functions=["send", "isend"],
        profiling=["send"],
        measured="inputs",
        agree=frozenset({"count", "tag"}),
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
        semantics.point_to_point,
        functions=["recv", "irecv"],
        profiling=["recv", "recv_anysource", "recvAnySource"],
        measured="outputs",
        agree=frozenset({"count", "tag"}),
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
