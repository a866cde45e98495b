"""The calls of a running job and their bytes by op, summed over one look after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simcoll.blackbox.tail import BoxTail
from simcoll.spec.call import Call
from simcoll.spec.collectives import COLLECTIVES
from simcoll.verifier.views.summary import bytes_of_call

UNKNOWN_OP = "unknown"
"""The op of calls that were over before a look could read them, or that a CUDA graph captured."""


class CallTally:
    """The calls that all ranks have made: ``calls`` by op, and ``bytes`` of those whose op is known.

    The bytes of a call are the larger of what its rank hands over and what it gets, as nccl-tests counts them.
    Sums never fall, except where :meth:`add` finds another run in the place of the one before: then they begin anew.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self._seen: dict[Path, int] = {}
        self._run = 0

    def add(self, tails: Sequence[BoxTail]) -> bool:
        """Add what each rank has called since it was seen last; returns True where another run begins."""
        run = min((tail.header.wall_ns for tail in tails if tail.header is not None), default=0)
        anew = run != self._run
        if anew:
            self.calls, self.bytes, self._seen, self._run = Counter(), Counter(), {}, run
        sums: Counter[Call] = Counter()
        for tail in tails:
            before, box = self._seen.get(tail.path, 0), tail.box()
            if box is None or not len(box.slots) or (last := int(box.slots["index"][-1])) <= before:
                continue
            new = box.slots["signature"][box.slots["index"] > before]
            counts = np.bincount(new, minlength=len(box.signatures))
            for place in np.flatnonzero(counts).tolist():
                sums[box.signatures[place]] += int(counts[place])
            self.calls[UNKNOWN_OP] += last - before - len(new)
            self._seen[tail.path] = last
        for call, count in sums.items():
            op = call.op if call.op in COLLECTIVES else UNKNOWN_OP
            self.calls[op] += count
            self.bytes[op] += count * bytes_of_call(call)
        return anew
