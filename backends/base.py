"""A backend as the rest of simcoll sees it: a name, and its limits.

The spec defines the meaning of a collective; a backend may do less. Its limits are the overlay: each takes one rank's
call and returns why the backend refuses it, or None. The verifier, the simulator and the dry run need no more of a
backend that they do not run themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

from simcoll.spec.call import Call
from simcoll.spec.collectives import spec_of
from simcoll.spec.semantics import undefined_reduction

Limit: TypeAlias = Callable[[Call, int, int], "str | None"]
"""Call, group rank, group size -> why the backend cannot do it, or None."""


EACH_RANK = -1
"""As many as the group has ranks."""

OF_THE_GROUP, OF_THE_PAIR = -1, -2
"""The communicators of messages without tags, in place of a tag; tags are not negative."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """A backend's use of the memory of a method's tensors, where it takes a tensor for another layout without an error.

    ``solid`` are the roles (``inputs``, ``outputs``, ``inout``) whose tensors it takes for free of gaps. ``in_order``
    says that it copies from inputs to outputs in the order of memory. ``apart`` says that no output may share memory
    with an input, except, ``own_part``, with the part of the list that is the rank's own. ``refuses`` are roles whose
    tensors it refuses where they are neither row-major nor channels-last.
    """

    solid: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    in_order: bool = False
    apart: bool = False
    own_part: bool = False


def _one_form(call: Call) -> None:
    """None: most backends run all calls of a spelling by one algorithm."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend and its limits.

    ``limits`` add to the faults that every backend refuses. ``profiled_as`` maps rows, or their methods, to the names
    that Flight Recorder and the profiler print for this backend instead of the row's first name.

    ``forms`` names, by row and spelling, the different algorithms by which the backend runs calls of one row: ranks
    must agree on the form. ``form_of`` finds the form from a call's buffers.

    ``waits_on_host``: waiting for a call blocks the waiting thread. ``resumes``: a wait that timed out may be repeated.
    ``in_order``: the calls of a group run one after the other. ``ended_only_by_wait``: the rows whose Work reports its
    end only after ``wait``.

    ``staged``: tensors of other devices than the CPU go through copies, which their versions show. ``allocates``: the
    methods that use memory which is allocated on the stream of the launch.

    ``tagged``: messages are matched by tags. Otherwise ``pairs``: messages outside a batch use a communicator of their
    two ranks, and are ordered among themselves.

    ``on_streams``: calls are queued on a device's streams: one that the host has made, or waited for, may still run.

    ``memory``: by method, its use of the memory of tensors on the CPU.

    ``counts``: by method, the versions that a call itself adds to a tensor on the CPU in which its result arrives, at
    most (:data:`EACH_RANK`: as many as the group has ranks). Nothing is known of a method that is not listed.
    """

    name: str
    limits: tuple[Limit, ...] = ()
    profiled_as: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    forms: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    waits_on_host: bool = False
    in_order: bool = True
    ended_only_by_wait: frozenset[str] = frozenset()
    form_of: Callable[[Call], str | None] = _one_form
    resumes: bool = True
    staged: bool = True
    allocates: frozenset[str] = frozenset()
    tagged: bool = True
    pairs: bool = False
    on_streams: bool = False
    memory: Mapping[str, MemoryUse] = field(default_factory=lambda: MappingProxyType({}))
    counts: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def formed(self, call: Call) -> Call:
        """The call with the form in which this backend runs it."""
        form = self.forms.get(call.op, {}).get(call.spelling) or self.form_of(call)
        return call if form is None or call.form is not None else replace(call, form=form)

    def channel(self, tag: int | None, *, batched: bool) -> int:
        """The p2p channel of a message from one rank to another: its tag, or a negative number for a communicator.

        ``batched`` is True for a message in a batch.
        """
        if self.tagged:
            return tag or 0
        return OF_THE_PAIR if self.pairs and not batched else OF_THE_GROUP

    def counted(self, method: str, group_size: int) -> int | None:
        """The versions that a call of this method adds to a tensor of its result, at most; None: not known."""
        count = self.counts.get(method)
        return group_size if count == EACH_RANK else count

    def refusal(self, call: Call, group_rank: int, group_size: int) -> str | None:
        """The reason why this rank's call cannot run here, or None. Raises KeyError for an unknown op."""
        spec = spec_of(call)
        for limit in (spec.fault, undefined, *self.limits):
            if reason := limit(call, group_rank, group_size):
                return reason
        return None


def undefined(call: Call, group_rank: int, group_size: int) -> str | None:
    """Refuse a reduce op that is undefined for the dtype on every backend."""
    if "reduce_op" not in spec_of(call).agree:
        return None
    for buffer in call.inputs:
        if problem := undefined_reduction(call.reduce_op, buffer.dtype):
            return problem
    return None


def negative_tag(call: Call, group_rank: int, group_size: int) -> str | None:
    """Refuse a negative tag, as backends with tags do."""
    return f"tag {call.tag} is negative" if call.tag is not None and call.tag < 0 else None
