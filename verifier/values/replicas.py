"""SC904: parameters, buffers and states of optimizers that ranks have to hold alike and do not, by their digests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from simcoll.core.ranges import ranks_text, verb
from simcoll.core.record import Event, Group, Source, number, source_of, text
from simcoll.core.steps import StepNumber
from simcoll.core.trace import Trace
from simcoll.values.folding import STEPPED, part_begins
from simcoll.verifier.findings.finding import Finding, Side, lines
from simcoll.verifier.findings.rules import PARAMETERS_DRIFTED

_DIGITS = 4
"""Hexadecimal digits of a part's digest."""

_EQUAL_LOOKS = 2
"""Boundaries at which ranks are equal after a wrong result, until what they hold does not follow from it: the one that
comes first may be that of the step before, whose gradients were summed in the background.
"""

_MOST_SETTINGS = 3
_SINGULAR = {"parameters": "parameter", "buffers": "buffer"}
_ORDER = ("parameters", "buffers", "optimizer state")


@dataclass(frozen=True, slots=True)
class _Owner:
    """One model or optimizer: what promises that its tensors are alike, the group's name, the ranks that it is about,
    and its ordinal among those of them.
    """

    by: str
    group: str
    ranks: tuple[int, ...]
    ordinal: int


@dataclass(frozen=True, slots=True)
class _Set:
    """The tensors of one rank that others hold as well."""

    owner: _Owner
    tensors: str
    form: str
    count: int
    names: tuple[str, ...]
    source: Source

    @property
    def key(self) -> tuple[_Owner, str, str]:
        """What the sets have in common that ranks hold alike."""
        return self.owner, self.tensors, self.form


@dataclass(frozen=True, slots=True)
class _State:
    """A rank's digests of a set at one boundary."""

    set: _Set
    steps: int
    settings: Mapping[str, object]
    whole: int
    parts: str
    time_ns: int


_States = dict[int, dict[int, _State]]
"""By boundary, and by rank."""


def drifted_replicas(traces: Sequence[Trace], groups: Sequence[Group]) -> list[tuple[int, int, Finding]]:
    """The first boundary of each model or optimizer at which ranks differ, with the time at which that was, and the one
    from which on they were equal at two boundaries before (0: at none).
    """
    found: dict[_Owner, list[tuple[int, int, _States, int]]] = {}
    every = _states(traces)
    for (owner, tensors, form), states in every.items():
        again = every.get((owner, STEPPED, form), {}) if tensors == "parameters" else {}
        for at in sorted(states) if tensors != STEPPED else ():
            if _differ(states[at]) and not _restored(states[at], at, again):
                order = _ORDER.index(tensors) if tensors in _ORDER else len(_ORDER)
                found.setdefault(owner, []).append((at, order, states, len(found)))
                break
    # The shards of one model differ together: replicas of each are other ranks.
    kinds: dict[tuple[str, str, int, int], list[tuple[int, int, _States, int]]] = {}
    for owner, firsts in found.items():
        kinds.setdefault((owner.by, owner.group, owner.ordinal, len(owner.ranks)), []).append(min(firsts, key=_first))
    together = ([one for one in firsts if one[:2] == min(firsts, key=_first)[:2]] for firsts in kinds.values())
    return sorted((_finding(firsts, groups) for firsts in together), key=lambda one: one[0])


def _differ(states: Mapping[int, _State]) -> bool:
    return len({state.whole for state in states.values()}) > 1


def _restored(states: Mapping[int, _State], at: int, again: _States) -> bool:
    """True if parameters that differed in a pass were equal on the same ranks after the next step: they were altered
    for the pass alone.
    """
    # A pass may begin with no call: what the step before left is then at the same place.
    later = (again[place] for place in sorted(again) if place >= at)
    after = next((one for one in later if any(_steps_since(states, one))), {})
    return all(_steps_since(states, after)) and not _differ(after)


def _steps_since(states: Mapping[int, _State], after: Mapping[int, _State]) -> Iterator[bool]:
    """Whether each rank has made a step since."""
    return (rank in after and after[rank].steps > one.steps for rank, one in states.items())


