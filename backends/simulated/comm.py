"""The communicator of a simulated rank's program: c10d's collectives on numpy arrays, under c10d's names.

Every method makes a :class:`~simcoll.spec.call.Call` and posts it to the engine. As in c10d, outputs are arrays of the
caller, which are filled; with ``async_op=True`` a method returns a
:class:`~simcoll.backends.simulated.requests.Request` at once. Roots and peers are group ranks, splits count rows.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from simcoll.backends.simulated.group_calls import CallArguments, GroupCalls
from simcoll.backends.simulated.requests import Request
from simcoll.spec.call import ANY_SOURCE
from simcoll.spec.semantics import Array

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Comm(GroupCalls):
    """One rank's side of a group. ``rank`` is its group rank, ``size`` the group's size."""

    def all_reduce(self, array: Array, op: str = "sum", async_op: bool = False) -> Request | None:
        """Reduce over all ranks, in place."""
        return self._in_place("allreduce", [array], async_op, reduce_op=op)

    def all_reduce_coalesced(self, arrays: Sequence[Array], op: str = "sum", async_op: bool = False) -> Request | None:
        """Reduce several arrays over all ranks, in place."""
        return self._in_place("allreduce_coalesced", arrays, async_op, reduce_op=op)

    def broadcast(self, array: Array, root: int = 0, async_op: bool = False) -> Request | None:
        """Send the root's array to all ranks, in place."""
        return self._in_place("broadcast", [array], async_op, root=root)

    def reduce(self, array: Array, root: int = 0, op: str = "sum", async_op: bool = False) -> Request | None:
        """Reduce over all ranks into the root's array."""
        return self._in_place("reduce", [array], async_op, root=root, reduce_op=op)

    def all_gather(self, outputs: Sequence[Array], array: Array, async_op: bool = False) -> Request | None:
        """Fill ``outputs``, one array per rank, with the arrays of all ranks."""
        return self._make("allgather", [array], outputs, async_op)

    def all_gather_into_tensor(self, output: Array, array: Array, async_op: bool = False) -> Request | None:
        """Fill ``output`` with the arrays of all ranks, concatenated or stacked."""
        return self._make("_allgather_base", [array], [output], async_op)

    def gather(
        self, array: Array, outputs: Sequence[Array] | None = None, root: int = 0, async_op: bool = False
    ) -> Request | None:
        """Fill the root's ``outputs``, one array per rank, with the arrays of all ranks."""
        return self._make("gather", [array], outputs or (), async_op, root=root)

    def scatter(
        self, output: Array, inputs: Sequence[Array] | None = None, root: int = 0, async_op: bool = False
    ) -> Request | None:
        """Fill ``output`` with this rank's array of the root's ``inputs``, one array per rank."""
        return self._make("scatter", inputs or (), [output], async_op, root=root)

    def reduce_scatter(
        self, output: Array, inputs: Sequence[Array], op: str = "sum", async_op: bool = False
    ) -> Request | None:
        """Reduce ``inputs``, one array per rank, over all ranks and keep this rank's."""
        return self._make("reduce_scatter", inputs, [output], async_op, reduce_op=op)

    def reduce_scatter_tensor(
        self, output: Array, array: Array, op: str = "sum", async_op: bool = False
    ) -> Request | None:
        """Reduce ``array`` over all ranks and keep this rank's part."""
        return self._make("_reduce_scatter_base", [array], [output], async_op, reduce_op=op)

    def all_to_all(self, outputs: Sequence[Array], inputs: Sequence[Array], async_op: bool = False) -> Request | None:
        """Send ``inputs[j]`` to rank j, and fill ``outputs[i]`` with the array from rank i."""
        return self._make("alltoall", inputs, outputs, async_op)

    def all_to_all_single(
        self,
        output: Array,
        array: Array,
        output_splits: Sequence[int] | None = None,
        input_splits: Sequence[int] | None = None,
        async_op: bool = False,
    ) -> Request | None:
        """Send part j of ``array`` to rank j: equal parts, or parts with as many rows as the splits."""
        return self._make(
            "alltoall_base",
            [array],
            [output],
            async_op,
            output_splits=output_splits,
            input_splits=input_splits,
        )

    def barrier(self, async_op: bool = False) -> Request | None:
        """Wait until every rank has come."""
        return self._make("barrier", (), (), async_op)

    def monitored_barrier(self) -> None:
        """Wait until every rank has come; the error names missing ranks."""
        self.call("monitored_barrier")

    def send(self, array: Array, dst: int, tag: int = 0) -> None:
        """Send ``array`` to rank ``dst``, and wait until it is received (or not, where the world buffers sends)."""
        self.call("send", [array], peer=dst, tag=tag)

    def recv(self, array: Array, src: int = ANY_SOURCE, tag: int = 0) -> int:
        """Fill ``array`` with the next message from rank ``src`` (or any) with this tag; returns the sender's rank."""
        return self.call(_receiving(src), (), [array], peer=src, tag=tag)

    def isend(self, array: Array, dst: int, tag: int = 0) -> Request:
        """Begin to send ``array``, which must not change until the request has been waited for."""
        return self.post("send", [array], peer=dst, tag=tag)

    def irecv(self, array: Array, src: int = ANY_SOURCE, tag: int = 0) -> Request:
        """Begin to receive into ``array``; ``wait()`` returns the sender's rank."""
        return self.post(_receiving(src), (), [array], peer=src, tag=tag)

    def batch_isend_irecv(self, operations: Sequence[tuple[str, Array, int, int]]) -> list[Request]:
        """Begin several messages: ``("send" or "recv", array, peer, tag)`` each."""
        begin: dict[str, Callable[[Array, int, int], Request]]
        begin = {"send": self.isend, "isend": self.isend, "recv": self.irecv, "irecv": self.irecv}
        for operation in operations:
            if len(operation) != 4 or operation[0] not in begin:
                expected = "expected ('send' or 'recv', array, peer, tag)"
                raise ValueError(
                    f"rank {self.global_rank}: batch_isend_irecv: {expected}, got {reprlib.repr(operation)}"
                )
        return [begin[name](array, peer, tag) for name, array, peer, tag in operations]

    def _in_place(
        self, spelling: str, arrays: Sequence[Array], async_op: bool, **arguments: Unpack[CallArguments]
    ) -> Request | None:
        return self._make(spelling, arrays, arrays, async_op, **arguments)

    def _make(
        self,
        spelling: str,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        async_op: bool,
        **arguments: Unpack[CallArguments],
    ) -> Request | None:
        if async_op:
            return self.post(spelling, inputs, outputs, **arguments)
        self.call(spelling, inputs, outputs, **arguments)
        return None


def _receiving(src: int) -> str:
    return "recv_anysource" if src == ANY_SOURCE else "recv"
