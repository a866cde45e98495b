"""Trace-event files: valid under a schema, properly nested, whatever names are in them, predicted and recorded."""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from dataclasses import replace

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.core.record import Group, Source, State
from simcoll.pricing.compute import Straggler
from simcoll.pricing.price import PricingScenario, price
from simcoll.pricing.views.predicted_trace import predicted
from simcoll.pricing.views.recorded_trace import recorded
from simcoll.reports.trace_event import Slice, TraceEvents, write_trace_events
from simcoll.verifier.postmortem import judge
from tests.support.timed import Made, call, timed, world

TOPOLOGY = simcoll.flat(8, 50e9, 1e-6)
NUMBER = {"type": "integer", "minimum": 0}
TIME = {"type": "number", "minimum": 0}
SCHEMA = {
    "type": "object",
    "required": ["traceEvents", "displayTimeUnit"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    {
                        "properties": {"ph": {"const": "M"}, "name": {"type": "string"}, "pid": NUMBER, "tid": NUMBER},
                        "required": ["ph", "name", "pid", "args"],
                    },
                    {
                        "properties": {
                            "ph": {"const": "X"},
                            "name": {"type": "string"},
                            "ts": TIME,
                            "dur": TIME,
                            "pid": NUMBER,
                            "tid": NUMBER,
                            "args": {"type": "object"},
                        },
                        "required": ["ph", "name", "ts", "dur", "pid", "tid"],
                    },
                    {
                        "properties": {
                            "ph": {"enum": ["s", "t", "f"]},
                            "id": NUMBER,
                            "ts": TIME,
                            "cat": {"type": "string"},
                        },
                        "required": ["ph", "id", "ts", "pid", "tid", "name", "cat"],
                    },
                    {
                        "properties": {
                            "ph": {"const": "i"},
                            "s": {"enum": ["t", "p", "g"]},
                            "ts": TIME,
                            "name": {"type": "string", "minLength": 1},
                            "pid": NUMBER,
                            "tid": NUMBER,
                            "args": {"type": "object"},
                        },
                        "required": ["ph", "s", "ts", "pid", "tid", "name"],
                    },
                ]
            },
        },
    },
}


def written(path, timeline):
    write_trace_events(path, timeline)
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    jsonschema.validate(document, SCHEMA)
    check_nesting(document["traceEvents"])
    check_flows(document["traceEvents"])
    check_threads(document["traceEvents"])
    return document["traceEvents"]


def check_nesting(events):
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            threads[event["pid"], event["tid"]].append((begin, -round(event["dur"] * 1000)))
    for slices in threads.values():
        open_ends: list[int] = []
        for begin, negative in sorted(slices):
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            assert not open_ends or begin - negative <= open_ends[-1]
            open_ends.append(begin - negative)


def check_threads(events):
    """Perfetto names a thread by its number alone, whatever its process."""
    processes = defaultdict(set)
    for event in events:
        processes[event["tid"]].add(event["pid"])
    assert all(len(each) == 1 for each in processes.values())
    named = {event["tid"] for event in events if event["name"] == "thread_name"}
    assert {event["tid"] for event in events if event["ph"] == "X"} <= named


def check_flows(events):
    flows = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            flows[event["id"]].append((event["ts"], "stf".index(event["ph"])))
    for parts in flows.values():
        kinds = [kind for _, kind in sorted(parts, key=lambda part: part[1])]
        assert (kinds.count(0), kinds.count(2)) == (1, 1)
        times = {kind: time for time, kind in parts}
        assert times[0] <= times[2]
    # Each stands at the begin of a slice that takes time: Perfetto drops an arrow elsewhere.
    begins = {(event["tid"], event["ts"]) for event in events if event["ph"] == "X" and event["dur"]}
    assert {(event["tid"], event["ts"]) for event in events if event["ph"] in "stf"} <= begins


