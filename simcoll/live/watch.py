"""Looks at a running job from outside, again and again, and judges whether it moves.

A job stands when no record changes although a rank waits: at once where it is proved that it can never go on, and
otherwise after a few times its own longest pause.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from simcoll.blackbox import BlackBox
from simcoll.blackbox.accounts import (
    LAUNCH_PATTERN,
    STALL_PATTERN,
    LaunchAccount,
    LaunchedRank,
    outcome_of,
    read_launch,
    stall_by,
    together,
)
from simcoll.blackbox.gather import boxes_below, matching, one_run
from simcoll.blackbox.host_clocks import moved_account
from simcoll.blackbox.remote_ranks import NODES_FILE, RemoteRank, read_remote
from simcoll.blackbox.table import KnownEntries
from simcoll.blackbox.tail import BoxTail
from simcoll.core.clock import now_ns
from simcoll.core.processes import Processes
from simcoll.core.record import UNKNOWN_SOURCE, Group, Record, text
from simcoll.core.steps import StepMarks
from simcoll.core.trace import LaunchOutcome, RankExit, Stall, record_at
from simcoll.live.clocks import HostClocks
from simcoll.live.judging import Ruling, judged
from simcoll.live.now import Doing, GroupNow, JobNow, Motion, RankNow
from simcoll.live.progress import GroupMembers, current_rows, members_of, progress_of, step_seconds
from simcoll.live.records import GroupTable, Integers, Records
from simcoll.live.state_text import why_of
from simcoll.live.waiting import shares_of

_RECORDS_IN_ALL = 1 << 18
_FEWEST, _MOST = 64, 1024
"""The newest records of each rank that are kept at hand: so many in all, but at least and at most so many a rank."""

_PAUSES = 4.0
_SHORTEST, _LONGEST = 1.0, 30.0
"""A job stands after so many times its longest recent pause, and between so many seconds."""

_STILL_SECONDS = 0.25
"""Nothing is proved of a job that was seen still for a shorter time."""

_JUDGING = 10.0
"""Judging takes at most one part in so many of the time."""

_AT_ONCE_SECONDS = 0.25
"""A look waits so long for what is judged beside it: most jobs are judged by then."""

_UNSEEN_NS = 30 * 10**9
"""A rank of another host whose record has not changed for this time is taken to wait for the future that it has."""

_TOLD_SECONDS = 15.0
"""So old may be what node 0 wrote of other nodes' ranks; it writes each second while it runs."""

_WRITTEN_AT_THE_END = frozenset({"values", "state", "batch", "trained", "exit"})
"""Kinds of events that a rank writes after its last exception: what was on its way from a device, and its end."""


