"""Whatever a damaged record says, a job is priced and drawn, or refused in words."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.core.record import Group
from simcoll.pricing.price import price
from simcoll.pricing.views.document import pricing_document
from simcoll.pricing.views.predicted_trace import predicted
from simcoll.pricing.views.recorded_trace import recorded
from simcoll.reports.trace_event import write_trace_events
from tests.support.timed import Made, call, timed, world

TOPOLOGY = simcoll.flat(4, 50e9, 1e-6)
FIELDS = {
    "group": 32,
    "sequence": 32,
    "p2p_sequence": 32,
    "signature": 32,
    "source": 32,
    "state": 8,
    "flags": 8,
    "scheduled_ns": 64,
    "started_ns": 64,
    "finished_ns": 64,
}


@st.composite
def damage(draw):
    field = draw(st.sampled_from(sorted(FIELDS)))
    value = draw(st.integers(0, 3) | st.integers(0, (1 << FIELDS[field]) - 1))
    return draw(st.integers(0, 2)), draw(st.integers(0, 11)), field, value


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(st.lists(damage(), max_size=12))
def test_any_slot_may_say_anything(tmp_path_factory, damages):
    groups = [world(3), Group("1", "pair", (0, 1))]
    calls = {
        rank: [
            Made("0", call(size=100)),
            Made("0", call("broadcast"), asynchronous=True, waits=0.01),
            *([Made("1", call("recv" if rank else "send", peer=1 - rank))] * (rank < 2)),
        ]
        * 4
        for rank in range(3)
    }
    traces = timed(groups, calls)
    for rank, row, field, value in damages:
        traces[rank].slots[field][row % len(traces[rank].slots)] = value
    path = tmp_path_factory.mktemp("damaged") / "t.json"
    write_trace_events(path, recorded(traces))
    json.loads(path.read_text())
    priced = price(traces, TOPOLOGY)
    assert np.isfinite(priced.seconds)
    write_trace_events(path, predicted(priced))
    json.loads(path.read_text())
    json.dumps(pricing_document([priced], [], []), allow_nan=False)


def test_no_rank_recorded_anything():
    traces = [replace(trace, slots=trace.slots[:0]) for trace in timed([world(2)], {0: [], 1: []})]
    assert price(traces, TOPOLOGY).seconds == 0.0
