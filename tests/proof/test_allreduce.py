"""The channel of words: sums, what happens when a rank is late, missing or dead, strangers, two hosts."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from simcoll.core.native import native
from simcoll.proof import connections
from simcoll.proof.allreduce import AllReducePlan, WordChannel
from simcoll.spec.checksum import positioned
from tests.support.native import KINDS, parts

LONG = timedelta(seconds=600)
"""More than a test may take: one in which a rank waits so long fails."""
SHORT = timedelta(milliseconds=150)


@pytest.fixture(autouse=True, scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    with parts(request.param):
        yield request.param


class MemoryStore:
    """A store for ranks that are threads."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        return self._values[key]

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: set(keys) <= self._values.keys(), timeout.total_seconds()):
                raise RuntimeError("wait timeout")


def on_ranks(size: int, program: Callable[[int], Any]) -> list[Any]:
    """What ``program(rank)`` returns or raises, on one thread a rank."""

    def outcome(future: Future[Any]) -> Any:
        error = future.exception()
        return future.result() if error is None else error

    with ThreadPoolExecutor(size) as pool:
        return [outcome(future) for future in [pool.submit(program, rank) for rank in range(size)]]


@contextlib.contextmanager
def channels(size: int):
    store = MemoryStore()
    made = on_ranks(size, lambda rank: WordChannel.connect(store, rank, size, LONG))
    yield made
    for channel in made:
        channel.close()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_every_rank_gets_the_least_between_sums(size):
    values = [[7 + (rank * 5) % size for rank in range(size)], [rank == 0 for rank in range(size)]]
    with channels(size) as made:
        answers = on_ranks(
            size,
            lambda rank: [(made[rank].least(row[rank], LONG), made[rank].sum(1, LONG)) for row in values],
        )
    assert answers == [[(min(row), size) for row in values]] * size


@pytest.mark.parametrize("size", range(1, 18))
def test_every_rank_gets_the_sum(size):
    print(f"seed {size}")
    draw = random.Random(size)
    words = [[draw.getrandbits(64) for _ in range(size)] for _ in range(30)]
    with channels(size) as made:
        sums = on_ranks(size, lambda rank: [made[rank].sum(row[rank], LONG) for row in words])
    assert sums == [[sum(row) % 2**64 for row in words]] * size


@pytest.mark.parametrize(
    ("words", "total"), [((2**64 - 1, 1), 0), ((2**63, 2**63), 0), ((-1, 3), 2), ((2**64 + 5, 0), 5)]
)
def test_words_wrap_around(words, total):
    with channels(2) as made:
        assert on_ranks(2, lambda rank: made[rank].sum(words[rank], LONG)) == [total, total]


