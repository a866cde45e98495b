"""What ranks of a dry run do to the keys of stores: values that they set, numbers that they add to, bytes they append.

Each rank keeps a log of its operations on a key, with the number of collectives of each group that it had made before.
A rank finds what others did before a collective that it has made since: in the real run that is there. What they do
beside it may come in any order that keeps each rank's own one. Here it comes in rounds: the first operation of each
rank, by rank, then the second ones. So an addition returns the sum that a rank would find if all came in the order of
their ranks, a value that ranks compare and set is that of the lowest one, and a rank that reads repeatedly finds one
more round each time. A rank that was not started before this one, or does not run at all, is assumed to add what this
one adds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import TypeAlias

from simcoll.dryrun.rank.sent_values import CollectiveCounts, SentValues

Value: TypeAlias = "int | str | None"
"""An amount that is added, bytes as Latin-1 text, None for a deletion."""


@dataclass(frozen=True, slots=True)
class _Run:
    """An operation, made ``times`` in a row, and the collectives made before."""

    value: Value
    times: int
    after: CollectiveCounts


_Runs: TypeAlias = "Sequence[_Run]"


class StoreLog:
    """The operations of this rank on the keys of one kind, and what it knows of those of others."""

    def __init__(self, sent: SentValues, kind: str) -> None:
        self._sent, self._kind = sent, kind
        self._own: dict[str, list[_Run]] = {}
        self._looks: dict[str, int] = {}
        self.assumed = False
        """True if the answer given last depends on operations that other ranks are assumed to make."""
        self.stopped = False
        """True if a rank was asked for operations that it has ended ahead of."""

    def name(self, key: str) -> str:
        """The name under which a rank makes its operations on a key known."""
        return f"{self._kind} {key}"

    def __contains__(self, key: str) -> bool:
        """True if this rank has operated on a key."""
        return key in self._own

    def put(self, key: str, value: Value) -> None:
        """Note an operation; one that adds nothing to the same operation before is not told again."""
        own, now = self._own.setdefault(key, []), dict(self._sent.counts())
        if own and own[-1].value == value and own[-1].after == now:
            own[-1] = replace(own[-1], times=own[-1].times + 1)
        else:
            own.append(_Run(value, 1, now))
        self._tell(key)
        self._looks.clear()

    def _tell(self, key: str) -> None:
        self._sent.put(self.name(key), json.dumps([astuple(run) for run in self._own[key]]).encode())

    def set(self, key: str, value: Value) -> None:
        """Note a value in place of the one before."""
        own = self._own.setdefault(key, [])
        if own and own[-1].after == self._sent.counts():
            own.pop()
        self.put(key, value)

    def take_back(self, key: str) -> None:
        """Forget this rank's last operation on a key."""
        own = self._own[key]
        last = own.pop()
        if last.times > 1:
            own.append(replace(last, times=last.times - 1))
        self._tell(key)

    def add(self, key: str, value: Value, since: CollectiveCounts | None = None) -> list[Value]:
        """Note an operation, and return all that come before it, and itself; those before ``since`` are void."""
        before = _count(self._own.get(key, ()))
        self.put(key, value)
        return self._in_order(key, before, before + 1, since)

    def read(self, key: str, since: CollectiveCounts | None = None) -> list[Value]:
        """The operations that a rank finds at this look; empty where none are known."""
        looks = self._looks[key] = self._looks.get(key, -1) + 1
        rounds = max(_count(self._own.get(key, ())), 1) + looks
        return self._in_order(key, rounds, rounds, since)

    def is_known(self, key: str, since: CollectiveCounts | None = None) -> bool:
        """True if a rank is known to have operated on a key."""
        return any(_is_valid(run, since) for _, runs in self._all(key) for run in runs)

    def known(self, key: str) -> list[Value]:
        """All operations that are known."""
        self.assumed = not all(map(self._sent.is_known, self._others()))
        return _by_rounds((rank, _first(runs, _count(runs))) for rank, runs in self._all(key))

    def _all(self, key: str) -> Iterator[tuple[int, _Runs]]:
        yield self._sent.rank, self._own.get(key, ())
        for other in self._others():
            yield other, self._peek(other, key)

    def latest(self, key: str, *, by_rank: bool = False) -> _Run | None:
        """The value that a rank finds; with ``by_rank`` as if all ranks came in the order of their ranks."""
        own = self._own.get(key, ())
        best, first = (own[-1] if own else None), None
        others = {one: self._peek(one, key) for one in self._others()}
        for other, runs in others.items():
            before = [run for run in runs if self._sent.is_before(run.after, other)]
            if before and (best is None or _is_later(before[-1].after, best.after)):
                best = before[-1]
            if runs and (other < self._sent.rank or (first is None and not by_rank)):
                first = runs[-1] if other < self._sent.rank else runs[0]
        return best or first

    def _in_order(self, key: str, rounds: int, rounds_of_earlier: int, since: CollectiveCounts | None) -> list[Value]:
        """So many operations of each rank, by rounds; ``rounds_of_earlier`` of lower ranks, and of this one."""
        self.assumed = False
        own, rank = self._own.get(key, ()), self._sent.rank
        taken = [(rank, _first(own, rounds_of_earlier, since))]
        for other in self._others():
            wanted = rounds_of_earlier if other < rank else rounds
            runs = self._of(other, key, min(wanted, _count(own)))
            before = sum(run.times for run in runs if self._sent.is_before(run.after, other))
            taken.append((other, _first(runs, max(wanted, before), since)))
        return _by_rounds(taken)

    def _others(self) -> Iterator[int]:
        return (other for other in range(self._sent.world_size) if other != self._sent.rank)

    def _of(self, other: int, key: str, wanted: int) -> _Runs:
        """The operations of another rank, after a limited wait for ``wanted`` of them if it is ahead."""
        found = self._sent.get(other, self.name(key), lambda data: _count(_read(data)) >= wanted)
        if found is not None:
            return self._so_far(other, found)
        if self._sent.is_known(other):
            return ()
        self.assumed = True
        return self._own.get(key, ())

    def _peek(self, other: int, key: str) -> _Runs:
        found = self._sent.peek(other, self.name(key))
        return self._so_far(other, found or b"[]")

    def _so_far(self, other: int, data: bytes) -> _Runs:
        """Another rank's operations, without those after a collective that this one has not made yet."""
        self.stopped |= self._sent.has_stopped(other)
        return [run for run in _read(data) if not self._sent.is_after(run.after, other)]


def _is_later(counts: CollectiveCounts, than: CollectiveCounts) -> bool:
    return any(than.get(group, 0) < count for group, count in counts.items())


def _read(data: bytes) -> list[_Run]:
    return [_Run(*one) for one in json.loads(data)]


def _count(runs: _Runs) -> int:
    return sum(run.times for run in runs)


def _is_valid(run: _Run, since: CollectiveCounts | None) -> bool:
    """False for an operation that was made before the key's value was set, ``since`` when it counts no more."""
    return since is None or not _is_later(since, run.after) or _is_later(run.after, since)


def _first(runs: _Runs, wanted: int, since: CollectiveCounts | None = None) -> list[tuple[Value, int]]:
    """The first operations: values, and how often each comes in a row."""
    found = []
    for run in runs:
        times = min(run.times, wanted)
        wanted -= times
        if _is_valid(run, since):
            found.append((run.value, times))
    return found


def _by_rounds(taken: Iterable[tuple[int, list[tuple[Value, int]]]]) -> list[Value]:
    placed = [
        (place, rank, value)
        for rank, runs in taken
        for place, value in enumerate(value for value, times in runs for _ in range(times))
    ]
    return [value for _, _, value in sorted(placed, key=lambda one: one[:2])]
