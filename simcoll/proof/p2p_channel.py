"""One rank's end of a channel (one sender, receiver and tag): its count of messages and a running digest.

The two ends of a channel are at different places at any moment. Each remembers the digests since the last message up to
which they are known to agree, so that it can be held against the other end's at the other end's count.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice

from simcoll.recorder.recorder import Entry
from simcoll.spec.checksum import chained


@dataclass(slots=True, eq=False)
class Posted:
    """A send or receive that the program makes, and the thread that makes it.

    ``channel`` tells it apart from other messages to the same rank, as :meth:`~simcoll.backends.base.Backend.channel`
    does. ``launched`` is None until the backend has taken it (True) or refused it (False). ``reported`` says that its
    maker knows already that its two ends disagree.
    """

    entry: Entry
    maker: int
    channel: int = 0
    launched: bool | None = None
    reported: bool = False


@dataclass(frozen=True, slots=True)
class Count:
    """The number of messages that an end has made, of those known to agree on both ends, and its digest of all.

    Digests of different ``epoch`` are not comparable: each begins where the ends have sent each other their messages.
    """

    epoch: int
    settled: int
    made: int
    digest: int


class P2PChannel:
    """One end of a channel: places are counted from zero, and both ends count the same."""

    __slots__ = ("_ahead", "_base", "_counts_as", "_digests", "_epoch", "_log", "_published", "_theirs", "settled")

    def __init__(self) -> None:
        self.settled = 0
        self._epoch = 0
        self._base = 0
        self._log: list[Posted] = []
        self._digests: list[int] = []
        self._ahead: Count | None = None
        self._published: tuple[int, int, int] = (0, 0, 0)
        self._theirs = 0
        self._counts_as: dict[int, int] = {}

    @property
    def made(self) -> int:
        """The number of messages that this end has made."""
        return self.settled + len(self._log)

    @property
    def open(self) -> int:
        """The number of messages that are not known to agree with the other end's."""
        return len(self._log)

    def add(self, posted: Posted) -> None:
        """One message more."""
        self._log.append(posted)
        self._digests.append(chained(self._last, self._word(posted)))

    @property
    def _last(self) -> int:
        return self._digests[-1] if self._digests else self._base

    def _word(self, posted: Posted) -> int:
        word = posted.entry.prepared.message
        return self._counts_as.get(word, word)

    @property
    def exhausted(self) -> bool:
        """True if all that the other end has made is known to agree: the rest has no other end yet."""
        return self.settled >= self._theirs

    def news(self, *, last: bool = False) -> Count | None:
        """Returns this end's count if it has changed since the other end was sent it, or else None; counts as sent.

        The agreed count is only news at the ``last``: an end that has made fewer waits for that alone.
        """
        now = self._epoch, self.made, self.settled if last else 0
        if now == self._published:
            return None
        self._published = now
        return Count(self._epoch, self.settled, self.made, self._last)

    def agrees(self, theirs: Count) -> bool:
        """Hold the other end's count against this end's; one that this end has not come to is kept for later."""
        self._theirs = max(self._theirs, theirs.made)
        if theirs.epoch != self._epoch:
            return True
        self._settle(min(theirs.settled, self.made))
        if theirs.made > self.made:
            self._ahead = theirs
            return True
        return self._agrees_at(theirs)

    def caught_up(self) -> bool:
        """True if the ends agree at the count that was kept for later, if this end has come to it."""
        if self._ahead is None or self._ahead.made > self.made:
            return True
        theirs, self._ahead = self._ahead, None
        return self._agrees_at(theirs)

    def _agrees_at(self, theirs: Count) -> bool:
        if theirs.made > self.settled:
            if self._digests[theirs.made - self.settled - 1] != theirs.digest:
                return False
            self._settle(theirs.made)
        return True

    def _settle(self, count: int) -> None:
        agreed = count - self.settled
        if agreed > 0:
            self._base = self._digests[agreed - 1]
            del self._log[:agreed], self._digests[:agreed]
            self.settled = count

    def part(self, begin: int, end: int) -> Sequence[Posted]:
        """The messages at places from ``begin`` to before ``end``; those before ``settled`` are not there any more."""
        return list(islice(self._log, max(begin - self.settled, 0), max(end - self.settled, 0)))

    def accept(self, end: int, alike: Collection[tuple[int, int]]) -> bool:
        """The ends were found to agree up to ``end``, where words that differ did no harm: a new epoch, in which each
        of these pairs of words counts as one. False: they count as one already, and there is nothing to accept.
        """
        merged = [self._merge(*pair) for pair in alike]
        if not any(merged):
            return False
        self._settle(end)
        self._epoch += 1
        self._base, self._ahead = chained(self._epoch, end), None
        rest, self._log, self._digests = self._log, [], []
        for posted in rest:
            self.add(posted)
        return True

    def _merge(self, mine: int, theirs: int) -> bool:
        """Have two words count as one, with all that count as either; both ends choose the same."""
        words = self._counts_as
        both = words.setdefault(mine, mine), words.setdefault(theirs, theirs)
        words.update({word: min(both) for word, counts_as in words.items() if counts_as in both})
        return both[0] != both[1]
