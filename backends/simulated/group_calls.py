"""The methods of a communicator beside the collectives: call any row of the table, make groups, compute.

The arguments of calls are checked: numpy arrays of numbers, whole numbers for ranks, tags and splits, reduce ops.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import numpy as np

from simcoll.backends.simulated.requests import Membership, Rank, Request, calling_line
from simcoll.core.record import Group, source_document
from simcoll.spec.call import Buffer, Call
from simcoll.spec.collectives import METHODS
from simcoll.spec.ddp_model import Claim, ModelParameter, claim_of
from simcoll.spec.semantics import Array
from simcoll.spec.table import Kind
from simcoll.values.faults import Alter, double_an_element

_NO_NUMBERS = "OSUMm"
"""The kinds of numpy dtypes that no communication library supports: objects, texts, dates."""


def check_arrays(arrays: object) -> None:
    """Raise TypeError for anything but a list of arrays of numbers."""
    if not isinstance(arrays, (list, tuple, np.ndarray)):
        raise TypeError(f"expected a list of numpy arrays, got {_kind(arrays)}")
    for array in arrays:
        if not isinstance(array, np.ndarray):
            hint = "" if array is None else "; numpy.asarray makes one"
            raise TypeError(f"expected a numpy array, got {_kind(array)}{hint}")
        if array.dtype.kind in _NO_NUMBERS or array.dtype.names is not None:
            raise TypeError(
                f"expected an array of numbers, got dtype {array.dtype}; the object collectives send others"
            )


def check_reduce_op(reduce_op: object) -> None:
    """Raise TypeError for anything but a name or None."""
    if reduce_op is not None and not isinstance(reduce_op, str):
        raise TypeError(f"expected a reduce op by its name, such as 'sum', got {_kind(reduce_op)}")


def whole_numbers(named: Mapping[str, object]) -> dict[str, int | None]:
    """The numbers as Python's own; raises TypeError for other types."""
    return {name: None if value is None else _whole(name, value) for name, value in named.items()}


def whole_sizes(name: str, sizes: Iterable[object] | None) -> tuple[int, ...] | None:
    """The splits as Python's own numbers; raises TypeError for other types."""
    if sizes is None:
        return None
    if not isinstance(sizes, (list, tuple, np.ndarray)):
        raise TypeError(f"expected {name} as a list of whole numbers, got {_kind(sizes)}")
    return tuple(_whole(name, size) for size in sizes)


def _whole(name: str, value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]  # other types raise TypeError
    except TypeError:
        raise TypeError(f"expected a whole number as {name}, got {_kind(value)}") from None


def _kind(value: object) -> str:
    return "None" if value is None else f"{value!r:.40} of type {type(value).__name__}"


if TYPE_CHECKING:
    from typing_extensions import Unpack

Self = TypeVar("Self", bound="GroupCalls")


class CallArguments(TypedDict, total=False):
    """The arguments of a call besides its arrays; None where the row has no such argument."""

    reduce_op: str | None
    root: int | None
    input_splits: Sequence[int] | None
    output_splits: Sequence[int] | None
    peer: int | None
    tag: int | None


