"""Links that several collectives want: the last of them ends when the link has carried them all, as in a fair share."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from hypothesis import given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.core.record import Group
from simcoll.estimator.time_estimator import LinkTimeline, Transfer
from simcoll.pricing.compute import none
from simcoll.pricing.price import PricingScenario, price
from tests.support.timed import Made, call, timed

TOPOLOGY = simcoll.flat(4, 50e9, 1e-6)
GROUPS = [Group(str(number), "", (0, 1, 2, 3)) for number in range(4)]


def in_fair_shares(calls):
    """When the last of these calls ends that are all begun at once, by the estimator's own timeline."""
    timeline = LinkTimeline()
    for group, size in calls:
        found = simcoll.estimate("all_reduce", size, TOPOLOGY)
        timeline.submit(group, Transfer(found.seconds, (found.bottleneck.link,), found.bottleneck.utilisation))
    timeline.wait_all()
    return timeline.now


@settings(deadline=None)
@given(st.lists(st.integers(1 << 20, 1 << 28), min_size=1, max_size=4))
def test_calls_of_several_groups_end_with_the_last_as_in_fair_shares(sizes):
    calls = list(enumerate(sizes))
    made = [Made(str(group), call(size=size), asynchronous=True) for group, size in calls]
    priced = price(timed(GROUPS, dict.fromkeys(range(4), made)), TOPOLOGY, PricingScenario(compute=none))
    fair = in_fair_shares(calls)
    # In fair shares the link is not full any more when one is left that does not fill it alone.
    used = min(simcoll.estimate("all_reduce", size, TOPOLOGY).bottleneck.utilisation for size in sizes)
    assert used * fair <= priced.seconds * (1 + 1e-9)
    assert priced.seconds <= fair * (1 + 1e-9)


def test_a_link_that_is_half_used_carries_two_at_once():
    small = call(size=8)
    made = [Made(str(group), small, asynchronous=True) for group in range(2)]
    priced = price(timed(GROUPS, dict.fromkeys(range(4), made)), TOPOLOGY, PricingScenario(compute=none))
    assert priced.seconds == pytest.approx(simcoll.estimate("all_reduce", 8, TOPOLOGY).seconds, rel=1e-3)


def test_messages_in_opposite_directions_do_not_meet():
    big = 1 << 28
    made = {
        rank: [
            Made("0", call("send", big, peer=1 - rank), asynchronous=True),
            Made("0", call("recv", big, peer=1 - rank), asynchronous=True),
        ]
        for rank in range(2)
    }
    priced = price(timed([Group("0", "", (0, 1))], made), TOPOLOGY, PricingScenario(compute=none))
    assert priced.seconds == pytest.approx(simcoll.estimate("send", big, TOPOLOGY, ranks=(0, 1)).seconds)


def test_messages_to_one_rank_share_its_link():
    big = 1 << 28
    made = {
        0: [Made("0", call("recv", big, peer=peer), asynchronous=True) for peer in (1, 2)],
        1: [Made("0", call("send", big, peer=0))],
        2: [Made("0", call("send", big, peer=0))],
    }
    priced = price(timed([Group("0", "", (0, 1, 2))], made), TOPOLOGY, PricingScenario(compute=none))
    alone = simcoll.estimate("send", big, TOPOLOGY, ranks=(0, 1))
    assert priced.seconds == pytest.approx(alone.seconds * 2 * alone.bottleneck.utilisation)
