"""SC901 to SC904, and SC906: findings on the values of collectives, and on what they keep equal."""

from __future__ import annotations

from collections.abc import Sequence

from simcoll.core.trace import Trace
from simcoll.verifier.agreement.columns import GroupColumns
from simcoll.verifier.findings.finding import Finding, Rule
from simcoll.verifier.findings.rules import REPLICAS_DIFFER, WRONG_RESULT
from simcoll.verifier.values.digests import CollectiveValues, digested_calls
from simcoll.verifier.values.laws import Breach, differing_replicas, wrong_results
from simcoll.verifier.values.non_finite import non_finite
from simcoll.verifier.values.random_states import random_states
from simcoll.verifier.values.replicas import drifted_replicas


def value_findings(columns: Sequence[GroupColumns], ranks: Sequence[Trace]) -> list[Finding]:
    """Findings on the values of a job's collectives: the first call of each rule and group, in order of time; and on
    the replicas that have drifted apart, unless ranks had got wrong results, or drawn other random numbers, before.
    """
    calls = digested_calls(columns)
    traces = {id(part.trace): part.trace for group in columns for part in group.parts} if calls else {}
    scaled = any(event.kind == "scaled" for trace in traces.values() for event in trace.events)
    wrong, groups = _breaches(calls), [group.group for group in columns]
    parted = _unexplained(random_states(ranks, groups), wrong)
    drifted = _unexplained(drifted_replicas(ranks, groups), [*wrong, *parted])
    found = [*non_finite(calls, scaled, columns), *wrong, *parted, *drifted]
    return [finding for _, finding in sorted(found, key=lambda one: one[0])]


_Found = tuple[int, Finding]


def _unexplained(found: Sequence[_Found], causes: Sequence[_Found]) -> list[_Found]:
    """The findings that do not follow from an earlier one on some of the same ranks."""
    return [
        (time_ns, finding)
        for time_ns, finding in found
        if not any(before <= time_ns and {*one.ranks} & {*finding.ranks} for before, one in causes)
    ]


def _breaches(calls: Sequence[CollectiveValues]) -> list[_Found]:
    """The first call of each group and rule with wrong results; differing replicas count under their own rule alone."""
    found: dict[tuple[object, str], tuple[CollectiveValues, Rule, Breach, int]] = {}
    for values in calls:
        rule, breach = REPLICAS_DIFFER, differing_replicas(values)
        if breach is None:
            rule, breach = WRONG_RESULT, wrong_results(values)
        if breach is not None:
            key = values.group, rule.code
            first = found.get(key, (values, rule, breach, 0))
            found[key] = (*first[:3], first[3] + 1)
    return [
        (values.began_ns, _breach_finding(values, rule, breach, count))
        for values, rule, breach, count in found.values()
    ]


def _breach_finding(values: CollectiveValues, rule: Rule, breach: Breach, count: int) -> Finding:
    op = values.ranks[0].record.call.op
    more = f"; so it is in {count - 1} later calls that were checked" if count > 1 else ""
    return rule.finding(
        f"{op}: {breach.text}{more}",
        group=values.group,
        sequence=values.sequence,
        ranks=values.group.ranks,
        culprits=values.global_ranks(breach.wrong),
        sides=values.sides(lambda one: "holds a wrong result" if one.group_rank in breach.wrong else ""),
    )
