"""Messages between nodes: proofs, bounds, and what is no message."""

from __future__ import annotations

import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterator

import pytest

from simcoll.errors import ConfigurationError
from simcoll.launch.nodes import wire
from simcoll.launch.nodes.wire import (
    CHUNK,
    LOST_VARIABLE,
    ClosedError,
    NodeLink,
    NodeMessage,
    WireError,
    deflated,
    inflated,
    lost_seconds,
)

SECRET = bytes(range(32))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def beside(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_both_ends_prove_that_they_know_the_secret(pair: tuple[socket.socket, socket.socket]) -> None:
    made: list[NodeLink] = []
    thread = beside(lambda: made.append(NodeLink.made(pair[1], SECRET)))
    head = NodeLink.accepted(pair[0], SECRET)
    thread.join()
    head.send({"do": "hello"}, b"body")
    assert made[0].receive() == NodeMessage({"do": "hello"}, b"body")


def test_a_peer_with_another_secret_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    def stranger() -> None:
        with pytest.raises(WireError):
            NodeLink.made(pair[1], bytes(32))

    thread = beside(stranger)
    with pytest.raises(WireError, match="does not know the secret"):
        NodeLink.accepted(pair[0], SECRET)
    pair[0].close()
    thread.join()


def test_a_node_0_with_another_secret_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    """It takes any proof, and has none itself."""

    def impostor() -> None:
        pair[0].sendall(bytes(32))
        pair[0].recv(64)
        pair[0].sendall(bytes(32))

    thread = beside(impostor)
    with pytest.raises(WireError, match="does not know the secret"):
        NodeLink.made(pair[1], SECRET)
    thread.join()


def test_a_peer_that_says_nothing_is_given_up(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "HANDSHAKE_SECONDS", 0.05)
    with pytest.raises(WireError, match="broke"):
        NodeLink.accepted(pair[0], SECRET)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"\xff\xff\xff\xff\0\0\0\0", "announces"),
        (b"\x02\0\0\0\xff\xff\xff\x7f", "announces"),
        (b"\x02\0\0\0\0\0\0\0[]", "no JSON object"),
        (b"\x02\0\0\0\0\0\0\0{x", "no JSON"),
        (b"\x02\0\0\0", "closed"),
        (b"\x00\x00\x01\0\0\0\0\0" + b"[" * 65536, "no JSON"),
    ],
)
def test_what_is_no_message_is_refused(pair: tuple[socket.socket, socket.socket], sent: bytes, why: str) -> None:
    pair[1].sendall(sent)
    pair[1].shutdown(socket.SHUT_WR)
    with pytest.raises(WireError, match=why):
        NodeLink(pair[0]).receive()


def reset(peer: socket.socket) -> None:
    """Close as the system does that knows of no such connection, or whose process has left words unread."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def test_a_connection_that_the_peers_system_closed_is_so_for_who_sends_too() -> None:
    """The first word that is sent after a reset says so, the next ones say EPIPE."""
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as ours:
        reset(door.accept()[0])
        for _ in range(2):
            with pytest.raises(ClosedError):
                NodeLink(ours).send({"do": "summary"})


@pytest.mark.parametrize("text", ["inf", "nan", "10s", "0.5", "-1", "86401", "1e400"])
def test_the_time_after_which_a_node_is_lost_is_a_number_within_bounds(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOST_VARIABLE, text)
    with pytest.raises(ConfigurationError, match="expected a number of seconds from 3 to 86,400; correct or unset it"):
        lost_seconds()


@pytest.mark.parametrize(("text", "seconds"), [("", 10.0), ("3", 3.0), (" 7.5 ", 7.5), ("86400", 86400.0)])
def test_the_time_after_which_a_node_is_lost(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOST_VARIABLE, text)
    assert lost_seconds() == seconds


def test_what_is_compressed_is_bounded() -> None:
    assert inflated(deflated(b"x" * CHUNK), CHUNK) == b"x" * CHUNK
    assert inflated(deflated(b""), CHUNK) == b""
    bomb = zlib.compress(bytes(64 << 20))
    for bad in (bomb, deflated(b"x" * 100)[:-6], b"no zlib", b""):
        with pytest.raises(WireError):
            inflated(bad, CHUNK)


@pytest.mark.parametrize("value", [None, -1, True, 1.0, "1", 1 << 63, []])
def test_numbers_are_whole(value: object) -> None:
    with pytest.raises(WireError, match="whole number"):
        NodeMessage({"n": value}).whole("n")
