"""SC905: data-parallel ranks that train on the same batches, by the digests of what entered their models.

Ranks that are to have the same input are not accused: those of one tensor-, context- or pipeline-parallel group. If
the job has made a smaller group that holds all ranks with the same batch, or a dimension of a mesh whose name is not
one of data parallelism, they may be its peers. Nor are those accused that divide the batch in the model: in a step that
draws no random numbers, or the same on all of them, equal batches give equal gradients, and theirs differ; or other
elements enter the model's first layers, before any random number is drawn.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Event, Group, Source, number, source_of, text
from simcoll.core.steps import StepNumber
from simcoll.core.trace import Trace
from simcoll.verifier.findings.finding import Finding, Side, lines
from simcoll.verifier.findings.rules import SAME_DATA
from simcoll.verifier.values.digests import SideValues, written_values

_IN_A_ROW = 3
_BEFORE = 8
"""Ranks that had other batches for so many steps have to share at least one for it: episodes may begin alike."""

_ALIKE = 0.1
"""The relative difference up to which two elements may be one that was rounded in another order."""
_MESH = "mesh_"
_DATA = re.compile("dp|data|replica|shard|batch", re.IGNORECASE)
"""In the names of mesh dimensions over which data is shared out."""

_MODEL = re.compile("tp|cp|sp|pp|ep|tensor|context|sequence|seq|pipe|stage|expert|model|ulysses|ring", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Model:
    """A model: what shares out its data, among which ranks, and its ordinal among theirs."""

    by: str
    ranks: tuple[int, ...]
    ordinal: int


@dataclass(frozen=True, slots=True)
class _Batch:
    """A rank's batch: the digest of all tensors, and that of the data among them; ``labels``: these are rows of
    integers.
    """

    whole: int
    data: int
    labels: bool = False


@dataclass(frozen=True, slots=True)
class _Step:
    """The state of a rank's generator before a step, whether it has changed by its end, and by group the numbers before
    the first and of the last collective that it made; digests of what entered the model's first layers before it drew a
    random number.
    """

    random: str
    drew: bool
    calls: tuple[tuple[int, int], ...]
    first: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Training:
    """What the ranks wrote of one model: the names of the groups that share out its data, together and by rank, the
    lines at which they ran it, the ranks that looked at some of their batches only, and the batches by the number of
    the step.
    """

    groups: dict[str, None] = field(default_factory=dict)
    names: dict[int, tuple[str, ...]] = field(default_factory=dict)
    sources: dict[int, Source] = field(default_factory=dict)
    sampled: set[int] = field(default_factory=set)
    batches: defaultdict[int, dict[int, _Batch]] = field(default_factory=lambda: defaultdict(dict))
    steps: defaultdict[int, dict[int, _Step]] = field(default_factory=lambda: defaultdict(dict))


def same_data(traces: Sequence[Trace]) -> list[Finding]:
    """A finding for each model whose ranks got the same batches several times in a row, and new ones each time."""
    known = {group for trace in traces for group in trace.groups}
    by_rank = {trace.rank: trace for trace in traces}
    found = []
    for model, training in _read(traces).items():
        gradients = _Gradients(by_rank, training)
        for first in sorted(training.batches):
            if classes := _classes(model, training, gradients, first, known):
                found.append(_finding(model, training, first, classes, known))
                break
    return found


def _read(traces: Sequence[Trace]) -> dict[_Model, _Training]:
    found: dict[_Model, _Training] = {}
    for trace in traces:
        models: dict[int, _Training] = {}
        for event in trace.events:
            if event.kind == "inputs":
                index, model = number(event, "index"), _model(event)
                if index is not None and model is not None and trace.rank in model.ranks:
                    training = models[index] = found.setdefault(model, _Training())
                    names = event.data.get("groups")
                    training.names[trace.rank] = tuple(map(str, names)) if isinstance(names, list) else ()
                    training.groups.update(dict.fromkeys(training.names[trace.rank]))
                    training.sources[trace.rank] = source_of(event.data)
                    if event.data.get("sampled") is True:
                        training.sampled.add(trace.rank)
            elif event.kind == "batch":
                written = models.get(number(event, "inputs") or 0)
                at, whole, data = (number(event, name) for name in ("number", "hash", "data"))
                if written is not None and at is not None and whole is not None and data is not None:
                    written.batches[at][trace.rank] = _Batch(whole, data, event.data.get("labels") is True)
            elif event.kind == "trained":
                written, at = models.get(number(event, "inputs") or 0), number(event, "number")
                if written is not None and at is not None:
                    drew = event.data.get("drew") is not False
                    written.steps[at][trace.rank] = _Step(text(event, "random"), drew, _calls(event), _first(event))
    for training in found.values():
        _join_noise(training)
    return found


def _join_noise(training: _Training) -> None:
    """Count the random numbers of a step among its data where it has labels alone: the model generates from both."""
    for at, steps in training.steps.items():
        for rank, step in steps.items():
            batch = training.batches.get(at, {}).get(rank)
            if batch is not None and batch.labels and step.drew:
                noise = int.from_bytes(blake2b(step.random.encode(errors="replace"), digest_size=8).digest(), "big")
                training.batches[at][rank] = _Batch(batch.whole ^ noise, batch.data ^ noise, labels=True)


def _first(event: Event) -> tuple[int, ...]:
    first = event.data.get("first")
    return tuple(first) if isinstance(first, list) and all(type(one) is int for one in first) else ()


def _calls(event: Event) -> tuple[tuple[int, int], ...]:
    calls = event.data.get("calls")
    if not isinstance(calls, list) or not all(
        isinstance(one, list) and [*map(type, one)] == [int, int] for one in calls
    ):
        return ()
    return tuple((first, last) for first, last in calls)


def _model(event: Event) -> _Model | None:
    ranks = event.data.get("ranks")
    if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks):
        return None
    return _Model(text(event, "by"), tuple(ranks), number(event, "ordinal") or 0)


def _classes(
    model: _Model, training: _Training, gradients: _Gradients, at: int, known: Iterable[Group]
) -> list[tuple[int, ...]]:
    """The ranks that got the same batches from this step on, three times in a row, a new one each time; and in more
    than half of the steps from then on.
    """
    row = [training.batches.get(at + place, {}) for place in range(_IN_A_ROW)]
    alike: dict[tuple[int, ...], list[int]] = {}
    for rank in sorted(set(row[0]).intersection(*row[1:])):
        mine = [one[rank] for one in row]
        if len({batch.data for batch in mine}) == len(mine):
            alike.setdefault(tuple(batch.whole for batch in mine), []).append(rank)
    others = [group for group in known if group.name not in training.groups]
    found = (tuple(ranks) for ranks in alike.values() if len(ranks) > 1)
    return [
        ranks
        for ranks in found
        if _stays(training, ranks, at, gradients)
        and not any(_may_share(group, model, ranks) for group in others)
        and not _divide(training, ranks)
        and not gradients.differ(ranks)
    ]


def _stays(training: _Training, ranks: Sequence[int], at: int, gradients: _Gradients) -> bool:
    """True if ranks share most batches from a step on, and not just a few at the end; and if a sample has looked at
    steps over at least half of the time since then.
    """
    looked = {place: _are_same(batches, ranks) for place, batches in training.batches.items() if {*ranks} <= {*batches}}
    later = [same for place, same in looked.items() if place >= at]
    seen = max(looked) + 1
    if training.sampled & {*ranks} and gradients.steps_made(ranks[0]) - seen > seen - at:
        return False
    return 2 * sum(later) > len(later) and _BEFORE * sum(later) >= len(looked) - len(later)


def _divide(training: _Training, ranks: Sequence[int]) -> bool:
    """True if most often a different part of the batch that ranks share entered the first layers of the model."""
    told = []
    for at, batches in training.batches.items():
        steps = training.steps.get(at, {})
        if {*ranks} <= batches.keys() & steps.keys() and _are_same(batches, ranks):
            first = [steps[rank].first for rank in ranks]
            count = min(map(len, first))
            if count:
                told.append(len({one[:count] for one in first}) == len(ranks))
    return 2 * sum(told) > len(told)


def _are_same(batches: Mapping[int, _Batch], ranks: Sequence[int]) -> bool:
    return len({batches[rank].whole for rank in ranks}) == 1


class _Gradients:
    """What ranks added up in the steps of a model, by the digests of their calls."""

    def __init__(self, traces: Mapping[int, Trace], training: _Training) -> None:
        self._traces = traces
        self._training = training
        self._sent: dict[int, Mapping[tuple[str, int], SideValues]] = {}
        self._told: dict[tuple[int, ...], bool] = {}

    def differ(self, ranks: tuple[int, ...]) -> bool:
        """True if ranks with the same batch and the same random numbers added up other gradients, in most places."""
        if ranks not in self._told:
            self._told[ranks] = self._differ(ranks)
        return self._told[ranks]

    def steps_made(self, rank: int) -> int:
        """The steps that a rank has made, as far as its calls after the last one that was looked at show."""
        trace, steps = self._traces[rank], self._training.steps
        last = max((at for at in steps if rank in steps[at]), default=None)
        made = max(at for at, batches in self._training.batches.items() if rank in batches) + 1
        if last is None:
            return made
        spans = dict(zip(self._training.names.get(rank, ()), steps[last][rank].calls, strict=False))
        for index, group in enumerate(trace.groups):
            before, after = spans.get(group.name, (0, 0))
            if before < after:
                calls = trace.slots["sequence"][trace.slots["group"] == index]
                made = max(made, last + 1 + (int(calls.max(initial=0)) - after) // (after - before))
        return made

    def _differ(self, ranks: Sequence[int]) -> bool:
        pairs = [pair for call in self._calls(ranks) for pair in self._pairs(ranks, call)]
        return 2 * sum(abs(one - other) > _ALIKE * max(abs(one), abs(other)) for one, other in pairs) > len(pairs)

    def _calls(self, ranks: Sequence[int]) -> Iterator[tuple[str, int]]:
        """The groups and the numbers of the calls that the ranks made together in steps with the same batch."""
        for at, batches in self._training.batches.items():
            steps = self._training.steps.get(at, {})
            if not {*ranks} <= batches.keys() & steps.keys() or not _are_same(batches, ranks):
                continue
            mine = [steps[rank] for rank in ranks]
            alike = len({step.random for step in mine}) == 1 or not any(step.drew for step in mine)
            if alike and len({step.calls for step in mine}) == 1:
                groups = self._training.names.get(ranks[0], ())
                spans = dict(zip(groups, mine[0].calls, strict=False))
                for group, sequence in self._of(ranks[0]):
                    first, last = spans.get(group, (0, 0))
                    if first < sequence <= last:
                        yield group, sequence

    def _pairs(self, ranks: Sequence[int], call: tuple[str, int]) -> Iterator[tuple[float, float]]:
        """The elements of the first rank's gradients at the places that were written down, each beside another's."""
        first, *others = (self._of(rank).get(call, SideValues()).points for rank in ranks)
        for other in others:
            for mine, theirs in zip(first, other, strict=False):
                yield from (
                    (a, b) for a, b in zip(mine, theirs, strict=False) if a is not None and b is not None and (a or b)
                )

    def _of(self, rank: int) -> Mapping[tuple[str, int], SideValues]:
        """What a rank sent, by the group's name and the number of the call."""
        if rank not in self._sent:
            trace = self._traces[rank]
            self._sent[rank] = {
                (trace.groups[index].name, sequence): sent
                for index, calls in written_values(trace).items()
                if 0 <= index < len(trace.groups)
                for sequence, (sent, *_) in calls.items()
                if sent is not None
            }
        return self._sent[rank]


