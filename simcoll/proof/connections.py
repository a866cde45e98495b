"""Authenticated sockets between ranks, set up through a store that they have in common.

Each rank that has a lower peer listens and publishes its addresses, with a random token. The lower rank of a pair
connects and shows the token and its rank; the higher answers with the token's other half; the lower confirms. A caller
that does not know the token, or is silent, is dropped, and never holds up the others. Between processes of one network
namespace the link is an abstract Unix socket, which takes half the time of TCP over the loopback interface.

The addresses at which other hosts may reach this one are tried most likely first. They obey the variables that users
set for Gloo and NCCL: ``GLOO_SOCKET_IFNAME`` (a list of names) and ``NCCL_SOCKET_IFNAME`` (a list of prefixes; ``=`` in
front makes them exact, ``^`` excludes; source: NCCL's documentation of its environment variables). No name of this host
is looked up: a resolver may take seconds to fail.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from simcoll.core.ranges import ranks_text
from simcoll.core.rank_local import ProcessOwned

_SIOCGIFADDR = 0x8915
"""ioctl of linux/sockios.h: the IPv4 address of an interface."""

_IFREQ = struct.Struct("16s2xH20x")
_MOST = 16

# Reserved for documentation (RFC 5737, RFC 3849): the way to them is the default route, and nothing is sent.
_ANYWHERE = ("192.0.2.1", "2001:db8::1")

_IPV6_TABLE = Path("/proc/net/if_inet6")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def own_addresses() -> tuple[str, ...]:
    """Numeric IPv4 and IPv6 addresses: on the way to ``MASTER_ADDR``, on the default route, of the other interfaces.

    Only those of the interfaces that the user has named, where that was done. May include loopback addresses.
    """
    wanted = _wanted()
    interfaces = list(_interface_addresses())
    if wanted is not None:
        return tuple(address for name, address in interfaces if wanted(name))[:_MOST]
    targets = [os.environ.get("MASTER_ADDR", ""), *_ANYWHERE]
    routes = [address for target in targets if target for address in _towards(target)]
    return tuple(dict.fromkeys([*routes, *(address for _, address in interfaces)]))[:_MOST]


def same_host_mark() -> str:
    """Returns the kernel's boot id, equal for processes of one kernel since one boot; empty where it is not known."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def is_loopback(address: str) -> bool:
    """True if an address leads to the asking host itself, whichever that is."""
    return ip_address(address).is_loopback


def _wanted() -> Callable[[str], bool] | None:
    """The user's choice of interfaces by name; None if there is none."""
    if exact := _names(os.environ.get("GLOO_SOCKET_IFNAME", "")):
        return lambda name: name in exact
    nccl = os.environ.get("NCCL_SOCKET_IFNAME", "").strip()
    names = _names(nccl.lstrip("=^"))
    if not names:
        return None
    if nccl.startswith("="):
        return lambda name: name in names
    if nccl.startswith("^"):
        return lambda name: not name.startswith(names)
    return lambda name: name.startswith(names)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _towards(target: str) -> Iterator[str]:
    """The own addresses from which packets to a host leave; a UDP socket that is connected sends none."""
    try:
        found = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                own = str(probe.getsockname()[0])
        except OSError:
            continue
        # A link-local address means nothing without the name of an interface on the other host.
        if not ip_address(own).is_link_local:
            yield own


def _interface_addresses() -> Iterator[tuple[str, str]]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = _IFREQ.pack(name.encode(), socket.AF_INET)
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # the interface has no IPv4 address
            yield name, socket.inet_ntoa(answer[20:24])
    yield from _ipv6_addresses()


def _ipv6_addresses() -> Iterator[tuple[str, str]]:
    try:
        lines = _IPV6_TABLE.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        digits, _index, _prefix, _scope, _flags, name = line.split()
        address = ip_address(bytes.fromhex(digits))
        if not address.is_link_local:
            yield name, str(address)


_TOKEN_BYTES = 16
_HELLO = struct.Struct("<16sQ")
"""The listener's token and the caller's group rank."""
_CONFIRM = b"\x01"
_CALL_BYTES = _HELLO.size + len(_CONFIRM)

_PENDING = 64
"""Connections that may be without a complete handshake; with one more, the oldest goes. Its owner may try again."""

_BACKLOG = 256
_HANDSHAKE_SECONDS = 5.0
_FIRST_TRY_SECONDS = 1.0
_LONGEST_TRY_SECONDS = 8.0
_REACH_SECONDS = 30.0
_PAUSE_SECONDS = 0.05

_STORE_SLACK_SECONDS = 0.1
"""A store may give up a little early; before that it has failed for another reason."""

Address = tuple[str, int] | str
"""Host and port, or the name of an abstract Unix socket."""


