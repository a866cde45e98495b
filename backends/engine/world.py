"""The engine of the backends in one process: calls meet, are judged by the rules of real jobs, and run.

A call is posted and gives a :class:`~simcoll.backends.engine.tickets.Ticket`; nothing blocks but :meth:`World.wait`.
The last rank that comes to a collective settles it for all: every rank gets its result, as the table's ``result``
computes it, or every rank is told why not. A message is settled by the second of its two ends. Data is read when a call
runs and not when it is posted, as on a real backend, so that who changes a buffer meanwhile sees what comes of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from simcoll.backends.base import Backend, negative_tag
from simcoll.backends.engine.mailbox import Mailbox
from simcoll.backends.engine.meetings import Meetings
from simcoll.backends.engine.parking import LateError, ParkingPlace, RankThreads, StuckError
from simcoll.backends.engine.schedules import Choices, Decision, InOrder
from simcoll.backends.engine.settling import Settling
from simcoll.backends.engine.tickets import DestroyedError, RefusedCallError, Ticket, peer_failed, waiting_text
from simcoll.backends.engine.virtual_time import VirtualTime
from simcoll.core.record import Group
from simcoll.spec.call import ANY_SOURCE

SIMULATED = Backend("simulated", (negative_tag,))
"""It does whatever the spec gives a meaning, and takes no tag that Gloo refuses."""

_FRUITLESS = 100
"""Ranks that ask so often each, in a row, whether a call has ended, while nobody else can move, ask in vain."""


class World:
    """What the ranks of one job share.

    ``size`` is how many they are, ``backend`` what refuses calls, ``sends`` one of
    :data:`~simcoll.backends.engine.schedules.SENDS`, ``clock`` the virtual time, ``choices`` what decides between
    messages.
    """

    def __init__(
        self,
        size: int,
        threads: RankThreads,
        *,
        backend: Backend = SIMULATED,
        sends: str = "synchronous",
        clock: VirtualTime | None = None,
        choices: Choices | None = None,
    ) -> None:
        self.size = size
        self.threads = threads
        self.failure: tuple[int, BaseException] | None = None
        """The first rank that failed, and what with."""
        self.clock = VirtualTime(size) if clock is None else clock
        self.on_stuck: Callable[[], None] = _nothing
        """Called when the ranks are found stuck, before they are told."""
        threads.on_stuck = self._find_stuck
        self._settling = Settling(backend)
        self._choices = InOrder() if choices is None else choices
        self._mail = Mailbox(sends, self._choices)
        self._meetings = Meetings()
        self._complete: list[list[Ticket]] = []
        self._waiting: dict[Ticket, None] = {}
        self._whys: dict[Ticket, str] = {}
        self._left: set[int] = set()
        self._polls = 0
        self._due: deque[tuple[Callable[[Ticket], None], Ticket]] = deque()
        self.asking: set[int] = set()
        """The ranks that asked in vain whether a call has ended."""

    def post(self, ticket: Ticket) -> None:
        """Give the engine a call; it runs when whoever it needs has come.

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

    def wait(self, ticket: Ticket, timeout: float | None = None) -> None:
        """Wait for the end of a call; raises what it ended with, or StuckError where nobody can end it."""
        place = None if ticket.done and not self._complete else self._place_to_wait(ticket)
        if place is not None:
            try:
                self.threads.wait(place, timeout)
            except StuckError as error:
                self._give_up(ticket, error)
        self._call_back()
        self.clock.reach(ticket.global_rank, ticket.ended)
        if ticket.error is not None:
            raise ticket.error

    def _place_to_wait(self, ticket: Ticket) -> ParkingPlace | None:
        """Where to wait for the end of a call; None where it has ended."""
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
        """Whether a call has ended, without waiting for it; who asks in vain mostly lets the others go on meanwhile."""
        self.run_complete()
        if ticket.done:
            return True
        with self.threads.lock:
            hasty = self._choices.preempts and self._choices.choose(Decision.PREEMPTION, 2) == 1
        if not hasty:
            self.threads.give_way(ticket.global_rank)
        with self.threads.lock:
            if not ticket.done:
                self.check_failure(ticket.global_rank)
                self._ask_in_vain(ticket)
        return ticket.done

    def _ask_in_vain(self, ticket: Ticket) -> None:
        """Where so many asked in a row, and nothing was posted or ended meanwhile, nobody is left but who asks."""
        rank = ticket.global_rank
        self._polls = 0 if self.threads.beside(rank) else self._polls + 1
        if self._polls > _FRUITLESS * self.size:
            self.asking.add(rank)
            self._find_stuck()
            raise StuckError(
                f"rank {rank} asks again and again whether {ticket.call.op} has ended: {self._why(ticket)}"
            )

    def when_done(self, ticket: Ticket, callback: Callable[[Ticket], None]) -> None:
        """Call ``callback`` when the call has ended, in whichever thread ends it, or now."""
        with self.threads.lock:
            if not ticket.done:
                ticket.callbacks.append(callback)
                return
        callback(ticket)

    def fail(self, rank: int, error: BaseException) -> None:
        """A rank (global) has ended with an exception: those who wait are ended too, the others at their next call."""
        with self.threads.lock:
            if self.failure is not None:
                return
            self.failure = (rank, error)
            for ticket in list(self._waiting):
                self._end(ticket, peer_failed(ticket.global_rank, rank, error))
        self._call_back()

    def leave(self, rank: int) -> None:
        """A rank (global) has ended well, or belongs to no group any more: nobody may wait for it."""
        with self.threads.lock:
            self._left.add(rank)
            for ticket in list(self._waiting):
                if (error := self._in_vain(ticket)) is not None:
                    self._end(ticket, error)
        self._call_back()

    def let_go(self, ticket: Ticket) -> None:
        """The program keeps nothing of a message any more: where it has not left yet, it never does, as on Gloo."""
        with self.threads.lock:
            if not ticket.done:
                self._mail.withdraw(ticket)

    def close(self, group: Group, rank: int) -> None:
        """A group rank has destroyed its group: one that is made anew under the same name starts to count anew."""
        with self.threads.lock:
            self._meetings.close(group, rank)
            for ticket in list(self._waiting):
                if (error := self._destroyed(ticket)) is not None:
                    self._end(ticket, error)
        self._call_back()

    def _call_back(self) -> None:
        """Tell whoever wanted to know of the calls that have ended; without the lock, for they may make calls."""
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
        """Run the collectives to which all have come, and which were left until a rank waits."""
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
        # Whoever sees that it is done looks for its error, without the lock.
        ticket.error = error
        ticket.done = True
        self._polls = 0
        self._waiting.pop(ticket, None)
        for place in ticket.places:
            self.threads.wake(place)
        self._due.extend((callback, ticket) for callback in ticket.callbacks)

    def check_failure(self, rank: int) -> None:
        """Raise in a rank (global) what it is ended with because another one has failed."""
        if self.failure is not None and self.failure[0] != rank:
            raise peer_failed(rank, *self.failure)

    def _check_left(self, ticket: Ticket) -> None:
        if (error := self._in_vain(ticket) or self._destroyed(ticket)) is not None:
            raise error

    def _destroyed(self, ticket: Ticket) -> DestroyedError | None:
        """Who a collective waits for has destroyed its group."""
        gone = self._meetings.destroyed(ticket)
        if not gone:
            return None
        return DestroyedError(
            f"{self._why(ticket)}; ranks {gone} have destroyed their group: connection closed by peer"
        )

    def _in_vain(self, ticket: Ticket) -> StuckError | None:
        """Why nobody is left who could end a wait: who it needs has left."""
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

    def _give_up(self, ticket: Ticket, error: StuckError) -> None:
        """Nobody ends this wait. A rank that is late has come; one that is stuck does not count as there."""
        with self.threads.lock:
            if ticket.done:
                return
            found = type(error)(self._whys.pop(ticket, None) or self._why(ticket))
            if not ticket.is_message:
                found.absent = tuple(self._meetings.absent(ticket))
            self._waiting.pop(ticket, None)
            self._mail.withdraw(ticket)
            if not isinstance(error, LateError):
                self._meetings.withdraw(ticket)
        raise found from error

    def _find_stuck(self) -> None:
        """What each waits for is known now: when they are told, one after the other, they wait no more."""
        if self._complete:
            self._run_complete()
            return
        self._whys = {ticket: self._why(ticket) for ticket in self._waiting}
        self.on_stuck()

    def incomplete(self) -> list[dict[int, Ticket]]:
        """The collectives to which not all have come: the calls of those who have, by group rank."""
        return self._meetings.incomplete()

    def _why(self, ticket: Ticket) -> str:
        return waiting_text(ticket, self._meetings.absent(ticket))


def _nothing() -> None:
    return None
