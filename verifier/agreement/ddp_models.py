"""SC504: models given to DistributedDataParallel that differ between ranks, with the parameter's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Event, Group, Source, source_of, text
from simcoll.core.trace import Trace
from simcoll.spec.ddp_model import ModelParameter, Parameters, from_json
from simcoll.verifier.agreement.mismatches import Mismatch
from simcoll.verifier.findings.finding import Finding, Side, lines
from simcoll.verifier.findings.rules import DDP_PARAMETER_MISMATCH

_NAMED = 3
"""Differing parameters that a message spells out."""

_SIDES = 8


def model_mismatches(traces: Sequence[Trace]) -> list[Mismatch]:
    """SC504 for each construction of a model on which the ranks of its group disagree, in order of time.

    A rank's n-th construction over a group belongs with the n-th of the others. Once they differ, what the group builds
    later is not judged.
    """
    found = []
    for group, stated in _constructions(traces).items():
        for ordinal in range(max(map(len, stated.values()))):
            models = {rank: models[ordinal] for rank, models in stated.items() if ordinal < len(models)}
            finding = _judge(group, models)
            if finding is not None:
                found.append(Mismatch(finding, min(model.event.time_ns for model in models.values()), lasting=True))
                break
    return sorted(found, key=lambda mismatch: mismatch.time_ns)


def without_consequences(mismatches: Sequence[Mismatch], models: Sequence[Mismatch]) -> list[Mismatch]:
    """Both together, without mismatches among the ranks of a group after these had built different models."""
    first: dict[Group | None, int] = {}
    for model in models:
        first.setdefault(model.finding.group, model.time_ns)
    own = [one for one in mismatches if one.time_ns < first.get(one.finding.group, one.time_ns + 1)]
    return sorted([*own, *models], key=lambda mismatch: mismatch.time_ns)


@dataclass(frozen=True, slots=True)
class _Model:
    """One rank's construction: the event, and its parameters where they are written down."""

    event: Event
    digest: str
    parameters: Parameters | None


def _constructions(traces: Sequence[Trace]) -> dict[Group, dict[int, list[_Model]]]:
    found: dict[Group, dict[int, list[_Model]]] = {}
    for trace in traces:
        groups = {group.name: group for group in trace.groups}
        written: dict[str, Parameters | None] = {}
        for event in (event for event in trace.events if event.kind == "parameters"):
            digest = text(event, "digest")
            if "parameters" in event.data:
                # A list that was written before is not written again.
                written[digest] = from_json(event.data["parameters"])
            if (group := groups.get(text(event, "group"))) is not None and digest:
                model = _Model(event, digest, written.get(digest))
                found.setdefault(group, {}).setdefault(trace.rank, []).append(model)
    return found


def _judge(group: Group, models: Mapping[int, _Model]) -> Finding | None:
    sources = {rank: source_of(model.event.data) for rank, model in models.items()}
    digests = {rank: model.digest for rank, model in models.items()}
    known = {rank: model.parameters for rank, model in models.items() if model.parameters is not None}
    if len(set(digests.values())) < 2:
        return None
    if len(known) < len(models):
        return unnamed_mismatch(group, digests, sources)
    return compare_models(group, known, sources)


def compare_models(
    group: Group, stated: Mapping[int, Parameters], sources: Mapping[int, Source], sequence: int | None = None
) -> Finding | None:
    """SC504 on the parameters that ranks (global) state, or None where they can be trained together."""
    parts: dict[Parameters, list[int]] = {}
    for rank, parameters in sorted(stated.items()):
        parts.setdefault(parameters, []).append(rank)
    order = sorted(parts.items(), key=lambda item: -len(item[1]))
    reference = order[0][0]
    apart = [(parameters, ranks) for parameters, ranks in order if _differences(parameters, reference, "", "")]
    if not apart:
        return None
    # Ranks whose lists differ harmlessly are one side.
    alike = [rank for rank in sorted(stated) if not any(rank in ranks for _, ranks in apart)]
    majority = 2 * len(alike) > len(stated)
    there = "the others" if majority else ranks_text(alike)
    sides = [_side(alike, sources, f"{len(reference)} parameters")]
    clauses = []
    for parameters, ranks in apart[:_SIDES]:
        differing = _differences(parameters, reference, ranks_text(ranks), there)
        clauses.append(_cut(differing))
        sides.append(_side(ranks, sources, f"{len(parameters)} parameters; {differing[0]}"))
    return DDP_PARAMETER_MISMATCH.finding(
        "; ".join(clauses),
        group=group,
        sequence=sequence,
        ranks=stated,
        culprits=tuple(sorted(rank for _, ranks in apart for rank in ranks)) if majority else (),
        sides=sides,
        differing=("parameters",),
    )