class LinkStore(Protocol):
    """The methods of a c10d ``Store`` that connections need."""

    def set(self, key: str, value: str, /) -> None:
        """Publish a value."""

    def get(self, key: str, /) -> bytes:
        """A published value."""

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Wait for keys; raises RuntimeError."""


class _OpenSockets(ProcessOwned):
    """Every socket that is made here, as long as it is referenced."""

    def __init__(self) -> None:
        self._sockets: WeakSet[socket.socket] = WeakSet()
        super().__init__()

    def add(self, *sockets: socket.socket) -> None:
        """Sockets were made."""
        self._sockets.update(sockets)

    def forked(self) -> None:
        """A child that kept its parent's sockets open would hide the parent's death from the peers."""
        for one in list(self._sockets):
            one.close()


_open = _OpenSockets()


def connect_links(store: LinkStore, rank: int, peers: Sequence[int], timeout: timedelta) -> dict[int, socket.socket]:
    """A connected non-blocking stream socket to each peer; every rank of a pair names the other among its peers.

    The store's keys must not have been used before. Raises TimeoutError if a peer does not come, ConnectionError if
    one cannot be reached or the store is lost; then nothing stays open.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    lower = frozenset(peer for peer in peers if peer < rank)
    links: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as undo:
        undo.callback(_close_all, links)
        listener = undo.enter_context(contextlib.closing(_Listener(lower))) if lower else None
        if listener is not None:
            _publish(store, rank, listener)
        for peer in sorted(set(peers) - lower):
            links[peer] = _call(_Published.of(store, peer, deadline), rank, peer, deadline)
        if listener is not None:
            links.update(listener.links(deadline))
            listener.close()
        undo.pop_all()
    for link in links.values():
        _tune(link)
    return links


def _close_all(links: dict[int, socket.socket]) -> None:
    for link in links.values():
        link.close()


def _publish(store: LinkStore, rank: int, listener: _Listener) -> None:
    addresses = [[address, listener.port] for address in own_addresses() if listener.port]
    document = {
        "token": listener.token.hex() + listener.answer.hex(),
        "unix": listener.name,
        "host": same_host_mark(),
        "addresses": addresses,
    }
    store.set(f"link/{rank}", json.dumps(document))


