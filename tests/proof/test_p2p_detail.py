"""Sends and receives proved in ``detail`` mode: both ends are told, nothing aborts, and the group goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from simcoll.core.record import State
from simcoll.errors import CollectiveMismatchError

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.gloo]


def told(call: Callable[[], Any]) -> list[str]:
    """The codes of the findings that a call raises."""
    try:
        call()
    except CollectiveMismatchError as error:
        return [finding.code for finding in error.findings]
    return []


def after(first: bool, act: Callable[[], Any]) -> Any:
    """Act before the other rank does, or when it has."""
    store = dist.distributed_c10d._get_default_store()
    if not first:
        store.wait(["acted"])
        return act()
    work = act()
    store.set("acted", "")
    return work


def still_works(rank: int) -> bool:
    """Whether messages and collectives of the group go on as before."""
    tensor = torch.full((3,), float(rank))
    if rank == 0:
        dist.send(tensor, 1)
        dist.recv(tensor, 1)
    else:
        got = torch.empty(3)
        dist.recv(got, 0)
        dist.send(got + 1, 0)
    dist.barrier()
    return rank == 1 or tensor.tolist() == [1.0] * 3


MISMATCHES = {
    "too small": (torch.ones(10), torch.zeros(8), "SC301"),
    "too large": (torch.ones(8), torch.zeros(10), "SC301"),
    "nothing to send": (torch.ones(0), torch.zeros(4), "SC301"),
    "no room": (torch.ones(4), torch.zeros(0), "SC301"),
    "another dtype": (torch.ones(8), torch.zeros(8, dtype=torch.int32), "SC302"),
    "wider": (torch.ones(8, dtype=torch.float64), torch.zeros(8), "SC302"),
    "megabytes": (torch.ones(1 << 20), torch.zeros(8), "SC301"),
}


@pytest.mark.parametrize("sender_first", [True, False])
@pytest.mark.parametrize("name", MISMATCHES)
def test_both_ends_are_told_and_the_group_goes_on(ranks: Any, name: str, sender_first: bool) -> None:
    sent, received, code = MISMATCHES[name]

    def program(rank: int) -> object:
        def act() -> Any:
            return dist.isend(sent, 1, tag=4) if rank == 0 else dist.irecv(received.clone(), 0, tag=4)

        codes = told(lambda: after(sender_first == (rank == 0), act).wait())
        return codes, still_works(rank)

    assert ranks(program) == [([code], True)] * 2
    assert [ranks.records(rank)[0].state for rank in (0, 1)] == [State.FAILED] * 2


def test_the_exception_names_both_lines(ranks: Any) -> None:
    def program(rank: int) -> object:
        call = (lambda: dist.send(torch.ones(2), 1)) if rank == 0 else (lambda: dist.recv(torch.ones(3), 0))
        return str(ranks.error_of(call))

    for text in ranks(program):
        assert text.startswith("Detected mismatch between collectives on ranks: rank 0 sends 2 elements to rank 1")
        assert "simcoll: SC301 p2p-size-mismatch in group 0" in text
        assert text.count("test_p2p_detail.py") == 2


def test_messages_out_of_order_and_any_source_are_let_be(ranks: Any) -> None:
    def program(rank: int) -> object:
        if rank == 0:
            works = [dist.isend(torch.full((size,), 1.0), 1, tag=size) for size in (1, 2, 3)]
            works += [dist.isend(torch.ones(4), 1, tag=9), dist.isend(torch.ones(5), 1, tag=9)]
            for work in works:
                work.wait()
            return None
        buffers = {size: torch.zeros(size) for size in (3, 1, 2)}
        works = [dist.irecv(buffer, 0, tag=size) for size, buffer in buffers.items()]
        taken = torch.zeros(4)
        assert dist.recv(taken, tag=9) == 0
        # After one from any source, the order of a tag's messages is not known.
        dist.recv(torch.zeros(5), 0, tag=9)
        for work in works:
            work.wait()
        record = [record for record in ranks.records(1) if record.call.spelling == "recv_anysource"]
        return [float(buffer.sum()) for buffer in buffers.values()], record[0].call.peer

    assert ranks(program)[1] == ([3.0, 1.0, 2.0], 0)


def test_no_call_waits_for_its_peer(ranks: Any) -> None:
    """Receives stay open while both ranks send, in several threads and over two groups."""

    def program(rank: int) -> object:
        groups = [dist.group.WORLD, dist.new_group([0, 1])]
        sums = []

        def exchange(tag: int) -> None:
            for step in range(20):
                incoming = torch.zeros(tag + 1)
                work = dist.irecv(incoming, 1 - rank, group=groups[tag % 2], tag=tag)
                dist.send(torch.full((tag + 1,), float(step)), 1 - rank, group=groups[tag % 2], tag=tag)
                work.wait()
                sums.append(float(incoming.sum()) == step * (tag + 1.0))

        threads = [threading.Thread(target=exchange, args=(tag,)) for tag in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(sums), all(sums)

    assert ranks(program) == [(80, True)] * 2


def test_a_call_that_is_refused_leaves_no_trace(ranks: Any) -> None:
    def program(rank: int) -> object:
        refused = None
        if rank == 0:
            refused = ranks.error_of(lambda: dist.send(torch.ones(4, 4).t()[1:3], 1))
            dist.send(torch.ones(3), 1)
        else:
            dist.recv(torch.zeros(3), 0)
        return refused is not None, still_works(rank)

    assert ranks(program) == [(True, True), (False, True)]


def test_what_was_proved_leaves_nothing_in_the_store(ranks: Any) -> None:
    def program(rank: int) -> object:
        store = dist.distributed_c10d._get_default_store()
        still_works(rank)
        before = store.num_keys()
        dist.barrier()
        for _ in range(10):
            still_works(rank)
        dist.barrier()
        return store.num_keys() - before

    assert ranks(program) == [0, 0]