def _first(one: tuple[int, int, _States, int]) -> tuple[int, int, int]:
    return one[0], one[1], one[3]


def _states(traces: Sequence[Trace]) -> dict[tuple[_Owner, str, str], _States]:
    found: dict[tuple[_Owner, str, str], _States] = {}
    for trace in traces:
        sets: dict[int, _Set] = {}
        for event in trace.events:
            if event.kind == "replicas":
                index, described = number(event, "index"), _set(event)
                if index is not None and described is not None:
                    sets[index] = described
            elif event.kind == "state":
                at, state = number(event, "at"), _state(event, sets)
                if at is not None and state is not None and trace.rank in state.set.owner.ranks:
                    found.setdefault(state.set.key, {}).setdefault(at, {})[trace.rank] = state
    return found


def _set(event: Event) -> _Set | None:
    ranks, names, count = event.data.get("ranks"), event.data.get("names"), number(event, "count")
    if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks) or count is None or count < 0:
        return None
    known = names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []
    owner = _Owner(text(event, "by"), text(event, "group"), tuple(ranks), number(event, "ordinal") or 0)
    return _Set(
        owner,
        text(event, "tensors"),
        text(event, "form"),
        count,
        tuple(known) if len(known) == count else (),
        source_of(event.data),
    )


def _state(event: Event, sets: Mapping[int, _Set]) -> _State | None:
    described, whole = sets.get(number(event, "replicas") or 0), number(event, "hash")
    if described is None or whole is None:
        return None
    settings = event.data.get("settings")
    return _State(
        described,
        number(event, "steps") or 0,
        settings if isinstance(settings, dict) else {},
        whole,
        text(event, "parts"),
        event.time_ns,
    )


def _finding(firsts: Sequence[tuple[int, int, _States, int]], groups: Sequence[Group]) -> tuple[int, int, Finding]:
    """The finding on the sets of one kind that differ at the same boundary."""
    at, _, states, _ = firsts[0]
    here = states[at]
    example = next(iter(here.values()))
    every = [one[2][at] for one in firsts]
    apart = {rank: state for each in every for rank, state in each.items()}
    minorities = [_minority(each) or _later_minority(one[2], at) for one, each in zip(firsts, every, strict=True)]
    culprits = tuple(sorted(rank for each in minorities for rank in each)) if all(minorities) else ()
    owner = example.set.owner
    message = "; ".join(
        part
        for part in (
            f"{_what(example.set, list(here.values()))} not equal on {ranks_text(here)} {_when(states, at)}",
            _told(here, minorities[0]),
            _unequal_steps(here),
            _settings(here),
        )
        if part
    )
    sides = []
    for whole in dict.fromkeys(state.whole for _, state in sorted(apart.items())):
        same = {rank: state for rank, state in sorted(apart.items()) if state.whole == whole}
        note = "holds other values than the others" if set(same) <= set(culprits) else ""
        sides.append(Side(tuple(same), None, lines((rank, one.set.source) for rank, one in same.items()), note))
    group = next((one for one in groups if one.name == owner.group and one.ranks == owner.ranks), None)
    made = _most_steps(here)
    step = StepNumber(made, exact=True) if made else None
    finding = PARAMETERS_DRIFTED.finding(message, group=group, ranks=apart, culprits=culprits, sides=sides, step=step)
    equal_ns = min(_equal_since(one[2], at) for one in firsts)
    return min(state.time_ns for state in apart.values()), equal_ns, finding


def _equal_since(states: _States, at: int) -> int:
    """The time of the last boundary but one before ``at``, at which the ranks were equal; 0 if there is none."""
    before = [place for place in sorted(states) if place < at and states[at].keys() <= states[place].keys()]
    return min(state.time_ns for state in states[before[-_EQUAL_LOOKS]].values()) if len(before) >= _EQUAL_LOOKS else 0


