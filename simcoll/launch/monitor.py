"""Watches a running job from outside: detects a stall, its cause, and a proof that the job can never go on.

The monitor runs in no rank: a rank that sits in C++ with the GIL held, is stopped, or is gone is seen as well as any
other. The job moves while a black box changes. It stalls when none changes and a rank waits.

Hosts that queue calls on devices may go on for long while these are blocked. So a job in which a device runs a call
also stalls where no device begins or ends a call any more, whatever the hosts add.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from simcoll.blackbox import BlackBox
from simcoll.blackbox.accounts import LaunchAccount, read_launch, together, write_stall
from simcoll.blackbox.gather import files_of, gather
from simcoll.blackbox.reader import last_activity
from simcoll.blackbox.stacks import Stack, ask, await_stacks, read_stacks, stack_path
from simcoll.core.clock import now_ns
from simcoll.core.process import STOPPED, ProcessStat, stat_of
from simcoll.core.source_roots import Roots
from simcoll.core.trace import Stall, Trace
from simcoll.launch.nodes.exchange import Exchange
from simcoll.launch.nodes.head import Others
from simcoll.verifier.findings.finding import Finding
from simcoll.verifier.postmortem import standstill

DEFAULT_SECONDS = 30.0
"""Seconds for which a job that provably cannot go on may stand still."""

LOOK_SECONDS = 0.5
_AGAIN_SECONDS = 5.0
_TRANSFER_SECONDS = 10.0
"""Seconds added to ``--stall`` for a call that all ranks have launched."""

_CONNECT_SECONDS = 60.0
"""Seconds added for a rank in which simcoll connects to the store: a name look-up may take long."""

_BUSY_SHARE = 0.1
_LONG_ENOUGH_TO_TELL = 5.0
_SEEN_BEFORE_ABORT_NS = 15 * 10**9
"""So long before torch aborts a rank the job must have been seen to stand for that to be why."""


@dataclass(slots=True)
class Monitor:
    """Looks at one job repeatedly. ``seconds`` is the value of ``--stall``; ``say`` takes a line for the user.

    ``patience`` is the time after which a job is ended that is proved never to go on, where ``--stall`` is not given.
    ``nodes`` tells of nodes whose ranks do not record in ``folder``: their moves count, and node 0 judges all together.
    """

    folder: Path
    account: Path
    since_ns: int
    seconds: float | None
    say: Callable[[str], None]
    patience: float = DEFAULT_SECONDS
    nodes: Exchange | None = None
    stall: Stall | None = None
    _moves: int = 0
    _others: int = 0
    _told: Stall | None = None
    _witnessed: Stall | None = None
    _stood: Stall | None = None
    _seen: dict[Path, object] = field(default_factory=dict)
    _devices: dict[Path, int] = field(default_factory=dict)
    _moved: float = field(default_factory=time.monotonic)
    _moved_ns: int = field(default_factory=now_ns)
    _evaluated: float = 0.0
    _used: dict[int, float] = field(default_factory=dict)
    _reported: set[object] = field(default_factory=set)

    def look(self) -> bool:
        """True if the job is to be ended now; ``stall`` then has the reason."""
        now = time.monotonic()
        moved = self._has_moved()
        if self.nodes is not None and self.nodes.ended:
            self._keep(self._told or Stall(self._moved_ns, now_ns()))
            return True
        if moved:
            return False
        idle = self._idle()
        if not self._used:
            self._used = _processor_seconds(read_launch(self.account))
        if self.nodes is not None and self.nodes.led:
            return False
        patience = self.patience if self.seconds is None else self.seconds
        if idle < patience or now - self._evaluated < min(_AGAIN_SECONDS, patience):
            return False
        others = Others() if self.nodes is None else self.nodes.standing()
        if others is None:
            return False
        self._evaluated = now
        try:
            return self._evaluate(others)
        except Exception as error:
            # The job must not suffer for files that its monitor cannot read.
            self._say_once(type(error), f"this job cannot be judged while it runs: {type(error).__name__}: {error}")
            return False

    def _has_moved(self) -> bool:
        """True if the job has moved since it was last asked: its hosts, and its devices where these run a call."""
        own = self._changed()
        self._moves += own
        others = 0 if self.nodes is None else self.nodes.progress(self._moves)
        if not own and others == self._others:
            return False
        self._others = others
        self._moved, self._moved_ns = time.monotonic(), now_ns()
        self._used.clear()
        if self.nodes is not None:
            self.nodes.forget()
        return True

    def _idle(self) -> float:
        """The seconds for which the job has stood still."""
        return time.monotonic() - self._moved

    def pids(self) -> list[int]:
        """The processes of this node's ranks that have not ended."""
        return [rank.pid for rank in read_launch(self.account).ranks if rank.exit_code is None and rank.pid]

    def interrupted(self) -> None:
        """A signal is about to end the job from outside: note whether it stands still, as its end will move it.

        A signal handler may call this at any moment; :meth:`ended` writes it down. There is no time to ask for stacks:
        a rank that sleeps, and has not computed while the job stood, waits for what it has called.
        """
        if self._stood is not None or self._idle() < _LONG_ENOUGH_TO_TELL:
            return
        ranks = _running(read_launch(self.account))
        busy = self._busy({rank: stat.used for rank, stat in ranks.items()})
        self._stood = Stall(
            self._moved_ns,
            now_ns(),
            blocked=frozenset(rank for rank, stat in ranks.items() if stat.state == "S" and rank not in busy),
            busy=frozenset(busy),
            stopped=frozenset(rank for rank, stat in ranks.items() if stat.state in STOPPED),
            over=False,
        )

    def ended(self, launch: LaunchAccount) -> None:
        """All ranks have ended: write down the stall in which the job was interrupted, or torch's watchdog aborted a
        rank.
        """
        if self.stall is None and self._stood is not None:
            self._keep(self._stood)
        aborted = [one.ended_ns for one in launch.ranks if one.exit_code == -signal.SIGABRT and not one.stopped]
        seen = self._witnessed
        if self.stall is not None or seen is None or not aborted:
            return
        if 0 <= min(aborted) - seen.seen_ns <= _SEEN_BEFORE_ABORT_NS:
            self._keep(replace(seen, over=False))

    def _keep(self, stall: Stall) -> None:
        """Save the stall beside the launcher's account, for the other nodes and for later verification."""
        self.stall = stall
        with contextlib.suppress(OSError):
            write_stall(self.account.with_name(self.account.name.replace("launch", "stall", 1)), stall)

    def _changed(self) -> bool:
        """True if any black box, or the launcher's account, has changed since the last look.

        While devices run calls, calls that hosts queue behind these do not count: only those that devices begin and
        end.
        """
        found = {path: last_activity(path) for path in files_of(self.folder)}
        seen: dict[Path, object] = dict(found)
        with contextlib.suppress(OSError):
            seen[self.account] = self.account.stat().st_mtime_ns
        devices = {path: one.device_ns for path, one in found.items() if one is not None and one.device_ns}
        before, self._seen = self._seen, seen
        stood, self._devices = self._devices, devices
        if not devices or devices != stood:
            return seen != before
        # A rank without calls on a device counts as progress whenever its black box changes.
        return any(seen[path] != before.get(path) for path in seen.keys() - devices.keys())

    def own_stall(self) -> Stall:
        """How this node's ranks stand, for node 0, which judges them with its own."""
        launch = read_launch(self.account)
        records = gather(files_of(self.folder), [launch], since_ns=self.since_ns, workers=0)
        self._told = self._stall(launch, _roots(records.traces))
        return self._told

    def _evaluate(self, others: Others) -> bool:
        launch = read_launch(self.account)
        files = [*files_of(self.folder), *others.files]
        records = gather(files, [launch, *others.launches], since_ns=self.since_ns, workers=0)
        own = self._stall(launch, _roots(records.traces))
        stall = together([own, *others.stalls]) or own
        if stall.connecting and self._idle() < (self.seconds or self.patience) + _CONNECT_SECONDS:
            # These ranks are still making simcoll's connections: a wait for them proves nothing about the program.
            return False
        findings, proved = standstill(records.traces, records.outcome, stall)
        if not proved and not any(finding.culprits for finding in findings):
            # All have come, and the call takes its time: a large transfer, or connections that are being made.
            findings = findings if self._idle() >= (self.seconds or math.inf) + _TRANSFER_SECONDS else ()
        if self.nodes is not None:
            self.nodes.forget()
            if findings and not self.nodes.still_stand():
                return False
        if findings and self._has_moved():
            # It moved while it was looked at: the finding is outdated.
            return False
        if findings and (proved or self.seconds is not None):
            # Before the job ends: the process that reports on all nodes looks for it as soon as their ranks are gone.
            self._keep(stall)
            if self.nodes is not None:
                self.nodes.end()
            return True
        self._witnessed = stall if findings else None
        for finding in findings:
            self._report(finding)
        return False

    def _report(self, finding: Finding) -> None:
        """Print once that a rank is waited for. The job goes on, as the rank may still come."""
        key = finding.code, finding.group, finding.sequence, finding.culprits
        line = f"{finding.message}; the job goes on until its own timeout (--stall SECONDS ends it sooner)"
        self._say_once(key, line)

    def _say_once(self, key: object, line: str) -> None:
        if key not in self._reported:
            self._reported.add(key)
            self.say(line)

    def _stall(self, launch: LaunchAccount, roots: Mapping[int, Roots]) -> Stall:
        stacks = self._stacks(launch, roots)
        busy = self._busy(_processor_seconds(launch))
        busy |= {rank for rank, threads in stacks.items() if any(thread.works_for_user() for thread in threads[:-1])}
        places = {rank: place for rank, threads in stacks.items() if (place := threads[-1].place()) is not None}
        return Stall(
            self._moved_ns,
            now_ns(),
            places=places,
            blocked=frozenset(rank for rank, threads in stacks.items() if threads[-1].waits_in_torch()),
            busy=frozenset(busy),
            connecting=frozenset(rank for rank, threads in stacks.items() if any(map(Stack.connects, threads))),
            stopped=frozenset(rank for rank, stat in _running(launch).items() if stat.state in STOPPED),
        )

    def _busy(self, used: Mapping[int, float]) -> set[int]:
        """The ranks that have computed while the job stood, by the processor seconds that each has used by now."""
        least = _BUSY_SHARE * self._idle()
        return {rank for rank in used if used[rank] - self._used.get(rank, used[rank]) > least}

    def _stacks(self, launch: LaunchAccount, roots: Mapping[int, Roots]) -> Mapping[int, list[Stack]]:
        """The stacks of this node's ranks, of those that answer in time, read by each rank's own folders."""
        paths = {
            rank.rank: (rank.pid, stack_path(self.folder, rank.rank))
            for rank in launch.ranks
            if rank.exit_code is None and rank.pid
        }
        asked = {}
        for rank, (pid, path) in paths.items():
            # It is gone where the rank has offered nothing, or its folder was cleared away.
            with contextlib.suppress(OSError):
                os.truncate(path, 0)
                ask(pid)
                asked[rank] = path
        await_stacks(asked.values())
        found = {rank: read_stacks(path, roots.get(rank)) for rank, path in asked.items()}
        return {rank: threads for rank, threads in found.items() if threads}


def _running(launch: LaunchAccount) -> dict[int, ProcessStat]:
    """Each rank of this node that has not ended, as its process is now."""
    looked = {rank.rank: stat_of(rank.pid) for rank in launch.ranks if rank.exit_code is None}
    return {rank: stat for rank, stat in looked.items() if stat is not None}


def _processor_seconds(launch: LaunchAccount) -> dict[int, float]:
    return {rank: stat.used for rank, stat in _running(launch).items()}


def _roots(traces: Iterable[Trace]) -> dict[int, Roots]:
    """Each rank's own folders of the program, by which its stack is read."""
    return {box.rank: Roots.of(box.about.get("roots")) for box in traces if isinstance(box, BlackBox)}
