"""The part of node 0: it asks the other nodes about their ranks, takes their records, and tells them when to end.

Each node that connects has a thread here, which asks one thing after the other; what it learned is read under one lock.
With 200 nodes the threads take a twentieth of a core (``make bench-nodes``).
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from simcoll.blackbox.accounts import LaunchAccount, launch_of, read_launch, stall_of
from simcoll.blackbox.remote_ranks import NODES_FILE, RemoteRank, write_remote
from simcoll.core.clock import now_ns
from simcoll.core.io import printable
from simcoll.core.ranges import ranks_text
from simcoll.core.trace import Stall
from simcoll.launch.nodes.files import MOST_FILES, Listed, Staging
from simcoll.launch.nodes.summary import NodeSummary, RankPlace
from simcoll.launch.nodes.wire import CHUNK, MOST_WORDS, ClosedError, NodeLink, WireError
from simcoll.verifier.causes.facts import LostNode

SUMMARY_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.25
_MEET_SECONDS: Final = 5.0
"""After the end of its own ranks node 0 waits so long for a node that it has never heard of."""

_MOST_SECONDS: Final = 300.0
_TELL_SECONDS: Final = 3.0
_CONFIRM_SECONDS: Final = 5.0
_LAST_TAKE_SECONDS: Final = 10.0
"""At the end a take that is under way has so long: all nodes together."""

_CLOSE_SECONDS: Final = 5.0
_MOST_STALL_BYTES: Final = 16 << 20
_MOST_STRANGERS: Final = 64
"""Connections that have not proved yet that they know the secret."""

_MOST_PLACES: Final = 8
"""Of a lost node the last calls of so many ranks are told."""


@dataclass(slots=True)
class Node:
    """What is known of one node, which is lost if it is not heard of for ``lost_seconds``.

    ``round`` counts the times at which all nodes' records were asked for together.

    ``files`` is held while its records are taken, and while they are adopted: neither may change what the other reads.
    """

    number: int
    staging: Staging
    lost_seconds: float
    host: str = ""
    summary: NodeSummary = field(default_factory=NodeSummary)
    launch: LaunchAccount = field(default_factory=LaunchAccount)
    heard: float = 0.0
    link: NodeLink | None = None
    round: int = 0
    looks_before: int = 0
    stall: Stall | None = None
    taken: bool = False
    kept: bool = False
    told_end: bool = False
    told_verdict: bool = False
    closed: bool = False
    problem: str = ""
    files: threading.Lock = field(default_factory=threading.Lock)

    @property
    def here(self) -> bool:
        """True while it answers."""
        return self.link is not None and time.monotonic() - self.heard < self.lost_seconds


@dataclass(frozen=True, slots=True)
class Others:
    """The other nodes' side of a job that stands: their ranks' records, ends and stacks."""

    files: tuple[Path, ...] = ()
    launches: tuple[LaunchAccount, ...] = ()
    stalls: tuple[Stall, ...] = ()


class Head:
    """Begins to listen at ``door``. ``account`` is that of this node's own launcher, in the folder of its records.

    ``drafts`` is a folder for other nodes' records, until it is known that no better ones will come. A node that is not
    heard of for ``lost_seconds`` is lost.
    """

    def __init__(
        self, door: socket.socket, secret: str, account: Path, drafts: Path, nodes: int, lost_seconds: float
    ) -> None:
        self._door = door
        self._account = account
        self._secret = bytes.fromhex(secret)
        self._folder = account.parent
        self._drafts = drafts
        self._nodes = {number: Node(number, Staging(drafts, number), lost_seconds) for number in range(1, nodes)}
        lock = threading.RLock()
        # Two conditions: what nodes said wakes one thread, not those of hundreds of other nodes.
        self._changed, self._asked = threading.Condition(lock), threading.Condition(lock)
        self._moves = 0
        self._shown = 0.0
        self._round = 0
        self._end = False
        self._finishing = False
        self._concluding = False
        self._verdict: tuple[int, str] | None = None
        self._closed = False
        self._strangers = threading.Semaphore(_MOST_STRANGERS)
        self._talks: dict[threading.Thread, socket.socket] = {}
        self._door.settimeout(_LOOK_SECONDS)
        self._listener = threading.Thread(target=self._listen, name="simcoll nodes", daemon=True)
        self._listener.start()

    # What the monitor asks.

    def progress(self, moves: int) -> int:
        """Tell how often this node's ranks have moved; how often the others' have, as far as is known."""
        with self._changed:
            others = sum(node.summary.moves for node in self._nodes.values())
            self._moves = moves + others
            if time.monotonic() - self._shown >= SUMMARY_SECONDS:
                self._show()
            return others

    def _show(self) -> None:
        """Write down beside the own records where the others' ranks are, for who looks at the job while it runs."""
        self._shown = time.monotonic()
        nodes = [node for node in self._nodes.values() if node.heard]
        with contextlib.suppress(OSError):
            write_remote(self._folder / NODES_FILE, [rank for node in nodes for rank in _remote(node)])

    def standing(self) -> Others | None:
        """The records of all nodes that answer, as they are now; None until they have come."""
        with self._changed:
            if not self._round:
                self._round = 1 + max(node.round for node in self._nodes.values())
                self._asked.notify_all()
            if any(node.here and node.round < self._round for node in self._nodes.values()):
                return None
            known = [node for node in self._nodes.values() if node.taken]
            return Others(
                tuple(path for node in known for path in node.staging.paths()),
                tuple(node.launch for node in self._nodes.values() if node.launch.ranks),
                tuple(node.stall for node in known if node.stall is not None and node.here),
            )

    def forget(self) -> None:
        """What :meth:`standing` gave is out of date."""
        with self._changed:
            self._round = 0

    def still_stand(self) -> bool:
        """Wait until every node that answers has looked at its ranks twice since its records were taken.

        Then :meth:`progress` tells whether one has moved meanwhile. False where a node does not say in time.
        """
        with self._changed:
            return self._changed.wait_for(self._looked_again, _CONFIRM_SECONDS)

    def _looked_again(self) -> bool:
        return all(node.summary.looks >= node.looks_before + 2 for node in self._nodes.values() if node.here)

    def end(self) -> None:
        """Have all nodes end the job, which stands; waits a moment until they know."""
        with self._changed:
            self._end = True
            self._asked.notify_all()
            self._changed.wait_for(lambda: all(one.told_end for one in self._nodes.values() if one.here), _TELL_SECONDS)

    # What the command asks when its own ranks have ended.

    def finish(self, look: Callable[[], bool], running_seconds: float, known: Callable[[], Iterable[int]]) -> list[str]:
        """Wait for the other nodes' records, and put them beside the own; what is to be said of those that lack.

        Nodes whose ranks still run have ``running_seconds``, in which ``look`` watches all; then their records are
        taken as they are. ``known`` tells of nodes whose accounts are in the folder anyway.
        """
        begun, ended, late = time.monotonic(), False, False
        self._finishing = True
        while (waited := time.monotonic() - begun) < _MOST_SECONDS:
            missed = [node for node in self._nodes.values() if not node.kept and not self._is_lost(node, waited)]
            shared = set() if all(node.heard for node in missed) else set(known())
            missed = [node for node in missed if node.heard or node.number not in shared]
            if not missed:
                break
            if waited > running_seconds and not late:
                late = True
                self.forget()
            # Those whose ranks have ended meanwhile hand over all that they have.
            if late and self.standing() is not None and not any(node.summary.final for node in missed):
                break
            ended = ended or late or look()
            with self._changed:
                self._changed.wait(0.1)
        with self._changed:
            self._concluding = True
        shared, limit = set(known()), time.monotonic() + _LAST_TAKE_SECONDS
        met = [node for node in self._nodes.values() if node.heard or node.number not in shared]
        remarks = [self._adopted(node, limit) for node in met]
        return [remark for remark in remarks if remark]

    @staticmethod
    def _is_lost(node: Node, waited: float) -> bool:
        if not node.heard:
            return waited > _MEET_SECONDS
        return not node.here and waited > node.lost_seconds

    def _adopted(self, node: Node, limit: float) -> str:
        """Move a node's records to the folder; what is to be said of one whose last records did not come.

        Without records its account is not moved either: a rank that was started and has none passes for one that made
        no call. A take that is under way may end until ``limit``; no other begins any more.
        """
        if not node.files.acquire(timeout=max(limit - time.monotonic(), 0.0) if node.here else 0.0):
            with self._changed:
                link, node.link = node.link, None
            if link is not None:
                _cut(link.connection)
            if not node.files.acquire(timeout=_CLOSE_SECONDS):
                return _lack(node, "they were still being taken")
        try:
            problem = node.problem
            if node.taken:
                try:
                    with self._changed:
                        node.staging.adopt(self._folder, self._ranks(node))
                except OSError as error:
                    problem = f"they cannot be kept: {error.strerror}"
            return "" if node.kept and not problem else _lack(node, problem)
        finally:
            node.files.release()

    def launches(self) -> list[LaunchAccount]:
        """The accounts of the other nodes, as last heard."""
        return [node.launch for node in self._nodes.values() if node.launch.ranks]

    def lost(self) -> tuple[LostNode, ...]:
        """The nodes that were heard of and are gone, before they had handed over their last records."""
        now = time.monotonic()
        gone = [node for node in self._nodes.values() if node.heard and not node.kept and not node.here]
        return tuple(
            LostNode(one.number, one.host, tuple(rank.rank for rank in one.launch.ranks), now - one.heard, one.closed)
            for one in gone
        )

    def conclude(self, code: int, place: str) -> None:
        """Tell the nodes that answer what the report says, and where it is."""
        with self._changed:
            self._verdict = code, place
            self._asked.notify_all()
            self._changed.wait_for(
                lambda: all(one.told_verdict for one in self._nodes.values() if one.here), _TELL_SECONDS
            )

    def close(self) -> None:
        """Listen no more, though the door stays open, and remove what was not adopted."""
        with self._changed:
            self._closed = True
            self._asked.notify_all()
        self._listener.join()
        # A take that is under way would make the folder again.
        with self._changed:
            talks = dict(self._talks)
        for connection in talks.values():
            _cut(connection)
        limit = time.monotonic() + _CLOSE_SECONDS
        for thread in talks:
            thread.join(max(limit - time.monotonic(), 0.0))
        shutil.rmtree(self._drafts, ignore_errors=True)
        with contextlib.suppress(OSError):
            (self._folder / NODES_FILE).unlink(missing_ok=True)

    # The threads.

    def _listen(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._door.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            if not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            thread = threading.Thread(target=self._admit, args=(connection,), name="simcoll node", daemon=True)
            with self._changed:
                thread.start()
                self._talks[thread] = connection

    def _admit(self, connection: socket.socket) -> None:
        """Have a peer prove that it is a node of this job, and ask it until it is gone."""
        node = link = None
        with connection:
            try:
                try:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    link = NodeLink.accepted(connection, self._secret)
                finally:
                    self._strangers.release()
                said = link.ask({"do": "hello"})
                node = self._nodes.get(said.whole("node"))
                if node is None:
                    return
                self._greet(node, link, printable(said.text("host")))
                self._attend(node, link)
            except (WireError, OSError, ValueError, KeyError) as error:
                if node is not None and node.link is link:
                    self._note(node, closed=isinstance(error, ClosedError))
            finally:
                with self._changed:
                    self._talks.pop(threading.current_thread(), None)
                    if node is not None and node.link is link:
                        node.link = None
                    self._changed.notify_all()

    def _greet(self, node: Node, link: NodeLink, host: str) -> None:
        with self._changed:
            if node.link is not None:
                # The node has given up its old connection, whose thread still waits for an answer.
                _cut(node.link.connection)
            node.link, node.host, node.heard, node.closed = link, host, time.monotonic(), False

    def _attend(self, node: Node, link: NodeLink) -> None:
        while node.link is link and not self._closed:
            self._summarise(node, link)
            if node.summary.final and not node.kept:
                self._keep(node, link)
            elif self._is_behind(node):
                self._look_into(node, link)
            if self._end and not node.told_end:
                link.ask({"do": "end"})
                self._note(node, told_end=True)
            if self._verdict is not None:
                code, place = self._verdict
                link.ask({"do": "verdict", "code": code, "place": place})
                self._note(node, told_verdict=True)
                return
            with self._asked:
                self._asked.wait_for(lambda: self._asks(node), SUMMARY_SECONDS)

    def _asks(self, node: Node) -> bool:
        """True if there is something to ask before the next summary."""
        wants = self._is_behind(node) or (self._end and not node.told_end)
        return self._closed or wants or self._verdict is not None

    def _is_behind(self, node: Node) -> bool:
        return node.round < self._round and not self._concluding

    def _note(self, node: Node, **values: bool) -> None:
        with self._changed:
            for name, value in values.items():
                setattr(node, name, value)
            self._changed.notify_all()

    def _summarise(self, node: Node, link: NodeLink) -> None:
        said = link.ask({"do": "summary", "moves": self._moves, "finishing": self._finishing})
        summary = NodeSummary.of(said.words)
        account = said.inflated(MOST_WORDS) if said.body else None
        with self._changed:
            node.summary, node.heard = summary, time.monotonic()
            if account is not None:
                node.launch = launch_of(account)
            self._changed.notify_all()

    def _ranks(self, node: Node) -> set[int]:
        """The ranks of a node, by its account: never those of this node, or of one with a lower number."""
        others = [read_launch(self._account), *(self._nodes[number].launch for number in range(1, node.number))]
        return {one.rank for one in node.launch.ranks} - {one.rank for other in others for one in other.ranks}

    def _keep(self, node: Node, link: NodeLink) -> None:
        """Take the last records, and say so; not where node 0 has gone on without them: they would be removed."""
        with node.files:
            if self._concluding:
                return
            self._take(node, link)
            link.ask({"do": "kept"})
            with self._changed:
                node.kept, node.round = True, max(node.round, self._round)
                self._changed.notify_all()

    def _look_into(self, node: Node, link: NodeLink) -> None:
        """Take stacks and records of a job that stands, for the round that was asked for."""
        wanted = self._round
        said = link.ask({"do": "stall"})
        # A node that cannot tell how its ranks stand says nothing; its records may still tell.
        told = stall_of(said.inflated(_MOST_STALL_BYTES)) if said.body else None
        # That node's clock may be another one.
        now = now_ns()
        stall = told and replace(told, since_ns=now - (told.seen_ns - told.since_ns), seen_ns=now)
        with node.files:
            if self._concluding:
                return
            self._take(node, link)
        self._summarise(node, link)
        with self._changed:
            node.stall, node.looks_before, node.round = stall, node.summary.looks, wanted
            self._changed.notify_all()

    def _take(self, node: Node, link: NodeLink) -> None:
        """Take what has changed of a node's files; all of them, or none. What cannot be kept is said in the end."""
        try:
            listed = link.ask({"do": "files"}).words.get("files")
            if not isinstance(listed, list) or len(listed) > MOST_FILES:
                raise WireError(f"expected a list of up to {MOST_FILES} files")
            for file in node.staging.take(map(Listed.of, listed), self._ranks(node)):
                for number in node.staging.lacking(file):
                    said = link.ask({"do": "chunk", "file": file.key.words(), "number": number})
                    if said.words.get("gone") is True:
                        break
                    node.staging.put(file.key, number, said.inflated(CHUNK))
                    node.heard = time.monotonic()
            node.taken, node.problem = True, ""
        except OSError as error:
            node.staging.clear()
            node.taken = False
            node.problem = f"they cannot be kept: {error.strerror}"


def _remote(node: Node) -> Iterator[RemoteRank]:
    """The ranks of a node, as it told last: times by the clock of this host."""
    silent = time.monotonic() - node.heard
    heard_ns = now_ns() - int(silent * 1e9)
    silent_ns = 0 if node.here or node.kept else heard_ns
    for one in node.launch.ranks:
        place = node.summary.places.get(one.rank, RankPlace("in no call yet"))
        since = heard_ns - place.milliseconds * 1_000_000
        ended = one.exit_code, one.stopped
        yield RemoteRank(one.rank, node.number, node.host, place.text, place.waits, since, *ended, silent_ns)


def _cut(connection: socket.socket) -> None:
    """Have the thread that waits on a connection go on at once."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _lack(node: Node, problem: str) -> str:
    """What is known of a node whose records, or the last of them, did not come."""
    ranks = [one.rank for one in node.launch.ranks]
    name = f"node {node.number}" + (f" ({node.host}, {ranks_text(ranks)})" if ranks else "")
    if not node.heard:
        return f"{name} was never heard of: its records are not here"
    if problem:
        return f"{name}: its records did not come: {problem}"
    age = time.monotonic() - node.heard
    if node.here:
        return f"{name}: its ranks still run; its records are those of this moment"
    what = "its last records did not come" if node.taken else "its records did not come"
    ended = [
        f"rank {one.rank} had ended with {one.exit_code}" for one in node.launch.ranks if one.exit_code is not None
    ]
    over = {one.rank for one in node.launch.ranks if one.exit_code is not None}
    places = [f"rank {rank} {one.text}" for rank, one in sorted(node.summary.places.items()) if rank not in over]
    known = [*ended, *places]
    more = f" and {len(known) - _MOST_PLACES} more" if len(known) > _MOST_PLACES else ""
    state = f"; then: {', '.join(known[:_MOST_PLACES])}{more}" if known else ""
    return f"{name} was lost, {what}: last heard of {age:.0f} s before this report{state}"