class JobWatch:
    """The black boxes of one job below a folder. ``patience`` in seconds takes the place of the job's own pace.

    ``stall`` is what the last look has seen of a job that stands, None of any other. ``due`` are the seconds after
    which a job that the last look has seen to move will stand unless a record changes; None where no rank waits.

    With an ``executor`` the verifier judges there, and a look has what it has found so far: judging thousands of ranks
    takes longer than looking at them.
    """

    def __init__(self, folder: Path, patience: float | None = None, executor: Executor | None = None) -> None:
        self.folder = folder
        self.stall: Stall | None = None
        self.due: float | None = None
        self._patience = patience
        self._executor = executor
        self._judging: Future[Ruling] | None = None
        self._known = KnownEntries()
        self._tails: dict[Path, BoxTail] = {}
        self._chosen: list[BoxTail] = []
        self._times: Mapping[Path, int] = {}
        self._heads: object = None
        self._attempt: tuple[str, int] | None = None
        self._groups = GroupTable()
        self._marks: StepMarks | None = None
        self._seen_ns = 0
        self._changed_ns = 0
        self._calls = 0
        self._processes = Processes()
        self._clocks = HostClocks(self._processes.host)
        self._last = Ruling()
        self._judged = 0.0
        self._was: tuple[Motion, int, Stall | None] | None = None

    @property
    def tails(self) -> Sequence[BoxTail]:
        """The black boxes of the job as the last look has left them, by rank."""
        return self._chosen

    @property
    def judging(self) -> bool:
        """True while the verifier judges what a look has seen."""
        return self._judging is not None

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Why files could not be read at the last look."""
        return tuple(tail.problem for tail in self._tails.values() if tail.header is None and tail.problem)

    def look(self) -> JobNow | None:
        """The job as it is now; None where no rank has left a record yet."""
        now = now_ns()
        changed = self._read()
        if not self._chosen:
            return None
        records = Records.of(self._chosen, self._groups)
        first, before, self._seen_ns = not self._seen_ns, self._seen_ns, now
        if first:
            made = [box.created_ns for tail in self._chosen if (box := tail.box()) is not None]
            self._changed_ns = min(records.changed_ns() or max(made), now)
        elif changed:
            self._changed_ns = now
        accounts = [self._account(path) for path in self._beside(LAUNCH_PATTERN)]
        self._look_at_processes(accounts)
        launch = self._launch(accounts)
        ranks = self._ranks(records, launch, now)
        motion = self._motion(records, ranks, now)
        head = next((account.host for account in accounts if account.node == 0), "")
        remote = self._remote(ranks, now - self._clocks.later_ns(head))
        if motion is Motion.ENDED and not all(one.doing.over or one.silent_seconds for one in remote):
            motion = Motion.MOVING
        until = now if motion is not Motion.ENDED else min(now, max(one.ended_ns for one in ranks) or self._changed_ns)
        groups = self._group_views(records, until)
        ranks = _with_waits(ranks, groups)
        self._judge(ranks, launch, motion, now)
        if self._last.proved and motion is Motion.MOVING:
            motion = Motion.STANDING
        self.stall = self._standing(ranks, now) if motion is Motion.STANDING else None
        calls = sum(tail.newest for tail in self._chosen)
        idle = first or now == before or motion is Motion.ENDED
        rate = None if idle else max(calls - self._calls, 0) / ((now - before) / 1e9)
        self._calls = calls
        steps = [one.step_seconds for one in ranks if one.step_seconds is not None]
        headers = [tail.header for tail in self._chosen if tail.header is not None]
        job = JobNow(
            unjudged=self._last.problem,
            unreadable=self.unreadable,
            folder=str(self.folder),
            time_ns=now,
            world_size=max([header.world_size for header in headers] + [len(launch.ranks)]),
            mode=headers[0].mode if headers else "",
            motion=motion,
            still_seconds=max(until - self._changed_ns, 0) / 1e9,
            why="",
            groups=groups,
            ranks=sorted([*ranks, *remote], key=lambda one: one.rank),
            findings=self._last.told(motion),
            proved=self._last.proved,
            bandwidths=self._last.bandwidths,
            step_seconds=float(np.median(steps)) if steps else None,
            calls_per_second=rate,
            marks=self._marks,
            told=launch.ended and not any(one.doing is Doing.GONE for one in ranks),
            over=motion is Motion.ENDED and launch.over,
        )
        return replace(job, why=why_of(job))

    def last_look(self) -> JobNow | None:
        """A look by which the verifier has judged all that there is, however long that takes."""
        return JobWatch(self.folder, self._patience).look()

    def _read(self) -> bool:
        """Look at all files; returns True if any has changed."""
        self._find_files()
        changed = [tail.look() for tail in self._tails.values()]
        heads = [(tail.path, tail.header.wall_ns) for tail in self._tails.values() if tail.header is not None]
        if heads != self._heads:
            self._heads = heads
            boxes = {tail.path: box for tail in self._tails.values() if (box := tail.box()) is not None}
            run, _ = one_run(list(boxes.values()))
            wanted = {Path(box.path) for box in run}
            kept = [tail for tail in self._tails.values() if tail.path in wanted]
            self._chosen = sorted(kept, key=lambda tail: -1 if tail.header is None else tail.header.rank)
            attempt = next(((box.run, box.attempt) for box in run), None)
            if attempt != self._attempt:
                # What was found in the ranks of another attempt is nothing that these have done.
                self._attempt, self._last, self._judging, self._was = attempt, Ruling(), None, None
        self._clocks.look(self._chosen)
        return any(changed)

    def _find_files(self) -> None:
        """Find the black boxes anew where a folder has got, or lost, a file."""
        with contextlib.suppress(OSError):
            folders = {self.folder, *(path.parent for path in self._tails)}
            times = {folder: os.stat(folder).st_mtime_ns for folder in folders}
            if self._tails and times == self._times:
                return
            self._times = times
        files = boxes_below(self.folder)
        most = min(max(_RECORDS_IN_ALL // max(len(files), 1), _FEWEST), _MOST)
        known = self._tails
        self._tails = {path: known.get(path) or BoxTail(path, most, self._known) for path in files}

    def _look_at_processes(self, accounts: Sequence[LaunchAccount]) -> None:
        here = self._processes.host
        headers = [tail.header for tail in self._chosen if tail.header is not None]
        ranks = {header.pid: header.monotonic_ns for header in headers if header.host == here}
        self._processes.look({one.pid: 0 for one in accounts if one.host == here} | ranks)

    def _launch(self, accounts: Sequence[LaunchAccount]) -> LaunchAccount:
        """The launchers' accounts as one; empty where the job runs under another launcher."""
        ranks = {one.rank: one for account in accounts for one in account.ranks}
        error = next((one.error for one in accounts if one.error), None)
        goes_on = any(not one.over and not self._processes.gone(one.host, one.pid) for one in accounts)
        return LaunchAccount(tuple(ranks.values()), error, over=not goes_on)

    def _account(self, path: Path) -> LaunchAccount:
        account = read_launch(path)
        return moved_account(account, self._clocks.later_ns(account.host))

    def _stall(self) -> Stall | None:
        """The stall for which the job was ended, by its monitors' accounts; those of an earlier run are left out."""
        begun = min(box.created_ns for tail in self._chosen if (box := tail.box()) is not None)
        found = [stall_by(path, self._clocks.later) for path in self._beside(STALL_PATTERN)]
        return together(stall for stall in found if stall is not None and stall.seen_ns >= begun)

    def _remote(self, ranks: Sequence[RankNow], now: int) -> list[RankNow]:
        """The ranks that record on other nodes, as node 0 wrote down what it was told; nothing once that is old.

        ``now`` is by the clock of node 0.
        """
        seen = {one.rank for one in ranks}
        found: dict[int, RankNow] = {}
        for path in self._beside(NODES_FILE):
            with contextlib.suppress(OSError):
                if time.time_ns() - path.stat().st_mtime_ns < _TOLD_SECONDS * 1e9:
                    found |= {one.rank: _told_rank(one, now) for one in read_remote(path) if one.rank not in seen}
        return list(found.values())

    def _beside(self, pattern: str) -> list[Path]:
        folders = dict.fromkeys(tail.path.parent for tail in self._chosen)
        return [path for folder in folders for path in matching(folder, pattern)]

    def _ranks(self, records: Records, launch: LaunchAccount, now: int) -> list[RankNow]:
        sizes = np.array([len(group.ranks) for group in self._groups.groups] or [0], np.int64)
        shares, steps = shares_of(records.recent(), sizes), step_seconds(records)
        asleep = np.array([self._asleep(tail, now) for tail in self._chosen], np.bool_)
        rows, waits = current_rows(records, asleep)
        ends = {one.rank: one for one in launch.ranks}
        found: list[RankNow] = []
        for place, tail in enumerate(self._chosen):
            box = tail.box()
            assert box is not None
            row = int(rows[place]) - int(records.bounds[place])
            record = record_at(box, row) if rows[place] >= 0 else None
            end = ends.get(box.rank)
            marks = StepMarks.of(box.events)
            if not found:
                self._marks = marks
            group = box.groups[int(tail.slots[row]["group"])] if record is not None else None
            gone = self._processes.gone(box.host, box.pid)
            doing = _doing(box, end, gone=gone, waits=bool(waits[place]))
            ended_ns = _ended_ns(box, record, end) if doing.over else 0
            found.append(
                RankNow(
                    rank=box.rank,
                    host=box.host,
                    pid=box.pid,
                    doing=doing,
                    group=group,
                    record=record,
                    for_seconds=_seconds_since(record, ended_ns or now),
                    ended_ns=ended_ns,
                    waiting=_known(shares.waiting[place]),
                    late=_known(shares.late[place]),
                    step_seconds=_known(steps[place]) if marks is None else marks.seconds,
                    steps=None if marks is None else marks.ended,
                    calls=tail.newest,
                    lost=0 if tail.header is None else tail.header.lost,
                    exit_code=None if end is None else end.exit_code,
                    error=_exception(box) if doing is Doing.FAILED else "",
                    problem=tail.problem,
                )
            )
        return found

    def _group_views(self, records: Records, now: int) -> list[GroupNow]:
        """The groups in which there is a record at hand, in the order in which they were made."""
        progress = progress_of(records)
        order = np.argsort(progress.group, kind="stable")
        numbers, starts = np.unique(progress.group[order], return_index=True)
        by_group = np.argsort(records.group, kind="stable")
        bounds = np.searchsorted(records.group[by_group], [numbers, numbers + 1])
        place_of = {rank: place for place, rank in enumerate(records.ranks)}
        views = []
        for at, number in enumerate(numbers.tolist()):
            mine = order[starts[at] : starts[at + 1] if at + 1 < len(starts) else len(order)]
            rows = by_group[bounds[0][at] : bounds[1][at]]
            members = members_of(self._groups.groups[number], records, progress, mine, place_of)
            if members.made and max(members.made.values()):
                views.append(self._group_view(self._groups.groups[number], records, rows, members, now))
        return views

    def _group_view(self, group: Group, records: Records, rows: Integers, members: GroupMembers, now: int) -> GroupNow:
        finished = min(members.done.values())
        came = tuple(rank for rank, made in members.made.items() if made > finished)
        shown = finished + 1 if came else finished
        slots = records.slots[rows]
        rows = rows[(slots["sequence"] == shown) & (slots["p2p_sequence"] == 0)]
        record = self._record(records, int(rows[0])) if len(rows) else None
        since = int(records.slots["scheduled_ns"][rows].min()) if came and len(rows) else 0
        return GroupNow(
            group=group,
            finished=finished,
            op="" if record is None else record.call.op,
            source=UNKNOWN_SOURCE if record is None else record.source,
            came=came,
            absent=tuple(rank for rank, made in members.made.items() if made <= finished),
            unknown=members.unknown,
            for_seconds=max(now - since, 0) / 1e9 if since else 0.0,
        )

    def _record(self, records: Records, row: int) -> Record | None:
        place = int(records.rank[row])
        box = self._chosen[place].box()
        return None if box is None else record_at(box, row - int(records.bounds[place]))

    def _motion(self, records: Records, ranks: Sequence[RankNow], now: int) -> Motion:
        self.due = None
        if all(one.doing.over for one in ranks):
            return Motion.ENDED
        if not any(one.doing is Doing.WAITS for one in ranks):
            return Motion.MOVING
        pace = min(max(_PAUSES * records.longest_pause(), _SHORTEST), _LONGEST)
        patience = pace if self._patience is None else self._patience
        if (now - self._changed_ns) / 1e9 > patience:
            return Motion.STANDING
        self.due = patience - (now - self._changed_ns) / 1e9
        return Motion.MOVING

    def _judge(self, ranks: Sequence[RankNow], launch: LaunchAccount, motion: Motion, now: int) -> None:
        """Have the verifier judge the records at hand, as often as its own cost allows."""
        self._take_judged(0.0)
        if self._judging is not None:
            return
        over = sum(one.doing.over for one in ranks)
        still = (now - self._changed_ns) / 1e9 >= _STILL_SECONDS and any(one.doing is Doing.WAITS for one in ranks)
        ended_for = self._stall() if motion is Motion.ENDED else None
        news = (motion, over, ended_for) != self._was
        if not news and time.monotonic() - self._judged < max(1.0, _JUDGING * self._last.cost):
            return
        self._was = motion, over, ended_for
        boxes = [box for tail in self._chosen if (box := tail.box()) is not None]
        stands = None
        if still and motion is not Motion.ENDED:
            stands = self._standing(ranks, now)
        any_failed = any(one.doing in (Doing.FAILED, Doing.GONE) for one in ranks)
        work = partial(judged, boxes, _outcome(ranks, launch), stands, ended_for, any_failed=any_failed)
        if self._executor is not None:
            self._judging = self._executor.submit(work)
            self._take_judged(_AT_ONCE_SECONDS)
        else:
            self._last = work()
            self._judged = time.monotonic()

    def _take_judged(self, seconds: float) -> None:
        """Take what is judged beside the looks, if it is there within so many seconds."""
        if self._judging is not None and wait([self._judging], seconds).done:
            self._last, self._judging = self._judging.result(), None
            self._judged = time.monotonic()

    def _standing(self, ranks: Sequence[RankNow], now: int) -> Stall:
        """What is seen of a job's processes while no record changes."""
        waits = [one for one in ranks if one.doing is Doing.WAITS]
        return Stall(
            self._changed_ns,
            now,
            blocked=frozenset(one.rank for one in waits if one.record is not None and not one.record.awaited),
            busy=frozenset(one.rank for one in ranks if self._processes.busy(one.host, one.pid)),
            stopped=frozenset(one.rank for one in ranks if self._processes.stopped(one.host, one.pid)),
            over=False,
        )

    def _asleep(self, tail: BoxTail, now: int) -> bool:
        """True if a rank does nothing, as far as is seen: then it waits for a future that it has taken, as DDP does."""
        box = tail.box()
        if box is None or not len(tail.slots):
            return False
        if box.host == self._processes.host:
            return self._processes.asleep(box.host, box.pid)
        newest = max(int(tail.slots[name].max()) for name in ("scheduled_ns", "started_ns", "finished_ns"))
        return now - newest >= _UNSEEN_NS


