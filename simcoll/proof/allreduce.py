"""Sums one 64-bit word over the ranks of a group, or finds the least, over sockets that the calling thread drives.

Recursive doubling: log2 N rounds, in each of which a rank exchanges its partial sum with one partner; where the size is
no power of two, N - 2^k ranks first lend their word to a neighbour and are given the total at the end (Thakur,
Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH, 2005). A rank holds O(log N) sockets.
A group of Gloo's for the same purpose hands each message to a thread of its own, which takes longer than the message.

What goes well within a moment is one compiled step (``_words.c``); the rest of such a sum, and all of it where that was
not compiled, is here.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeAlias

from simcoll.core.native import native
from simcoll.proof.connections import LinkStore, connect_links

_MASK = (1 << 64) - 1

_MESSAGE = struct.Struct("<QQ")
"""The position of the sum in the channel, and the word."""

_UNREAD_BYTES = 16 * _MESSAGE.size
"""More than a peer can have sent that is not read yet: at most two words, and the last message."""

_GAVE_UP = (1 << 64) - 1
"""In place of a position, the last message of a rank whose sum failed; one that merely closes sends none."""

_GIVE, _COMBINE, _TAKE = range(3)
"""The actions that make up a sum: give a peer the total so far, combine its word with that, take its word for it."""

_STEP = struct.Struct("=ii")
"""An action and the descriptor of the peer's socket, as ``_words.c`` reads them."""

_Half: TypeAlias = tuple[int, int, bytes, int]
"""A sum under way: the number of steps that were made, the total so far, what was received of the message of the next
step, and the number of the error with which its socket has refused it already (0: none)."""

_Exchange: TypeAlias = Callable[[bytes, int, int, bool], int | _Half]

TimeLimit: TypeAlias = timedelta | Callable[[], timedelta]
"""The time to wait for other ranks, or a function that knows it, which is asked only where one is not there at once."""


def limit_of(limit: TimeLimit) -> timedelta:
    """Returns the time that a limit states."""
    return limit if isinstance(limit, timedelta) else limit()


class WordChannel:
    """A sum of words over a group. A failure on one rank closes it on all that are in a sum or come to one."""

    def __init__(self, group_rank: int, group_size: int, links: dict[int, socket.socket]) -> None:
        self._links = [_Link(peer, link) for peer, link in sorted(links.items())]
        for link in self._links:
            link.watch(self._links)
        at = {link.peer: link for link in self._links}
        self._steps = [(action, at[peer]) for action, peer in AllReducePlan(group_rank, group_size).steps]
        self._packed = b"".join(_STEP.pack(action, link.socket.fileno()) for action, link in self._steps)
        compiled = native("simcoll.proof._words")
        self._exchange: _Exchange | None = None if compiled is None else compiled.exchange
        self._position = 0
        self._closed = False
        self._busy = threading.Lock()
        self._pid = os.getpid()

    @classmethod
    def connect(cls, store: LinkStore, group_rank: int, group_size: int, timeout: timedelta) -> WordChannel:
        """Connect to the other ranks, all of which do the same, through a store whose keys are this channel's alone.

        Raises TimeoutError if a rank does not come within ``timeout``, ConnectionError if one cannot be reached.
        """
        if not 0 <= group_rank < group_size:
            raise ValueError(f"group_rank is {group_rank}, expected 0 <= group_rank < group_size = {group_size}")
        peers = AllReducePlan(group_rank, group_size).peers
        return cls(group_rank, group_size, connect_links(store, group_rank, peers, timeout))

    def sum(self, word: int, timeout: TimeLimit) -> int:
        """The sum modulo 2^64 of the words that all ranks give to their n-th sum; blocks, without the GIL.

        Raises TimeoutError if a rank does not come, ConnectionError if one has closed; either closes the channel.
        """
        return self.combined(word, timeout)

    def least(self, value: int, timeout: TimeLimit) -> int:
        """The least of the ranks' values, 0 <= value < 2^64; counts as a sum, and raises what one raises."""
        return self.combined(value, timeout, least=True)

    def combined(self, word: int, timeout: TimeLimit, *, least: bool = False) -> int:
        """The sum of the ranks' words, or the ``least`` of them: :meth:`sum` and :meth:`least` in one function."""
        if self._pid != os.getpid():
            raise ConnectionError(f"this channel belongs to process {self._pid}: a child must connect one of its own")
        with self._busy:
            closed, began = self._closed, time.monotonic()
            if closed:
                raise ConnectionError("this channel is closed: connect a new one")
            try:
                self._position += 1
                if self._exchange is None:
                    return self._go_on((0, word & _MASK, b"", 0), least, began, timeout)
                total = self._exchange(self._packed, self._position, word, least)
                return total if isinstance(total, int) else self._go_on(total, least, began, timeout)
            except BaseException:
                # Also after an interrupt: half a sum cannot be taken up again.
                self._hang_up(failed=True)
                raise
            finally:
                if self._closed:
                    self._release()

    def _go_on(self, half: _Half, least: bool, began: float, timeout: TimeLimit) -> int:
        """Make the rest of a sum."""
        deadline = began + limit_of(timeout).total_seconds()
        done, total, piece, refused = half
        for action, link in self._steps[done:]:
            if refused:
                raise link.refused(refused, sending=action == _GIVE)
            if action == _GIVE:
                link.send(self._position, total)
            else:
                word, piece = link.receive(self._position, deadline, piece), b""
                total = word if action == _TAKE else min(total, word) if least else (total + word) & _MASK
        return total

    def close(self) -> None:
        """Close every link, also under a sum that another thread waits for: that one then raises ConnectionError.

        Other ranks may finish the sums that this one has finished.
        """
        self._hang_up(failed=False)
        if self._busy.acquire(blocking=False):
            self._release()
            self._busy.release()

    def _hang_up(self, *, failed: bool) -> None:
        """End the conversations; the descriptors stay, so that no thread waits for one that has been given anew."""
        self._closed = True
        for link in self._links:
            link.hang_up(failed=failed)

    def _release(self) -> None:
        for link in self._links:
            link.socket.close()


