"""The store in which ranks meet: one connection a process, in which nobody waits."""

from __future__ import annotations

import os
import socket
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch.distributed import FileStore, HashStore, PrefixStore, TCPStore  # noqa: E402

from simcoll.proof.store import PolledStore, StoreConnection, meeting_place  # noqa: E402
from simcoll.wrapper.modes import _incarnation  # noqa: E402

LONG, SHORT = timedelta(seconds=20), timedelta(milliseconds=30)


def test_what_one_publishes_another_finds() -> None:
    shared = StoreConnection(HashStore())
    mine, theirs = PolledStore(shared), PolledStore(shared)
    waiting = threading.Thread(target=theirs.wait, args=(["key"], LONG))
    waiting.start()
    mine.set("key", "value")
    waiting.join(20)
    assert not waiting.is_alive()
    assert theirs.get("key") == b"value"
    assert [mine.add("count", 1), theirs.add("count", 1)] == [1, 2]


def test_a_wait_ends_with_its_time() -> None:
    store = PolledStore(StoreConnection(HashStore()))
    with pytest.raises(RuntimeError, match=r"key: not in the store within 0\.03 s"):
        store.wait(["key"], SHORT)


def test_a_wait_ends_when_told_and_so_does_everything_after_it() -> None:
    store = PolledStore(StoreConnection(HashStore()))
    told: list[BaseException] = []

    def wait() -> None:
        try:
            store.wait(["key"], LONG)
        except RuntimeError as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    store.stop()
    waiting.join(10)
    assert "told to stop" in str(told[0])
    with pytest.raises(RuntimeError, match="told to stop"):
        store.set("key", "value")


def over_tcp(folder: Path) -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


KINDS = {"tcp": over_tcp, "hash": lambda folder: HashStore(), "file": lambda folder: FileStore(str(folder / "store"))}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("free", [True, False])
def test_all_who_give_the_same_store_meet_and_nobody_else(tmp_path: Path, kind: str, free: bool) -> None:
    store = KINDS[kind](tmp_path)
    one, other = (meeting_place(PrefixStore("group", store), free=free) for _ in range(2))
    stranger = meeting_place(PrefixStore("another", store), free=free)
    one.set("key", "value")
    assert (other.check(["key"]), stranger.check(["key"])) == (True, False)


def test_a_wait_of_the_programs_holds_up_no_meeting() -> None:
    server = over_tcp(Path())
    groups = PrefixStore("group", TCPStore("127.0.0.1", server.port, is_master=False))
    place = meeting_place(groups, free=True)
    waiting = threading.Thread(target=groups.wait, args=(["end"], LONG))
    waiting.start()
    place.set("key", "value")
    late = meeting_place(groups, free=False)
    assert late.get("key") == b"value"
    PrefixStore("group", server).set("end", "")
    waiting.join()


def test_connections_go_with_the_groups_and_another_server_gets_another_one() -> None:
    server = over_tcp(Path())
    port = server.port
    kept = meeting_place(PrefixStore("group", server), free=True)
    kept.set("key", "value")
    del server
    server = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    again = meeting_place(PrefixStore("group", server), free=True)
    again.set("key", "another value")
    assert again.get("key") == b"another value"
    with pytest.raises(RuntimeError):
        kept.check(["key"])
    assert connections(port) == 2
    del kept, again
    assert connections(port) == 1


def connections(port: int) -> int:
    """The number of connections to a port of this host."""
    lines = [line.split() for file in ("tcp", "tcp6") for line in Path("/proc/net", file).read_text().splitlines()[1:]]
    established = "01"
    return sum(line[2].endswith(f":{port:04X}") and line[3] == established for line in lines)


@pytest.mark.slow
def test_a_forked_child_does_not_speak_on_its_parents_connection() -> None:
    server = over_tcp(Path())
    place = meeting_place(PrefixStore("group", server), free=True)
    pid = os.fork()
    if pid == 0:
        try:
            with pytest.raises(RuntimeError) as inherited:
                place.set("key", "the child's")
            own = PrefixStore("group", TCPStore("127.0.0.1", server.port, is_master=False))
            meeting_place(own, free=True).set("from", "the child")
            os._exit("forked" not in str(inherited.value))
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert place.get("from") == b"the child"
    assert not place.check(["key"])


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.parametrize("mode", ["check", "detail"])
def test_a_process_connects_once_however_many_groups_it_has(ranks: Any, mode: str) -> None:
    def program(rank: int) -> int:
        server = over_tcp(Path()) if rank == 0 else None
        address = ranks.store(f"port {mode} {ranks.boxes}")
        if server is not None:
            address.set("port", str(server.port))
        store = server or TCPStore("127.0.0.1", int(address.get("port")), is_master=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        groups = [dist.new_group([0, 1]) for _ in range(10)]
        for group in groups:
            dist.all_reduce(torch.ones(2), group=group)
            send_or_receive(rank, group)
        dist.barrier()
        count = connections(store.port)
        dist.barrier()
        return count

    # That of the program itself, and one more.
    assert ranks(program, mode=mode, backend=None) == [4, 4]


def send_or_receive(rank: int, group: Any) -> None:
    if rank == 0:
        dist.send(torch.ones(2), 1, group=group)
    else:
        dist.recv(torch.ones(2), 0, group=group)


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.parametrize("mode", ["check", "detail"])
def test_groups_are_made_while_others_make_their_first_call(ranks: Any, mode: str) -> None:
    """Two threads of a rank share the connection; neither waits in it."""

    def program(rank: int) -> object:
        first = dist.new_group([0, 1])
        total = torch.ones(1)
        calling = threading.Thread(target=dist.all_reduce, args=(total,), kwargs={"group": first})
        if rank == 0:
            calling.start()
        groups = [dist.new_group([0, 1]) for _ in range(5)]
        if rank == 1:
            calling.start()
        for group in groups:
            dist.all_reduce(torch.ones(1), group=group)
        calling.join()
        return total.item()

    assert ranks(program, mode=mode) == [2.0, 2.0]


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.parametrize("mode", ["check", "detail"])
def test_a_process_joins_one_job_after_another_on_one_port(ranks: Any, mode: str) -> None:
    def program(rank: int) -> list[float]:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        turns = ranks.store(f"turns {mode} {ranks.boxes}")
        sums, kept = [], []
        for turn in range(3):
            dist.init_process_group("gloo", rank=rank, world_size=2)
            dist.all_reduce(total := torch.ones(1))
            sums.append(total.item())
            if rank == 1:
                # With it the connection to a server that ends.
                kept.append(dist.group.WORLD)
            dist.destroy_process_group()
            turns.set(f"{turn}/{rank}", "")
            turns.wait([f"{turn}/0", f"{turn}/1"])
        return sums

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    assert ranks(program, mode=mode, backend=None) == [[2.0] * 3] * 2


def test_a_process_that_stays_meets_new_ones() -> None:
    """Its own groups do not count: those of the new job's store do."""
    servers = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(2)]
    stayed = [_incarnation(meeting_place(store, free=True), 0) for store in (servers[0], servers[0], servers[1])]
    assert stayed == ["1", "2", "1"]
    assert _incarnation(meeting_place(servers[1], free=True), 1) == stayed[-1]
