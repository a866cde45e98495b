"""Messages between two nodes over TCP: a JSON object and bytes each, bounded, between peers that know one secret.

The connection begins with a proof in both directions, by HMAC of random bytes of both sides; the secret itself is never
sent. Messages are neither encrypted nor signed, as torch's own store and Gloo are not.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import secrets
import struct
import time
import zlib
from dataclasses import dataclass
from socket import socket
from typing import Final, TypeAlias

from simcoll.errors import ConfigurationError

Words: TypeAlias = dict[str, object]


LOST_VARIABLE: Final = "SIMCOLL_NODE_LOST_SECONDS"
_LOST_SECONDS: Final = 10.0
_LEAST_LOST_SECONDS: Final = 3
"""Node 0 asks once a second: a node that is heard of later than that is slow, not lost."""

_MOST_LOST_SECONDS: Final = 86_400

CHUNK: Final = 1 << 20
"""The most bytes of a file in one message."""

MOST_WORDS: Final = 4 << 20
"""The most bytes of a message's JSON object: the account of a node's ranks, or the list of its files."""

HANDSHAKE_SECONDS: Final = 5.0
MESSAGE_SECONDS: Final = 30.0
"""The most that a message may take from its first byte to its last, and that an answer may take."""

_MOST_BODY: Final = CHUNK + (64 << 10)
_SIZES: Final = struct.Struct("<II")
_NONCE: Final = 32
_PROOF: Final = hashlib.sha256().digest_size


class WireError(Exception):
    """The peer is gone, does not answer, or said something that is not of this protocol."""


class ClosedError(WireError):
    """The peer's system has closed the connection: the process there has ended, or the machine has started anew.

    A machine that is off, or that the network cuts off, says nothing.
    """


@dataclass(frozen=True, slots=True)
class NodeMessage:
    """One message."""

    words: Words
    body: bytes = b""

    def whole(self, name: str) -> int:
        """A number that is not negative; raises :class:`WireError`."""
        return whole(self.words.get(name))

    def text(self, name: str, most: int = 256) -> str:
        """A text, cut to the characters given."""
        return str(self.words.get(name) or "")[:most]

    def inflated(self, most: int) -> bytes:
        """The body, which was compressed; raises :class:`WireError` where it is longer than ``most``."""
        return inflated(self.body, most)


def lost_seconds() -> float:
    """A node that has not been heard of for so long is lost: SIMCOLL_NODE_LOST_SECONDS, by default 10.

    Raises :class:`~simcoll.errors.ConfigurationError` on a value out of range.
    """
    text = os.environ.get(LOST_VARIABLE, "").strip()
    if not text:
        return _LOST_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not _LEAST_LOST_SECONDS <= seconds <= _MOST_LOST_SECONDS:
        expected = f"a number of seconds from {_LEAST_LOST_SECONDS} to {_MOST_LOST_SECONDS:,}"
        raise ConfigurationError(f"{LOST_VARIABLE}={text!r:.80}: expected {expected}; correct or unset it")
    return seconds


def whole(value: object) -> int:
    """A number that is not negative, of a message; raises :class:`WireError`."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise WireError(f"expected a whole number, got {value!r:.80}")
    return value


def deflated(data: bytes) -> bytes:
    """Bytes as :meth:`NodeMessage.inflated` reads them."""
    return zlib.compress(data, 1)


def inflated(data: bytes, most: int) -> bytes:
    """What was compressed; raises :class:`WireError` where it is longer than ``most``, or no such data."""
    machine = zlib.decompressobj()
    try:
        result = machine.decompress(data, most)
    except zlib.error as error:
        raise WireError(f"compressed data is damaged: {error}") from None
    if not machine.eof:
        raise WireError(f"compressed data is cut, or of more than {most} bytes")
    return result


