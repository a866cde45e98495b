"""The text of the exceptions that ``detail`` mode raises.

It begins like the text of c10d's own wrapper (torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp and
ProcessGroupGloo.cpp, torch 2.13), because tools and tests match on it, and goes on with facts that the wrapper does
not know: every side, the culprits, the lines. Ranks are global, which for the default group is what c10d prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simcoll.core.ranges import ranks_text, span_text, verb
from simcoll.core.record import Group, Record
from simcoll.spec.call import Buffer, Call
from simcoll.spec.collectives import COLLECTIVES, METHODS
from simcoll.verifier.findings.describe import (
    advice_of,
    call_text,
    group_text,
    parting_text,
    record_text,
    sizes_text,
    source_text,
    stack_text,
)
from simcoll.verifier.findings.finding import Finding, Side, errors_of
from simcoll.verifier.findings.rules import RULES

_SCALAR_TYPES = {
    "float16": "Half",
    "float32": "Float",
    "float64": "Double",
    "bfloat16": "BFloat16",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "uint8": "Byte",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
    "complex32": "ComplexHalf",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}
_RANKS = _TENSORS = 16
"""Listed one by one, as c10d does it."""

_NOBODY_HERE = "no majority of these ranks names one; the report on the whole job may"
"""An exception knows one call; other messages of its lines, or other groups, may tell which side is wrong."""

_PLACES = _SIDES = 8
_OWN_ASPECTS = {
    "reduce_op": "Reduce op",
    "root": "Root",
    "splits": "Splits",
    "count": "Element counts",
    "contents": "Coalesced contents",
    "shape": "Shapes",
    "order": "Memory order",
    "parameters": "Parameters of the model",
    "memory": "Memory of the tensors",
}


def mismatch_text(group: Group, records: Mapping[int, Record], my_group_rank: int, findings: Sequence[Finding]) -> str:
    """The message of a mismatch as one rank sees it: ``records`` by group rank, the findings that they gave.

    The first paragraph states this rank's call and that of a rank of another side; the lines after it state every
    side of every error.
    """
    errors = errors_of(findings) or list(findings)
    other = _opponent(group, records, my_group_rank, errors)
    # A rank whose own record did not come back in time still states the disagreement of the others.
    mine = records.get(my_group_rank, records[other])
    theirs = records[other]
    head = (
        f"Detected mismatch between collectives on ranks. Rank {group.ranks[my_group_rank]} is running collective: "
        f"{_fingerprint(mine)}, but Rank {group.ranks[other]} is running collective: {_fingerprint(theirs)}. "
        f"Collectives differ in the following aspects: {_aspects(mine.call, theirs.call, errors)}"
    )
    return "\n".join([head, *(line for finding in errors for line in _own_lines(group, finding))])


def _opponent(group: Group, records: Mapping[int, Record], mine: int, errors: Sequence[Finding]) -> int:
    """A rank to set against this one: of another side, a culprit or the majority first; of the first error at odds."""
    places = {rank: place for place, rank in enumerate(group.ranks)}
    for finding in errors:
        sides = [side for side in finding.sides if group.ranks[mine] not in side.ranks]
        if len(sides) < len(finding.sides) or len(sides) > 1:
            guilty = [rank for rank in finding.culprits if any(rank in side.ranks for side in sides)]
            for rank in [*guilty, *(rank for side in sides for rank in side.ranks)]:
                if places.get(rank) in records and places[rank] != mine:
                    return places[rank]
    return next((rank for rank in sorted(records) if rank != mine), mine)


def _fingerprint(record: Record) -> str:
    head = f"CollectiveFingerPrint(SequenceNumber={record.sequence}, OpType={_op_type(record.call)}"
    tensors = _tensors(record.call)
    if not tensors:
        return head + ")"
    shape, dtypes, devices = _torch_fields(tensors)
    return f"{head}, TensorShape=[{', '.join(shape)}], TensorDtypes={dtypes}, TensorDeviceTypes={devices})"


def _op_type(call: Call) -> str:
    return METHODS[call.spelling][1].op_type if call.spelling in METHODS else call.op.upper()


def _tensors(call: Call) -> tuple[Buffer, ...]:
    """The tensors that c10d prints: those that ranks compare, for a list of equal ones their first."""
    spec = COLLECTIVES.get(call.op)
    if spec is None or spec.measured is None:
        return ()
    measured: tuple[Buffer, ...] = getattr(call, spec.measured)
    one_in_one_out = len(call.inputs) == len(call.outputs) == 1 and call.inputs != call.outputs
    return (*call.inputs, *call.outputs) if one_in_one_out and spec.measured == "outputs" else measured


def _torch_fields(tensors: Sequence[Buffer]) -> tuple[list[str], str, str]:
    """Shape of the first, dtypes and devices of all, in the wording of c10d; of very many, those of the first."""
    shape = [str(size) for size in tensors[0].shape] if tensors else []
    shown = tensors[:_TENSORS]
    more = "" if len(tensors) == len(shown) else f" and {len(tensors) - len(shown):,} more"
    dtypes = " ".join(_scalar_type(tensor.dtype) for tensor in shown)
    devices = " ".join(
        f"TensorOptions(dtype=float (default), device={tensor.device}, layout=Strided (default), "
        "requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))"
        for tensor in shown
    )
    return shape, dtypes + more, devices + more


def _scalar_type(dtype: str) -> str:
    return _SCALAR_TYPES.get(dtype, dtype[:1].upper() + dtype[1:])


def _aspects(mine: Call, theirs: Call, errors: Sequence[Finding]) -> str:
    """Every differing aspect of two calls: c10d's own in its words, then those that it does not know."""
    fields = [("Op type", _op_type(mine), _op_type(theirs))]
    (shape, dtypes, devices), (their_shape, their_dtypes, their_devices) = map(
        _torch_fields, (_tensors(mine), _tensors(theirs))
    )
    fields += [
        ("Tensor Tensor shapes", " ".join(shape), " ".join(their_shape)),
        ("Tensor Tensor dtypes", dtypes, their_dtypes),
        ("Tensor Tensor devices", devices, their_devices),
        ("Reduce op", str(mine.reduce_op), str(theirs.reduce_op)),
        ("Root", str(mine.root), str(theirs.root)),
        ("Input splits", _splits(mine.input_splits), _splits(theirs.input_splits)),
        ("Output splits", _splits(mine.output_splits), _splits(theirs.output_splits)),
    ]
    aspects = [f"  {name}: {here}vs {there}" for name, here, there in fields if here != there]
    named = {name for finding in errors for name in finding.differing}
    spoken = "".join(aspects).lower()
    aspects += [f"  {text}" for name, text in _OWN_ASPECTS.items() if name in named and text.lower() not in spoken]
    return "".join(aspects)