def a_job(size=4):
    half = [Group(f"h{first}", "mesh", (first, first + 1)) for first in range(0, size, 2)]
    calls = {
        rank: [
            Made("0", call(size=1 << 20), 0.001 * (rank + 1)),
            Made(f"h{rank // 2 * 2}", call(size=1 << 24), asynchronous=True, waits=0.004),
            Made("0", call(size=1 << 22), 0.002, asynchronous=True, waits=0.003),
            Made("0", call("recv" if rank % 2 else "send", 1 << 16, peer=rank ^ 1)),
            Made("0", call("barrier"), 0.001),
        ]
        * 4
        for rank in range(size)
    }
    return timed([world(size), *half], calls)


def test_a_predicted_job_is_valid_and_joins_the_ranks_parts(tmp_path):
    priced = price(a_job(), TOPOLOGY, PricingScenario(stragglers=(Straggler(2, factor=3.0),)))
    events = written(tmp_path / "t.json", predicted(priced))
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in slices} == {0, 1, 2, 3}
    reduced = [event for event in slices if event["name"] == "all_reduce" and "algorithm" in event["args"]]
    assert all({"group", "sequence", "bytes", "algorithm"} <= event["args"].keys() for event in reduced)
    # Each collective and each message once on each of its ranks.
    assert sum("algorithm" in event["args"] for event in slices) == priced.job.calls
    joined = {event["id"] for event in events if event["ph"] == "s"}
    assert len(joined) == len(priced.job.collectives)
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["rank 0", "rank 1", "rank 2", "rank 3"]
    longest = max(event["ts"] + event["dur"] for event in slices)
    assert longest == pytest.approx(priced.seconds * 1e6, abs=0.01)


def test_a_recorded_job_has_the_times_of_its_records(tmp_path):
    traces = a_job()
    timeline = recorded(traces)
    events = written(tmp_path / "t.json", timeline)
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == sum(len(trace.slots) for trace in traces)
    first = min(int(trace.slots["scheduled_ns"].min()) for trace in traces)
    assert timeline.begin_ns == first
    one = next(event for event in slices if event["pid"] == 3)
    assert one["ts"] == pytest.approx((int(traces[3].slots["started_ns"][0]) - first) / 1000, abs=0.002)
    assert one["args"]["source"] == "train.py:1 in step"


def test_a_job_that_hangs_and_one_that_recorded_nothing(tmp_path):
    hanging = timed([world(2)], {0: [Made("0", call()), Made("0", call(), asynchronous=True)], 1: [Made("0", call())]})
    events = written(tmp_path / "t.json", recorded(hanging))
    assert [event["args"]["state"] for event in events if event["ph"] == "X" and event["pid"] == 0][1] == "started"
    assert written(tmp_path / "n.json", recorded(timed([world(1)], {0: []})))


HOSTILE = st.text(min_size=1, max_size=300) | st.sampled_from(
    ['"', "\\", "</script>", "\x00", "\ud800", "\u202e", "a\nb"]
)


@settings(deadline=None, max_examples=50)
@given(HOSTILE, HOSTILE, HOSTILE)
def test_whatever_names_there_are(tmp_path_factory, name, description, file):
    group = Group(name, description, (0, 1))
    traces = timed([group], {rank: [Made(name, call())] * 2 for rank in range(2)})
    traces = [replace(trace, sources=(Source(file, 3, name),)) for trace in traces]
    path = tmp_path_factory.mktemp("hostile") / "t.json"
    written(path, recorded(traces))
    written(path, predicted(price(traces, TOPOLOGY)))


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 1 << 24), st.floats(0, 0.01), st.booleans(), st.floats(0, 0.02)),
        min_size=1,
        max_size=15,
    )
)
def test_slices_of_a_thread_are_nested_whatever_overlaps(tmp_path_factory, calls):
    groups = [Group(str(number), "", (0, 1)) for number in range(3)]
    made = [
        Made(str(group), call(size=size), gap, asynchronous=free, waits=wait if free else None)
        for group, size, gap, free, wait in calls
    ]
    traces = timed(groups, dict.fromkeys(range(2), made))
    path = tmp_path_factory.mktemp("nested") / "t.json"
    written(path, recorded(traces))
    written(path, predicted(price(traces, TOPOLOGY)))


