"""The clocks of a job's hosts, as they stand to that of the process that looks.

A rank's record has the monotonic clock of its host beside its own time, which gives the exact difference on the host
that looks. The clocks of other hosts follow from the collectives that their ranks completed with others
(:mod:`simcoll.blackbox.host_clocks`); where nothing tells, they agree.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from simcoll.blackbox.header import Header
from simcoll.blackbox.host_clocks import AGREE_BELOW_NS, clock_leads
from simcoll.blackbox.tail import BoxTail
from simcoll.core.clock import AHEAD_NS, now_ns

_AGAIN_SECONDS = 30.0


class HostClocks:
    """How much later (ns) the times of each host's records are by this process's clock: 0 where they agree."""

    def __init__(self, host: str) -> None:
        self._host = host
        self.later: Mapping[str, int] = {}
        self._hosts: Sequence[str] = ()
        self._found = -_AGAIN_SECONDS

    def later_ns(self, host: str) -> int:
        """What is to be added to a time of that host."""
        return self.later.get(host, 0)

    def look(self, tails: Sequence[BoxTail]) -> None:
        """Look at the records, and move their times."""
        headers = [(tail, tail.header) for tail in tails if tail.header is not None]
        hosts = [*dict.fromkeys(header.host for _, header in headers)]
        again = len(hosts) > 1 and time.monotonic() - self._found >= _AGAIN_SECONDS
        if headers and (hosts != self._hosts or again):
            self._hosts, self._found = hosts, time.monotonic()
            for tail in tails:
                tail.move(0)
            self.later = self._measured(headers)
        for tail, header in headers:
            tail.move(self.later_ns(header.host))

    def _measured(self, headers: Sequence[tuple[BoxTail, Header]]) -> dict[str, int]:
        leads = clock_leads([box for tail, _ in headers if (box := tail.box()) is not None])
        own = next((header for _, header in headers if header.host == self._host), None)
        if own is not None:
            first = AHEAD_NS - (own.wall_ns - own.monotonic_ns) + leads.get(self._host, 0)
        else:
            # No record is of a later time than now.
            newest = {header.host: int(tail.slots["scheduled_ns"].max(initial=0)) for tail, header in headers}
            first = min(0, *(now_ns() - at + leads.get(host, 0) for host, at in newest.items()))
        later = {host: first - leads.get(host, 0) for host in self._hosts}
        return {host: by for host, by in later.items() if abs(by) >= AGREE_BELOW_NS}
