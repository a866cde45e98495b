"""The black boxes of a large job that never ran, written fast: the same bytes that :class:`BlackBoxWriter` writes.

Rank 0's file is begun by the writer itself; the others' headers are patched, and their slots are numpy columns.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from simcoll.blackbox import BlackBoxWriter
from simcoll.blackbox import format as layout
from simcoll.blackbox.format import EntryKind
from simcoll.blackbox.members import members_document
from simcoll.blackbox.ring_reader import SLOT_DTYPE
from simcoll.blackbox.table import encode, pack_entry
from simcoll.core.record import Group, Source, State
from simcoll.spec.call import Buffer, Call

SCENARIOS = ("correct", "groups", "wrapped", "skipped", "dtype", "missing", "pipeline")
ODD_SCENARIOS = (
    "many groups",
    "overlapping",
    "absent",
    "torn",
    "asynchronous",
    "unwaited",
    "neighbours",
    "many sizes",
    "unlike",
    "each unlike",
    "unlike lines",
    "unmatched",
    "lives",
    "groups wrapped",
    "each skipped",
    "pairs",
)
"""Correct jobs: of groups of many sizes, of groups that overlap, of which files are lacking or damaged; of asynchronous
calls that ranks waited for, or that none did; of messages between pairs that change; of calls all of which have another
size; of pairs, of which each rank is in many. Jobs in which one rank differs in every call, or each does, or each makes
its calls from lines of its own, or each skips another call; in which one rank never receives; with groups that were
made again; whose oldest calls of many groups were overwritten.
"""

_TENSOR_PARALLEL = 8
_STEP_NS = 1_000_000
_LATE_NS = 1_800_000
_LACKING = 16
"""Of so many ranks one has no file, or one with a torn record."""

_PARTNERS = 64
"""Groups of two that a rank of ``pairs`` is in."""

GRADED = ("each unlike", "unlike lines", "each skipped", "pairs")
"""Jobs that may be odd in part."""

_OWN_RINGS = ("neighbours", "unmatched", "each unlike", "each skipped", "pairs")
"""Jobs in which the calls of a rank follow from its place."""

_ODD_STEP = 37
"""Calls between those that two neighbours of ``each skipped`` lack."""

_JITTER = 97
"""Ranks that many apart make their calls at the same times."""

_END_NS = 1_900_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class Job:
    """A job of so many ranks that make so many calls each, and what is odd about it (one of :data:`SCENARIOS` or of
    :data:`ODD_SCENARIOS`).

    ``extent`` says how odd a job of :data:`GRADED` is: how many ranks differ, all if it is 0, or how many groups of two
    each is in.
    """

    scenario: str
    ranks: int
    records: int
    extent: int = 0

    @property
    def odd(self) -> int:
        """The rank that does it wrong, and the record at which it does."""
        return self.ranks // 3

    @property
    def differ(self) -> int:
        """How many ranks differ where all may."""
        return self.extent or self.ranks

    @property
    def slots(self) -> int:
        """Slots of each ring."""
        wrapped = self.scenario in ("wrapped", "groups wrapped")
        return max(self.records * 3 // 4, layout.MIN_SLOTS) if wrapped else layout.DEFAULT_SLOTS


@dataclass(frozen=True, slots=True)
class Plan:
    """One rank's calls: for each record its group (by index in ``groups``), signature, line, and whether it is p2p."""

    groups: tuple[Group, ...]
    group: npt.NDArray[np.int64]
    signature: npt.NDArray[np.int64]
    source: npt.NDArray[np.int64]
    p2p: npt.NDArray[np.bool_]


def _tensor(elements: int, dtype: str = "bfloat16") -> tuple[Buffer, ...]:
    return (Buffer((elements,), dtype, "cuda"),)


