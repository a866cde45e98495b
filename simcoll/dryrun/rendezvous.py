"""Where the processes that share a dry run meet: a c10d store, with word of who is still there and who has given up.

Each process has a child, its *pulse*, that counts up a key of its own once a second as long as the process lives; that
of the first one also holds the store, where the launcher has none. So nobody waits for one who has died.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NoReturn

import torch.distributed as dist

from simcoll.dryrun.outer_job import OuterJob
from simcoll.errors import SimcollError
from simcoll.launch.fork import fork

_JOIN_SECONDS = 300.0
_PULSE_SECONDS = 1.0
_SILENT_SECONDS = 20.0
"""So long without a pulse, and a process counts as dead; its host may be busy for some of them."""

_LOOK_SECONDS = 0.02
_PART_BYTES = 4 << 20
"""The store takes at most 8 MiB at a time (source: kMaxPayloadLen of torch's TCPStoreLibUvBackend.cpp)."""


_LAST_WORDS_SECONDS = 3.0
_GIVEN_UP = "given-up"
_CANNOT_GO_ON = 1


class GivenUpError(SimcollError):
    """The dry run cannot go on in all its processes; ``code`` is the exit code.

    ``is_shown`` is whether the first process says so, as all have heard of it already.
    """

    def __init__(self, code: int, text: str, *, is_shown: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.is_shown = is_shown


@dataclass(slots=True)
class Rendezvous:
    """One process's way to the others. What a key holds is set once."""

    job: OuterJob
    store: dist.Store
    _pulse: Connection
    _pid: int
    _heard: dict[int, tuple[bytes, float]] = field(default_factory=dict)
    _looked: float = 0.0

    def put(self, key: str, value: bytes) -> None:
        """Set a key, of any size."""
        with self._told():
            for part, begin in enumerate(range(0, max(1, len(value)), _PART_BYTES)):
                self.store.set(f"{key}/{part}", value[begin : begin + _PART_BYTES])  # type: ignore[arg-type]  # takes bytes
            self.store.set(key, str(part + 1))

    def take(self, key: str, *, of: int | None = None, keep: bool = False) -> bytes:
        """The value of a key, waited for, and removed unless somebody else wants it too; see :meth:`wait`."""
        self.wait([key], of=of)
        with self._told():
            parts = [f"{key}/{part}" for part in range(int(self.store.get(key)))]
            value = b"".join(map(self.store.get, parts))
            for name in () if keep else (key, *parts):
                self.store.delete_key(name)
            return value

    def has(self, key: str) -> bool:
        """Whether a key is set."""
        with self._told():
            return bool(self.store.check([key]))

    def add(self, key: str, amount: int = 1) -> int:
        """Add to a counter, and its value then."""
        with self._told():
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
        if now - self._looked < _PULSE_SECONDS:
            return
        self._looked = now
        if self.has(_GIVEN_UP):
            raise _from_other(self.store.get(_GIVEN_UP))
        for number in range(self.job.count) if of is None else (of,):
            self._check_pulse(number, now)

    def _check_pulse(self, number: int, now: float) -> None:
        with self._told():
            pulse = bytes(str(self.store.add(f"pulse/{number}", 0)), "ascii")
        known, since = self._heard.get(number, (b"", now))
        if pulse != known:
            self._heard[number] = pulse, now
        elif now - since > _SILENT_SECONDS:
            with self._told():
                name = self.store.get(f"here/{number}").decode()
            raise GivenUpError(_CANNOT_GO_ON, f"{name} cannot be reached any more; what it ran is lost")

    def give_up(self, code: int, reason: str) -> None:
        """Tell the others that this process does not go on, as far as they can be reached."""
        with contextlib.suppress(GivenUpError):
            if not self.has(_GIVEN_UP):
                self.put_plain(_GIVEN_UP, json.dumps([code, reason, True]))

    def put_plain(self, key: str, value: str) -> None:
        """Set a key to a short value."""
        with self._told():
            self.store.set(key, value)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What the store raises when the process that holds it has gone, in words."""
        try:
            yield
        except RuntimeError as error:
            where = f"{self.job.host}:{self.job.port}"
            raise GivenUpError(
                _CANNOT_GO_ON, f"{self.job.name}: the store at {where} is gone: {error!s:.200}"
            ) from error

    def leave(self) -> None:
        """End this process's pulse; the store with it, where it is held here."""
        with contextlib.suppress(OSError):
            self._pulse.send("")
        limit = time.monotonic() + _LAST_WORDS_SECONDS
        while not os.waitpid(self._pid, os.WNOHANG)[0]:
            if time.monotonic() > limit:  # it waits for a store that does not answer
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
                return
            time.sleep(_LOOK_SECONDS)


def _from_other(said: bytes) -> GivenUpError:
    code, text, is_shown = json.loads(said)
    return GivenUpError(int(code), text, is_shown=bool(is_shown))


def join(job: OuterJob) -> Rendezvous:
    """Meet the other processes; raises :class:`GivenUpError` where some of them do not come."""
    here, there = Pipe()
    pid = fork(ends_by=signal.SIGTERM)
    if pid == 0:
        here.close()
        _be_pulse(job, there)
    there.close()
    try:
        run, reason = here.recv()
    except EOFError:
        run, reason = 0, "its pulse has died"
    if reason:
        raise GivenUpError(_CANNOT_GO_ON, f"{job.name} cannot meet the others at {job.host}:{job.port}: {reason:.300}")
    meeting = Rendezvous(job, _prefixed(job, run, _connected(job)), here, pid)
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


class _BereavedError(BaseException):
    """The pulse's parent has died, or both have been told to end."""


def _be_pulse(job: OuterJob, pipe: Connection) -> NoReturn:
    """Be the process that tells the others, once a second, that its parent lives, and at last if it does no more."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's, which ends this process
        signal.signal(signal.SIGTERM, _bereaved)
        _pulse(job, pipe)
    except (EOFError, RuntimeError):
        pass  # the parent has closed its end, or the store has gone: the parent sees that too
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # Whatever happens, the program of the parent does not go on here.
        os._exit(0)


def _bereaved(number: int, frame: object) -> NoReturn:
    raise _BereavedError


def _pulse(job: OuterJob, pipe: Connection) -> None:
    try:
        held = _held(job)
        run = held.add(f"simcoll/preflight/{job.attempt}/runs/{job.number}", 1)
    except RuntimeError as error:
        pipe.send((0, str(error).partition("\n")[0]))
        return
    pipe.send((run, ""))
    store = _prefixed(job, run, held)
    try:
        while not pipe.poll(_PULSE_SECONDS):
            store.add(f"pulse/{job.number}", 1)
    except _BereavedError:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not store.check([_GIVEN_UP]):
            store.set(
                _GIVEN_UP, json.dumps([_CANNOT_GO_ON, f"{job.name} has died; what it ran is lost", job.number != 0])
            )
        if job.number == 0 and not job.agent:
            time.sleep(_LAST_WORDS_SECONDS)  # the store goes with this process


def _held(job: OuterJob) -> dist.Store:
    """The store, made here by the first process where nobody has one at that port."""
    if job.number == 0 and not job.agent:
        with contextlib.suppress(RuntimeError):
            return dist.TCPStore(job.host, job.port, is_master=True, wait_for_workers=False)
    return _connected(job)


def _connected(job: OuterJob) -> dist.Store:
    return dist.TCPStore(
        job.host, job.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_JOIN_SECONDS)
    )


def _prefixed(job: OuterJob, run: int, store: dist.Store) -> dist.Store:
    """The store for the ``run``-th dry run of this launch: a launcher's store outlives the processes."""
    return dist.PrefixStore(f"simcoll/preflight/{job.attempt}/{run}", store)