def _own_lines(group: Group, finding: Finding) -> list[str]:
    rule = RULES[finding.code]
    where = f"in {group_text(group)}" + ("" if finding.sequence is None else f", collective {finding.sequence}")
    lines = [f"simcoll: {rule.code} {rule.name} {where}: {finding.message}"]
    for side in finding.sides[:_SIDES]:
        lines += _side_lines(group, side, finding.sides)
    if rest := [rank for side in finding.sides[_SIDES:] for rank in side.ranks]:
        lines.append(f"  {ranks_text(rest)}: {len(finding.sides) - _SIDES:,} more sides")
    culprits = f"{ranks_text(finding.culprits)} (by majority)" if finding.culprits else _NOBODY_HERE
    parted = [f"  ranks parted at: {text}"] if (text := parting_text(finding)) else []
    return [*lines, f"  culprits: {culprits}", *parted, f"  advice: {advice_of(finding)}"]


def _side_lines(group: Group, side: Side, sides: Sequence[Side]) -> list[str]:
    call = "" if side.call is None else call_text(side.call, group)
    text = "; ".join(part for part in (call, side.note) if part)
    sources = [(stated.rank, stated.source) for stated in side.sources]
    lines = [f"    rank {rank} at {stack_text(sides, source)}: {source.code.strip()}" for rank, source in sources]
    return [f"  {ranks_text(side.ranks)}: {text}", *lines]