@pytest.mark.parametrize("make", [recorded, lambda traces, limit: predicted(price(traces, TOPOLOGY), limit)])
def test_a_large_job_is_bounded_and_says_so(tmp_path, make):
    traces = a_job(8)
    timeline = make(traces, 150)
    events = written(tmp_path / "t.json", timeline)
    assert 0 < sum(event["ph"] == "X" for event in events) <= 150
    assert "of 8 ranks: 150 slices at most" in timeline.note
    # Not even one rank fits.
    timeline = make(traces, 9)
    assert sum(event["ph"] == "X" for event in written(tmp_path / "t.json", timeline)) <= 9
    assert "calls: 9 slices at most" in timeline.note


def test_slices_are_written_as_they_are_made_and_a_half_file_is_never_seen(tmp_path):
    def fails():
        yield Slice(0, 0, "a", 0, 5, {})
        assert not (tmp_path / "t.json").exists()
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        write_trace_events(tmp_path / "t.json", TraceEvents({0: "rank 0"}, {(0, 0): "program"}, fails()))
    assert os.listdir(tmp_path) == []


def test_ends_may_be_anywhere(tmp_path):
    traces = timed([world(1)], {0: [Made("0", call())] * 3})
    traces[0].slots["finished_ns"] = np.iinfo(np.int64).max
    written(tmp_path / "t.json", recorded(traces))


def wrong_job(size):
    """Rank 1 asks for the maximum in the second call; rank 0 fails to come to the last one."""
    other = replace(call(), reduce_op="max")
    calls = {rank: [Made("0", call(), 0.001), Made("0", other if rank == 1 else call())] for rank in range(size)}
    late = Made("0", call("barrier"), state=State.STARTED)
    return timed([world(size)], {rank: [*made, late] if rank else made for rank, made in calls.items()})


def test_findings_are_instants_on_the_calls_of_their_culprits(tmp_path):
    traces = wrong_job(4)
    findings = judge(traces).findings
    assert {"SC104"} <= {finding.code for finding in findings}
    events = written(tmp_path / "t.json.gz", recorded(traces, findings=findings))
    instants = [event for event in events if event["ph"] == "i"]
    (wrong,) = (event for event in instants if event["name"] == "SC104 reduce-op-mismatch")
    second = [event for event in events if event["ph"] == "X" and event["pid"] == 1][1]
    assert (wrong["s"], wrong["pid"], wrong["tid"], wrong["ts"]) == ("t", 1, second["tid"], second["ts"])
    assert wrong["args"]["culprits"] == "rank 1"
    assert wrong["args"]["message"] == next(one.message for one in findings if one.code == "SC104")
    # One about no call stands on the ranks that it names.
    lone = replace(findings[0], group=None, sequence=None, culprits=(), ranks=(2, 3, 77))
    instants = [
        event for event in written(tmp_path / "t.json", recorded(traces, findings=[lone])) if event["ph"] == "i"
    ]
    assert [(event["s"], event["pid"]) for event in instants] == [("p", 2), ("p", 3)]


def test_culprits_are_among_the_ranks_that_are_shown(tmp_path):
    traces = wrong_job(32)
    timeline = recorded(traces, 12, judge(traces).findings)
    events = written(tmp_path / "t.json", timeline)
    assert "SC104 reduce-op-mismatch" in {event["name"] for event in events if event["ph"] == "i"}
    assert "of 32 ranks" in timeline.note


def test_a_compressed_file_is_the_same_each_time(tmp_path):
    for name in ("a.json.gz", "b.json.gz"):
        write_trace_events(tmp_path / name, recorded(a_job()))
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    write_trace_events(tmp_path / "a.json", recorded(a_job()))
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == (tmp_path / "a.json").read_bytes()


@pytest.mark.slow
def test_thousands_of_ranks_have_a_process_each(tmp_path):
    traces = wrong_job(2048)
    events = written(tmp_path / "t.json.gz", recorded(traces, findings=judge(traces).findings))
    assert sum(event["ph"] == "M" and event["name"] == "process_name" for event in events) == 2048
    assert sum(event["ph"] == "X" for event in events) == sum(len(trace.slots) for trace in traces)
    assert 1 <= sum(event["ph"] == "i" for event in events) <= 64 * 4
    assert (tmp_path / "t.json.gz").stat().st_size < 2_000_000