@dataclass(frozen=True, slots=True)
class _Published:
    """The addresses at which a rank listens, and its token."""

    token: bytes
    answer: bytes
    addresses: tuple[Address, ...]

    @classmethod
    def of(cls, store: LinkStore, peer: int, deadline: float) -> _Published:
        key = f"link/{peer}"
        try:
            store.wait([key], timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
            document = json.loads(store.get(key))
        except RuntimeError as error:
            if time.monotonic() >= deadline - _STORE_SLACK_SECONDS:
                raise TimeoutError(f"group rank {peer} did not say where it listens within the timeout") from error
            raise ConnectionError(f"the store was lost while waiting for group rank {peer}: {error}") from error
        secret = bytes.fromhex(document["token"])
        near = bool(document["host"]) and document["host"] == same_host_mark()
        # Another host's loopback address leads to this one.
        reachable = [(str(host), int(port)) for host, port in document["addresses"] if near or not is_loopback(host)]
        unix = [str(document["unix"])] if document["unix"] else []
        return cls(secret[:_TOKEN_BYTES], secret[_TOKEN_BYTES:], (*unix, *reachable))


def _call(published: _Published, rank: int, peer: int, deadline: float) -> socket.socket:
    """Try the addresses in turn, ever more patiently, until the right process answers."""
    since = time.monotonic()
    patience = _FIRST_TRY_SECONDS
    reached = False
    while time.monotonic() < deadline:
        for address in published.addresses:
            link = _reach(address, min(patience, max(deadline - time.monotonic(), 0.001)))
            if link is None:
                continue
            reached = True
            if _introduced(link, published, rank):
                return link
            link.close()
        if not reached and time.monotonic() - since > _REACH_SECONDS:
            raise ConnectionError(_unreachable(peer, published))
        patience = min(patience * 2, _LONGEST_TRY_SECONDS)
        time.sleep(min(_PAUSE_SECONDS, max(deadline - time.monotonic(), 0)))
    raise TimeoutError(_unreachable(peer, published))


def _unreachable(peer: int, published: _Published) -> str:
    tried = ", ".join(str(address) for address in published.addresses)
    return (
        f"group rank {peer} listens at {tried}, and did not answer at any of them; "
        "set GLOO_SOCKET_IFNAME to the interface that connects the hosts, or let a firewall pass ephemeral ports"
    )


def _reach(address: Address, seconds: float) -> socket.socket | None:
    try:
        if isinstance(address, str):
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        else:
            link = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return None  # this kernel lacks the family
    _open.add(link)
    try:
        link.settimeout(seconds)
        link.connect("\0" + address if isinstance(address, str) else address)
    except OSError:
        link.close()
        return None
    return link


def _introduced(link: socket.socket, published: _Published, rank: int) -> bool:
    """The caller's side of the handshake. With the confirmation both sides hold the link for made."""
    answer = b""
    deadline = time.monotonic() + (link.gettimeout() or 0)
    try:
        link.sendall(_HELLO.pack(published.token, rank), socket.MSG_NOSIGNAL)
        while len(answer) < _TOKEN_BYTES and (left := deadline - time.monotonic()) > 0:
            link.settimeout(left)
            piece = link.recv(_TOKEN_BYTES - len(answer))
            if not piece:
                return False
            answer += piece
        if not secrets.compare_digest(answer, published.answer):
            return False
        link.sendall(_CONFIRM, socket.MSG_NOSIGNAL)
    except OSError:
        return False
    return True


def _tune(link: socket.socket) -> None:
    link.setblocking(False)
    if link.family == socket.AF_UNIX:
        return
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A host that vanishes sends no farewell; the default is to ask after two hours.
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


@dataclass(eq=False, slots=True)
class _Caller:
    """A connection whose handshake is not complete."""

    link: socket.socket
    until: float
    said: bytearray = field(default_factory=bytearray)


class _Listener:
    """Accepts the lower peers, on a thread of its own: no rank's handshake waits for another rank to come."""

    def __init__(self, expected: frozenset[int]) -> None:
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        self.answer = secrets.token_bytes(_TOKEN_BYTES)
        self.name = ""
        self.port = 0
        self._expected = expected
        self._links: dict[int, socket.socket] = {}
        self._callers: dict[socket.socket, _Caller] = {}
        self._doors = list(self._listen())
        self._wake, self._woken = socket.socketpair()
        _open.add(*self._doors, self._wake, self._woken)
        self._given = False
        self._thread = threading.Thread(target=self._serve, name="simcoll-links", daemon=True)
        self._thread.start()

    def _listen(self) -> Iterator[socket.socket]:
        name = f"simcoll-{secrets.token_hex(8)}"
        door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            door.bind("\0" + name)
            door.listen(_BACKLOG)
        except OSError:
            door.close()
        else:
            self.name = name
            yield door
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        with contextlib.suppress(OSError):
            door = socket.create_server(("", 0), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
            self.port = int(door.getsockname()[1])
            yield door

    def links(self, deadline: float) -> dict[int, socket.socket]:
        """The links to all expected ranks. Raises TimeoutError that names those that did not come."""
        self._thread.join(max(deadline - time.monotonic(), 0))
        missing = sorted(self._expected - self._links.keys())
        if missing:
            raise TimeoutError(f"group {ranks_text(missing)} did not connect within the timeout")
        self._given = True
        return dict(self._links)

    def close(self) -> None:
        """Listen no more; links that were not given out are closed."""
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")
        self._thread.join()
        kept = set(self._links.values()) if self._given else set()
        for one in {*self._doors, *self._callers, *self._links.values(), self._wake, self._woken} - kept:
            one.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            for door in (*self._doors, self._woken):
                door.setblocking(False)
                selector.register(door, selectors.EVENT_READ)
            while self._links.keys() != self._expected:
                for key, _ in selector.select(_HANDSHAKE_SECONDS):
                    one = key.fileobj
                    if one is self._woken:
                        return
                    assert isinstance(one, socket.socket)
                    if one in self._callers:
                        self._hear(self._callers[one], selector)
                    elif one in self._doors:
                        self._welcome(one, selector)
                self._dismiss_late(selector)

    def _welcome(self, door: socket.socket, selector: selectors.BaseSelector) -> None:
        try:
            link, _ = door.accept()
        except OSError:
            return  # it has left already
        _open.add(link)
        link.setblocking(False)
        if len(self._callers) >= _PENDING:
            self._dismiss(next(iter(self._callers.values())), selector)
        self._callers[link] = _Caller(link, time.monotonic() + _HANDSHAKE_SECONDS)
        selector.register(link, selectors.EVENT_READ)

    def _hear(self, caller: _Caller, selector: selectors.BaseSelector) -> None:
        """Read a caller's handshake and no byte more, for words may follow at once."""
        greeted = len(caller.said) >= _HELLO.size
        wanted = (_CALL_BYTES if greeted else _HELLO.size) - len(caller.said)
        try:
            piece = caller.link.recv(wanted)
            caller.said += piece
            if not greeted and len(caller.said) == _HELLO.size and self._known(caller):
                caller.link.send(self.answer, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece or (len(caller.said) >= _HELLO.size and not self._known(caller)):
            self._dismiss(caller, selector)
        elif len(caller.said) == _CALL_BYTES:
            selector.unregister(caller.link)
            del self._callers[caller.link]
            self._links[_HELLO.unpack_from(caller.said)[1]] = caller.link

    def _known(self, caller: _Caller) -> bool:
        token, rank = _HELLO.unpack_from(caller.said)
        awaited = rank in self._expected and rank not in self._links
        return secrets.compare_digest(token, self.token) and awaited

    def _dismiss_late(self, selector: selectors.BaseSelector) -> None:
        now = time.monotonic()
        for caller in [caller for caller in self._callers.values() if caller.until < now]:
            self._dismiss(caller, selector)

    def _dismiss(self, caller: _Caller, selector: selectors.BaseSelector) -> None:
        selector.unregister(caller.link)
        del self._callers[caller.link]
        caller.link.close()
