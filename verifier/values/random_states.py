"""SC906: activations that ranks have to hold alike became different where the ranks drew different random numbers.

Four things have to come together, in two steps at least: the program promises by a DTensor's placement that ranks hold
the same elements; at the place before they did; at this one they do not; and in between each of them has drawn from
its default generator, whose states were not the same on all of them. Dropout of parts that each rank has alone may
draw different numbers: what is promised after it is equal again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Event, Group, Source, number, source_from, text
from simcoll.core.steps import StepNumber
from simcoll.core.trace import Trace
from simcoll.verifier.findings.finding import Finding, Side, lines
from simcoll.verifier.findings.rules import RANDOM_STATE

_DIGITS = 8
_LEAST_STEPS = 2


@dataclass(frozen=True, slots=True)
class _Places:
    """The places of a step at which these ranks hold activations alike."""

    ranks: tuple[int, ...]
    form: str


@dataclass(frozen=True, slots=True)
class _Step:
    """A rank's digests and states of its generators at each place; a digest may not be known."""

    digests: tuple[str, ...]
    states: tuple[str, ...]
    time_ns: int


@dataclass(frozen=True, slots=True)
class _Written:
    """What ranks wrote of the same places: the lines, by rank, and what they held, by step and rank."""

    sources: dict[int, tuple[Source, ...]] = field(default_factory=dict)
    steps: defaultdict[int, dict[int, _Step]] = field(default_factory=lambda: defaultdict(dict))


def random_states(traces: Sequence[Trace], groups: Iterable[Group]) -> list[tuple[int, Finding]]:
    """A finding for the ranks of each promise, with the time at which they first wrote that it was broken."""
    found: dict[tuple[int, ...], tuple[int, Finding]] = {}
    for places, written in _read(traces).items():
        broken: dict[int, list[int]] = defaultdict(list)
        for at, states in sorted(written.steps.items()):
            if {*places.ranks} == states.keys() and (place := _place(states)) is not None:
                broken[place].append(at)
        for place, steps in broken.items():
            if len(steps) >= _LEAST_STEPS:
                time_ns = min(one.time_ns for one in written.steps[steps[0]].values())
                first = found.get(places.ranks)
                if first is None or time_ns < first[0]:
                    found[places.ranks] = time_ns, _finding(places, written, place, steps, groups)
    return sorted(found.values(), key=lambda one: one[0])


def _read(traces: Sequence[Trace]) -> dict[_Places, _Written]:
    found: dict[_Places, _Written] = defaultdict(_Written)
    for trace in traces:
        known: dict[int, _Written] = {}
        for event in trace.events:
            index = number(event, "index")
            if event.kind == "activations" and index is not None:
                ranks, sources = event.data.get("ranks"), event.data.get("sources")
                if isinstance(ranks, list) and all(type(rank) is int for rank in ranks) and trace.rank in ranks:
                    known[index] = found[_Places(tuple(ranks), text(event, "form"))]
                    known[index].sources[trace.rank] = (
                        tuple(map(source_from, sources)) if isinstance(sources, list) else ()
                    )
            elif event.kind == "promised" and index in known:
                at, step = number(event, "number"), _step(event)
                if at is not None and step is not None:
                    known[index].steps[at][trace.rank] = step
    return found


def _step(event: Event) -> _Step | None:
    digests, states = tuple(_pieces(text(event, "digests"))), tuple(_pieces(text(event, "states")))
    return _Step(digests, states, event.time_ns) if len(digests) == len(states) else None


def _pieces(whole: str) -> Iterator[str]:
    return (whole[start : start + _DIGITS] for start in range(0, len(whole), _DIGITS))


def _place(steps: Mapping[int, _Step]) -> int | None:
    """The first place at which the ranks hold different elements, if different random numbers explain it; else None."""
    ranks = [*steps.values()]
    count = min(len(one.digests) for one in ranks)
    before = None
    for place in range(count):
        digests = {one.digests[place] for one in ranks}
        if any(digest.startswith("-") for digest in digests):
            continue
        if len(digests) > 1:
            return place if before is not None and _drew_apart(ranks, before, place) else None
        before = place
    return None


def _drew_apart(ranks: Sequence[_Step], before: int, place: int) -> bool:
    drew = all(one.states[before] != one.states[place] for one in ranks)
    return drew and len({one.states[before] for one in ranks}) > 1


def _finding(places: _Places, written: _Written, place: int, steps: Sequence[int], groups: Iterable[Group]) -> Finding:
    states = written.steps[steps[0]]
    held: dict[str, list[int]] = {}
    for rank, step in sorted(states.items()):
        held.setdefault(step.digests[place], []).append(rank)
    minority = [rank for same in held.values() if 2 * len(same) <= len(states) for rank in same]
    named = sorted(minority) if len(minority) < len(states) else []
    who = ranks_text(places.ranks)
    message = (
        f"activations that {who} have to hold alike are not equal from step {steps[0] + 1} on: they were at the place "
        f"before, and each of these ranks has drawn random numbers since, from generators in different states"
    )
    sides = []
    for same in held.values():
        sources = [(rank, written.sources[rank][place]) for rank in same if place < len(written.sources.get(rank, ()))]
        sides.append(Side(tuple(same), None, lines(sources), "draws other random numbers" if same[0] in named else ""))
    group = next((one for one in groups if one.ranks == places.ranks), None)
    since = StepNumber(steps[0] + 1, exact=True)
    return RANDOM_STATE.finding(
        message, group=group, ranks=places.ranks, culprits=tuple(named), sides=sides, step=since
    )