def _doing(box: BlackBox, end: LaunchedRank | None, *, gone: bool, waits: bool) -> Doing:
    # A rank that its launcher stopped while it was failing has failed.
    failed = bool(_exception(box))
    if end is not None and end.exit_code is not None:
        if end.stopped and not failed:
            return Doing.STOPPED
        return Doing.FAILED if end.exit_code else Doing.ENDED
    if failed:
        return Doing.FAILED
    if box.closed_ns:
        return Doing.ENDED
    if gone:
        return Doing.GONE
    return Doing.WAITS if waits else Doing.RUNS


def _exception(box: BlackBox) -> str:
    """The type of the exception that ended a rank; empty where none did, or Ctrl-C."""
    last = next((event for event in reversed(box.events) if event.kind not in _WRITTEN_AT_THE_END), None)
    kind = text(last, "type") if last is not None and last.kind == "exception" else ""
    return "" if kind == "KeyboardInterrupt" else kind


def _ended_ns(box: BlackBox, record: Record | None, end: LaunchedRank | None) -> int:
    """The end of a rank that is over, or else the last that was seen of it; 0 where nothing was."""
    told = (0 if end is None else end.ended_ns) or box.closed_ns
    seen = [event.time_ns for event in box.events[-1:]]
    if record is not None:
        seen += [record.scheduled_ns, record.started_ns or 0, record.finished_ns or 0]
    return told or max(seen, default=0)


