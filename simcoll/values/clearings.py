"""Counts how often a rank has cleared gradients: of a call it tells whether those of its time were used."""

from __future__ import annotations

from simcoll.core.rank_local import RankLocal


class Clearings:
    """Of one rank: how often it has cleared gradients, and how often it had when a call was digested last that may have
    what follows from a pass: not the buffers that a model broadcasts before one. ``carried``: a call has carried NaN or
    an infinity since its weights were looked at.
    """

    def __init__(self) -> None:
        self.count = 0
        self.digested = -1
        self.carried = False

    def at_call(self, *, of_buffers: bool = False) -> int:
        """The count, of a call that is digested."""
        if not of_buffers:
            self.digested = self.count
        return self.count


clearings = RankLocal(Clearings)
