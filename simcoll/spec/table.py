"""The shape of the table of collectives: the fields of a row, and each rank's statement of a call.

The rows themselves are in :mod:`simcoll.spec.collectives`. A call is *proved* when two laws hold. **Agreement**: every
rank makes the same :class:`Statement`. **Flow**: rank i sends to rank j as much as j expects from i, ``sends(i)[j] ==
receives(j)[i]`` for every i and j. Where agreement on a count implies the flows (all ranks move equally much),
:meth:`CollectiveSpec.flows` is None and only the statement is compared. The laws are in
:mod:`simcoll.spec.flows`, the meaning in :mod:`simcoll.spec.semantics`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from simcoll.spec.call import Buffer, Call
from simcoll.spec.flows import FaultLaw, FlowLaw, Flows, all_gather, counted, no_fault, reduce_scatter, root_fault
from simcoll.spec.value_laws import ValueLaw

if TYPE_CHECKING:
    from simcoll.spec.semantics import Result

_DIVIDED = MappingProxyType({"input_splits": "inputs", "output_splits": "outputs"})
"""The buffer that each list of splits divides."""


IN_PLACE: Final = ("inout",)
"""The buffers of a method that writes its result over its input."""


class Kind(Enum):
    """The kind of a collective by its use of data, which decides how strictly shapes are compared."""

    REDUCTION = "reduction"
    MOVEMENT = "movement"
    SYNCHRONISATION = "synchronisation"
    POINT_TO_POINT = "point-to-point"


class Rooted(Enum):
    """The direction of the data of a collective with a root."""

    FROM_ROOT = "from root"
    TO_ROOT = "to root"


@dataclass(frozen=True, slots=True)
class Method:
    """One c10d method: its name, its OpType, and the buffers and integers that its arguments are, in order.

    ``buffers`` names the roles of the leading tensor arguments, ``integers`` those of the plain integers after them.
    ``listed`` methods take the buffers that the row divides as a list of one buffer a rank, the others as one buffer.
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
    """A rank's statement of one tensor; fields are None where the row does not compare them, or the flows imply them.

    ``shape`` has no dimensions of size one, and is None for a tensor without elements, which cannot be wrong.
    """

    dtype: str
    count: int | None
    shape: tuple[int, ...] | None
    order: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Statement:
    """The ``agree`` fields of one call, which every rank of the group must state alike.

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
    compare (``inputs``, ``outputs``, or None), ``agree`` the fields. ``result`` computes it, ``schedules``
    price it. ``traffic(n)`` is nccl-tests' bus-bandwidth factor for n ranks: bus bandwidth = factor * bytes / seconds.
    ``names_absent`` says that the backend itself waits for every rank and names those that do not come, ``rooted``
    the direction of the data where one rank has another part than the others. ``law_reads`` are the fields of a call,
    beside its buffers, on which the flows rest. ``divided`` names the buffers that hold a part for, or from, each rank.
    ``values`` is the law of its values, None where nothing is moved. ``ends_earlier`` says that its end is also that of
    the group's collectives before it, on every backend.
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
    values: ValueLaw | None = None
    ends_earlier: bool = False

    @property
    def in_place(self) -> bool:
        """True if the buffers that a call reads are those that it writes, however it is spelt."""
        return all(method.buffers == IN_PLACE for method in self.methods)

    def ranks_alike(self, call: Call) -> bool:
        """True if what the call states, and whether it has a fault, is the same on whatever rank it is made, and it has
        no flows.
        """
        if self.law is counted:
            return self.fault_law in (no_fault, root_fault)
        if self.law not in (all_gather, reduce_scatter):
            return False
        return call.coalesced or all(len(getattr(call, buffers)) == 1 for buffers in self.divided)

    def statement(self, call: Call, group_rank: int, group_size: int) -> Statement:
        """Returns the statement that every rank of the group must make alike with this call."""
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
        """Returns the elements by peer, or None where the statement's counts say it all."""
        return self.law(call, group_rank, group_size)

    def brings_result(self, call: Call, group_rank: int) -> bool:
        """True if the call writes a result to this rank's buffers."""
        if self.rooted is None:
            return bool(call.outputs)
        return (call.root == group_rank) == (self.rooted is Rooted.TO_ROOT)

    def receives(self, call: Call, group_rank: int) -> bool:
        """True if this rank's outputs hold, when the call has ended, the row's result of the inputs: a root that
        scatters has its own part too.
        """
        own_part = self.rooted is Rooted.FROM_ROOT and not self.in_place
        return self.brings_result(call, group_rank) or (own_part and bool(call.outputs))

    def sends_inputs(self, call: Call, group_rank: int) -> bool:
        """True if the content of this rank's input buffers is sent when the call runs."""
        return bool(call.inputs) and (self.rooted is not Rooted.FROM_ROOT or call.root == group_rank)

    def fault(self, call: Call, group_rank: int, group_size: int) -> str | None:
        """Returns the fault of this rank's call by itself, or None."""
        return self.fault_law(call, group_rank, group_size)

    def hidden(self, call: Call, unknown: frozenset[str]) -> frozenset[str]:
        """The fields left out by a record on which this call's flows rest; lists of buffers need no splits."""
        reads = self.law_reads & unknown
        if not reads:
            return reads
        return reads - {name for name, buffers in _DIVIDED.items() if len(getattr(call, buffers)) != 1}

    def shows_root(self, call: Call) -> bool:
        """True if the buffers show that this rank is the root: it alone has a part for, or from, every rank."""
        if self.rooted is None or "root" not in self.law_reads:
            return False
        parts = call.outputs if self.rooted is Rooted.TO_ROOT else call.inputs
        return any(buffer.elements for buffer in parts)

    def needs(self, call: Call, group_rank: int, other: int) -> bool:
        """True if the call cannot end on this rank unless the other one comes to it; roots may be unknown."""
        if self.kind is Kind.POINT_TO_POINT or self.rooted is None:
            return self.kind is not Kind.POINT_TO_POINT
        return call.root == (group_rank if self.rooted is Rooted.TO_ROOT else other)