def _minority(states: Mapping[int, _State]) -> tuple[int, ...]:
    """The ranks that differ from more than half of all; empty where no more than half are alike."""
    if not states:
        return ()
    [(whole, count), *_] = Counter(state.whole for state in states.values()).most_common()
    return tuple(rank for rank, state in states.items() if state.whole != whole) if 2 * count > len(states) else ()


def _later_minority(states: _States, at: int) -> tuple[int, ...]:
    """The minority at the next boundary at which all ranks looked, where some did not at ``at``, as a sample may."""
    here = states[at]
    ranks = next(iter(here.values())).set.owner.ranks
    if len(here) == len(ranks):
        return ()
    whole = (states[place] for place in sorted(states) if place > at and len(states[place]) == len(ranks))
    found = _minority(next(whole, {}))
    return found if set(found) <= here.keys() else ()


def _what(described: _Set, states: Sequence[_State]) -> str:
    """The first tensor that differs, by name, and how many do."""
    begins = part_begins(described.count)
    apart = [
        place
        for place in range(len(begins))
        if len({state.parts[place * _DIGITS : (place + 1) * _DIGITS] for state in states}) > 1
    ]
    if not apart or not described.names:
        return f"the {described.tensors} ({described.count:,} tensors) are"
    ends = [*begins[1:], described.count]
    first, last = described.names[begins[apart[0]]], described.names[ends[apart[0]] - 1]
    kind = _SINGULAR.get(described.tensors, "")
    name = f"{kind} {first}".strip() if first == last else f"one of the {described.tensors} from {first} to {last}"
    exact = f"{len(apart) - 1} " if len(begins) == described.count else ""
    rest = f" and {exact}more of {described.count:,}" if len(apart) > 1 else ""
    return f"{name}{rest} {'are' if rest else 'is'}"


def _when(states: _States, at: int) -> str:
    steps = _most_steps(states[at])
    now = _after(steps)
    earlier = [place for place in states if place < at]
    # A rank that leaves out a step makes its look where the others have theirs, one later.
    before = max(
        (place for place in earlier if states[at].keys() <= states[place].keys()), default=max(earlier, default=None)
    )
    if before is None:
        return now if steps == 0 else f"{now}, when they were first compared"
    return f"{now}; {_after(_most_steps(states[before]))} all were equal"


def _most_steps(states: Mapping[int, _State]) -> int:
    return max(state.steps for state in states.values())


def _unequal_steps(states: Mapping[int, _State]) -> str:
    """How many steps each rank has made, in words, where these are not equally many: one was left out."""
    made: dict[int, list[int]] = {}
    for rank, state in sorted(states.items()):
        made.setdefault(state.steps, []).append(rank)
    told = (f"{steps:,} on {ranks_text(ranks)}" for steps, ranks in sorted(made.items()))
    return f"their optimizers have made unequal numbers of steps: {', '.join(told)}" if len(made) > 1 else ""


def _after(steps: int) -> str:
    return f"after step {steps:,}" if steps else "before the first step"


def _told(states: Mapping[int, _State], minority: Sequence[int]) -> str:
    """The ranks in the minority, in words."""
    others = len(states) - len(minority)
    return f"{ranks_text(minority)} {verb(minority, 'differs', 'differ')} from the {others} others" if minority else ""


def _settings(states: Mapping[int, _State]) -> str:
    """The settings of the optimizers that differ too, in words."""
    by_rank = {rank: state.settings for rank, state in sorted(states.items())}
    names = dict.fromkeys(name for settings in by_rank.values() for name in settings)
    apart = [name for name in names if len({str(settings.get(name)) for settings in by_rank.values() if settings}) > 1]
    clauses = []
    for name in apart[:_MOST_SETTINGS]:
        held: dict[str, list[int]] = {}
        for rank, settings in by_rank.items():
            if name in settings:
                held.setdefault(str(settings[name]), []).append(rank)
        clauses.append(f"{name} is " + ", ".join(f"{value} on {ranks_text(ranks)}" for value, ranks in held.items()))
    return f"their optimizers are set differently: {'; '.join(clauses)}" if clauses else ""
