"""Whether the ranks of a job make the same calls, also where some left a black box and others only a dump.

What a dump leaves out is left out of the statements of all ranks that are compared with it. So those that state it are
compared among themselves as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from simcoll.core.trace import Trace
from simcoll.verifier.agreement.columns import GroupColumns, columns_of
from simcoll.verifier.agreement.mismatches import Agreement, Mismatch, check_agreement
from simcoll.verifier.findings.finding import Severity


def agreement_of(traces: Sequence[Trace]) -> tuple[list[GroupColumns], Agreement]:
    """The collectives of all ranks, and what the same-call check gives."""
    columns = columns_of(traces)
    found = check_agreement(columns, traces)
    full = [trace for trace in traces if not trace.unknown]
    if not full or len(full) == len(traces):
        return columns, found
    unknown = frozenset[str]().union(*(trace.unknown for trace in traces))
    judged = {_group(one) for one in found.mismatches if one.finding.severity is Severity.ERROR}
    more = [
        one
        for one in check_agreement(columns_of(full), full).mismatches
        if _group(one) not in judged or not unknown.isdisjoint(one.finding.differing)
    ]
    mismatches = sorted([*found.mismatches, *more], key=lambda one: one.time_ns)
    return columns, Agreement(tuple(mismatches), found.agreed)


def _group(one: Mismatch) -> object:
    group = one.finding.group
    return None if group is None else (group.name, group.ranks)