def _outcome(ranks: Sequence[RankNow], launch: LaunchAccount) -> LaunchOutcome:
    """The launcher's account, or else what the records themselves say of the processes."""
    if launch.ranks:
        return outcome_of([launch])
    return LaunchOutcome({one.rank: RankExit(0 if one.doing is Doing.ENDED else None) for one in ranks}, launched=False)


def _with_waits(ranks: Sequence[RankNow], groups: Sequence[GroupNow]) -> list[RankNow]:
    """The ranks with those for which they wait: who has not come to their collective, or the other end of a message."""
    by_group = {(view.group.name, view.group.ranks): view for view in groups}
    found = []
    for one in ranks:
        waits_for: tuple[int, ...] = ()
        if one.doing is Doing.WAITS and one.record is not None and one.group is not None:
            view = by_group.get((one.group.name, one.group.ranks))
            if one.record.p2p_sequence:
                peer = one.record.call.peer
                known = peer is not None and 0 <= peer < len(one.group.ranks)
                waits_for = (one.group.ranks[peer],) if known and peer is not None else ()
            elif view is not None and one.record.sequence == view.finished + 1:
                waits_for = view.absent
        found.append(replace(one, waits_for=waits_for))
    return found


def _told_rank(one: RemoteRank, now: int) -> RankNow:
    doing = Doing.WAITS if one.waits else Doing.RUNS
    if one.exit_code is not None:
        doing = Doing.STOPPED if one.stopped else Doing.FAILED if one.exit_code else Doing.ENDED
    seconds = max(now - one.since_ns, 0) / 1e9
    silent = max(now - one.silent_ns, 0) / 1e9 if one.silent_ns and not doing.over else 0.0
    return RankNow(
        one.rank,
        one.host,
        0,
        doing,
        for_seconds=seconds,
        exit_code=one.exit_code,
        place=one.place,
        silent_seconds=silent,
    )


def _seconds_since(record: Record | None, now: int) -> float:
    if record is None:
        return 0.0
    return max(now - (record.finished_ns or record.scheduled_ns), 0) / 1e9


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
