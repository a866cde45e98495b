"""The communicator that a simulated rank's program is given: c10d's collectives on numpy arrays, under c10d's names.

Every method states a :class:`~simcoll.call.Call` and hands it to the world; what happens then is the world's. Like
c10d, outputs are the caller's arrays, which are filled. Roots and peers are group ranks, splits count rows.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TypeAlias

import numpy as np

from simcoll.call import ANY_SOURCE, Buffer, Call
from simcoll.record import UNKNOWN_SOURCE, Group, Source
from simcoll.semantics import Array
from simcoll.spec import METHODS

Perform: TypeAlias = Callable[[int, Call, Sequence[Array], Sequence[Array], Source], int]
"""Group rank, call, inputs, outputs, source -> the sender's rank for a receive, else the caller's."""

_HERE = os.path.dirname(os.path.abspath(__file__))


class Comm:
    """One rank's side of a group. ``rank`` is its group rank, ``size`` the group's size."""

    def __init__(self, rank: int, group: Group, perform: Perform) -> None:
        self.rank = rank
        self.size = len(group.ranks)
        self.group = group
        self._perform = perform

    def all_reduce(self, array: Array, op: str = "sum") -> None:
        """Reduce over all ranks, in place."""
        self._in_place("allreduce", [array], reduce_op=op)

    def all_reduce_coalesced(self, arrays: Sequence[Array], op: str = "sum") -> None:
        """Reduce several arrays over all ranks, in place."""
        self._in_place("allreduce_coalesced", arrays, reduce_op=op)

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Give everybody the root's array, in place."""
        self._in_place("broadcast", [array], root=root)

    def reduce(self, array: Array, root: int = 0, op: str = "sum") -> None:
        """Reduce over all ranks into the root's array."""
        self._in_place("reduce", [array], root=root, reduce_op=op)

    def all_gather(self, outputs: Sequence[Array], array: Array) -> None:
        """Fill ``outputs``, one array a rank, with everybody's array."""
        self.call("allgather", [array], outputs)

    def all_gather_into_tensor(self, output: Array, array: Array) -> None:
        """Fill ``output`` with everybody's array, concatenated or stacked."""
        self.call("_allgather_base", [array], [output])

    def gather(self, array: Array, outputs: Sequence[Array] | None = None, root: int = 0) -> None:
        """Fill the root's ``outputs``, one array a rank, with everybody's array."""
        self.call("gather", [array], outputs or (), root=root)

    def scatter(self, output: Array, inputs: Sequence[Array] | None = None, root: int = 0) -> None:
        """Fill ``output`` with this rank's array of the root's ``inputs``, one array a rank."""
        self.call("scatter", inputs or (), [output], root=root)

    def reduce_scatter(self, output: Array, inputs: Sequence[Array], op: str = "sum") -> None:
        """Reduce ``inputs``, one array a rank, over all ranks and keep this rank's."""
        self.call("reduce_scatter", inputs, [output], reduce_op=op)

    def reduce_scatter_tensor(self, output: Array, array: Array, op: str = "sum") -> None:
        """Reduce ``array`` over all ranks and keep this rank's part."""
        self.call("_reduce_scatter_base", [array], [output], reduce_op=op)

    def all_to_all(self, outputs: Sequence[Array], inputs: Sequence[Array]) -> None:
        """Send ``inputs[j]`` to rank j, and fill ``outputs[i]`` with what rank i sends."""
        self.call("alltoall", inputs, outputs)

    def all_to_all_single(
        self,
        output: Array,
        array: Array,
        output_splits: Sequence[int] | None = None,
        input_splits: Sequence[int] | None = None,
    ) -> None:
        """Send part j of ``array`` to rank j: equal parts, or as many rows as the splits say."""
        self.call(
            "alltoall_base",
            [array],
            [output],
            output_splits=None if output_splits is None else tuple(output_splits),
            input_splits=None if input_splits is None else tuple(input_splits),
        )

    def barrier(self) -> None:
        """Wait until every rank has come."""
        self.call("barrier")

    def send(self, array: Array, peer: int, tag: int = 0) -> None:
        """Send a copy of ``array``; never blocks."""
        self.call("send", [array], peer=peer, tag=tag)

    def recv(self, array: Array, peer: int = ANY_SOURCE, tag: int = 0) -> int:
        """Fill ``array`` with the next message from ``peer`` with this tag; gives the sender's rank."""
        return self.call("recv_anysource" if peer == ANY_SOURCE else "recv", (), [array], peer=peer, tag=tag)

    def call(
        self,
        spelling: str,
        inputs: Sequence[Array] = (),
        outputs: Sequence[Array] = (),
        *,
        reduce_op: str | None = None,
        root: int | None = None,
        input_splits: tuple[int, ...] | None = None,
        output_splits: tuple[int, ...] | None = None,
        peer: int | None = None,
        tag: int | None = None,
    ) -> int:
        """Make any call of the spec by its c10d method; gives the sender's rank for a receive, else this rank.

        Raises KeyError for a method that the spec does not have, and what the world raises.
        """
        spec, method = METHODS[spelling]
        call = Call(
            spec.name,
            spelling,
            tuple(map(buffer_of, inputs)),
            tuple(map(buffer_of, outputs)),
            reduce_op=reduce_op,
            root=root,
            input_splits=input_splits,
            output_splits=output_splits,
            peer=peer,
            tag=tag,
            coalesced=method.coalesced,
        )
        return self._perform(self.rank, call, inputs, outputs, _caller())

    def _in_place(
        self, spelling: str, arrays: Sequence[Array], *, root: int | None = None, reduce_op: str | None = None
    ) -> None:
        self.call(spelling, arrays, arrays, root=root, reduce_op=reduce_op)


def buffer_of(array: Array) -> Buffer:
    """What a call states of a numpy array; elements are moved in C order whatever the memory order."""
    return Buffer(array.shape, np.asarray(array).dtype.name)


def _caller() -> Source:
    """The innermost line that is not of this folder's own code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and os.path.dirname(os.path.abspath(frame.f_code.co_filename)) == _HERE:
        frame = frame.f_back
    if frame is None:
        return UNKNOWN_SOURCE
    file, line = frame.f_code.co_filename, frame.f_lineno
    return Source(file, line, frame.f_code.co_name, linecache.getline(file, line).strip())
