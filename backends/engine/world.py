"""The engine of the backends in one process: calls meet, are judged by the rules of real jobs, and run.

A call is posted as a :class:`~simcoll.backends.engine.tickets.Ticket`; only :meth:`World.wait` blocks. The last rank
that comes to a collective completes it for all: every rank gets its result, as computed by the table's ``result``, or
an error. A message is completed by the second of its two ends. Data is read when a call runs and not when it is posted,
as on a real backend, so that a change of a buffer in between has its effect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from simcoll.backends.base import Backend, negative_tag
from simcoll.backends.engine.mailbox import Mailbox, Meetings, Settling
from simcoll.backends.engine.parking import ParkingPlace, RankScheduler, StuckError, WaitTimeoutError
from simcoll.backends.engine.schedules import Choices, Decision, InOrder
from simcoll.backends.engine.tickets import DestroyedError, RefusedCallError, Ticket, peer_failed, waiting_text
from simcoll.backends.engine.virtual_time import VirtualTime
from simcoll.core.record import Group
from simcoll.spec.call import ANY_SOURCE

SIMULATED = Backend("simulated", (negative_tag,))
"""It runs everything that the spec defines, but refuses negative tags, as Gloo does."""

_FRUITLESS = 100
"""After so many polls per rank in a row, while no other thread can run, the polling ranks count as stuck."""


class World:
    """The engine that the ranks of one job share.

    ``size`` is the number of ranks, ``backend`` refuses calls, ``sends`` is one of
    :data:`~simcoll.backends.engine.schedules.SENDS`, ``clock`` is the virtual time, ``choices`` decides
    between messages.
    """

    def __init__(
        self,
        size: int,
        threads: RankScheduler,
        *,
        backend: Backend = SIMULATED,
        sends: str = "synchronous",
        clock: VirtualTime | None = None,
        choices: Choices | None = None,
    ) -> None:
        self.size = size
        self.threads = threads
        self.failure: tuple[int, BaseException] | None = None
        """The first rank that failed, and its exception."""
        self.clock = VirtualTime(size) if clock is None else clock
        self.on_stuck: Callable[[], None] = _nothing
        """Called when the ranks are found stuck, before they get an exception."""
        threads.on_stuck = self._find_stuck
        self._settling = Settling(backend)
        self._choices = InOrder() if choices is None else choices
        self._mail = Mailbox(sends, self._choices)
        self._meetings = Meetings()
        self._complete: list[list[Ticket]] = []
        self._waiting: dict[Ticket, None] = {}
        self._reasons: dict[Ticket, str] = {}
        self._left: set[int] = set()
        self._polls = 0
        self._due: deque[tuple[Callable[[Ticket], None], Ticket]] = deque()
        self.polling: set[int] = set()
        """The ranks that are stuck in polling for the end of a call."""

    def post(self, ticket: Ticket) -> None:
        """Post a call; it runs when the ranks that it needs have come.

        Raises :class:`~simcoll.backends.engine.tickets.PeerFailedError` where another rank has failed, and RuntimeError
        where another rank's thread makes the call.
        """
        rank = ticket.global_rank
        self.threads.check_own(rank)
        self.threads.pause(rank)
        with self.threads.lock:
            self._polls = 0
            self.check_failure(rank)
            ticket.posted = self.clock.now(rank)
            if ticket.is_message:
                self._post_message(ticket)
            else:
                self._post_collective(ticket)
        self._call_back()

    def wait(self, ticket: Ticket, timeout: float | None = None, *, goes_on: bool = False) -> None:
        """Wait for the end of a call; raises its error, or StuckError if it can never end.

        A call that is not complete after ``timeout`` seconds is over for its rank, unless it ``goes_on``: then only
        the wait is over.
        """
        place = None if ticket.done and not self._complete else self._place_to_wait(ticket)
        if place is not None:
            try:
                self.threads.wait(place, timeout)
            except StuckError as error:
                self._give_up(ticket, error, goes_on=goes_on)
        self._call_back()
        self.clock.reach(ticket.global_rank, ticket.ended)
        if ticket.error is not None:
            raise ticket.error

    def _place_to_wait(self, ticket: Ticket) -> ParkingPlace | None:
        """The place to wait for the end of a call; None if it has ended."""
        with self.threads.lock:
            self._run_complete()
            if ticket.done:
                return None
            self.check_failure(ticket.global_rank)
            self._check_left(ticket)
            place = self.threads.place(ticket.global_rank)
            ticket.places.append(place)
            self._waiting[ticket] = None
            return place

    def has_ended(self, ticket: Ticket) -> bool:
        """True if a call has ended, without waiting for it; a poll of a running call mostly lets other ranks go on."""
        self.run_complete()
        if ticket.done:
            return True
        with self.threads.lock:
            hasty = self._choices.preempts and self._choices.choose(Decision.PREEMPTION, 2) == 1
        if not hasty:
            self.threads.yield_turn(ticket.global_rank)
        with self.threads.lock:
            if not ticket.done:
                self.check_failure(ticket.global_rank)
                self._poll(ticket)
        return ticket.done

    def _poll(self, ticket: Ticket) -> None:
        """Count a poll; after so many in a row without any progress, only polling ranks are left, which are stuck."""
        rank = ticket.global_rank
        self._polls = 0 if self.threads.others_may_run(rank) else self._polls + 1
        if self._polls > _FRUITLESS * self.size:
            self.polling.add(rank)
            self._find_stuck()
            raise StuckError(
                f"rank {rank} asks again and again whether {ticket.call.op} has ended: {self._why(ticket)}"
            )

    def when_done(self, ticket: Ticket, callback: Callable[[Ticket], None]) -> None:
        """Call ``callback`` when the call ends, in the thread that ends it; at once if it has ended."""
        with self.threads.lock:
            if not ticket.done:
                ticket.callbacks.append(callback)
                return
        callback(ticket)

    def fail(self, rank: int, error: BaseException) -> None:
        """Note that a rank (global) has failed: ranks that wait are ended too, the others at their next call."""
        with self.threads.lock:
            if self.failure is not None:
                return
            self.failure = (rank, error)
            for ticket in list(self._waiting):
                self._end(ticket, peer_failed(ticket.global_rank, rank, error))
        self._call_back()

    def leave(self, rank: int) -> None:
        """Note that a rank (global) has ended well, or left all groups: ranks that wait for it get an exception."""
        with self.threads.lock:
            self._left.add(rank)
            for ticket in list(self._waiting):
                if (error := self._blocked_forever(ticket)) is not None:
                    self._end(ticket, error)
        self._call_back()

    def drop_message(self, ticket: Ticket) -> None:
        """Drop a message whose Work the program has dropped: if it has not left yet, it never does, as on Gloo."""
        with self.threads.lock:
            if not ticket.done:
                self._mail.withdraw(ticket)

    def close(self, group: Group, rank: int) -> None:
        """Note that a group rank has destroyed its group: a new group with the same name counts from 1 again."""
        with self.threads.lock:
            self._meetings.close(group, rank)
            for ticket in list(self._waiting):
                if (error := self._destroyed(ticket)) is not None:
                    self._end(ticket, error)
        self._call_back()

    def _call_back(self) -> None:
        """Run the callbacks of ended calls; without the lock, since they may make calls."""
        while self._due:
            try:
                callback, ticket = self._due.popleft()
            except IndexError:
                # Another thread was faster.
                return
            callback(ticket)

    def _post_collective(self, ticket: Ticket) -> None:
        met = self._meetings.join(ticket)
        if met is None:
            return
        self._complete.append(met)
        if not ticket.deferred:
            self._run_complete()

    def run_complete(self) -> None:
        """Run the complete collectives that were deferred until a rank waits."""
        with self.threads.lock:
            self._run_complete()
        self._call_back()

    def _run_complete(self) -> None:
        while self._complete:
            met = self._complete.pop(0)
            self._settling.collective(met)
            self.clock.run(met)
            for one in met:
                self._end(one, one.error)

    def _post_message(self, ticket: Ticket) -> None:
        if (reason := self._settling.refusal(ticket)) is not None:
            self._end(ticket, RefusedCallError(f"rank {ticket.global_rank}: {ticket.call.op}: {reason}"))
            return
        met = self._mail.post(ticket, self._meetings.life(ticket.group, ticket.rank))
        if met is not None:
            self._settling.message(*met)
            self.clock.carry(*met)
            for one in met:
                self._end(one, one.error)
        elif ticket.call.op == "send" and self._mail.buffers(ticket):
            self._end(ticket, None)

    def _end(self, ticket: Ticket, error: BaseException | None) -> None:
        if ticket.done:
            return
        # The error is set first: threads that see ``done`` read it without the lock.
        ticket.error = error
        ticket.done = True
        self._polls = 0
        self._waiting.pop(ticket, None)
        for place in ticket.places:
            self.threads.wake(place)
        self._due.extend((callback, ticket) for callback in ticket.callbacks)

    def check_failure(self, rank: int) -> None:
        """Raise the exception that ends a rank (global) because another one has failed."""
        if self.failure is not None and self.failure[0] != rank:
            raise peer_failed(rank, *self.failure)

    def _check_left(self, ticket: Ticket) -> None:
        if (error := self._blocked_forever(ticket) or self._destroyed(ticket)) is not None:
            raise error

    def _destroyed(self, ticket: Ticket) -> DestroyedError | None:
        """The error of a collective that waits for ranks which have destroyed their group; None otherwise."""
        gone = self._meetings.destroyed(ticket)
        if not gone:
            return None
        return DestroyedError(
            f"{self._why(ticket)}; ranks {gone} have destroyed their group: connection closed by peer"
        )

    def _blocked_forever(self, ticket: Ticket) -> StuckError | None:
        """The error of a call that needs ranks which have left; None otherwise."""
        if not self._left:
            return None
        group, call = ticket.group, ticket.call
        if not ticket.is_message:
            absent = self._meetings.absent(ticket)
        elif call.peer == ANY_SOURCE:
            others = [rank for rank in group.ranks if rank != ticket.global_rank]
            absent = others if self._left.issuperset(others) else []
        else:
            absent = [group.ranks[call.peer or 0]]
        return StuckError(self._why(ticket)) if self._left.intersection(absent) else None

    def _give_up(self, ticket: Ticket, error: StuckError, *, goes_on: bool) -> None:
        """Raise the error of a failed wait. Its rank is present no longer, unless the call goes on."""
        with self.threads.lock:
            if ticket.done:
                return
            found = type(error)(self._reasons.pop(ticket, None) or self._why(ticket))
            if not ticket.is_message:
                found.absent = tuple(self._meetings.absent(ticket))
            self._waiting.pop(ticket, None)
            if not (goes_on and isinstance(error, WaitTimeoutError)):
                self._mail.withdraw(ticket)
                self._meetings.withdraw(ticket)
        raise found from error

    def _find_stuck(self) -> None:
        """Note the reason of each wait now, since the waits end one after the other."""
        if self._complete:
            self._run_complete()
            return
        self._reasons = {ticket: self._why(ticket) for ticket in self._waiting}
        self.on_stuck()

    def incomplete(self) -> list[dict[int, Ticket]]:
        """The collectives that miss ranks: the calls of the ranks that have come, by group rank."""
        return self._meetings.incomplete()

    def _why(self, ticket: Ticket) -> str:
        return waiting_text(ticket, self._meetings.absent(ticket))


def _nothing() -> None:
    return None
