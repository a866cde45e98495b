"""Where collectives meet: by number and by life of the group, and who is missing."""

from __future__ import annotations

from simcoll.backends.engine.mailbox import Meetings
from simcoll.backends.engine.tickets import Ticket
from simcoll.backends.simulated.async_checks import ArrayData
from simcoll.core.record import Group
from simcoll.spec.call import Call

GROUP = Group("7", "", (4, 2, 9))


def call(rank: int, group: Group = GROUP) -> Ticket:
    return Ticket(group, rank, Call("barrier", "barrier"), ArrayData((), ()))


def test_the_nth_calls_meet_in_group_rank_order_whoever_comes_first() -> None:
    meetings = Meetings()
    first, second = [call(rank) for rank in range(3)], [call(rank) for rank in range(3)]
    assert meetings.join(first[2]) is None
    assert meetings.join(second[2]) is None
    assert meetings.join(first[0]) is None
    assert meetings.join(first[1]) == first
    assert meetings.join(second[1]) is None
    assert meetings.join(second[0]) == second
    assert [[one.sequence for one in met] for met in (first, second)] == [[1, 1, 1], [2, 2, 2]]
    assert meetings.incomplete() == []


def test_who_has_not_come_is_known_by_global_rank() -> None:
    meetings = Meetings()
    here = call(1)
    meetings.join(here)
    assert meetings.absent(here) == [4, 9]
    assert meetings.incomplete() == [{1: here}]


def test_who_has_given_up_does_not_count_as_there() -> None:
    meetings = Meetings()
    gone, here = call(0), call(1)
    meetings.join(gone)
    meetings.join(here)
    meetings.withdraw(gone)
    meetings.withdraw(gone)
    assert meetings.absent(here) == [4, 9]
    meetings.withdraw(here)
    assert meetings.incomplete() == []


def test_a_group_that_is_made_anew_counts_anew() -> None:
    meetings = Meetings()
    for rank in range(3):
        meetings.join(call(rank))
    for rank in range(3):
        meetings.close(GROUP, rank)
    again = [call(rank) for rank in range(3)]
    assert [meetings.join(one) for one in again] == [None, None, again]
    assert [one.sequence for one in again] == [1, 1, 1]


def test_who_destroys_its_group_is_waited_for_in_vain() -> None:
    meetings = Meetings()
    here = call(0)
    meetings.join(here)
    assert meetings.destroyed(here) == []
    meetings.close(GROUP, 2)
    assert meetings.destroyed(here) == [9]
    assert meetings.life(GROUP, 2) == 1


def test_groups_of_the_same_name_and_other_members_do_not_meet() -> None:
    meetings, other = Meetings(), Group("7", "", (4, 2))
    meetings.join(call(0))
    assert meetings.join(call(1, other)) is None
    assert meetings.join(call(0, other)) is not None
