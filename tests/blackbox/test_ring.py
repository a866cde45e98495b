"""The compiled ring and the one in Python leave the same bytes, whatever is done to them."""

from __future__ import annotations

import mmap
import random
import threading
import time

import numpy as np
import pytest

from simcoll.blackbox import format as layout
from simcoll.blackbox.reader import SLOT_DTYPE
from simcoll.blackbox.ring import PlainRing, Ring, ring_in
from simcoll.core.clock import now_ns
from simcoll.core.record import State
from tests.support.native import KINDS, parts
from tests.support.seeds import drawn

SLOTS, ROWS = 16, 3
START = layout.ring_offset(layout.GROUP_ROWS)
TIMES = ("scheduled_ns", "started_ns", "finished_ns")
LATER = 1 << 62


def new(kind: str) -> tuple[Ring, mmap.mmap]:
    memory = mmap.mmap(-1, START + SLOTS * layout.SLOT.size)
    with parts(kind):
        return ring_in(memory, SLOTS, ROWS), memory


def act(ring: Ring, draw: random.Random) -> None:
    """One random thing that a rank does."""
    ticket = draw.randrange(-1, max(ring.next, 1))
    action = draw.randrange(9)
    if action < 3:
        group, signature, source = draw.randrange(5), draw.choice([0, 7, layout.ABSENT]), draw.randrange(1 << 20)
        sequence, message = draw.choice([1, 1 << 31, 1 << 32, (1 << 32) + 5]), draw.choice([0, 0, 9, (1 << 33) + 1])
        state = draw.choice([State.SCHEDULED, State.STARTED])
        assert ring.write(group, sequence, signature, source, message, state, draw.randrange(256)) == ring.next - 1
    elif action == 3:
        ring.advance(ticket, *draw.choice([(), *((state,) for state in State)]))
    elif action == 4:
        ring.mark(ticket, 1 << draw.randrange(8))
    elif action == 5:
        began = draw.choice([1, LATER])
        ring.ran_on_device(ticket, began, *draw.choice([(), (0,), (began + 5,)]))
    elif action == 6:
        ring.ended_on_device(ticket)
    elif action == 7:
        ring.waits(ticket, draw.choice([0, layout.AWAITED]))
    else:
        ring.resign(ticket, draw.randrange(1 << 32))


def told(memory: mmap.mmap) -> tuple[bytes, bytes]:
    """The table of groups, and the slots; of the times that the ring itself takes, only which are there."""
    rows = memory[layout.PAGE : layout.PAGE + ROWS * layout.GROUP.size]
    slots = np.frombuffer(memory[START:], SLOT_DTYPE).copy()
    for name in TIMES:
        slots[name][(slots[name] > 0) & (slots[name] < LATER)] = 1
    slots["wait_us"] = slots["wait_us"] > 0
    return rows, slots.tobytes()


@pytest.mark.parametrize("seed", range(drawn(40)))
def test_what_is_done_at_random_leaves_the_same_bytes(seed: int) -> None:
    made = [new(kind) for kind in KINDS]
    assert [type(ring) is PlainRing for ring, _ in made] == [False, True]
    for number in range(3):
        left = []
        for ring, memory in made:
            draw = random.Random(f"{seed} {number}")
            for _ in range(40):
                act(ring, draw)
            left.append((ring.next, told(memory)))
        assert left[0] == left[1]
    for ring, memory in made:
        before = memory[:]
        ring.close()
        assert ring.write(0, 1, 0, 0, 0, State.STARTED, 0) == -1
        ring.advance(ring.next - 1, State.FAILED)
        ring.mark(ring.next - 1, 255)
        ring.waits(ring.next - 1, 255)
        ring.resign(ring.next - 1, 1)
        ring.ran_on_device(ring.next - 1, 1)
        ring.ended_on_device(ring.next - 1)
        assert memory[:] == before


@pytest.mark.parametrize("kind", KINDS)
def test_times_are_those_of_the_clock_of_records(kind: str) -> None:
    ring, memory = new(kind)
    before = now_ns()
    ring.advance(ring.write(0, 1, 0, 0, 0, State.STARTED, 0))
    slot = np.frombuffer(memory[START:], SLOT_DTYPE)[0]
    assert before <= slot["scheduled_ns"] == slot["started_ns"] <= slot["finished_ns"] <= now_ns()


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_wait_for_an_asynchronous_call_is_timed(kind: str) -> None:
    ring, memory = new(kind)
    synchronous = ring.write(0, 1, 0, 0, 0, State.STARTED, 0)
    ticket = ring.write(0, 2, 0, 0, 0, State.STARTED, layout.ASYNCHRONOUS)
    for one in (synchronous, ticket):
        ring.waits(one, layout.AWAITED)
    slots = np.frombuffer(memory[START:], SLOT_DTYPE)
    first = int(slots[1]["wait_us"])
    assert slots["flags"][:2].tolist() == [layout.AWAITED, layout.AWAITED | layout.ASYNCHRONOUS]
    while time.time_ns() < int(slots[1]["scheduled_ns"]) + (first + 2) * 1000:
        pass
    ring.waits(ticket, 0)
    assert (int(slots[0]["wait_us"]), int(slots[1]["wait_us"])) == (0, first)
    assert first >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_no_clock_of_a_device_makes_a_call_begin_before_it_was_made(kind: str) -> None:
    ring, memory = new(kind)
    ring.ran_on_device(ring.write(0, 1, 0, 0, 0, State.STARTED, 0), 1, 6)
    slot = np.frombuffer(memory[START:], SLOT_DTYPE)[0]
    assert [int(slot[name]) - int(slot["scheduled_ns"]) for name in TIMES] == [0, 0, 5]


@pytest.mark.parametrize("kind", KINDS)
def test_threads_get_tickets_of_their_own(kind: str) -> None:
    ring, memory = new(kind)
    tickets: list[int] = []

    def work() -> None:
        tickets.extend(ring.write(0, 1, 0, 0, 0, State.STARTED, 0) for _ in range(500))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(tickets) == list(range(2000))
    slots = np.frombuffer(memory[START:], SLOT_DTYPE)
    assert sorted(slots["index"]) == list(range(2000 - SLOTS + 1, 2001))
    assert (slots["index"] == slots["check"]).all()


@pytest.mark.parametrize("arguments", [(), (1, 2), (1, 2, 3, 4, 5, 6, "7")])
def test_wrong_arguments_are_a_type_error(arguments: tuple[object, ...]) -> None:
    ring, _ = new("compiled")
    with pytest.raises(TypeError):
        ring.write(*arguments)