_REDUCED = Call("all_reduce", "allreduce", _tensor(4096), _tensor(4096), reduce_op="sum")
CALLS = (
    *(replace(_REDUCED, inputs=_tensor(size), outputs=_tensor(size)) for size in (1 << 20, 1 << 22, 1024, 1)),
    Call("all_gather", "_allgather_base", _tensor(1 << 12), _tensor(1 << 15)),
    Call("reduce_scatter", "_reduce_scatter_base", _tensor(1 << 15), _tensor(1 << 12), reduce_op="sum"),
    Call("broadcast", "broadcast", _tensor(64, "int64"), _tensor(64, "int64"), root=0),
    Call("barrier", "barrier"),
)
_ODD = replace(_REDUCED, inputs=_tensor(1 << 20, "float32"), outputs=_tensor(1 << 20, "float32"))
SOURCES = tuple(Source("/job/train.py", 40 + line, "step", f"call_{line}(x)") for line in range(len(CALLS) + 8))


def write_job(job: Job, folder: Path) -> None:
    """Write all black boxes of a job; the bytes of the header but for the rank are those of the writer."""
    folder.mkdir(parents=True)
    header = _header(job, folder)
    for rank in range(job.ranks):
        if not ((job.scenario == "missing" and rank == job.odd) or (job.scenario == "absent" and rank % _LACKING == 1)):
            _write_rank(job, rank, header, folder / f"rank{rank:05d}{layout.SUFFIX}")


def _header(job: Job, folder: Path) -> bytes:
    path = folder / "template"
    BlackBoxWriter(path, rank=0, world_size=job.ranks, mode="record", records=job.slots).close()
    header = path.read_bytes()[: layout.PAGE]
    path.unlink()
    return header


