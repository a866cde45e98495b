"""Another world size: replicas of what was recorded, where the groups allow it."""

from __future__ import annotations

import pytest

import simcoll
from simcoll.core.record import Group
from simcoll.pricing.collective_prices import PricingError
from simcoll.pricing.price import PricingScenario, price
from simcoll.pricing.views.summary import groups_of
from tests.support.timed import Made, call, timed, world

TOPOLOGY = simcoll.cluster(gpu="h100", nodes=4)


def data_parallel(size):
    """Tensor parallel over neighbours, data parallel over every other rank, a message from the even to the odd one."""
    tensor = [Group(f"t{first}", "tp", (first, first + 1)) for first in range(0, size, 2)]
    data = [Group(f"d{place}", "dp", tuple(range(place, size, 2))) for place in range(2)]
    calls = {
        rank: [
            Made(f"t{rank // 2 * 2}", call(size=1 << 20), 0.001),
            Made(f"d{rank % 2}", call("all_gather", 1 << 22), 0.001),
            Made("0", call("recv" if rank % 2 else "send", 1 << 16, peer=rank ^ 1)),
            Made("0", call("barrier")),
        ]
        * 3
        for rank in range(size)
    }
    return timed([world(size), *tensor, *data], calls)


@pytest.mark.parametrize("size", [2, 4, 6, 16, 32])
def test_the_job_at_another_size_is_the_job_recorded_at_that_size(size):
    scaled = price(data_parallel(8), TOPOLOGY, PricingScenario(world_size=size))
    there = price(data_parallel(size), TOPOLOGY)
    assert scaled.seconds == pytest.approx(there.seconds)
    assert scaled.job.calls == there.job.calls
    assert sorted(group.ranks for group in groups_of(scaled)) == sorted(group.ranks for group in groups_of(there))


def test_a_size_that_does_not_fit_is_refused():
    with pytest.raises(PricingError, match="every 2 ranks; expected a multiple of 2"):
        price(data_parallel(8), TOPOLOGY, PricingScenario(world_size=7))


@pytest.mark.parametrize(
    "groups",
    [[Group("a", "", (0, 1, 2))], [Group("a", "", (0, 3))], [Group("a", "", (0, 1)), Group("b", "", (1, 2))]],
)
def test_groups_that_repeat_nowhere_are_refused(groups):
    calls = {rank: [Made(group.name, call()) for group in groups if rank in group.ranks] for rank in range(4)}
    with pytest.raises(PricingError, match="cannot be scaled"):
        price(timed(groups, calls, 4), TOPOLOGY, PricingScenario(world_size=8))


def test_missing_ranks_and_sizes_beyond_the_topology_are_refused():
    with pytest.raises(PricingError, match="1 of 8 ranks left no records"):
        price(data_parallel(8)[:7], TOPOLOGY, PricingScenario(world_size=16))
    with pytest.raises(PricingError, match="the job has 64 ranks"):
        price(data_parallel(8), TOPOLOGY, PricingScenario(world_size=64))
    with pytest.raises(PricingError, match="expected 1 to"):
        price(data_parallel(8), TOPOLOGY, PricingScenario(world_size=0))
