"""Sums one 64-bit word over the ranks of a group, or finds the least, over sockets that the calling thread drives.

Recursive doubling: log2 N rounds, in each of which a rank exchanges its partial sum with one partner; where the size is
no power of two, N - 2^k ranks first lend their word to a neighbour and are given the total at the end (Thakur,
Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH, 2005). A rank holds O(log N) sockets.
A group of Gloo's for the same purpose hands each message to a thread of its own, which takes longer than the message.
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

from simcoll.proof.connections import LinkStore, connect_links

_MASK = (1 << 64) - 1

_MESSAGE = struct.Struct("<QQ")
"""The position of the sum in the channel, and the word."""

_UNREAD_BYTES = 16 * _MESSAGE.size
"""More than a peer can have sent that is not read yet: at most two words, and the last message."""

_GAVE_UP = (1 << 64) - 1
"""In place of a position, the last message of a rank whose sum failed; one that merely closes sends none."""


class WordChannel:
    """A sum of words over a group. A failure on one rank closes it on all that are in a sum or come to one."""

    def __init__(self, group_rank: int, group_size: int, links: dict[int, socket.socket]) -> None:
        self._links = [_Link(peer, link) for peer, link in sorted(links.items())]
        for link in self._links:
            link.watch(self._links)
        at = {link.peer: link for link in self._links}
        plan = AllReducePlan(group_rank, group_size)
        self._keeper = None if plan.keeper is None else at[plan.keeper]
        self._guest = None if plan.guest is None else at[plan.guest]
        self._partners = [at[partner] for partner in plan.partners]
        self._position = 0
        self._closed = threading.Event()
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

    def sum(self, word: int, timeout: timedelta) -> int:
        """The sum modulo 2^64 of the words that all ranks give to their n-th sum; blocks, without the GIL.

        Raises TimeoutError if a rank does not come, ConnectionError if one has closed; either closes the channel.
        """
        return self._combined(word & _MASK, _added, timeout)

    def least(self, value: int, timeout: timedelta) -> int:
        """The least of the ranks' values, 0 <= value < 2^64; counts as a sum, and raises what one raises."""
        return self._combined(value, min, timeout)

    def _combined(self, value: int, combine: Callable[[int, int], int], timeout: timedelta) -> int:
        if self._pid != os.getpid():
            raise ConnectionError(f"this channel belongs to process {self._pid}: a child must connect one of its own")
        with self._busy:
            if self._closed.is_set():
                raise ConnectionError("this channel is closed: connect a new one")
            try:
                return self._over_all(value, combine, time.monotonic() + timeout.total_seconds())
            except BaseException:
                # Also after an interrupt: half a sum cannot be taken up again.
                self._hang_up(failed=True)
                raise
            finally:
                if self._closed.is_set():
                    self._release()

    def _over_all(self, total: int, combine: Callable[[int, int], int], deadline: float) -> int:
        self._position += 1
        position = self._position
        if self._keeper is not None:
            self._keeper.send(position, total)
            return self._keeper.receive(position, deadline)
        if self._guest is not None:
            total = combine(total, self._guest.receive(position, deadline))
        for partner in self._partners:
            partner.send(position, total)
            total = combine(total, partner.receive(position, deadline))
        if self._guest is not None:
            self._guest.send(position, total)
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
        self._closed.set()
        for link in self._links:
            link.hang_up(failed=failed)

    def _release(self) -> None:
        for link in self._links:
            link.socket.close()


def _added(one: int, other: int) -> int:
    return (one + other) & _MASK


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

    def receive(self, position: int, deadline: float) -> int:
        """The peer's word at a position of the channel."""
        message = self._piece(_MESSAGE.size, deadline)
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