class GroupCalls:
    """One rank's side of a group; ``rank`` is its group rank, ``size`` the group's size."""

    def __init__(self, member: Rank, group: Group) -> None:
        self._member = member
        self._membership = Membership(member, group)
        self.group = group
        self.rank = self._membership.group_rank
        self.size = len(group.ranks)
        self.global_rank = member.rank

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of rank {self.rank} of {self.size}, group {self.group.name}>"

    def Get_rank(self) -> int:  # noqa: N802  # mpi4py's name
        """The group rank, under mpi4py's name."""
        return self.rank

    def Get_size(self) -> int:  # noqa: N802  # mpi4py's name
        """The group's size, under mpi4py's name."""
        return self.size

    def call(
        self,
        spelling: str,
        inputs: Sequence[Array] = (),
        outputs: Sequence[Array] = (),
        **arguments: Unpack[CallArguments],
    ) -> int:
        """Make any call of the spec by its c10d method; returns the sender's rank for a receive, else this rank.

        Raises KeyError for a method that the spec does not have, TypeError for arguments that are not numpy arrays or
        whole numbers, ValueError for a message of a rank to itself, and the exceptions of :meth:`Request.wait`.
        """
        call = self._call_of(spelling, inputs, outputs, **arguments)
        return self._membership.post(call, inputs, outputs, calling_line()).wait()

    def post(
        self,
        spelling: str,
        inputs: Sequence[Array] = (),
        outputs: Sequence[Array] = (),
        **arguments: Unpack[CallArguments],
    ) -> Request:
        """Begin any call of the spec by its c10d method."""
        call = self._call_of(spelling, inputs, outputs, **arguments)
        return self._membership.post(call, inputs, outputs, calling_line(), asynchronous=True)

    def compute(self, seconds: float) -> None:
        """Let virtual time pass for this rank. Raises ValueError for an invalid time."""
        if not (isinstance(seconds, (int, float, np.number)) and math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"rank {self.global_rank}: compute: expected seconds, 0 or more, got {seconds!r:.40}")
        self._member.world.clock.spend(self.global_rank, seconds)

    sleep = compute

    def hang(self) -> None:
        """Compute forever: the rank runs, and never makes another call."""
        self._member.hang(calling_line())

    def new_group(self: Self, ranks: Sequence[int] | None = None, description: str = "") -> Self | None:
        """Make a group of global ranks, as every rank of the world must, in the same order; None for a non-member.

        Members wait for each other. Raises ValueError for anything but a list of distinct ranks of the world.
        """
        member = self._member
        return self._made_group(member.new_group(ranks, description, calling_line()))

    def split(self: Self, color: int | None, key: int = 0) -> Self | None:
        """Split this group by ``color``, each part in the order of ``key``, then of ranks; None without a color.

        Raises TypeError if one of them is not a whole number.
        """
        whole_numbers({"color": color, "key": key})
        own = np.array([-1 if color is None else color, key], np.int64)
        all_ranks = np.empty((self.size, 2), np.int64)
        self.call("_allgather_base", [own], [all_ranks])
        mine = None
        for one in sorted({int(value) for value in all_ranks[:, 0]} - {-1}):
            places = [place for place in range(self.size) if all_ranks[place, 0] == one]
            places.sort(key=lambda place: (int(all_ranks[place, 1]), place))
            ranks = [self.group.ranks[place] for place in places]
            made = self._made_group(self._member.new_group(ranks, f"color {one}", calling_line(), ordered=True))
            mine = made or mine
        return mine

    def destroy(self) -> None:
        """Destroy the group; a rank that still calls on it waits forever for this rank."""
        self._member.event("destroyed", group=self.group.name, source=source_document(calling_line()))
        self._member.world.close(self.group, self.rank)

    def state_parameters(self, named: Mapping[str, Array], frozen: Collection[str] = ()) -> None:
        """Declare the parameters that this rank trains on the group, as DistributedDataParallel does before it begins.

        Those whose names are in ``frozen`` need no gradient.

        Raises :class:`~simcoll.errors.CollectiveMismatchError` where the ranks' models differ.
        """
        line = calling_line()
        claim = _claim(named, frozen)
        self._member.state_parameters(self.group, claim, line)
        count, counts = np.array([claim.count], np.int64), np.empty(self.size, np.int64)
        call = _call("_allgather_base", [count], [counts])
        self._membership.post(call, [count], [counts], line, claim=claim).wait()

    def outside(self, function: str) -> None:
        """Note a call on a group that this rank is no member of: torch warns, and makes no call."""
        self._member.non_member(function, calling_line())

    def spoil_next_result(self, alter: Alter = double_an_element) -> None:
        """Have the next call of this rank whose values are checked bring a wrong result."""
        self._member.values.faults.add(alter)

    def _call_of(
        self,
        spelling: str,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        *,
        reduce_op: str | None = None,
        root: int | None = None,
        input_splits: Sequence[int] | None = None,
        output_splits: Sequence[int] | None = None,
        peer: int | None = None,
        tag: int | None = None,
    ) -> Call:
        """The call that the arguments describe; invalid arguments are recorded as a refusal, like torch's checks."""
        try:
            if spelling not in METHODS:
                raise KeyError(f"c10d has no such method; the table has {', '.join(sorted(METHODS))}")
            for arrays in (inputs, outputs):
                check_arrays(arrays)
            check_reduce_op(reduce_op)
            if peer is None and METHODS[spelling][0].kind is Kind.POINT_TO_POINT:
                raise TypeError("expected a rank as peer, got None")
            numbers = whole_numbers({"root": root, "peer": peer, "tag": tag})
            if numbers["peer"] == self.rank:
                raise ValueError(f"peer {peer} is this rank itself; c10d has no messages of a rank to itself")
            splits = whole_sizes("input splits", input_splits), whole_sizes("output splits", output_splits)
            lower = None if reduce_op is None else reduce_op.lower()
            given = {"reduce_op": lower, "input_splits": splits[0], "output_splits": splits[1], **numbers}
            return _call(spelling, inputs, outputs, **given)
        except (KeyError, TypeError, ValueError) as error:
            name = METHODS[spelling][0].name if spelling in METHODS else spelling
            refused = type(error)(f"rank {self.global_rank}: {name}: {error.args[0]}")
            self._member.refuse(name, refused, calling_line())
            raise refused from None

    def _made_group(self: Self, group: Group | None) -> Self | None:
        return None if group is None else type(self)(self._member, group)


def _call(spelling: str, inputs: Sequence[Array], outputs: Sequence[Array], **arguments: Any) -> Call:
    spec, method = METHODS[spelling]
    buffers = tuple(map(buffer_of, inputs)), tuple(map(buffer_of, outputs))
    return Call(spec.name, spelling, *buffers, coalesced=method.coalesced, **arguments)


def buffer_of(array: Array) -> Buffer:
    """A numpy array as a buffer of a call; elements are moved in C order whatever the memory order."""
    dtype = np.asarray(array).dtype
    name = _names.get(dtype)
    if name is None:
        # numpy composes the name anew each time.
        name = _names[dtype] = dtype.name
    return Buffer(array.shape, name, getattr(array, "device", "cpu"), None, _order(array))


_names: dict[np.dtype[Any], str] = {}


def _order(array: Array) -> tuple[int, ...] | None:
    """The memory order of a dense array's dimensions, in the form of :class:`~simcoll.spec.call.Buffer`."""
    if array.flags.c_contiguous:
        return None
    steps = [(step, size) for size, step in zip(array.shape, array.strides, strict=True) if size != 1]
    order = tuple(sorted(range(len(steps)), key=lambda axis: -steps[axis][0]))
    expected = array.itemsize
    for axis in reversed(order):
        if steps[axis][0] != expected:
            return None
        expected *= steps[axis][1]
    return None if order == tuple(range(len(order))) else order


def _claim(named: Mapping[str, Array], frozen: Collection[str]) -> Claim:
    parameters = [
        ModelParameter(name, array.dtype.name, array.shape, name not in frozen) for name, array in named.items()
    ]
    return claim_of(tuple(parameters))
