"""Node 0 and another node in one process, over real sockets: connections that break, peers that say anything."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simcoll.blackbox.accounts import LAUNCH_SCHEMA
from simcoll.blackbox.remote_ranks import NODES_FILE, read_remote
from simcoll.core.trace import Stall
from simcoll.launch.nodes import head as head_module
from simcoll.launch.nodes import member as member_module
from simcoll.launch.nodes.head import Head
from simcoll.launch.nodes.meeting import Door, Meeting
from simcoll.launch.nodes.member import Answer, Member, OwnNode
from simcoll.launch.nodes.wire import CHUNK, NodeLink, NodeMessage, Words, deflated

pytestmark = pytest.mark.slow

SECRET = "ab" * 32
LOST_SECONDS = 0.5


def account(folder: Path, node: int, ranks: tuple[int, ...]) -> Path:
    folder.mkdir(exist_ok=True)
    entries = [{"rank": rank, "pid": 0, "exit_code": 0, "ended_ns": 1, "stopped": False} for rank in ranks]
    path = folder / f"launch-host{node}-1.json"
    path.write_text(json.dumps({"schema": LAUNCH_SCHEMA, "node": node, "host": f"host{node}", "ranks": entries}))
    return path


class Breaking:
    """A way to a port on which each of the first connections breaks after so many bytes."""

    def __init__(self, port: int, limits: list[int]) -> None:
        self._port = port
        self._limits = limits
        self._ends: list[socket.socket] = []
        self.broken = 0
        self.door = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        for one in (*self._ends, self.door):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.door.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._ends += [near, far]
                limit = self._limits.pop(0) if self._limits else 1 << 40
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, target, limit), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, limit: int) -> None:
        with contextlib.suppress(OSError):
            while limit > 0 and (data := source.recv(min(limit, 1 << 16))):
                target.sendall(data)
                limit -= len(data)
        self.broken += limit <= 0
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def head(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Head, int]]:
    """Node 0 of three, whose rank is 0, and its port; the parameter is the time after which a node is lost."""
    lost = getattr(request, "param", LOST_SECONDS)
    monkeypatch.setattr(head_module, "SUMMARY_SECONDS", 0.02)
    monkeypatch.setattr(head_module, "_MEET_SECONDS", 0.5)
    monkeypatch.setattr(member_module, "_AGAIN_SECONDS", (0.01, 0.1))
    with socket.create_server(("127.0.0.1", 0)) as door:
        one = Head(door, SECRET, account(tmp_path / "out0", 0, (0,)), tmp_path / "out0" / ".drafts", 3, lost)
        yield one, door.getsockname()[1]
        one.close()


def member_of(folder: Path, port: int, lost: float = LOST_SECONDS) -> Member:
    own = OwnNode(folder, account(folder, 1, (1, 2)), 0, lambda: Stall(1, 2, blocked=frozenset({1})))
    return Member(Meeting(1, 3, "127.0.0.1", Door(port, SECRET, "0" * 16), shared=False), own, lost)


def finished(head: Head, known: set[int]) -> list[str]:
    return head.finish(lambda: False, 5.0, lambda: known)


@pytest.mark.parametrize("head", [20.0], indirect=True)
def test_records_come_whole_over_connections_that_break(head: tuple[Head, int], tmp_path: Path) -> None:
    one, port = head
    way = Breaking(port, [40, 3000, 2 * CHUNK, CHUNK // 2])
    out = tmp_path / "out1"
    member = member_of(out, way.door.getsockname()[1], 20.0)
    (out / "rank00001.simcoll").write_bytes(random.Random(1).randbytes(CHUNK) + bytes(CHUNK))
    (out / "rank00002.simcoll").write_bytes(random.Random(2).randbytes(3 * CHUNK + 5))
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(member.finish()), daemon=True)
    thread.start()
    remarks = finished(one, {2})
    one.conclude(3, "here")
    thread.join(10)
    member.close()
    way.close()
    assert remarks == []
    assert answers == [member_module.Answer(3, "here")]
    assert way.broken >= 3
    for rank in (1, 2):
        name = f"rank{rank:05d}.simcoll"
        assert (tmp_path / "out0" / name).read_bytes() == (out / name).read_bytes()
    assert (tmp_path / "out0" / "launch-node1.json").read_bytes() == (out / "launch-host1-1.json").read_bytes()


def test_a_job_that_stands_is_shown_as_it_is_now(head: tuple[Head, int], tmp_path: Path) -> None:
    one, port = head
    out = tmp_path / "out1"
    member = member_of(out, port)
    box = out / "rank00001.simcoll"
    box.write_bytes(b"1" * 100)
    until(lambda: one.launches() != [])
    until(lambda: one.standing() is not None)
    others = one.standing()
    assert others is not None
    assert [path.read_bytes() for path in others.files] == [b"1" * 100]
    assert [stall.blocked for stall in others.stalls] == [{1}]
    box.write_bytes(b"2" * 100)
    one.forget()
    until(lambda: one.standing() is not None)
    assert [path.read_bytes() for path in others.files] == [b"2" * 100]
    assert not member.ended
    one.end()
    until(lambda: member.ended)
    member.close()


class Liar(threading.Thread):
    """A node that knows the secret and says what it likes."""

    def __init__(self, port: int, answers: dict[str, tuple[Words, bytes]], silent_on: str = "") -> None:
        super().__init__(daemon=True)
        self._silent_on = silent_on
        self._port = port
        self.answers = answers
        self.asked: list[NodeMessage] = []
        self.start()

    def run(self) -> None:
        with contextlib.suppress(Exception), socket.create_connection(("127.0.0.1", self._port)) as connection:
            link = NodeLink.made(connection, bytes.fromhex(SECRET))
            while True:
                self.asked.append(link.receive())
                what = str(self.asked[-1].words["do"])
                if what == self._silent_on:
                    link.receive()
                link.send(*self.answers.get(what, ({}, b"")))

    def count(self, what: str) -> int:
        return sum(message.words["do"] == what for message in self.asked)


SUMMARY: Words = {"moves": 1, "looks": 1, "final": True, "places": []}
HELLO: Words = {"node": 1, "host": "liar"}


@pytest.mark.parametrize(
    "answers",
    [
        {"hello": ({"node": 7}, b"")},
        {"hello": ({"node": "1"}, b"")},
        {"summary": ({}, b"")},
        {"summary": ({**SUMMARY, "places": [[1]]}, b"")},
        {"summary": (SUMMARY, b"no zlib")},
        {"files": ({"files": 1}, b"")},
        {"files": ({"files": [["../../x", 1, []]]}, b"")},
        {"files": ({"files": [[["launch", 0, 0], 10, ["x"]]]}, b""), "chunk": ({}, b"no zlib")},
    ],
)
def test_a_peer_that_lies_costs_its_own_records(
    head: tuple[Head, int], tmp_path: Path, answers: dict[str, tuple[Words, bytes]]
) -> None:
    one, port = head
    before = {path.name for path in (tmp_path / "out0").iterdir()}
    liar = Liar(port, {"hello": (HELLO, b""), "summary": (SUMMARY, b""), **answers})
    liar.join(5)
    assert not liar.is_alive()
    assert liar.asked
    [remark] = finished(one, {2})
    assert remark.startswith("node 1")
    one.close()
    assert {path.name for path in (tmp_path / "out0").iterdir()} == before


def test_nothing_is_taken_any_more_once_node_0_has_gone_on(head: tuple[Head, int]) -> None:
    one, port = head
    answers: dict[str, tuple[Words, bytes]] = {"hello": (HELLO, b""), "summary": ({**SUMMARY, "final": False}, b"")}
    liar = Liar(port, answers | {"files": ({"files": []}, b"")})
    until(lambda: liar.count("summary") > 0)
    [remark] = one.finish(lambda: False, 0.0, lambda: {2})
    assert "its ranks still run" in remark
    taken, told = liar.count("files"), liar.count("summary")
    liar.answers["summary"] = (SUMMARY, b"")
    until(lambda: liar.count("summary") > told + 3)
    assert (liar.count("files"), liar.count("kept")) == (taken, 0)


def test_records_are_not_moved_while_they_are_taken(head: tuple[Head, int], monkeypatch: pytest.MonkeyPatch) -> None:
    one, port = head
    monkeypatch.setattr(head_module, "_CLOSE_SECONDS", 0.1)
    liar = Liar(port, {"hello": (HELLO, b""), "summary": (SUMMARY, b"")})
    with one._nodes[1].files:
        until(lambda: liar.count("summary") > 0)
        [remark] = finished(one, {2})
    assert remark.endswith("they were still being taken")
    liar.join(5)
    assert not liar.is_alive()


def test_a_take_that_is_under_way_leaves_no_drafts(head: tuple[Head, int], tmp_path: Path) -> None:
    one, port = head
    files: Words = {"files": [[["launch", 0, 0], 10, ["x"]]]}
    answers: dict[str, tuple[Words, bytes]] = {"hello": (HELLO, b""), "summary": (SUMMARY, b"")}
    liar = Liar(port, answers | {"files": (files, b"")}, silent_on="chunk")
    until(lambda: liar.count("chunk") > 0)
    assert (tmp_path / "out0" / ".drafts").exists()
    one.close()
    assert not one._talks
    assert not (tmp_path / "out0" / ".drafts").exists()


def test_an_answer_that_fails_does_not_cost_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise KeyError("a parser's")

    out = tmp_path / "out1"
    with socket.create_server(("127.0.0.1", 0)) as door:
        member = member_of(out, door.getsockname()[1])
        monkeypatch.setattr(member._own, "stall", fails)
        monkeypatch.setattr(member._places, "look", fails)
        connection, _ = door.accept()
        with connection:
            link = NodeLink.accepted(connection, bytes.fromhex(SECRET))
            assert link.ask({"do": "stall"}) == NodeMessage({})
            assert link.ask({"do": "summary", "moves": 0}).words == {**SUMMARY, "moves": 0, "looks": 0, "final": False}
            assert len(link.ask({"do": "files"}).words["files"]) == 1
            assert link.ask({"do": "chunk", "file": ["launch", 0, 0], "number": 1 << 62}) == NodeMessage({})
            assert link.ask({"do": "hello"}).words["node"] == 1
        member.close()


@pytest.mark.parametrize("closes", [False, True])
def test_a_lost_node_was_silent_or_its_system_closed_the_connection(head: tuple[Head, int], closes: bool) -> None:
    one, port = head
    with socket.create_connection(("127.0.0.1", port)) as peer:
        link = NodeLink.made(peer, bytes.fromhex(SECRET))
        assert link.receive().text("do") == "hello"
        link.send({"node": 1, "host": "b"})
        assert one.lost() == ()
        link.receive()
        if closes:
            peer.shutdown(socket.SHUT_RDWR)
        until(lambda: bool(one.lost()))
        [lost] = one.lost()
    assert (lost.number, lost.host, lost.closed) == (1, "b", closes)


@pytest.mark.parametrize("last", ["summary", "verdict"])
def test_node_0_is_lost_only_where_it_has_fallen_silent_without_a_verdict(tmp_path: Path, last: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        member = member_of(tmp_path / "out1", door.getsockname()[1])
        connection, _ = door.accept()
        with connection:
            link = NodeLink.accepted(connection, bytes.fromhex(SECRET))
            assert member.lost() == ()
            link.ask({"do": last, "moves": 0, "code": 0, "place": "here"})
            assert member.lost() == ()
            heard = time.monotonic()
            until(lambda: time.monotonic() > heard + LOST_SECONDS)
            assert [lost.number for lost in member.lost()] == ([0] if last == "summary" else [])
        member.close()


@pytest.mark.parametrize("finishing", [False, True])
def test_a_node_waits_for_a_node_0_whose_own_ranks_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finishing: bool
) -> None:
    """Node 0 waits for others, then reports on all: one report. While its own ranks run, nobody waits for it."""
    monkeypatch.setattr(member_module, "_VERDICT_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as door:
        member = member_of(tmp_path / "out1", door.getsockname()[1], 20.0)
        answers: list[object] = []
        ending = threading.Thread(target=lambda: answers.append(member.finish()))
        connection, _ = door.accept()
        with connection:
            link = NodeLink.accepted(connection, bytes.fromhex(SECRET))
            link.ask({"do": "summary", "moves": 0, "finishing": finishing})
            link.ask({"do": "kept"})
            ending.start()
            ending.join(1.0 if finishing else 20.0)
            assert ending.is_alive() == finishing
            if finishing:
                link.ask({"do": "verdict", "code": 3, "place": "there"})
            ending.join(20.0)
        member.close()
    assert answers == [Answer(3, "there") if finishing else None]


def test_a_lost_node_is_shown_as_such(head: tuple[Head, int], tmp_path: Path) -> None:
    one, port = head
    ranks = account(tmp_path / "out1", 1, (1, 2)).read_bytes().replace(b'"exit_code": 0', b'"exit_code": null')

    def shown() -> list[tuple[int, str, bool]]:
        one.progress(0)
        return [(rank.rank, rank.place, rank.silent_ns > 0) for rank in read_remote(tmp_path / "out0" / NODES_FILE)]

    with socket.create_connection(("127.0.0.1", port)) as peer:
        link = NodeLink.made(peer, bytes.fromhex(SECRET))
        link.receive()
        link.send({"node": 1, "host": "b"})
        link.receive()
        link.send({**SUMMARY, "final": False, "places": [[1, "in a barrier", True, 5]]}, deflated(ranks))
        until(lambda: shown() == [(1, "in a barrier", False), (2, "in no call yet", False)])
    until(lambda: shown() == [(1, "in a barrier", True), (2, "in no call yet", True)])


def test_strangers_are_not_listened_to(head: tuple[Head, int], tmp_path: Path) -> None:
    one, port = head
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: node0\r\n\r\n" + bytes(100))
        stranger.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(100):
                pass
    assert [remark.split(" was")[0] for remark in finished(one, set())] == ["node 1", "node 2"]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
