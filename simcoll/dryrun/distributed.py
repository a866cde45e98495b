"""A dry run shared by several processes: each takes ranks while it has free cores, and the first gets their records.

Their rendezvous is a c10d store with heartbeats and the reason of a failure. Each process has a child, its *heartbeat*,
which increments a key once a second as long as the process lives; that of the first process also holds the store, where
the launcher has none. So no process waits for one that has died.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist

from simcoll.core.process import reap
from simcoll.dryrun.driver import DryRunPlan, run_locally
from simcoll.dryrun.endings import ProcessEnd
from simcoll.dryrun.handed_over import RanPlaces, account_of, new_archive, pack, unpack
from simcoll.dryrun.outer_job import OuterJob
from simcoll.dryrun.private_files import have_shared, private_files
from simcoll.dryrun.rank.known_inputs import known_inputs
from simcoll.dryrun.rank.settings import DryRun
from simcoll.errors import SimcollError
from simcoll.launch.fork import fork

_JOIN_SECONDS = 300.0
_HEARTBEAT_SECONDS = 1.0
_SILENT_SECONDS = 20.0
"""A process without a heartbeat for so long counts as dead; a busy host may delay some."""

_LOOK_SECONDS = 0.02
_PART_BYTES = 4 << 20
"""The store takes at most 8 MiB at a time (source: kMaxPayloadLen of torch's TCPStoreLibUvBackend.cpp)."""


_FAREWELL_SECONDS = 3.0
_GIVEN_UP = "given-up"
_CANNOT_GO_ON = 1


class GivenUpError(SimcollError):
    """The dry run cannot go on in any of its processes; ``code`` is the exit code.

    ``is_shown`` is True if the first process shows the reason, which all have received already.
    """

    def __init__(self, code: int, text: str, *, is_shown: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.is_shown = is_shown


@dataclass(slots=True)
class Rendezvous:
    """One process's side of the rendezvous. Each key is set once."""

    job: OuterJob
    store: dist.Store
    _heartbeat: Connection
    _pid: int
    _last_heartbeats: dict[int, tuple[bytes, float]] = field(default_factory=dict)
    _looked: float = 0.0

    def put(self, key: str, value: bytes) -> None:
        """Set a key, of any size."""
        with self._store_errors():
            for part, begin in enumerate(range(0, max(1, len(value)), _PART_BYTES)):
                self.store.set(f"{key}/{part}", value[begin : begin + _PART_BYTES])  # type: ignore[arg-type]  # takes bytes
            self.store.set(key, str(part + 1))

    def take(self, key: str, *, of: int | None = None, keep: bool = False) -> bytes:
        """Wait for a key as :meth:`wait` does and return its value; removes it unless ``keep``, for other processes."""
        self.wait([key], of=of)
        with self._store_errors():
            parts = [f"{key}/{part}" for part in range(int(self.store.get(key)))]
            value = b"".join(map(self.store.get, parts))
            for name in () if keep else (key, *parts):
                self.store.delete_key(name)
            return value

    def has(self, key: str) -> bool:
        """True if a key is set."""
        with self._store_errors():
            return bool(self.store.check([key]))

    def add(self, key: str, amount: int = 1) -> int:
        """Add to a counter and return its new value."""
        with self._store_errors():
            return int(self.store.add(key, amount))

    def wait(self, keys: Sequence[str], *, of: int | None = None, while_waiting: Callable[[], object] = int) -> None:
        """Wait for keys; raises :class:`GivenUpError` if a process has given up or died meanwhile.

        ``of`` names the one process that matters, None where all do.
        """
        while not all(map(self.has, keys)):
            self.check(of)
            while_waiting()
            time.sleep(_LOOK_SECONDS)

    def check(self, of: int | None = None) -> None:
        """Raise :class:`GivenUpError` if a process has given up, or has not been heard of for too long."""
        now = time.monotonic()
        if now - self._looked < _HEARTBEAT_SECONDS:
            return
        self._looked = now
        if self.has(_GIVEN_UP):
            raise _from_other(self.store.get(_GIVEN_UP))
        for number in range(self.job.count) if of is None else (of,):
            self._check_heartbeat(number, now)

    def _check_heartbeat(self, number: int, now: float) -> None:
        with self._store_errors():
            beat = bytes(str(self.store.add(f"heartbeat/{number}", 0)), "ascii")
        known, since = self._last_heartbeats.get(number, (b"", now))
        if beat != known:
            self._last_heartbeats[number] = beat, now
        elif now - since > _SILENT_SECONDS:
            with self._store_errors():
                name = self.store.get(f"here/{number}").decode()
            raise GivenUpError(_CANNOT_GO_ON, f"{name} cannot be reached any more; what it ran is lost")

    def give_up(self, code: int, reason: str) -> None:
        """Send the others the reason why this process does not go on, as far as they can be reached."""
        with contextlib.suppress(GivenUpError):
            if not self.has(_GIVEN_UP):
                self.put_plain(_GIVEN_UP, json.dumps([code, reason, True]))

    def put_plain(self, key: str, value: str) -> None:
        """Set a key to a short value."""
        with self._store_errors():
            self.store.set(key, value)

    @contextlib.contextmanager
    def _store_errors(self) -> Iterator[None]:
        """Raise :class:`GivenUpError` for errors of a store whose process has gone."""
        try:
            yield
        except RuntimeError as error:
            where = f"{self.job.host}:{self.job.port}"
            raise GivenUpError(
                _CANNOT_GO_ON, f"{self.job.name}: the store at {where} is gone: {error!s:.200}"
            ) from error

    def leave(self) -> None:
        """End this process's heartbeat, and with it the store where it is held here."""
        with contextlib.suppress(OSError):
            self._heartbeat.send("")
        reap(self._pid, _FAREWELL_SECONDS)  # it may wait for a store that does not answer


def _from_other(message: bytes) -> GivenUpError:
    code, text, is_shown = json.loads(message)
    return GivenUpError(int(code), text, is_shown=bool(is_shown))


def join(job: OuterJob) -> Rendezvous:
    """Join the other processes; raises :class:`GivenUpError` where some of them do not come."""
    here, there = Pipe()
    pid = fork(ends_by=signal.SIGTERM)
    if pid == 0:
        here.close()
        _run_heartbeat(job, there)
    there.close()
    try:
        run, reason = here.recv()
    except EOFError:
        run, reason = 0, "its heartbeat has died"
    if reason:
        raise GivenUpError(_CANNOT_GO_ON, f"{job.name} cannot meet the others at {job.host}:{job.port}: {reason:.300}")
    meeting = Rendezvous(job, _prefixed(job, run, _connect(job)), here, pid)
    meeting.put_plain(f"here/{job.number}", job.name)
    _await_all(meeting)
    return meeting


def _await_all(meeting: Rendezvous) -> None:
    limit = time.monotonic() + _JOIN_SECONDS
    count = meeting.job.count
    while missing := [number for number in range(count) if not meeting.has(f"here/{number}")]:
        if time.monotonic() > limit:
            who = ", ".join(map(str, missing[:10]))
            raise GivenUpError(
                _CANNOT_GO_ON,
                f"of the {count} processes of this dry run, {who} did not come within {_JOIN_SECONDS:g} s",
            )
        if meeting.has(_GIVEN_UP):
            raise _from_other(meeting.store.get(_GIVEN_UP))
        time.sleep(_LOOK_SECONDS)


class _ParentGoneError(BaseException):
    """The heartbeat's parent has died, or both have received SIGTERM."""


def _run_heartbeat(job: OuterJob, pipe: Connection) -> NoReturn:
    """Run the process that reports, once a second, that its parent lives, and finally that it has died."""
    try:
        signal.signal(signal.SIGTERM, _parent_gone)
        _beat(job, pipe)
    except (EOFError, RuntimeError):
        pass  # the parent has closed its end, or the store has gone: the parent sees that too
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # The parent's program never goes on here.
        os._exit(0)


def _parent_gone(number: int, frame: object) -> NoReturn:
    raise _ParentGoneError


def _beat(job: OuterJob, pipe: Connection) -> None:
    try:
        held = _own_store(job)
        run = held.add(f"simcoll/preflight/{job.attempt}/runs/{job.number}", 1)
    except RuntimeError as error:
        pipe.send((0, str(error).partition("\n")[0]))
        return
    pipe.send((run, ""))
    store = _prefixed(job, run, held)
    try:
        while not pipe.poll(_HEARTBEAT_SECONDS):
            store.add(f"heartbeat/{job.number}", 1)
    except _ParentGoneError:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not store.check([_GIVEN_UP]):
            store.set(
                _GIVEN_UP, json.dumps([_CANNOT_GO_ON, f"{job.name} has died; what it ran is lost", job.number != 0])
            )
        if job.number == 0 and not job.agent:
            time.sleep(_FAREWELL_SECONDS)  # the store goes with this process


def _own_store(job: OuterJob) -> dist.Store:
    """The store: created here by the first process, unless there is one at that port already."""
    if job.number == 0 and not job.agent:
        with contextlib.suppress(RuntimeError):
            return dist.TCPStore(job.host, job.port, is_master=True, wait_for_workers=False)
    return _connect(job)


def _connect(job: OuterJob) -> dist.Store:
    return dist.TCPStore(
        job.host, job.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_JOIN_SECONDS)
    )


def _prefixed(job: OuterJob, run: int, store: dist.Store) -> dist.Store:
    """The store for the ``run``-th dry run of this launch: a launcher's store outlives the processes."""
    return dist.PrefixStore(f"simcoll/preflight/{job.attempt}/{run}", store)


_AHEAD = 16
"""At most so many ranks' records wait in the store for the first process."""

_CONCLUDE_SECONDS = 10.0

Progress = Callable[[int], None]


class SharedDryRun:
    """One process's side of a dry run that several processes share."""

    def __init__(self, meeting: Rendezvous, plan: DryRunPlan) -> None:
        self._meeting = meeting
        self._plan = plan
        self._round = 0
        self.ran_at = RanPlaces()
        """Those of ranks: this process, and each round of another one."""

    def run(self, dry_run: DryRun, chosen: Sequence[int], done: Progress) -> dict[int, ProcessEnd]:
        """Run these ranks here and in the other processes; their records end up in the dry run's folder."""
        number = self._next_round()
        order = {
            "ranks": list(chosen),
            "known": dry_run.known and dry_run.known.document(),
            "again": dry_run.again,
        }
        self._meeting.put(f"{number}/ranks", json.dumps(order).encode())
        ends = self._run_share(dry_run, number, chosen, done)
        self.ran_at.add("here", account_of(ends, shared=have_shared(dry_run)))
        for other in range(1, self._meeting.job.count):
            ends |= self._collect(dry_run.folder, number, other, done)
        return ends

    def serve(self, dry_run: DryRun) -> int:
        """Run a share of every round of ranks until the first process concludes; returns its exit code."""
        while True:
            number = self._next_round()
            self._meeting.wait([f"{number}/ranks"], of=0)
            message = json.loads(self._meeting.take(f"{number}/ranks", of=0, keep=True))
            if isinstance(message, int):
                self._meeting.put_plain(f"left/{self._meeting.job.number}", "")
                return message
            known = message["known"] and known_inputs(message["known"])
            with private_files(replace(dry_run, known=known, again=message["again"]), self._plan.timeout) as prepared:
                ends = self._run_share(prepared, number, message["ranks"], lambda count: None)
                account = account_of(ends, shared=have_shared(prepared))
            self._hand_over(dry_run.folder, number, list(ends), account)

    def conclude(self, code: int) -> None:
        """Send the verdict's exit code to the others, and wait until they have it."""
        self._meeting.put(f"{self._next_round()}/ranks", json.dumps(code).encode())
        limit = time.monotonic() + _CONCLUDE_SECONDS
        others = [f"left/{other}" for other in range(1, self._meeting.job.count)]
        while time.monotonic() < limit and not all(map(self._meeting.has, others)):
            time.sleep(0.02)

    def _next_round(self) -> int:
        self._round += 1
        return self._round

    def _run_share(self, dry_run: DryRun, number: int, chosen: Sequence[int], done: Progress) -> dict[int, ProcessEnd]:
        counted = 0

        def ended(count: int) -> None:
            nonlocal counted
            done(self._meeting.add(f"{number}/done", count - counted))
            counted = count

        ranks = self._take_ranks(number, chosen)
        return run_locally(dry_run, self._plan, ranks, ended)

    def _take_ranks(self, number: int, chosen: Sequence[int]) -> Iterator[int]:
        """The ranks that this process takes: the next one that no other has taken."""
        while (place := self._meeting.add(f"{number}/dealt") - 1) < len(chosen):
            self._meeting.check()
            yield chosen[place]

    def _hand_over(self, folder: Path, number: int, ranks: Sequence[int], account: Mapping[str, object]) -> None:
        """Send the account of what this process has run, and the ranks' files, a few at a time."""
        own = f"{number}/{self._meeting.job.number}"
        self._meeting.put(f"{own}/ends", json.dumps(account).encode())
        for place, rank in enumerate(ranks):
            while place >= _AHEAD and self._meeting.has(f"{own}/{ranks[place - _AHEAD]}"):
                self._meeting.check(0)
                time.sleep(0.01)
            files = io.BytesIO()
            with new_archive(files) as archive:
                pack(archive, folder, rank)
            self._meeting.put(f"{own}/{rank}", files.getvalue())

    def _collect(self, folder: Path, number: int, other: int, done: Progress) -> dict[int, ProcessEnd]:
        own = f"{number}/{other}"

        def waiting() -> None:
            done(self._meeting.add(f"{number}/done", 0))

        self._meeting.wait([f"{own}/ends"], while_waiting=waiting)
        ends = self.ran_at.add((number, other), json.loads(self._meeting.take(f"{own}/ends")))
        for rank in ends:
            with zipfile.ZipFile(io.BytesIO(self._meeting.take(f"{own}/{rank}"))) as archive:
                unpack(archive, folder, rank)
        return ends
