"""Numbers in a store that ranks of a dry run add to: tickets, and counts that ranks wait for.

A real run may order the additions in any way that keeps each rank's own order. Here they come in rounds: the first one
of each rank, by rank, then the second ones. So an addition returns the sum that a rank would find if all came in the
order of their ranks, and a rank that reads a number repeatedly finds one more round each time. A rank that was not
started before this one, or does not run at all, is assumed to add what this one adds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeAlias

from simcoll.dryrun.rank.sent_values import SentValues

_Runs: TypeAlias = "Sequence[Sequence[int]]"
"""Additions in order: an amount, and how often in a row it was added."""


class StoreCounters:
    """The additions of this rank to the numbers of all stores, and what it knows of those of others."""

    def __init__(self, sent: SentValues) -> None:
        self._sent = sent
        self._own: dict[str, list[list[int]]] = {}
        self._looks: dict[str, int] = {}
        self.assumed = False
        """True if the number returned last depends on additions that other ranks are assumed to make."""

    def __contains__(self, key: str) -> bool:
        """True if this rank has added to a number."""
        return key in self._own

    def add(self, key: str, amount: int) -> int:
        """Add to a number, and return it."""
        own = self._own.setdefault(key, [])
        before = _count(own)
        if own and own[-1][0] == amount:
            own[-1][1] += 1
        else:
            own.append([amount, 1])
        self._sent.put(addition_name(key), json.dumps(own).encode())
        self._looks.clear()
        return self._total(key, before, before + 1)

    def read(self, key: str) -> int:
        """The number at this look; 0 where no rank is known to have added to it."""
        looks = self._looks[key] = self._looks.get(key, -1) + 1
        rounds = max(_count(self._own.get(key, ())), 1) + looks
        return self._total(key, rounds, rounds)

    def _total(self, key: str, rounds: int, rounds_of_earlier: int) -> int:
        """The sum of so many additions of each rank; ``rounds_of_earlier`` of those before this one, and its own."""
        self.assumed = False
        own, rank = self._own.get(key, ()), self._sent.rank
        total = _first(own, rounds_of_earlier)
        for other in range(self._sent.world_size):
            if other != rank:
                wanted = rounds_of_earlier if other < rank else rounds
                total += _first(self._of(other, key, min(wanted, _count(own))), wanted)
        return total

    def _of(self, other: int, key: str, wanted: int) -> _Runs:
        """The additions of another rank, after a limited wait for ``wanted`` of them if it is ahead."""
        found = self._sent.get(other, addition_name(key), lambda data: _count(json.loads(data)) >= wanted)
        if found is not None:
            runs: _Runs = json.loads(found)
            return runs
        if self._sent.is_known(other):
            return ()
        self.assumed |= key in self._own
        return self._own.get(key, ())


def addition_name(key: str) -> str:
    """The name under which a rank makes known what it adds to a number."""
    return f"additions {key}"


def _count(runs: _Runs) -> int:
    return sum(count for _, count in runs)


def _first(runs: _Runs, wanted: int) -> int:
    """The sum of the first additions."""
    total = 0
    for amount, count in runs:
        total += amount * min(count, wanted)
        wanted -= min(count, wanted)
    return total
