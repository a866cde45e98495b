"""The part of every node but node 0: it answers what node 0 asks, over a connection that it makes and makes again."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simcoll.blackbox.accounts import read_launch, stall_text
from simcoll.core.io import open_at_once, printable
from simcoll.core.trace import Stall
from simcoll.launch.nodes.files import FileKey, chunk_of, listed, own_files
from simcoll.launch.nodes.meeting import Meeting
from simcoll.launch.nodes.summary import NodeSummary, Places, RankPlace
from simcoll.launch.nodes.wire import MOST_WORDS, ClosedError, NodeLink, NodeMessage, WireError, Words, deflated
from simcoll.verifier.causes.facts import LostNode

_CONNECT_SECONDS: Final = 5.0
_AGAIN_SECONDS: Final = (0.2, 2.0)
_PATIENCE: Final = 3
"""At the end of its job a node waits so many times longer for a node 0 that it has lost, and then keeps its records."""

_NEVER_SECONDS: Final = 5.0
"""The same for a node 0 that it has never reached."""

_VERDICT_SECONDS: Final = 10.0
"""A node whose records node 0 has leaves after so long, where node 0's own ranks still run."""

_MOST_SECONDS: Final = 300.0
_CODES: Final = (0, 1, 2, 3)


@dataclass(slots=True)
class OwnNode:
    """A node as its monitor sees it, which writes ``moves`` and ``looks``; ``stall`` tells how its ranks stand."""

    folder: Path
    account: Path
    since_ns: int
    stall: Callable[[], Stall]
    moves: int = 0
    looks: int = 0
    final: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What node 0 said at the end: the exit code of its report, and where the report is."""

    code: int
    place: str


class Member:
    """Begins to answer node 0, on a thread of its own, until :meth:`finish` or :meth:`close`.

    Node 0 is lost if it is not heard of for ``lost_seconds``.
    """

    def __init__(self, meeting: Meeting, own: OwnNode, lost_seconds: float) -> None:
        self.meeting = meeting
        self._lost_seconds = lost_seconds
        self.moves = 0
        self.ended = False
        self._own = own
        self._files: dict[FileKey, Path] = {}
        self._places = Places()
        self._sent = b""
        self._answer: Answer | None = None
        self._finishing = False
        self._kept_at: float | None = None
        self._heard = 0.0
        self._linked = False
        self._closed_by_head = False
        self._closed = threading.Event()
        self._told = threading.Event()
        self._thread = threading.Thread(target=self._run, name="simcoll nodes", daemon=True)
        self._thread.start()

    @property
    def led(self) -> bool:
        """True while node 0 judges this node's ranks with its own."""
        return self._linked and time.monotonic() - self._heard < self._lost_seconds

    @property
    def kept(self) -> bool:
        """True if node 0 has this node's records."""
        return self._kept_at is not None

    def lost(self) -> tuple[LostNode, ...]:
        """Node 0, where it was heard of and is gone without this node's records."""
        silent = time.monotonic() - self._heard
        if self.kept or self._answer is not None or not self._heard or silent < self._lost_seconds:
            return ()
        return (LostNode(0, seconds=silent, closed=self._closed_by_head),)

    def finish(self) -> Answer | None:
        """Hand over the records of a job that has ended; what node 0 makes of all, None where it does not say."""
        self._own.final = True
        begun = time.monotonic()
        while not self._told.wait(0.1):
            now, patience = time.monotonic(), _PATIENCE * self._lost_seconds if self._heard else _NEVER_SECONDS
            left = self._kept_at is not None and not self._finishing and now - self._kept_at > _VERDICT_SECONDS
            if left or now - max(begun, self._heard) > patience or now - begun > _MOST_SECONDS:
                break
        return self._answer

    def close(self) -> None:
        """Answer no more."""
        self._closed.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        pause, longest = _AGAIN_SECONDS
        while not self._closed.is_set():
            try:
                self._attend()
            except (WireError, OSError) as error:
                self._closed_by_head = isinstance(error, (ClosedError, ConnectionRefusedError))
                self._linked = False
            if self._told.is_set() or self._closed.wait(pause):
                return
            pause = _AGAIN_SECONDS[0] if self._heard > time.monotonic() - longest else min(2 * pause, longest)

    def _attend(self) -> None:
        """Make one connection, and answer on it until node 0 has said its last word."""
        meeting = self.meeting
        with socket.create_connection((meeting.address, meeting.door.port), _CONNECT_SECONDS) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = NodeLink.made(connection, bytes.fromhex(meeting.door.secret))
            self._sent = b""
            while not self._closed.is_set():
                asked = link.receive(self._lost_seconds)
                self._heard, self._linked = time.monotonic(), True
                link.send(*self._answer_to(asked))
                if self._answer is not None:
                    self._told.set()
                    return

    def _answer_to(self, asked: NodeMessage) -> tuple[Words, bytes]:
        """The answer; an empty one where it failed, so that a file that cannot be read does not cost this node."""
        try:
            return self._answered(asked)
        except WireError:
            raise
        except Exception:
            return {}, b""

    def _answered(self, asked: NodeMessage) -> tuple[Words, bytes]:
        what = asked.text("do")
        if what == "hello":
            return {"node": self.meeting.node, "host": socket.gethostname()}, b""
        if what == "summary":
            return self._summary(asked)
        if what == "stall":
            return {}, deflated(stall_text(self._own.stall()).encode())
        if what == "files":
            self._files = self._own_files()
            return {"files": [one.words() for one in listed(self._files)]}, b""
        if what == "chunk":
            return self._chunk(FileKey.of(asked.words.get("file")), asked.whole("number"))
        if what == "kept":
            self._kept_at = time.monotonic()
        elif what == "end":
            self.ended = True
        elif what == "verdict":
            code = asked.whole("code")
            self._answer = Answer(code if code in _CODES else 3, printable(asked.text("place", 1024)))
        return {}, b""

    def _summary(self, asked: NodeMessage) -> tuple[Words, bytes]:
        """The summary; with the account of the ranks' ends where that has changed."""
        self.moves = asked.whole("moves")
        self._finishing = asked.words.get("finishing") is True
        own = self._own
        # Before the files are looked at: what changes afterwards must not pass for the last state.
        moves, looks, final = own.moves, own.looks, own.final
        words = NodeSummary(moves, looks, final, self._look()).words()
        account = b""
        with contextlib.suppress(OSError), open_at_once(own.account) as file:
            account = file.read(MOST_WORDS)
        changed, self._sent = account != self._sent, account
        return words, deflated(account) if changed else b""

    def _look(self) -> dict[int, RankPlace]:
        """Each rank's last call; nothing where that cannot be told: the rest of a summary counts more."""
        try:
            return self._places.look(self._own_files())
        except Exception:
            return {}

    def _chunk(self, key: FileKey, number: int) -> tuple[Words, bytes]:
        if key in self._files:
            with contextlib.suppress(OSError):
                return {}, deflated(chunk_of(self._files[key], number))
        return {"gone": True}, b""

    def _own_files(self) -> dict[FileKey, Path]:
        own = self._own
        return own_files(own.folder, own.account, read_launch(own.account), own.since_ns)
