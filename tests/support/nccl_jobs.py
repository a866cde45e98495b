"""Correct jobs as NCCL's Flight Recorder has them, made at random: collectives, messages and batches on several groups.

Ranks queue calls ahead of their devices, each at its own pace; a call ends when all that it needs have come to it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.flight_dumps import START_NS, WRITERS, document, entry

SECOND = 10**9
LISTS_WHOLE = 5
"""The first minor version in which all tensors of a list are recorded."""
PARTS_RECORDED = 7
"""The first minor version in which the collectives of a coalesced group are recorded."""

Fields = dict[str, object]
Sizes = Sequence[int]


def sized(inputs: Sizes, outputs: Sizes, dtype: str = "Float") -> Fields:
    """The buffers of an entry; ``dtype`` is that of the outputs."""
    return {
        "input_sizes": [[size] for size in inputs],
        "input_dtypes": ["Float" for _ in inputs],
        "output_sizes": [[size] for size in outputs],
        "output_dtypes": [dtype for _ in outputs],
    }


@dataclass(frozen=True, slots=True)
class Made:
    """An entry, when it was made, and when its end was seen; None for a part of a batch, which never changes."""

    name: str
    fields: Fields
    made_ns: int
    ended_ns: int | None


@dataclass(slots=True, eq=False)
class NcclJob:
    """A job of ``size`` ranks on torch that writes dumps of version 2.``minor``."""

    chance: random.Random
    size: int
    minor: int
    entries: list[list[Made]] = field(default_factory=list)
    groups: list[tuple[str, str, Sequence[int]]] = field(default_factory=list)
    _queued: list[int] = field(default_factory=list)
    _device: list[int] = field(default_factory=list)
    _counts: dict[tuple[int, str], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        half = self.size // 2
        self.groups = [
            ("0", "default_pg", range(self.size)),
            ("1", "tp", range(half)),
            ("2", "tp", [*range(half, self.size)]),
        ]
        self.groups.append(("3", "dp", (0, self.size - 1)))
        self.entries = [[] for _ in range(self.size)]
        self._queued = [START_NS + self.chance.randrange(SECOND // 10) for _ in range(self.size)]
        self._device = [START_NS] * self.size

    @property
    def end_ns(self) -> int:
        """When the last call was made."""
        return max(self._queued)

    def step(self) -> None:
        """One more call of one group."""
        group = self.chance.choice(self.groups)
        if len(group[2]) > 1:
            self.chance.choice((self._collective, self._collective, self._collective, self._batch, self._message))(
                *group
            )

    def _collective(self, name: str, description: str, ranks: Sequence[int]) -> None:
        op = self.chance.choice(sorted(OPS))
        buffers = OPS[op](self, len(ranks))
        ended = self._run(ranks)
        for rank, own in zip(ranks, buffers, strict=True):
            self._note(rank, name, description, f"nccl:{op}", own, ended)

    def _batch(self, name: str, description: str, ranks: Sequence[int]) -> None:
        """Collectives between start and end of a coalesced group; some ranks take their time to make them all."""
        size, count = self.chance.randrange(1, 9), len(ranks)
        took = [self.chance.choice((2, 2, SECOND)) for _ in ranks]
        for rank, nanoseconds in zip(ranks, took, strict=True):
            self._queued[rank] += nanoseconds
        ended = self._run(ranks)
        for rank, early in zip(ranks, took, strict=True):
            if self.minor < PARTS_RECORDED:
                both = sized([size] * 2, [size * count] * 2)
                self._note(rank, name, description, "nccl:all_gather_into_tensor_coalesced", both, ended)
                continue
            part = sized([size], [size * count])
            self._note(rank, name, description, "nccl:_all_gather_base", part, None, early_ns=early)
            self._note(rank, name, description, "nccl:_all_gather_base", part, None, more=False, early_ns=early // 2)
            self._note(rank, name, description, "nccl:coalesced", sized([], []), ended, more=False)

    def _message(self, name: str, description: str, ranks: Sequence[int]) -> None:
        """A send and its receive, alone or as a batch."""
        source, target = self.chance.sample(range(len(ranks)), 2)
        buffer = sized(*[[self.chance.randrange(1, 9)]] * 2)
        ends = ((ranks[source], f"nccl:send {source}->{target}"), (ranks[target], f"nccl:recv {target}<-{source}"))
        batch, ended = self.chance.random() < 0.5, self._run([rank for rank, _ in ends])
        for rank, op in ends:
            self._note(rank, name, description, op, buffer, None if batch else ended, message=True)
            if batch:
                self._note(rank, name, description, "nccl:coalesced", sized([], []), ended, message=True, more=False)

    def _run(self, ranks: Sequence[int]) -> int:
        """Queue a call on these ranks; when it ends on their devices."""
        for rank in ranks:
            self._queued[rank] += self.chance.randrange(1, SECOND // 20)
        begun = max(max(self._queued[rank], self._device[rank]) for rank in ranks)
        ended = begun + self.chance.randrange(1, SECOND // 50)
        for rank in ranks:
            self._device[rank] = ended
        return ended

    def _note(
        self,
        rank: int,
        name: str,
        description: str,
        op: str,
        buffers: Fields,
        ended_ns: int | None,
        *,
        message: bool = False,
        more: bool = True,
        early_ns: int = 0,
    ) -> None:
        """Record an entry; one that is not ``more`` goes by the numbers of the one before."""
        counts = self._counts.setdefault((rank, name), [0, 0])
        counts[message] += more
        about: Fields = {"process_group": (name, description), "is_p2p": message}
        about |= {"collective_seq_id": counts[0], "p2p_seq_id": counts[1]}
        self.entries[rank].append(Made(op, {**about, **buffers}, self._queued[rank] - early_ns, ended_ns))

    def dump(self, folder: Path, rank: int, seen_ns: int, written_ns: int, ring: int) -> Path:
        """Write what the rank's ring of so many entries holds at a moment."""
        held = [
            self._seen(number, made, seen_ns)
            for number, made in enumerate(self.entries[rank])
            if made.made_ns <= seen_ns
        ]
        known = {
            name: {"name": name, "desc": about, "ranks": str([*ranks])}
            for name, about, ranks in self.groups
            if rank in ranks
        }
        writer = WRITERS[self.chance.choice(("torch", "json"))]
        path = folder / f"rank_{rank}"
        path.write_bytes(writer(document(held[-ring:], self.minor, pg_config=known)))
        os.utime(path, ns=(written_ns, written_ns))
        return path

    def _seen(self, number: int, made: Made, seen_ns: int) -> Fields:
        ended = made.ended_ns if made.ended_ns is not None and made.ended_ns <= seen_ns else None
        state = {"state": "scheduled" if ended is None else "completed", "retired": ended is not None}
        times = {"time_created_ns": made.made_ns, "time_discovered_completed_ns": ended}
        return entry(number, made.name, **made.fields, **state, **times)