@dataclass(slots=True)
class NodeLink:
    """One end of a connection whose other end has proved that it knows the secret."""

    connection: socket

    @classmethod
    def accepted(cls, connection: socket, secret: bytes) -> NodeLink:
        """Node 0's end of a new connection; raises :class:`WireError`."""
        limit = time.monotonic() + HANDSHAKE_SECONDS
        mine = secrets.token_bytes(_NONCE)
        link = cls(connection)
        link._send(mine, limit)
        theirs, proof = link._exactly(_NONCE, limit), link._exactly(_PROOF, limit)
        if not hmac.compare_digest(proof, _proof(secret, b"member", mine, theirs)):
            raise WireError("the peer does not know the secret of this job")
        link._send(_proof(secret, b"head", mine, theirs), limit)
        return link

    @classmethod
    def made(cls, connection: socket, secret: bytes) -> NodeLink:
        """The other end, of a node that has connected to node 0; raises :class:`WireError`."""
        limit = time.monotonic() + HANDSHAKE_SECONDS
        mine = secrets.token_bytes(_NONCE)
        link = cls(connection)
        theirs = link._exactly(_NONCE, limit)
        link._send(mine + _proof(secret, b"member", theirs, mine), limit)
        if not hmac.compare_digest(link._exactly(_PROOF, limit), _proof(secret, b"head", theirs, mine)):
            raise WireError("the peer does not know the secret of this job")
        return link

    def send(self, words: Words, body: bytes = b"") -> None:
        """Send one message; raises :class:`WireError`."""
        text = json.dumps(words).encode()
        if len(text) > MOST_WORDS or len(body) > _MOST_BODY:
            raise WireError(f"a message of {len(text)} and {len(body)} bytes is too long")
        self._send(_SIZES.pack(len(text), len(body)) + text + body, time.monotonic() + MESSAGE_SECONDS)

    def receive(self, seconds: float = MESSAGE_SECONDS) -> NodeMessage:
        """The next message, which has to begin within ``seconds``; raises :class:`WireError`."""
        first = self._exactly(1, time.monotonic() + seconds)
        limit = time.monotonic() + MESSAGE_SECONDS
        words, body = _SIZES.unpack(first + self._exactly(_SIZES.size - 1, limit))
        if words > MOST_WORDS or body > _MOST_BODY:
            raise WireError(f"the peer announces a message of {words} and {body} bytes")
        text, data = self._exactly(words, limit), self._exactly(body, limit)
        try:
            said = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise WireError(f"the peer's message is no JSON: {error}") from None
        if not isinstance(said, dict):
            raise WireError("the peer's message is no JSON object")
        return NodeMessage(said, data)

    def ask(self, words: Words) -> NodeMessage:
        """The answer to a message; raises :class:`WireError`."""
        self.send(words)
        return self.receive()

    def close(self) -> None:
        """End the connection."""
        self.connection.close()

    def _send(self, data: bytes, limit: float) -> None:
        try:
            self.connection.settimeout(max(limit - time.monotonic(), 0.001))
            self.connection.sendall(data)
        except OSError as error:
            raise _broken(error) from error

    def _exactly(self, count: int, limit: float) -> bytes:
        """So many bytes, by that time."""
        data = bytearray()
        try:
            while len(data) < count:
                self.connection.settimeout(max(limit - time.monotonic(), 0.001))
                piece = self.connection.recv(min(count - len(data), 1 << 16))
                if not piece:
                    raise ClosedError("the peer has closed the connection")
                data += piece
        except OSError as error:
            raise _broken(error) from error
        return bytes(data)


def _broken(error: OSError) -> WireError:
    if isinstance(error, (BrokenPipeError, ConnectionResetError)):
        return ClosedError(f"the peer has closed the connection: {error}")
    return WireError(f"the connection broke: {error}")


def _proof(secret: bytes, side: bytes, of_head: bytes, of_member: bytes) -> bytes:
    return hmac.digest(secret, side + of_head + of_member, "sha256")
