"""The part of a call's statement that its record holds: fields that the record leaves out are compared by nobody.

A Flight Recorder dump has no reduce op, root, splits, tag or device. What depends on such a field is left out of the
statement, and flows that depend on it are not computed. Two things are still known. The buffers of a rooted call may
show the root, which alone has a part for every rank. And where splits are hidden, the ranks of a group still
receive as much as they send, all together.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from simcoll.spec.call import Buffer, Call
from simcoll.spec.checksum import flow_word
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.flows import Flows
from simcoll.spec.table import CollectiveSpec, Content, Rooted, Statement

_MASK = (1 << 64) - 1
_TOTAL_KEY = 0x9FB21C651E98DF25


def unknown_fields(ops: Collection[str], unknown: frozenset[str]) -> tuple[str, ...]:
    """The fields that ranks which make these calls must agree on, and that their records leave out."""
    specs = [COLLECTIVES[op] for op in ops if op in COLLECTIVES]
    return tuple(sorted(unknown & frozenset[str]().union(*(spec.agree | spec.law_reads for spec in specs))))


def known_statement(spec: CollectiveSpec, call: Call, group_rank: int, size: int, unknown: frozenset[str]) -> Statement:
    """The statement of a call without the fields that its record leaves out.

    A record that leaves fields out is the backend's own, made when it had accepted the call: its arguments are valid.
    """
    statement = spec.statement(call, group_rank, size)
    if not unknown:
        return statement
    return replace(
        statement,
        reduce_op=None if "reduce_op" in unknown else statement.reduce_op,
        root=None if "root" in unknown else statement.root,
        device=None if "device" in unknown else statement.device,
        form=None if "form" in unknown else statement.form,
        contents=tuple(_content(content, unknown) for content in statement.contents),
        valid=True,
    )


def _content(content: Content, unknown: frozenset[str]) -> Content:
    return Content(
        "" if "dtype" in unknown else content.dtype,
        None if "count" in unknown else content.count,
        None if "shape" in unknown else content.shape,
        None if "order" in unknown else content.order,
    )


def known_flows(
    spec: CollectiveSpec, call: Call, group_rank: int, size: int, unknown: frozenset[str], root: int | None
) -> Flows | None:
    """The flows of a call; None where counts say it all, and where a field that they rest on is not known.

    ``root`` is the group's, where the buffers of another rank have given it away.
    """
    hidden = spec.hidden(call, unknown)
    if not hidden:
        return spec.flows(call, group_rank, size)
    if root is None or hidden != {"root"}:
        return None
    return spec.flows(replace(call, root=root), group_rank, size)


def moved(call: Call) -> tuple[int, int]:
    """The number of elements that a call sends, and that it receives, in all."""
    return _elements(call.inputs), _elements(call.outputs)


def _elements(buffers: Collection[Buffer]) -> int:
    return sum(buffer.elements for buffer in buffers)


def flow_sum(spec: CollectiveSpec, call: Call, group_rank: int, size: int, unknown: frozenset[str]) -> tuple[int, bool]:
    """The part of a call's word that proves its flows as far as they are known, and whether its statement says all
    that can be said of it while a rank of the group is not there.

    The parts of a group add up to zero modulo 2^64 where the flows agree.
    """
    hidden = spec.hidden(call, unknown)
    if not hidden:
        flows = spec.flows(call, group_rank, size)
        return flow_word(flows, group_rank), flows is None
    if hidden == {"root"}:
        return _to_whoever_is_root(spec, call, group_rank, size), False
    sent, received = moved(call)
    return (sent - received) * _TOTAL_KEY & _MASK, True


def _to_whoever_is_root(spec: CollectiveSpec, call: Call, group_rank: int, size: int) -> int:
    """Flows between each rank and the root, which goes by a number of its own that every rank knows: ``size``."""
    own = spec.flows(replace(call, root=size), group_rank, size)
    mine = flow_word(own, group_rank)
    at_root = spec.flows(replace(call, root=group_rank), group_rank, size)
    if at_root is None or not spec.shows_root(call):
        return mine
    everybody = Flows({}, at_root.receives) if spec.rooted is Rooted.TO_ROOT else Flows(at_root.sends, {})
    return (mine + flow_word(everybody, size)) & _MASK
