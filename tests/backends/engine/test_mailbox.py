"""Messages meet by sender, tag and order; who receives from anybody takes whose the schedule says."""

from __future__ import annotations

import numpy as np
import pytest

from simcoll.backends.engine.mailbox import Mailbox
from simcoll.backends.engine.schedules import InOrder, ReplayedSchedule
from simcoll.backends.engine.tickets import Ticket
from simcoll.core.record import Group
from simcoll.errors import ConfigurationError
from simcoll.spec.call import ANY_SOURCE, Buffer, Call
from simcoll.spec.semantics import Array, Outputs

WORLD = Group("0", "default_pg", (0, 1, 2, 3))


class Held:
    """The buffer of a message."""

    def __init__(self, value: float = 0.0) -> None:
        self.value = np.array([value])

    def read(self) -> list[Array]:
        return [self.value]

    def write(self, results: Outputs) -> None:
        raise AssertionError("nothing is delivered here")


def end(op: str, rank: int, peer: int, tag: int = 0, group: Group = WORLD) -> Ticket:
    buffers = (Buffer((1,), "float64"),)
    ends = {"inputs": buffers} if op == "send" else {"outputs": buffers}
    return Ticket(group, rank, Call(op, op, peer=peer, tag=tag, **ends), Held(rank))


def box(sends: str = "synchronous", schedule: dict[int, int] | None = None) -> Mailbox:
    return Mailbox(sends, InOrder() if schedule is None else ReplayedSchedule(schedule))


@pytest.mark.parametrize("send_first", [True, False])
def test_the_second_end_meets_the_first(send_first: bool) -> None:
    mail, send, receive = box(), end("send", 1, 2), end("recv", 2, 1)
    first, second = (send, receive) if send_first else (receive, send)
    assert mail.post(first, 0) is None
    assert mail.post(second, 0) == (send, receive)


def test_messages_of_one_lane_do_not_overtake_each_other() -> None:
    mail = box()
    first, other, second = end("send", 0, 1), end("send", 0, 1, tag=1), end("send", 0, 1)
    for send in (first, other, second):
        mail.post(send, 0)
    wanted = [end("recv", 1, 0), end("recv", 1, 0), end("recv", 1, 0, tag=1)]
    assert [mail.post(receive, 0) for receive in wanted] == [
        (first, wanted[0]),
        (second, wanted[1]),
        (other, wanted[2]),
    ]


@pytest.mark.parametrize(
    "other",
    [
        end("send", 0, 1, tag=1),
        end("send", 0, 2),
        end("send", 2, 1),
        end("send", 0, 1, group=Group("1", "", (0, 1, 2, 3))),
        end("send", 0, 1, group=Group("0", "", (0, 1))),
    ],
    ids=["tag", "receiver", "sender", "group", "members"],
)
def test_what_is_for_somebody_else_is_left_alone(other: Ticket) -> None:
    mail = box()
    mail.post(other, 0)
    assert mail.post(end("recv", 1, 0), 0) is None


def test_another_life_of_the_group_is_another_group() -> None:
    mail = box()
    mail.post(end("send", 0, 1), 0)
    assert mail.post(end("recv", 1, 0), 1) is None


def test_the_schedule_decides_whose_message_anybody_takes() -> None:
    for option in range(3):
        mail = box(schedule={0: option})
        sends = [end("send", rank, 1) for rank in (0, 3, 2)]
        later = end("send", 3, 1)
        for send in (*sends, later):
            mail.post(send, 0)
        receive = end("recv", 1, ANY_SOURCE)
        assert mail.post(receive, 0) == (sends[option], receive)


def test_a_receive_from_anybody_stands_in_line() -> None:
    mail = box()
    from_anybody, named, send = end("recv", 1, ANY_SOURCE), end("recv", 1, 0), end("send", 0, 1)
    mail.post(from_anybody, 0)
    mail.post(named, 0)
    assert mail.post(send, 0) == (send, from_anybody)
    again = end("send", 0, 1)
    assert mail.post(again, 0) == (again, named)


def test_what_is_withdrawn_is_gone() -> None:
    mail, send = box(), end("send", 0, 1)
    mail.post(send, 0)
    mail.withdraw(send)
    assert mail.post(end("recv", 1, 0), 0) is None


def test_who_buffers_keeps_what_was_sent() -> None:
    mail, send = box("buffered"), end("send", 0, 1)
    held = send.data.read()[0]
    assert mail.buffers(send)
    held[0] = 9.0
    assert send.data.read()[0].tolist() == [0.0]
    assert not box().buffers(end("send", 0, 1))
    assert [box("either", {0: option}).buffers(end("send", 0, 1)) for option in (0, 1)] == [False, True]


def test_a_kind_of_sends_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="sends is 'eager', expected one of synchronous, buffered, either"):
        box("eager")