@pytest.mark.parametrize("size", range(2, 10))
def test_ranks_with_and_without_the_compiled_part_sum_together(size):
    for alone in range(size):
        with channels(size) as made:
            made[alone]._exchange = None

            def program(rank: int, made: Any = made) -> Any:
                return made[rank].sum(rank, LONG), made[rank].least(rank + 3, LONG)

            sums = on_ranks(size, program)
        assert sums == [(size * (size - 1) // 2, 3)] * size


def test_a_word_at_its_place_is_the_same_in_both_languages():
    compiled = native("simcoll.proof._words")
    if compiled is None:
        pytest.skip("the compiled part is switched off")
    draw = random.Random(5)
    drawn = [(draw.getrandbits(64), draw.getrandbits(40)) for _ in range(200)]
    for one, sequence in [(0, 0), (2**64 - 1, 2**32), *drawn]:
        assert compiled.positioned(one, sequence) == positioned(one, sequence)


def test_a_rank_holds_few_links():
    with channels(16) as made:
        assert {len(channel._links) for channel in made} == {4}


def test_two_channels_at_once_do_not_mix():
    with channels(3) as one, channels(3) as other:
        for _ in range(20):
            assert on_ranks(3, lambda rank: (other[rank].sum(10, LONG), one[rank].sum(1, LONG))) == [(30, 3)] * 3


def test_a_late_rank_is_waited_for():
    with channels(4) as made:
        early = threading.Semaphore(0)

        def program(rank: int) -> object:
            if rank == 3:
                for _ in range(3):
                    early.acquire()
            else:
                early.release()
            return made[rank].sum(rank, LONG)

        assert on_ranks(4, program) == [6] * 4


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_a_missing_rank_ends_the_sum_on_all_others(size):
    for absent in range(size):
        with channels(size) as made:

            def program(rank: int, absent: int = absent, made: Any = made) -> int | None:
                return None if rank == absent else made[rank].sum(1, SHORT)

            errors = on_ranks(size, program)
            assert all(
                isinstance(errors[rank], (TimeoutError, ConnectionError)) for rank in range(size) if rank != absent
            )
            assert any(isinstance(error, TimeoutError) for error in errors)
            with pytest.raises(ConnectionError, match="closed"):
                made[(absent + 1) % size].sum(1, LONG)


@pytest.mark.parametrize("hasty", range(6))
def test_who_gives_up_wakes_all_others(hasty):
    """Rank 6 never comes; one rank gives up soon, and all others at once, whichever rank they wait for."""
    with channels(7) as made:
        errors = on_ranks(7, lambda rank: None if rank == 6 else made[rank].sum(1, SHORT if rank == hasty else LONG))
        assert all(isinstance(error, (TimeoutError, ConnectionError)) for error in errors[:6])
        with pytest.raises(ConnectionError, match="gave up"):
            made[6].sum(1, LONG)


@pytest.mark.parametrize("size", [4, 5, 6, 8])
def test_who_closes_after_its_last_sum_disturbs_nobody(size):
    """Each rank closes as soon as it has its sum, while others wait for theirs still."""
    for _ in range(20):
        with channels(size) as made:

            def program(rank: int, made: Any = made) -> Any:
                total = made[rank].sum(rank, LONG)
                made[rank].close()
                return total

            assert on_ranks(size, program) == [size * (size - 1) // 2] * size


def test_close_ends_a_sum_under_way():
    with channels(2) as made:
        entered = threading.Event()

        def program(rank: int) -> Any:
            if rank == 0:
                entered.set()
                return made[0].sum(1, LONG)
            entered.wait()
            made[0].close()
            return None

        assert isinstance(on_ranks(2, program)[0], ConnectionError)


def test_a_closed_peer_is_told_at_once():
    with channels(2) as made:
        made[1].close()
        with pytest.raises(ConnectionError, match="group rank 1"):
            made[0].sum(1, LONG)


@contextlib.contextmanager
def beside_sockets(rank: int, size: int) -> Iterator[tuple[WordChannel, dict[int, socket.socket]]]:
    """A channel of one rank, and the other ends of its links by rank."""
    pairs = {peer: socket.socketpair() for peer in AllReducePlan(rank, size).peers}
    for mine, _ in pairs.values():
        mine.setblocking(False)
    channel = WordChannel(rank, size, {peer: mine for peer, (mine, _) in pairs.items()})
    yield channel, {peer: theirs for peer, (_, theirs) in pairs.items()}
    channel.close()
    for _, theirs in pairs.values():
        theirs.close()


@contextlib.contextmanager
def beside_a_socket() -> Iterator[tuple[WordChannel, socket.socket]]:
    """A channel of the first of two ranks, and the other end of its link."""
    with beside_sockets(0, 2) as (channel, peers):
        yield channel, peers[1]


def word(position: int, value: int) -> bytes:
    return position.to_bytes(8, "little") + value.to_bytes(8, "little")


def when_it_waits(act: Callable[[], object]) -> Callable[[], timedelta]:
    """A time limit that has ``act`` done as soon as a rank that was not there at once is waited for."""

    def limit() -> timedelta:
        act()
        return LONG

    return limit


def test_the_time_limit_is_asked_for_only_where_a_rank_is_not_there_at_once(kind):
    asked: list[str] = []
    with beside_a_socket() as (channel, peer):
        peer.send(word(1, 5))
        assert channel.sum(2, when_it_waits(lambda: asked.append("there"))) == 7

        def late() -> None:
            asked.append("late")
            peer.send(word(2, 1))

        assert channel.sum(2, when_it_waits(late)) == 3
        assert peer.recv(99) == word(1, 2) + word(2, 2)
    assert asked == (["late"] if kind == "compiled" else ["there", "late"])


@pytest.mark.parametrize("first", range(17))
def test_a_word_may_come_in_pieces(first):
    whole = word(1, 2**64 - 2)
    with beside_a_socket() as (channel, peer):
        peer.send(whole[:first])
        assert channel.sum(3, when_it_waits(lambda: peer.send(whole[first:]))) == 1


CLOSED = r"group rank 1 has closed its end of the channel, or has ended"
RESET = r"the link to group rank 1 broke: \[Errno 104\] Connection reset by peer"
BROKEN = r"the link to group rank 1 broke: \[Errno 32\] Broken pipe"


@pytest.mark.parametrize("first", range(16))
@pytest.mark.parametrize("late", [False, True])
def test_a_peer_that_ends_within_a_word_has_ended(first, late):
    with beside_a_socket() as (channel, peer):

        def end() -> None:
            peer.send(word(1, 0)[:first])
            peer.shutdown(socket.SHUT_WR)

        if not late:
            end()
        with pytest.raises(ConnectionError, match=CLOSED):
            channel.sum(1, when_it_waits(end) if late else LONG)


def test_a_link_that_was_reset_takes_no_word():
    with beside_a_socket() as (channel, peer):
        peer.send(word(1, 1))
        assert channel.sum(1, LONG) == 2
        peer.close()
        with pytest.raises(ConnectionError, match=RESET):
            channel.sum(1, LONG)


def test_a_link_that_was_reset_brings_no_word():
    with beside_sockets(1, 3) as (channel, peers):
        for peer in peers.values():
            peer.send(word(1, 4))
        assert channel.sum(1, LONG) == 9
        peers[0].close()
        with pytest.raises(ConnectionError, match=RESET.replace("rank 1", "rank 0")):
            channel.sum(1, LONG)


@pytest.mark.parametrize("unread", [b"", word(1, 0), word(2**64 - 1, 0)])
def test_a_peer_that_has_ended_before_gets_no_word(unread):
    with beside_a_socket() as (channel, peer):
        peer.send(unread)
        peer.close()
        with pytest.raises(ConnectionError, match="gave up" if unread[:1] == b"\xff" else BROKEN):
            channel.sum(1, LONG)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("said", "told"), [(word(2**64 - 1, 0), "rank 1 gave up"), (word(7, 0), "word number 7")])
def test_another_message_is_no_word(said, told, late):
    with beside_a_socket() as (channel, peer):
        if not late:
            peer.send(said)
        with pytest.raises(ConnectionError, match=told):
            channel.sum(1, when_it_waits(lambda: peer.send(said)) if late else LONG)
        assert peer.recv(99) == word(1, 1) + word(2**64 - 1, 0)


@pytest.mark.parametrize("raises", [False, True])
def test_a_signal_is_handled_within_a_sum(raises):
    came: list[int] = []

    def handle(number: int, frame: object) -> None:
        came.append(number)
        if raises and channel._position:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise ArithmeticError("that is enough")
        if not raises and len(came) == 3:
            peer.send(word(1, 1))

    with beside_a_socket() as (channel, peer):
        before = signal.signal(signal.SIGALRM, handle)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
            if raises:
                with pytest.raises(ArithmeticError, match="enough"):
                    channel.sum(1, LONG)
                assert peer.recv(99)[-16:] == word(2**64 - 1, 0)
            else:
                assert channel.sum(1, LONG) == 2
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert came


def test_threads_that_sum_at_once_do_not_mix():
    with channels(2) as made:

        def program(rank: int) -> set[int]:
            with ThreadPoolExecutor(4) as pool:
                return set(pool.map(lambda _: made[rank].sum(21, LONG), range(200)))

        assert on_ranks(2, program) == [{42}] * 2


def test_a_word_that_was_lost_is_noticed():
    with channels(2) as made:
        made[1]._position += 1
        errors = on_ranks(2, lambda rank: made[rank].sum(1, LONG))
        assert any("word number" in str(error) for error in errors)
        assert all(isinstance(error, ConnectionError) for error in errors)


@pytest.mark.parametrize("present", [0, 1])
def test_a_rank_that_never_connects(present):
    with pytest.raises(TimeoutError, match=f"group rank.*{1 - present}"):
        WordChannel.connect(MemoryStore(), present, 2, SHORT)
    assert not [thread for thread in threading.enumerate() if thread.name == "simcoll-links"]


def test_a_store_that_is_lost_is_no_timeout():
    class Lost(MemoryStore):
        def wait(self, keys: list[str], timeout: timedelta) -> None:
            raise RuntimeError("connection reset")

    with pytest.raises(ConnectionError, match="connection reset"):
        WordChannel.connect(Lost(), 0, 2, LONG)


def test_a_rank_outside_the_group_is_refused():
    with pytest.raises(ValueError, match="group_rank is 2"):
        WordChannel.connect(MemoryStore(), 2, 2, LONG)


class StrangersStore(MemoryStore):
    """Before a rank learns where another listens, strangers have been there."""

    strangers: list[socket.socket]

    def set(self, key: str, value: str) -> None:
        document = json.loads(value)
        self.strangers = []
        loopback = [("127.0.0.1", port) for _, port in document["addresses"][:1]]
        for address in ["\0" + document["unix"], *loopback]:
            token = bytes.fromhex(document["token"])[:16]
            foreign = (b"", b"x", b"GET / HTTP/1.1\r\n\r\n" * 9, connections._HELLO.pack(bytes(16), 0))
            for said in (*foreign, connections._HELLO.pack(token, 7), token, *[b""] * 70):
                family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
                stranger = socket.socket(family, socket.SOCK_STREAM)
                stranger.connect(address)
                stranger.send(said)
                self.strangers.append(stranger)
        super().set(key, value)


def test_strangers_are_dropped_and_hold_up_nobody():
    store = StrangersStore()
    made = on_ranks(2, lambda rank: WordChannel.connect(store, rank, 2, LONG))
    assert on_ranks(2, lambda rank: made[rank].sum(rank + 1, LONG)) == [3, 3]
    for one in (*made, *store.strangers):
        one.close()


def test_an_impostor_at_the_address_is_not_believed(monkeypatch):
    """Where another process answers at an address, the next address is tried."""
    door = socket.create_server(("127.0.0.1", 0))
    seen = []

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                seen.append(door.accept()[0])
                seen[-1].send(bytes(16))

    threading.Thread(target=answer, daemon=True).start()
    truth = connections._Published.of.__func__

    def misled(cls: Any, *arguments: Any) -> Any:
        found = truth(cls, *arguments)
        return connections._Published(found.token, found.answer, (door.getsockname(), *found.addresses))

    monkeypatch.setattr(connections._Published, "of", classmethod(misled))
    with channels(2) as made:
        assert on_ranks(2, lambda rank: made[rank].sum(4, LONG)) == [8, 8]
    assert seen
    door.shutdown(socket.SHUT_RDWR)
    for one in (door, *seen):
        one.close()


def test_tcp_where_there_is_no_common_unix_socket(monkeypatch):
    reach = connections._reach
    monkeypatch.setattr(connections, "_reach", lambda at, seconds: None if isinstance(at, str) else reach(at, seconds))
    with channels(5) as made:
        assert made[1]._links[0].socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert on_ranks(5, lambda rank: [made[rank].sum(rank, LONG) for _ in range(9)]) == [[10] * 9] * 5


def test_a_child_neither_uses_nor_holds_the_parents_links():
    with channels(2) as made:
        ours, theirs = multiprocessing.Pipe()
        pid = os.fork()
        if pid == 0:
            try:
                made[0].sum(1, LONG)
            except ConnectionError as error:
                theirs.send(str(error))
            signal.pause()
        assert "belongs to process" in ours.recv()
        assert on_ranks(2, lambda rank: made[rank].sum(1, LONG)) == [2, 2]
        made[0].close()
        # The child is alive still, and does not keep the link open.
        with pytest.raises(ConnectionError):
            made[1].sum(1, LONG)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_killed_rank_is_noticed_at_once(ranks, size, kind):
    def program(rank: int) -> str:
        channel = WordChannel.connect(ranks.store(f"killed {size} {kind}"), rank, size, LONG)
        channel.sum(1, LONG)
        if rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            channel.sum(1, LONG)
        except ConnectionError:
            return "noticed"
        return "nothing noticed"

    ended = ranks.run(program, size, mode=None, backend=None)
    assert [rank.answer for rank in ended[:-1]] == ["noticed"] * (size - 1)


@pytest.mark.slow
@pytest.mark.gloo
def test_torch_stores(ranks, tmp_path, kind):
    def program(rank: int) -> list[int]:
        from torch.distributed import FileStore

        total = []
        for store in (ranks.store(f"tcp {kind}"), FileStore(str(tmp_path / "store"), 3)):
            channel = WordChannel.connect(store, rank, 3, LONG)
            total.append(channel.sum(rank, LONG))
            channel.close()
        return total

    assert ranks(program, 3, mode=None, backend=None) == [[3, 3]] * 3


@pytest.mark.slow
@pytest.mark.gloo
def test_torch_stores_say_that_a_rank_is_missing(ranks, tmp_path, kind):
    def program(rank: int) -> list[str]:
        from torch.distributed import FileStore, HashStore

        stores = (ranks.store(f"missing {kind}"), FileStore(str(tmp_path / "store"), 2), HashStore())
        return [type(ranks.error_of(lambda s=s: WordChannel.connect(s, 0, 2, SHORT))).__name__ for s in stores]

    assert ranks(program, 1, mode=None, backend=None) == [["TimeoutError"] * 3]


RANK = """
import sys, time
from datetime import timedelta
from pathlib import Path
from simcoll.proof.allreduce import AllReducePlan, WordChannel

class FolderStore:
    def __init__(self, folder): self.folder = Path(folder)
    def at(self, key): return self.folder / key.replace("/", "-")
    def get(self, key): return self.at(key).read_bytes()
    def set(self, key, value):
        part = self.at(key + ".part"); part.write_text(value); part.rename(self.at(key))
    def wait(self, keys, timeout):
        end = time.monotonic() + timeout.total_seconds()
        while not all(self.at(key).exists() for key in keys):
            if time.monotonic() > end: raise RuntimeError("timeout")
            time.sleep(0.01)

rank, long = int(sys.argv[2]), timedelta(seconds=15)
channel = WordChannel.connect(FolderStore(sys.argv[1]), rank, 3, long)
print([channel.sum(rank + 1, long) for _ in range(5)])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"MASTER_ADDR": "10.99.0.1"},
        {"MASTER_ADDR": "fd99::1"},
        {"GLOO_SOCKET_IFNAME": "scwire"},
        {"NCCL_SOCKET_IFNAME": "^lo"},
    ],
    ids=["bare", "master", "master6", "gloo", "nccl"],
)
def test_ranks_on_two_hosts(two_hosts, tmp_path, environment):
    hosts = [two_hosts[0], two_hosts[1], two_hosts[0]]
    command = [sys.executable, "-c", RANK, str(tmp_path)]
    started = [
        subprocess.Popen(
            [str(shutil.which("ip")), "netns", "exec", host, *command, str(rank)],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, host in enumerate(hosts)
    ]
    said = [process.communicate(timeout=30)[0].strip() for process in started]
    assert said == ["[6, 6, 6, 6, 6]"] * 3
