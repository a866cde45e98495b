"""What a backend is to the rest of simcoll: a name, and what it cannot do.

The spec says what a collective means; a backend may do less. Its limits are the overlay: each looks at one rank's call
and says why the backend refuses it, or None. That is all that the verifier, the simulator and the dry run ask of a
backend that they do not run themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

from simcoll.spec.call import Call
from simcoll.spec.semantics import undefined_reduction
from simcoll.spec.table import spec_of

Limit: TypeAlias = Callable[[Call, int, int], "str | None"]
"""Call, group rank, group size -> why the backend cannot do it, or None."""


OF_THE_GROUP, OF_THE_PAIR = -1, -2
"""The communicators that messages without tags may take; no tag is below 0."""


def _one_form(call: Call) -> None:
    """Most backends run all calls of a spelling as one algorithm."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend by what it cannot do.

    ``limits`` come on top of the faults that no backend accepts. ``profiled_as`` names the rows, or their methods, that
    Flight Recorder and the profiler print under another name than the row's first, because the backend is made so.

    ``forms`` names, by row and spelling, what the backend runs as different algorithms though the row is one: ranks
    must agree on it. ``form_of`` does so by a call's buffers.

    ``waits_on_host`` says that waiting for a call blocks the thread that waits, ``resumes`` that a wait that timed out
    may be taken up again. ``in_order`` says that it runs the calls of a group one after the other; ``untold`` names the
    rows whose Work says only after ``wait`` that it has ended.

    ``staged`` says that tensors of other devices than the CPU go through copies, which their versions show;
    ``allocates`` names the methods that use memory which is allocated on the stream of the launch.

    ``tagged`` says that messages are matched by their tags; where they are not, ``pairs`` says that those that are in
    no batch take a communicator of their two ranks, and come in an order of their own.

    ``on_streams`` says that it queues calls on a device's streams: one that the host has made, or waited for, need not
    have ended.
    """

    name: str
    limits: tuple[Limit, ...] = ()
    profiled_as: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    forms: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    waits_on_host: bool = False
    in_order: bool = True
    untold: frozenset[str] = frozenset()
    form_of: Callable[[Call], str | None] = _one_form
    resumes: bool = True
    staged: bool = True
    allocates: frozenset[str] = frozenset()
    tagged: bool = True
    pairs: bool = False
    on_streams: bool = False

    def formed(self, call: Call) -> Call:
        """The call, with the form in which this backend runs it."""
        form = self.forms.get(call.op, {}).get(call.spelling) or self.form_of(call)
        return call if form is None or call.form is not None else replace(call, form=form)

    def channel(self, tag: int | None, *, batched: bool) -> int:
        """What tells apart the messages that one rank sends to another: the tag, or the communicator's number below 0.

        ``batched`` says that a message is one of a batch.
        """
        if self.tagged:
            return tag or 0
        return OF_THE_PAIR if self.pairs and not batched else OF_THE_GROUP

    def refusal(self, call: Call, group_rank: int, group_size: int) -> str | None:
        """Why this rank's call cannot run here whatever the other ranks do, or None. Raises KeyError: unknown op."""
        spec = spec_of(call)
        for limit in (spec.fault, undefined, *self.limits):
            if reason := limit(call, group_rank, group_size):
                return reason
        return None


def undefined(call: Call, group_rank: int, group_size: int) -> str | None:
    """A reduce op that has no meaning for the dtype, on any backend."""
    if "reduce_op" not in spec_of(call).agree:
        return None
    for buffer in call.inputs:
        if problem := undefined_reduction(call.reduce_op, buffer.dtype):
            return problem
    return None


def negative_tag(call: Call, group_rank: int, group_size: int) -> str | None:
    """A tag below 0, which backends that have tags refuse."""
    return f"tag {call.tag} is negative" if call.tag is not None and call.tag < 0 else None
