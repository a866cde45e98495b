"""A recorded job's price: laws that hold for every job, and jobs whose price is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.core.record import Group, State
from simcoll.pricing.collective_prices import EstimateOptions, PricingError
from simcoll.pricing.compute import Straggler, none, per_step
from simcoll.pricing.price import PricingScenario, price
from simcoll.pricing.views.summary import groups_of, kinds_of, links_of, steps_of_rank, totals_of
from simcoll.pricing.what_if import SlowLink
from tests.support.timed import Made, call, timed, world

FLAT = simcoll.flat(8, 50e9, 1e-6)
H100 = simcoll.cluster(gpu="h100", nodes=2)
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier")
sizes = st.integers(0, 1 << 28)


def law(test):
    return pytest.mark.slow(settings(max_examples=30, deadline=None)(test))


def alone(op: str, size: int, topology, ranks) -> float:
    return simcoll.estimate(op, size, topology, ranks=ranks).seconds


@law
@given(st.lists(st.tuples(st.sampled_from(OPS), sizes, st.floats(0, 0.1)), min_size=1, max_size=20))
def test_a_serial_program_costs_the_sum_of_its_estimates_and_its_compute(calls):
    made = [Made("0", call(op, size), gap) for op, size, gap in calls]
    priced = price(timed([world(4)], dict.fromkeys(range(4), made)), H100)
    costs = sum(alone(op, size, H100, range(4)) for op, size, _ in calls)
    computed = sum(round(gap * 1e9) / 1e9 for _, _, gap in calls[1:])
    assert priced.seconds == pytest.approx(costs + computed, rel=1e-6, abs=1e-9)
    silent = price(timed([world(4)], dict.fromkeys(range(4), made)), H100, PricingScenario(compute=none))
    assert silent.seconds == pytest.approx(costs, rel=1e-9)


@law
@given(st.lists(st.tuples(st.integers(0, 2), sizes), min_size=1, max_size=12), st.sampled_from([FLAT, H100]))
def test_overlap_is_never_longer_than_the_sum_nor_shorter_than_the_longest(calls, topology):
    groups = [Group(str(number), "", (0, 1, 2, 3)) for number in range(3)]
    made = [Made(str(group), call(size=size), 0.0, asynchronous=True) for group, size in calls]
    priced = price(timed(groups, dict.fromkeys(range(4), made)), topology, PricingScenario(compute=none))
    costs = [alone("all_reduce", size, topology, range(4)) for _, size in calls]
    assert max(costs) * (1 - 1e-9) <= priced.seconds <= sum(costs) * (1 + 1e-9)
    # Calls of one group run in order.
    for number in range(3):
        assert priced.seconds >= sum(cost for (group, _), cost in zip(calls, costs, strict=True) if group == number) * (
            1 - 1e-9
        )


@law
@given(st.integers(0, 3), st.floats(0.001, 1.0))
def test_what_a_straggler_takes_longer_the_others_wait(rank, delay):
    made = [Made("0", call(), 0.001) for _ in range(10)]
    traces = timed([world(4)], dict.fromkeys(range(4), made))
    before = price(traces, FLAT)
    after = price(traces, FLAT, PricingScenario(stragglers=(Straggler(rank, seconds=delay),)))
    waited = after.replayed.rank_waited
    assert after.seconds - before.seconds == pytest.approx(10 * delay)
    assert waited[rank] == pytest.approx(0.0, abs=1e-9)
    assert np.delete(waited, rank) == pytest.approx(10 * delay)
    assert set(after.replayed.latecomer.tolist()) == {rank}


@pytest.mark.parametrize(("compute", "exposed"), [(0.5, 0.0), (0.0, 1.0)])
def test_what_runs_behind_compute_is_not_exposed(compute, exposed):
    big = call(size=1 << 30)
    made = [Made("0", big, asynchronous=True, waits=compute), Made("0", call("barrier"), compute)]
    priced = price(timed([world(4)], dict.fromkeys(range(4), made)), FLAT)
    cost = alone("all_reduce", 1 << 30, FLAT, range(4))
    totals = totals_of(priced)
    barrier = alone("barrier", 0, FLAT, range(4))
    assert totals.exposed.mean == pytest.approx(exposed * cost + barrier)
    assert totals.overlapped.mean == pytest.approx((1 - exposed) * cost)


def test_groups_that_do_not_share_ranks_run_side_by_side():
    groups = [Group("a", "tp", (0, 1)), Group("b", "tp", (2, 3))]
    calls = {rank: [Made("ab"[rank // 2], call(size=1 << (20 + rank // 2)))] for rank in range(4)}
    priced = price(timed(groups, calls), FLAT)
    assert priced.seconds == pytest.approx(alone("all_reduce", 1 << 21, FLAT, (2, 3)))
    assert [(group.name, group.collectives) for group in groups_of(priced)] == [("b", 1), ("a", 1)]


def test_a_pipeline_of_messages_fills_up():
    stages = [Made("0", call("recv", 1 << 20, peer=rank - 1)) for rank in range(4)]
    calls = {
        rank: [*([stages[rank]] if rank else []), *([Made("0", call("send", 1 << 20, peer=rank + 1))] * (rank < 3))]
        for rank in range(4)
    }
    priced = price(timed([world(4)], calls), FLAT)
    hop = alone("send", 1 << 20, FLAT, (0, 1))
    assert priced.seconds == pytest.approx(3 * hop)
    assert sum(map(len, priced.replayed.let_go)) == 0
    assert totals_of(priced).waiting.most == pytest.approx(2 * hop)


def test_an_exchange_by_blocking_sends_goes_on_as_it_did():
    calls = {
        rank: [Made("0", call("send", 1 << 20, peer=1 - rank)), Made("0", call("recv", 1 << 20, peer=1 - rank))]
        for rank in range(2)
    }
    priced = price(timed([world(2)], calls), FLAT)
    assert sum(map(len, priced.replayed.let_go)) == 2
    assert priced.seconds == pytest.approx(alone("send", 1 << 20, FLAT, (0, 1)))


def test_orders_that_contradict_each_other_come_to_an_end():
    groups = [Group("a", "", (0, 1)), Group("b", "", (0, 1))]
    calls = {rank: [Made(name, call()) for name in ("ab" if rank else "ba")] for rank in range(2)}
    priced = price(timed(groups, calls), FLAT)
    assert priced.replayed.cut_short > 0
    assert np.isfinite(priced.seconds)


def test_a_rank_without_records_is_in_the_price_and_waited_for_by_nobody():
    made = [Made("0", call(size=1 << 20))]
    priced = price(timed([world(4)], {0: made, 1: made, 3: made}), FLAT)
    assert priced.seconds == pytest.approx(alone("all_reduce", 1 << 20, FLAT, range(4)))


def test_refused_calls_cost_nothing():
    made = [Made("0", call(size=1 << 20), state=State.REJECTED), Made("0", call(size=1 << 10))]
    priced = price(timed([world(2)], dict.fromkeys(range(2), made)), FLAT, PricingScenario(compute=none))
    assert priced.seconds == pytest.approx(alone("all_reduce", 1 << 10, FLAT, range(2)))


def test_steps_are_found_and_have_their_volumes():
    step = [Made("0", call(size=1 << 20, op="all_gather"), 0.01), Made("0", call(size=100), 0.005, line=2)]
    made = [Made("0", call("barrier"), line=9), *step * 5, Made("0", call("broadcast"), line=10)]
    priced = price(timed([world(4)], dict.fromkeys(range(4), made)), FLAT)
    found = steps_of_rank(priced)
    assert (found.rank, found.period, len(found.steps)) == (0, 2, 5)
    volumes = {(one.op, one.group, one.size, one.calls, one.bytes) for one in found.volumes}
    assert volumes == {("all_gather", "0", 4, 1, 1 << 20), ("all_reduce", "0", 4, 1, 100)}
    cost = alone("all_gather", 1 << 20, FLAT, range(4)) + alone("all_reduce", 100, FLAT, range(4))
    for one in found.steps:
        assert one.compute == pytest.approx(0.015)
        assert one.seconds == pytest.approx(0.015 + cost)
        assert one.exposed == pytest.approx(cost)


def test_so_many_seconds_a_step_are_spread_as_was_measured():
    step = [Made("0", call(size=1000), 0.03), Made("0", call(size=2000), 0.01, line=2)]
    traces = timed([world(2)], dict.fromkeys(range(2), step * 4))
    priced = price(traces, FLAT, PricingScenario(compute=per_step(1.0)))
    # Nothing is known of what comes before the first call, so that all of the first step's is before its second.
    assert priced.replayed.rank_compute == pytest.approx([4.0, 4.0])
    assert [one.compute for one in steps_of_rank(priced).steps] == pytest.approx([1.0] * 4)
    assert priced.job.programs[0].gap[2:4] == pytest.approx([0.75, 0.25])


def test_slow_links_and_algorithms_change_the_price():
    made = [Made("0", call(size=1 << 28))]
    traces = timed([world(16)], dict.fromkeys(range(16), made))
    plain = price(traces, H100).seconds
    assert price(traces, H100, PricingScenario(slow_links=(SlowLink(("host1",), 10.0),))).seconds > 2 * plain
    ring = price(traces, H100, PricingScenario(choice=EstimateOptions(algorithm="ring")))
    assert ring.seconds == pytest.approx(simcoll.estimate("all_reduce", 1 << 28, H100, algorithm="ring").seconds)
    # An all_reduce is no exchange of all with all: it runs as NCCL would choose.
    assert price(traces, H100, PricingScenario(choice=EstimateOptions(algorithm="pairwise"))).prices.substituted == 1


def test_too_small_a_topology_is_refused():
    traces = timed([world(9)], {rank: [Made("0", call())] for rank in range(9)})
    with pytest.raises(PricingError, match=r"the job has 9 ranks.*8 GPUs"):
        price(traces, FLAT)


def test_rows_add_up_to_the_whole():
    groups = [world(4), Group("a", "tp", (0, 1)), Group("b", "tp", (2, 3))]
    calls = {
        rank: [Made("0", call(size=1 << 24)), *[Made("ab"[rank // 2], call(size=1 << 22), 0.001)] * 6]
        for rank in range(4)
    }
    priced = price(timed(groups, calls), H100)
    kinds, took = kinds_of(priced), priced.replayed.end - priced.replayed.begin
    assert sum(kind.calls for kind in kinds) == len(priced.job.collectives) == 13
    assert sum(kind.seconds for kind in kinds) == pytest.approx(took.sum())
    assert sum(group.seconds for group in groups_of(priced)) == pytest.approx(took.sum())
    assert [(kind.groups, kind.size, kind.calls) for kind in kinds] == [(2, 2, 12), (1, 4, 1)]
    assert sum(link.calls for link in links_of(priced)) == 13


@law
@given(st.integers(2, 6), st.lists(st.tuples(st.integers(0, 3), sizes, st.floats(0, 0.01)), min_size=1, max_size=8))
def test_a_simulated_jobs_price_is_its_virtual_time(size, steps):
    def program(comm):
        for kind, _, compute in steps:
            comm.compute(compute * (1 + comm.rank))
            buffer = np.ones(64 << kind, np.float32)
            comm.all_reduce(buffer)

    outcome = simcoll.simulate(program, size, FLAT)
    priced = price(outcome.traces, FLAT)
    # What a rank did before its first call is not in its record; a call's making takes a microsecond there.
    before = steps[0][2] * size
    assert priced.seconds == pytest.approx(outcome.seconds - before, abs=3e-6 * (len(steps) + 2))