def unnamed_mismatch(
    group: Group, digests: Mapping[int, object], sources: Mapping[int, Source], sequence: int | None = None
) -> Finding | None:
    """SC504 where the models are too large to be written down: the ranks that differ by digest, without parameters."""
    parts: dict[object, list[int]] = {}
    for rank, digest in sorted(digests.items()):
        parts.setdefault(digest, []).append(rank)
    if len(parts) < 2:
        return None
    order = sorted(parts.values(), key=lambda ranks: -len(ranks))
    majority = 2 * len(order[0]) > len(digests)
    apart = sorted(rank for ranks in order[1:] for rank in ranks)
    there = "the others" if majority else ranks_text(order[0])
    return DDP_PARAMETER_MISMATCH.finding(
        f"the parameters of {ranks_text(apart)} differ from those of {there}",
        group=group,
        sequence=sequence,
        ranks=digests,
        culprits=tuple(apart) if majority else (),
        sides=tuple(_side(ranks, sources, "") for ranks in order[:_SIDES]),
        differing=("parameters",),
        unknown=("parameters",),
    )


def _side(ranks: Sequence[int], sources: Mapping[int, Source], note: str) -> Side:
    return Side(tuple(ranks), None, lines((rank, sources[rank]) for rank in ranks), note)


def _differences(mine: Parameters, reference: Parameters, here: str, there: str) -> list[str]:
    """The differences of a list of parameters from another, in words; empty where they are harmless."""
    names, theirs = [one.name for one in mine], [one.name for one in reference]
    if [one.form for one in mine] == [one.form for one in reference]:
        return _moved(names, theirs, here, there) if sorted(names) == sorted(theirs) else []
    by_name, known = ({one.name: one for one in parameters} for parameters in (mine, reference))
    differing = [
        _changed(one, known[one.name], here, there)
        for one in mine
        if one.name in known and one.form != known[one.name].form
    ]
    differing += [f"{_text(one)} is on {here}, not on {there}" for one in mine if one.name not in known]
    differing += [f"{_text(one)} is missing on {here}" for one in reference if one.name not in by_name]
    return differing or _moved(names, theirs, here, there)


def _moved(names: Sequence[str], theirs: Sequence[str], here: str, there: str) -> list[str]:
    pairs = enumerate(zip(names, theirs, strict=False))
    return [
        f"parameter {place} is {name} on {here}, {other} on {there}" for place, (name, other) in pairs if name != other
    ]


def _changed(mine: ModelParameter, other: ModelParameter, here: str, there: str) -> str:
    if (mine.dtype, mine.shape) == (other.dtype, other.shape):
        states = ("trained", "frozen") if mine.trained else ("frozen", "trained")
        return f"{mine.name} is {states[0]} on {here}, {states[1]} on {there}"
    return f"{mine.name} is {_kind(mine)} on {here}, {_kind(other)} on {there}"


def _text(one: ModelParameter) -> str:
    return f"{one.name} {_kind(one)}"


def _kind(one: ModelParameter) -> str:
    return f"{one.dtype}{list(one.shape)}"


def _cut(differing: Sequence[str]) -> str:
    more = f" and {len(differing) - _NAMED} more parameters differ" if len(differing) > _NAMED else ""
    return "; ".join(differing[:_NAMED]) + more