def _may_share(group: Group, model: _Model, ranks: Sequence[int]) -> bool:
    """True if these ranks may be peers in a group whose members are to have the same input."""
    if not {*ranks} <= {*group.ranks}:
        return False
    if group.description.startswith(_MESH):
        name = group.description.removeprefix(_MESH)
        smaller = {*group.ranks} < {*model.ranks}
        return _DATA.search(name) is None and (smaller or _MODEL.search(name) is not None)
    return {*group.ranks} < {*model.ranks}


def _finding(
    model: _Model, training: _Training, first: int, classes: Sequence[tuple[int, ...]], known: Iterable[Group]
) -> Finding:
    alike = tuple(sorted(rank for ranks in classes for rank in ranks))
    example = classes[0]
    looked = [batches for batches in training.batches.values() if {*example} <= batches.keys()]
    same = sum(len({batches[rank].whole for rank in example}) == 1 for batches in looked)
    others = f"; so do {', '.join(ranks_text(ranks) for ranks in classes[1:])} among themselves" if classes[1:] else ""
    message = (
        f"{ranks_text(example)} give the model the same batch, a new one in each step, from step {first + 1} on: "
        f"in {same:,} of {len(looked):,} steps that were looked at{others}"
    )
    group = next((one for one in known if one.name in training.groups and one.ranks == model.ranks), None)
    note = "the same batches as the others of these ranks"
    sides = [Side(ranks, None, lines((rank, training.sources[rank]) for rank in ranks), note) for ranks in classes]
    return SAME_DATA.finding(
        message,
        group=group,
        ranks=model.ranks,
        culprits=() if len(alike) == len(model.ranks) else alike,
        sides=sides,
        step=StepNumber(first + 1, exact=True),
    )
