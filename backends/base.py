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

from simcoll.call import Call
from simcoll.semantics import undefined_reduction
from simcoll.spec import spec_of

Limit: TypeAlias = Callable[[Call, int, int], "str | None"]
"""Call, group rank, group size -> why the backend cannot do it, or None."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend by what it cannot do.

    ``limits`` come on top of the faults that no backend accepts. ``profiled_as`` names the rows that Flight Recorder
    and the profiler print under another row's name, because the backend is made so. ``forms`` names, by row and
    spelling, what the backend runs as different algorithms though the row is one: ranks must agree on it.
    ``waits_on_host`` says that waiting for a call blocks the thread that waits, and that a wait that timed out may be
    taken up again. ``in_order`` says that it runs the calls of a group one after the other; ``untold`` names the rows
    whose Work says only after ``wait`` that it has ended. ``on_streams`` says that it queues calls on a device's
    streams, so that a call that the host has made, or waited for, need not have ended; ``flattens`` that it
    copies lists of tensors through memory of its own, which nobody but their Work holds.
    """

    name: str
    limits: tuple[Limit, ...] = ()
    profiled_as: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    forms: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    waits_on_host: bool = False
    in_order: bool = True
    untold: frozenset[str] = frozenset()
    on_streams: bool = False
    flattens: bool = False

    def formed(self, call: Call) -> Call:
        """The call, with the form in which this backend runs it."""
        form = self.forms.get(call.op, {}).get(call.spelling)
        return call if form is None or call.form is not None else replace(call, form=form)

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