def _alike(inputs: int, outputs: int) -> Callable[[NcclJob, int], list[Fields]]:
    """Buffers of one size, or (0) as large as those of all ranks together."""

    def buffers(job: NcclJob, count: int) -> list[Fields]:
        size = job.chance.randrange(1, 9)
        return [sized([size * (inputs or count)], [size * (outputs or count)])] * count

    return buffers


def _rooted(job: NcclJob, count: int) -> list[Fields]:
    """A gather or scatter: the tensor that every rank has first, then the root's list, elsewhere a placeholder."""
    size, root = job.chance.randrange(1, 9), job.chance.randrange(count)
    listed = [size] * (count if job.minor >= LISTS_WHOLE else 1)
    return [sized([size], listed) if rank == root else sized([size], [0], "Undefined") for rank in range(count)]


def _exchanged(job: NcclJob, count: int) -> list[Fields]:
    """An uneven all_to_all, of lists or of one tensor."""
    splits = [[job.chance.randrange(4) for _ in range(count)] for _ in range(count)]
    both = [(splits[rank], [row[rank] for row in splits]) for rank in range(count)]
    if job.chance.random() < 0.5:
        return [sized([sum(sent)], [sum(received)]) for sent, received in both]
    kept = count if job.minor >= LISTS_WHOLE else 1
    return [sized(sent[:kept], received[:kept]) for sent, received in both]


OPS: dict[str, Callable[[NcclJob, int], list[Fields]]] = {
    "all_reduce": _alike(1, 1),
    "broadcast": _alike(1, 1),
    "_all_gather_base": _alike(1, 0),
    "_reduce_scatter_base": _alike(0, 1),
    "gather": _rooted,
    "scatter": _rooted,
    "all_to_all": _exchanged,
}
"""The buffers of each rank, by the name under which NCCL records the call."""