class _Link:
    """One peer's socket, and the poll that waits for it."""

    __slots__ = ("_others", "_poll", "peer", "socket")

    def __init__(self, peer: int, link: socket.socket) -> None:
        self.peer = peer
        self.socket = link
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)
        self._others: dict[int, _Link] = {}

    def watch(self, links: list[_Link]) -> None:
        """While waiting for this peer, notice when another one gives up; its words to come are no reason to wake."""
        self._others = {link.socket.fileno(): link for link in links if link is not self}
        for descriptor in self._others:
            self._poll.register(descriptor, select.POLLRDHUP)

    def send(self, position: int, word: int) -> None:
        """Send a message; at most two are on their way, which a socket's buffer always holds."""
        try:
            self.socket.send(_MESSAGE.pack(position, word), socket.MSG_NOSIGNAL)
        except OSError as error:
            self.ask_after()
            raise self._broken(error) from error

    def receive(self, position: int, deadline: float, message: bytes) -> int:
        """The peer's word at a position of the channel; the first bytes of its ``message`` may have been received."""
        while len(message) < _MESSAGE.size:
            message += self._piece(_MESSAGE.size - len(message), deadline)
        theirs, word = _MESSAGE.unpack(message)
        if theirs == position:
            return int(word)
        if theirs == _GAVE_UP:
            raise self._given_up()
        raise ConnectionError(
            f"group rank {self.peer} sent its word number {theirs}, expected number {position}: "
            "a word was lost, or sums were asked for in another order"
        )

    def _piece(self, size: int, deadline: float) -> bytes:
        """Some bytes, at least one. To ask again before going to sleep would take the core from the one that sends."""
        while True:
            try:
                piece = self.socket.recv(size)
            except BlockingIOError:
                self._sleep(deadline)
            except OSError as error:
                raise self._broken(error) from error
            else:
                if piece:
                    return piece
                raise ConnectionError(f"group rank {self.peer} has closed its end of the channel, or has ended")

    def _sleep(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        ready = dict(self._poll.poll(math.ceil(left * 1000))) if left > 0 else {}
        if not ready:
            raise TimeoutError(f"group rank {self.peer} did not send its word within the timeout")
        # A word that has come counts, whatever became of other ranks meanwhile.
        if self.socket.fileno() not in ready:
            for descriptor in ready:
                self._others[descriptor].ask_after()
                self._poll.unregister(descriptor)

    def ask_after(self) -> None:
        """Raises ConnectionError if this peer, which has hung up, gave up; otherwise it had no more to do."""
        try:
            last = self.socket.recv(_UNREAD_BYTES, socket.MSG_PEEK)[-_MESSAGE.size :]
        except OSError as error:
            raise self._broken(error) from error
        if len(last) == _MESSAGE.size and _MESSAGE.unpack(last)[0] == _GAVE_UP:
            raise self._given_up()

    def refused(self, number: int, *, sending: bool) -> ConnectionError:
        """Returns the error of a message that the socket has refused, with this error number of the system."""
        if sending:
            self.ask_after()
        return self._broken(OSError(number, os.strerror(number)))

    def _given_up(self) -> ConnectionError:
        return ConnectionError(f"group rank {self.peer} gave up: a rank that it waited for did not come, or has ended")

    def _broken(self, error: OSError) -> ConnectionError:
        return ConnectionError(f"the link to group rank {self.peer} broke: {error}")

    def hang_up(self, *, failed: bool) -> None:
        """End the conversation, and say so if it ends in failure."""
        with contextlib.suppress(OSError):
            if failed:
                self.socket.send(_MESSAGE.pack(_GAVE_UP, 0), socket.MSG_NOSIGNAL)
            self.socket.shutdown(socket.SHUT_RDWR)


class AllReducePlan:
    """The ranks with which a rank exchanges words, as group ranks.

    ``keeper`` is the rank it lends its word to, ``guest`` the one whose word it keeps, ``partners`` its partners in
    the rounds, in order.
    """

    __slots__ = ("guest", "keeper", "partners")

    def __init__(self, rank: int, size: int) -> None:
        power = 1 << (size.bit_length() - 1)
        lent = size - power
        self.keeper = rank + 1 if rank < 2 * lent and rank % 2 == 0 else None
        self.guest = rank - 1 if rank < 2 * lent and rank % 2 == 1 else None
        place = rank // 2 if rank < 2 * lent else rank - lent
        places = [place ^ (1 << bit) for bit in range(power.bit_length() - 1)] if self.keeper is None else []
        self.partners = [2 * other + 1 if other < lent else other + lent for other in places]

    @property
    def peers(self) -> list[int]:
        """All of them."""
        return [*self.partners, *(peer for peer in (self.keeper, self.guest) if peer is not None)]

    @property
    def steps(self) -> list[tuple[int, int]]:
        """The actions of a sum in order, each with the peer that it concerns."""
        if self.keeper is not None:
            return [(_GIVE, self.keeper), (_TAKE, self.keeper)]
        rounds = [(action, partner) for partner in self.partners for action in (_GIVE, _COMBINE)]
        return rounds if self.guest is None else [(_COMBINE, self.guest), *rounds, (_GIVE, self.guest)]
