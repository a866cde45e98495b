"""Decides for torch's agent whether ranks that failed are started again: not where they would fail again.

It is asked when the ranks of this node have ended, and judges the records that they left, as the report does. Records
of nodes that share no folder come to node 0 only when the job ends: they are not judged, and the line says so.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from simcoll.blackbox.accounts import LAUNCH_PATTERN, STALL_PATTERN, read_launch, read_stalls
from simcoll.blackbox.gather import dumps_beside, files_of, gather, matching
from simcoll.blackbox.host_files import job_facts
from simcoll.core.clock import now_ns, written_ns
from simcoll.core.ranges import ranks_text
from simcoll.launch.host_watch import HostWatch
from simcoll.verifier.causes.facts import JobFacts
from simcoll.verifier.findings.causes import Advice, Restart
from simcoll.verifier.postmortem import judge

BY_CAUSE: Final = "SIMCOLL_RESTART_BY_CAUSE"
"""Set to 1 in the environment of the launcher's process, which takes it out: restarts are asked for by cause."""


class RestartByCause:
    """Judges the attempts of a job whose records go to ``folder``; ``say`` takes a line for the user."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._since_ns = now_ns()
        self._watch = HostWatch()
        self._by = ""

    def forbids(self) -> bool:
        """True if the ranks are not to be started again on this host; a line says why."""
        try:
            advice = self._advice()
        except Exception as error:
            # As without this option: the job must not end for records that cannot be judged.
            self._say(f"this attempt cannot be judged ({type(error).__name__}: {error}); the ranks are started again")
            return False
        if advice is None:
            return False
        believed, here = advice.believed, socket.gethostname()
        forbidden = believed.restart is Restart.NO
        forbidden |= believed.restart is Restart.WITHOUT_HOSTS and here in believed.hosts
        why = f"cause: {believed.cause.value} ({believed.strength.value} evidence: {believed.evidence[0].text})"
        where = f" on {here}" if believed.restart is Restart.WITHOUT_HOSTS else ""
        self._say(
            f"the ranks are {'not ' if forbidden else ''}started again{where if forbidden else ''}; {why}{self._by}"
        )
        return forbidden

    def begin(self) -> None:
        """A new attempt has begun: what came before it is not its cause."""
        self._since_ns = now_ns()
        self._watch = HostWatch()

    def _advice(self) -> Advice | None:
        accounts = [path for path in matching(self._folder, LAUNCH_PATTERN) if self._is_new(path)]
        launches = [launch for launch in map(read_launch, accounts) if launch.ranks]
        paths = [*files_of(self._folder), *dumps_beside(self._folder)]
        records = gather(paths, launches, since_ns=self._since_ns, workers=0)
        judged, world = [trace.rank for trace in records.traces], max((one.world_size for one in launches), default=0)
        self._by = f"; judged by the records of {ranks_text(judged)} of {world} alone" if len(judged) < world else ""
        stalls = [path for path in matching(self._folder, STALL_PATTERN) if self._is_new(path)]
        stall = read_stalls(stalls, records.later)
        known = job_facts(records.traces, launches)
        facts = JobFacts(known.hosts, known.pids, (self._watch.facts(),))
        return judge(records.traces, records.outcome, stall, facts).advice

    def _is_new(self, path: Path) -> bool:
        try:
            return written_ns(path.stat()) >= self._since_ns
        except OSError:
            return False