def _write_rank(job: Job, rank: int, header: bytes, path: Path) -> None:
    slots, dropped = _ring(job, _twin(job, rank))
    start = layout.ring_offset(layout.GROUP_ROWS)
    table = start + job.slots * layout.SLOT.size
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    for part, offset in ((_for_rank(header, rank) + dropped, 0), (slots, start), (_entries(job, rank), table)):
        os.pwrite(fd, part, offset)
    os.ftruncate(fd, table + layout.TABLE_CHUNK)
    if job.scenario == "torn" and rank % _LACKING == 1:
        os.pwrite(fd, b"?", start + job.records // 2 * layout.SLOT.size + layout.offset_of(layout.SLOT_FIELDS, "check"))
    if job.scenario == "torn" and rank % _LACKING == 2:
        os.pwrite(fd, b"?", table + layout.ENTRY.size)
    os.close(fd)


def _twin(job: Job, rank: int) -> int:
    """A rank whose ring has the same bytes: the odd one and those at the ends of a pipeline are like no other."""
    alone = (
        0,
        1,
        job.odd,
        job.ranks - 1,
        *((2, *range(job.ranks - 4, job.ranks)) if job.scenario == "overlapping" else ()),
    )
    if job.scenario in _OWN_RINGS or rank in alone:
        return rank
    return next(twin for twin in range(rank % _JITTER, job.ranks, _JITTER) if twin not in alone)


def _for_rank(header: bytes, rank: int) -> bytes:
    at = layout.offset_of(layout.HEADER_FIELDS, "rank")
    fields = header[:at] + rank.to_bytes(4, "little") + header[at + 4 : layout.HEADER_CRC_OFFSET]
    return fields + zlib.crc32(fields).to_bytes(4, "little") + header[layout.HEADER_CRC_OFFSET + 4 :]


def _plan(job: Job, rank: int) -> Plan:
    place = np.arange(job.records)
    named = _groups(job, rank)
    if job.scenario == "pipeline":
        return _pipeline(job, rank, named)
    if job.scenario in ("neighbours", "unmatched"):
        return _neighbours(job, rank, named)
    calls = place % len(CALLS)
    if job.scenario == "each skipped":
        whole = Plan(named, np.zeros_like(place), calls, calls, np.zeros(len(place), np.bool_))
        return _without(whole, rank * _ODD_STEP % job.records) if rank < job.differ else whole
    if job.scenario in ("many groups", "overlapping", "groups wrapped", "pairs"):
        return _by_turns(job, rank, named, calls)
    if job.scenario == "many sizes":
        return Plan(named, np.zeros_like(place), place, calls, np.zeros(len(place), np.bool_))
    if job.scenario in ("unlike", "each unlike"):
        differs = rank < job.differ if job.scenario == "each unlike" else rank == job.odd
        odd = calls + len(CALLS) if differs else calls
        return Plan(named, np.zeros_like(place), odd, calls, np.zeros(len(place), np.bool_))
    if job.scenario == "lives":
        return Plan(named, place % len(named), calls, calls, np.zeros(len(place), np.bool_))
    if job.scenario in ("correct", "wrapped", "absent", "torn", "asynchronous", "unwaited", "unlike lines"):
        return Plan(named, np.zeros_like(place), calls, calls, np.zeros(len(place), np.bool_))
    signature = calls.copy()
    groups = np.where(place % 4 == 0, 0, np.where(place % 4 == 3, 2, 1))
    if job.scenario == "dtype" and rank == job.odd:
        signature[job.records // 16 * 8] = len(CALLS)
    plan = Plan(named, groups, signature, calls, np.zeros(len(place), np.bool_))
    return _without(plan, job.records // 16 * 8) if job.scenario == "skipped" and rank == job.odd else plan


def _groups(job: Job, rank: int) -> tuple[Group, ...]:
    """The groups of a rank; that of all ranks comes first."""
    if job.scenario in ("skipped", "dtype", "missing", "groups"):
        return (_world(job.ranks), *_parallel(job, rank))
    if job.scenario == "lives":
        return (_world(job.ranks),) * 4
    if job.scenario in ("many groups", "overlapping", "groups wrapped", "pairs"):
        return (_world(job.ranks), *(group for group in _classes(job, rank) if group is not None))
    return (_world(job.ranks),)


def _classes(job: Job, rank: int) -> list[Group | None]:
    """A rank's group of each class, None where it has none: neighbours by twos, fours, eights and so on, and every
    second, fourth, eighth rank; or the windows of four neighbours that it is in; or its pairs.
    """
    if job.scenario == "pairs":
        # The partner of each turn is another for each rank.
        others = [rank ^ turn for turn in range(1, (job.extent or _PARTNERS) + 1)]
        return [_pair(rank, other) if other < job.ranks else None for other in others]
    if job.scenario == "overlapping":
        starts = range(rank - 3, rank + 1)
        windows = {start % 4: start for start in starts if 0 <= start <= job.ranks - 4}
        return [_group("window", windows[turn], 4, 1) if turn in windows else None for turn in range(4)]
    sizes = [size for size in (2, 4, 8, 16, 32, 64, 128, 256) if job.ranks % size == 0]
    near = [_group("near", rank // size * size, size, 1) for size in sizes]
    return [*near, *(_group("far", rank % size, job.ranks // size, size) for size in sizes)]


@lru_cache(maxsize=1 << 14)
def _group(name: str, first: int, count: int, step: int) -> Group:
    return Group(f"{name}-{first}-{step}-{count}", name, tuple(range(first, first + count * step, step)))


def _pair(rank: int, other: int) -> Group:
    low, high = sorted((rank, other))
    return _group("pair", low, 2, high - low)


def _by_turns(job: Job, rank: int, groups: tuple[Group, ...], calls: npt.NDArray[np.int64]) -> Plan:
    """Calls of all ranks and of each class of groups by turns; a rank without a group of a class makes none there."""
    classes = [groups[0], *_classes(job, rank)]
    index = {None: -1} | {group: place for place, group in enumerate(groups)}
    group = np.resize([index[one] for one in classes], job.records)
    kept = group >= 0
    return Plan(groups, group[kept], calls[kept], calls[kept], np.zeros(int(kept.sum()), np.bool_))


@lru_cache(maxsize=1)
def _world(ranks: int) -> Group:
    return Group("0", "default_pg", tuple(range(ranks)))


def _without(plan: Plan, place: int) -> Plan:
    kept = np.arange(len(plan.group)) != place
    return Plan(plan.groups, plan.group[kept], plan.signature[kept], plan.source[kept], plan.p2p[kept])


def _parallel(job: Job, rank: int) -> tuple[Group, Group]:
    """The rank's tensor-parallel group, of neighbours, and its data-parallel group, of every eighth rank."""
    size = min(_TENSOR_PARALLEL, job.ranks)
    first, place = rank // size * size, rank % size
    return (
        Group(f"{1 + rank // size}", "mesh_tp", tuple(range(first, first + size))),
        _data_parallel(place, job.ranks, size),
    )


@lru_cache(maxsize=_TENSOR_PARALLEL)
def _data_parallel(place: int, ranks: int, size: int) -> Group:
    return Group(f"{10_000_000 + place}", "mesh_dp", tuple(range(place, ranks, size)))


def _pipeline(job: Job, rank: int, groups: tuple[Group, ...]) -> Plan:
    """Each rank takes from the one before and gives to the one after, and all meet in an all-reduce now and then."""
    ends = [len(CALLS)] * (rank > 0) + [len(CALLS) + 1] * (rank < job.ranks - 1)
    step = np.array([*ends * (4 // len(ends)), 0])
    calls = np.resize(step, job.records // len(step) * len(step))
    return Plan(groups, np.zeros_like(calls), calls, calls, calls >= len(CALLS))


def _neighbours(job: Job, rank: int, groups: tuple[Group, ...]) -> Plan:
    """The two ranks of a pair send to each other, then those of the other pairs; now and then all meet."""
    below, above = rank > 0, rank < job.ranks - 1
    # Signature len(CALLS) receives from below, the next ones send there, receive from above and send there.
    pair, other = (above, 2) if rank % 2 == 0 else (below, 0), (below, 0) if rank % 2 == 0 else (above, 2)
    step: list[int] = []
    for there, first in (pair, other):
        ends = (1, 0) if first else (0, 1)
        step += [len(CALLS) + first + end for end in ends] * there
    if job.scenario == "unmatched" and rank == job.odd:
        step = [one for one in step if one != len(CALLS)]
    calls = np.resize(np.array([*step, 0]), job.records // (len(step) + 1) * (len(step) + 1))
    return Plan(groups, np.zeros_like(calls), calls, calls, calls >= len(CALLS))


@lru_cache(maxsize=2 * _JITTER)
def _ring(job: Job, rank: int) -> tuple[bytes, bytes]:
    """The slots in the file's order, and the rows of the table of groups."""
    plan = _plan(job, rank)
    count = len(plan.group)
    slots = np.zeros(count, SLOT_DTYPE)
    slots["index"] = slots["check"] = np.arange(1, count + 1)
    slots["group"], slots["signature"], slots["source"] = plan.group, plan.signature, plan.source
    for group in range(len(plan.groups)):
        mine = plan.group == group
        slots["sequence"][mine] = np.cumsum(~plan.p2p[mine])
        slots["p2p_sequence"][mine] = np.where(plan.p2p[mine], np.cumsum(plan.p2p[mine]), 0)
    slots["state"], slots["flags"] = State.COMPLETED, layout.AWAITED
    begin = 1_800_000_000_000_000_000 + np.arange(count) * _STEP_NS + rank % _JITTER
    slots["scheduled_ns"], slots["started_ns"], slots["finished_ns"] = begin, begin + 1000, begin + _STEP_NS // 2
    if job.scenario in ("asynchronous", "unwaited"):
        slots["flags"] = layout.ASYNCHRONOUS | (layout.AWAITED if job.scenario == "asynchronous" else 0)
        slots["finished_ns"] += np.uint64(_LATE_NS)
        slots["wait_us"] = _LATE_NS // 1000 if job.scenario == "asynchronous" else 0
    if job.scenario in ("skipped", "missing"):
        # The last call never ends: somebody has not come, or is a call behind.
        slots["state"][-1], slots["finished_ns"][-1] = State.STARTED, 0
    rows = np.zeros((len(plan.groups), 4), np.uint32)
    for slot in slots[: max(count - job.slots, 0)]:
        rows[slot["group"], 0] = slot["sequence"]
        rows[slot["group"], 2] += 1
    kept = slots[-job.slots :]
    return np.roll(kept, count % job.slots if count > job.slots else 0).tobytes(), rows.tobytes()


def _entries(job: Job, rank: int) -> bytes:
    groups = enumerate(_groups(job, rank))
    table = b"".join(pack_entry(EntryKind.GROUP, index, _group_json(group)) for index, group in groups)
    table += _call_entries(_calls(job, rank)) + _sources(
        rank if job.scenario == "unlike lines" and rank < job.differ else None
    )
    if job.scenario != "skipped":
        table += pack_entry(EntryKind.EVENT, 0, encode(_end(job, rank)))
    return table


@lru_cache(maxsize=4)
def _call_entries(calls: Sequence[Call]) -> bytes:
    return b"".join(pack_entry(EntryKind.SIGNATURE, index, encode(call.to_json())) for index, call in enumerate(calls))


def _end(job: Job, rank: int) -> dict[str, object]:
    """How a rank ended: by itself, or with the error of a wait for the rank that has not come."""
    if job.scenario != "missing" or rank % _TENSOR_PARALLEL != job.odd % _TENSOR_PARALLEL:
        return {"kind": "exit", "time_ns": _END_NS + rank, "data": {}}
    error = {"type": "DistBackendError", "message": "NCCL communicator was aborted: timeout"}
    return {"kind": "exception", "time_ns": _END_NS + rank, "data": error}


def _calls(job: Job, rank: int) -> Sequence[Call]:
    """The table of calls; it is one object for ranks that have the same."""
    sent = _tensor(1 << 20)
    if job.scenario == "pipeline":
        return (
            *CALLS,
            Call("recv", "recv", (), sent, peer=max(rank - 1, 0), tag=0),
            Call("send", "send", sent, (), peer=min(rank + 1, job.ranks - 1), tag=0),
        )
    if job.scenario in ("neighbours", "unmatched"):
        below, above = max(rank - 1, 0), min(rank + 1, job.ranks - 1)
        ends = (("recv", below), ("send", below), ("recv", above), ("send", above))
        return (*CALLS, *(_message(op, peer) for op, peer in ends))
    if job.scenario == "many sizes":
        return _sized(job.records)
    if job.scenario in ("unlike", "each unlike"):
        return _odd_calls(rank if job.scenario == "each unlike" and rank < job.differ else 0)
    return (*CALLS, _ODD)


def _message(op: str, peer: int) -> Call:
    sent = _tensor(1 << 20)
    return Call(op, op, sent if op == "send" else (), sent if op == "recv" else (), peer=peer, tag=0)


@lru_cache(maxsize=1)
def _sized(count: int) -> Sequence[Call]:
    return tuple(replace(_REDUCED, inputs=_tensor(8 + size), outputs=_tensor(8 + size)) for size in range(count))


@lru_cache(maxsize=4)
def _odd_calls(rank: int) -> Sequence[Call]:
    """The usual calls, and behind them the same with other sizes, or barriers where they have none."""
    odd = _tensor(3 + rank)
    return (*CALLS, *(replace(call, inputs=odd, outputs=odd) if call.inputs else call for call in CALLS))


_group_texts: dict[tuple[int, ...], bytes] = {}


def _group_json(group: Group) -> bytes:
    key = hash(group.name), len(group.ranks), group.ranks[0]
    if key not in _group_texts:
        _group_texts[key] = encode(
            {"name": group.name, "description": group.description, "ranks": members_document(group.ranks)}
        )
    return _group_texts[key]


@lru_cache(maxsize=1)
def _sources(rank: int | None) -> bytes:
    """The table of lines; where a rank is given, lines of its own."""
    lines = [one if rank is None else replace(one, line=one.line + 100 * rank) for one in SOURCES]
    documents = [{"file": one.file, "line": one.line, "function": one.function, "code": one.code} for one in lines]
    return b"".join(pack_entry(EntryKind.SOURCE, index, encode(one)) for index, one in enumerate(documents))