def message_text(finding: Finding) -> str:
    """The message for a send and the receive that it meets (SC301, SC302), which c10d has no wording for."""
    head = f"Detected mismatch between collectives on ranks: {finding.message}"
    return head if finding.group is None else "\n".join([head, *_own_lines(finding.group, finding)])


def missing_text(
    group: Group,
    my_group_rank: int,
    missing_group_ranks: Sequence[int],
    timeout_ms: int,
    record: Record | None = None,
    last: Mapping[int, Record] | None = None,
    *,
    first_only: bool = False,
    waited_ms: int | None = None,
) -> str:
    """The message when ranks did not come to ``record`` within ``timeout_ms``; ``last`` has, by group rank, the last
    known calls of the missing ranks. A wait of ``waited_ms``, if that is known and much shorter, was ended by
    a connection that closed.

    c10d's own line, with which it begins, says "Rank 1" with ``first_only`` (monitored_barrier's default) and
    "Ranks 1, 2" without, or more than 16 as ranges; none is listed where the missing ranks are not known.
    """
    closed = waited_ms is not None and 2 * waited_ms < timeout_ms
    # What ended the wait early is no timeout: the time is then that of the wait.
    after_ms = waited_ms if closed else timeout_ms
    missing = [group.ranks[rank] for rank in sorted(missing_group_ranks) if 0 <= rank < len(group.ranks)]
    mine = group.ranks[my_group_rank]
    if not missing:
        head = f"[Rank {mine}]: Some ranks failed to pass monitoredBarrier in {after_ms} ms"
    elif my_group_rank == 0 and timeout_ms == 0:
        head = f"[Rank {mine}]: Rank {mine} timed out in monitoredBarrier after 0 ms"
    elif my_group_rank == 0:
        listed = f"Rank {missing[0]}" if first_only else f"Ranks {_listed(missing)}"
        head = f"[Rank {mine}]: {listed} failed to pass monitoredBarrier in {after_ms} ms"
    else:
        head = (
            f"Rank {mine} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
            f"rank 0. Please check rank 0 logs for faulty rank"
        )
        head += "" if group.ranks[0] == 0 else f" (rank 0 of this group is global rank {group.ranks[0]})"
    how = "Connection closed by peer" if closed else f"Timed out waiting {timeout_ms}ms"
    reason = "and the connection has closed" if closed else f"within the timeout of {timeout_ms} ms"
    return "\n".join([f"{head}; {how}.", *_missing_lines(group, missing, reason, record, last or {})])


def _missing_lines(
    group: Group, missing: Sequence[int], reason: str, record: Record | None, last: Mapping[int, Record]
) -> list[str]:
    rule = RULES["SC201"]
    call = "this collective" if record is None else f"{record.call.op} (collective {record.sequence})"
    who = f"{ranks_text(missing)} {verb(missing, 'has', 'have')}" if missing else "some ranks have"
    lines = [f"simcoll: {rule.code} {rule.name} in {group_text(group)}: {who} not come to {call} {reason}"]
    if record is not None and record.source.file:
        lines.append(f"  called at {source_text(record.source)}: {record.source.code.strip()}")
    seen: dict[str, list[int]] = {}
    for rank, known in sorted(last.items()):
        if 0 <= rank < len(group.ranks):
            seen.setdefault(record_text(known), []).append(group.ranks[rank])
    for known_text, ranks in list(seen.items())[:_PLACES]:
        lines.append(f"  {ranks_text(ranks)} {verb(ranks, 'was', 'were')} last seen in {known_text}")
    lines += [f"  and others at {len(seen) - _PLACES:,} more places"] if len(seen) > _PLACES else []
    return [*lines, f"  advice: {rule.advice}"]


def _listed(ranks: Sequence[int]) -> str:
    """Ranks in the form of c10d, one by one; thousands as ranges, since people read the exception."""
    return ", ".join(map(str, ranks)) if len(ranks) <= _RANKS else span_text(ranks)


def _splits(sizes: tuple[int, ...] | None) -> str:
    return str(sizes) if sizes is None or len(sizes) <= _RANKS else sizes_text(sizes)
