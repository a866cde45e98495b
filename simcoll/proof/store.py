"""The store in which the ranks of a group meet, over one connection that all groups of a process share.

A connection may take seconds: a TCPStore looks up the name of every peer that connects, on its only thread, and the
whole job waits. So a process connects once to each store, however many groups it has. The prefix of a group's own store
cannot be read; the ranks of a group agree on another name instead, by one compare-and-set in that store, and use it on
the connection that is shared.

No thread waits in the store: a wait would hold up everybody who shares the connection, and a daemon thread that sits in
C++ when the interpreter ends aborts the process. A thread asks repeatedly, ever more rarely, and can be told to stop.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from datetime import timedelta
from weakref import WeakValueDictionary

from torch.distributed import PrefixStore, Store, TCPStore

from simcoll.core.rank_local import ProcessOwned

_FIRST_PAUSE_SECONDS = 0.0005
_LONGEST_PAUSE_SECONDS = 0.5
_REACH_SECONDS = 5.0
_PLACE = "simcoll-place"
_PAUSE = 1 / 8
"""The pause between two questions, as a part of the time waited so far: no wait takes an eighth longer than it must."""


class StoreConnection(ProcessOwned):
    """A c10d store whose operations return at once, if nobody waits in it and its host can be reached; not for a
    forked child.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._inherited = False
        super().__init__()

    @property
    def store(self) -> Store:
        """The store; raises RuntimeError in a forked child, whose messages would mix with its parent's."""
        if self._inherited:
            raise RuntimeError("this connection to the store is that of the process that has forked this one")
        return self._store

    def forked(self) -> None:
        """Leave the connection to the parent."""
        self._inherited = True


class PolledStore:
    """A part of a store, for ranks to meet in; raises RuntimeError as c10d's stores do, and after :meth:`stop`."""

    def __init__(self, connection: StoreConnection, prefix: str = "") -> None:
        self._connection = connection
        self._prefix = prefix
        self._stopped = threading.Event()

    def under(self, prefix: str) -> PolledStore:
        """The part below a prefix, which is stopped by itself."""
        return PolledStore(self._connection, f"{self._prefix}{prefix}/")

    @property
    def _store(self) -> Store:
        if self._stopped.is_set():
            raise RuntimeError("this store is not asked any more: whoever waited was told to stop")
        return self._connection.store

    def set(self, key: str, value: str) -> None:
        """Publish a value."""
        self._store.set(self._prefix + key, value)

    def get(self, key: str) -> bytes:
        """A published value; it must be there."""
        return self._store.get(self._prefix + key)

    def check(self, keys: list[str]) -> bool:
        """True if all keys are there."""
        return self._store.check([self._prefix + key for key in keys])

    def delete_key(self, key: str) -> bool:
        """Forget a value; returns True if it was there."""
        return self._store.delete_key(self._prefix + key)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; returns its new value."""
        return self._store.add(self._prefix + key, amount)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Publish a value where another one is there (empty: none); returns the value that is there then."""
        return self._store.compare_set(self._prefix + key, expected, desired)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Return when all keys are there; raises RuntimeError after ``timeout``."""
        began = time.monotonic()
        while not self.check(keys):
            waited = time.monotonic() - began
            left = timeout.total_seconds() - waited
            if left <= 0:
                raise RuntimeError(f"{', '.join(keys)}: not in the store within {timeout.total_seconds()} s")
            self.rest(min(max(waited * _PAUSE, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS, left))

    def require_reachable(self) -> None:
        """Raise OSError where the store's host is out of reach: torch waits for its answer for as long as TCP tries to
        send, a quarter of an hour.
        """
        root = _root(self._store)
        if isinstance(root, TCPStore):
            socket.create_connection((root.host, root.port), _REACH_SECONDS).close()

    def rest(self, seconds: float) -> None:
        """Wait before asking again; no longer than until :meth:`stop`."""
        self._stopped.wait(seconds)

    def stop(self) -> None:
        """Make every wait and every later request raise: the store is not asked any more."""
        self._stopped.set()


_shared: WeakValueDictionary[tuple[str, int], StoreConnection] = WeakValueDictionary()
"""The connections of this process by host and port, as long as a group uses them."""


def meeting_place(store: Store, *, free: bool) -> PolledStore:
    """The place where the ranks of a group meet, all of which give the group's own store.

    ``free`` says that no other thread can be waiting in ``store``, as where its group is being made.
    """
    root = _root(store)
    if not isinstance(root, TCPStore):
        return PolledStore(StoreConnection(own_connection(store)), "simcoll/")
    # An operation would come behind a wait of the program's, which may end only with what this thread does next.
    asked = store if free else own_connection(store)
    try:
        return PolledStore(_connection(root), f"simcoll/{_agreed(asked)}/")
    except RuntimeError:
        # The store has gone: whoever asks it next is told.
        return PolledStore(StoreConnection(asked), "simcoll/")


def _agreed(store: Store) -> str:
    """The name that the first rank of the group has put into its store; over a new connection where this one fails."""
    mine = secrets.token_hex(16)
    try:
        return store.compare_set(_PLACE, "", mine).decode()
    except RuntimeError:
        return own_connection(store).compare_set(_PLACE, "", mine).decode()


def _root(store: Store) -> Store:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def _connection(root: TCPStore) -> StoreConnection:
    """The connection that this process shares, made anew where it is its parent's, or the store is another one now."""
    known = _shared.get((root.host, root.port))
    if known is None or not _answers(known):
        known = _shared[root.host, root.port] = StoreConnection(own_connection(root))
    return known


def _answers(connection: StoreConnection) -> bool:
    try:
        connection.store.check(["simcoll"])
    except RuntimeError:
        return False
    return True


def own_connection(store: Store) -> Store:
    """A store with a connection of its own; one written in Python may know no such thing."""
    try:
        return store.clone()  # type: ignore[attr-defined,no-any-return]  # not in torch's stubs
    except (AttributeError, NotImplementedError, RuntimeError):
        return store
