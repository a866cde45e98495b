"""Streams run side by side and share what holds them up; a stream runs one call after the other."""

import pytest

pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st

from simcoll.estimator.time_estimator import LinkTimeline, Transfer


def nvlink(seconds, utilisation=1.0):
    return Transfer(seconds, ("nvlink",), utilisation)


def network(seconds, utilisation=1.0):
    return Transfer(seconds, ("network",), utilisation)


def test_calls_of_a_stream_run_one_after_the_other():
    line = LinkTimeline()
    for _ in range(3):
        line.submit("a", nvlink(2.0))
    line.wait_all()
    assert line.now == 6.0


def test_streams_on_other_links_run_side_by_side():
    line = LinkTimeline()
    line.submit("a", nvlink(2.0))
    line.submit("b", network(3.0))
    line.wait_all()
    assert line.now == 3.0


def test_streams_on_one_link_share_it():
    line = LinkTimeline()
    first, second = line.submit("a", network(1.0)), line.submit("b", network(3.0))
    line.wait(first)
    assert line.now == pytest.approx(2.0)
    line.wait(second)
    assert line.now == pytest.approx(4.0)


def test_streams_that_leave_a_link_idle_fit_together():
    line = LinkTimeline()
    line.submit("a", network(2.0, 0.4))
    line.submit("b", network(2.0, 0.6))
    line.wait_all()
    assert line.now == pytest.approx(2.0)


def test_a_program_that_waits_in_between_overlaps_nothing():
    line = LinkTimeline()
    for stream in "ab":
        line.wait(line.submit(stream, nvlink(2.0)))
    assert line.now == 4.0


def test_what_takes_no_time_ends():
    line = LinkTimeline()
    done = line.submit("a", Transfer(0.0))
    line.wait(done)
    assert (line.now, done.start, done.end) == (0.0, 0.0, 0.0)


def test_a_call_begins_when_it_is_made():
    line = LinkTimeline()
    line.wait(line.submit("a", nvlink(2.0)))
    later = line.submit("b", network(1.0))
    line.wait_all()
    assert (later.start, later.end) == (2.0, 3.0)


calls = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from([("nvlink",), ("network",), ("nvlink", "network"), ()]),
    st.floats(0, 1),
    st.floats(0, 10),
    st.booleans(),
)


@given(st.lists(calls, max_size=20))
def test_it_takes_no_less_than_the_busiest_stream_and_no_more_than_all(made):
    line = LinkTimeline()
    streams: dict[str, list[float]] = {}
    for stream, links, utilisation, seconds, waited in made:
        transfer = line.submit(stream, Transfer(seconds, links, utilisation))
        streams.setdefault(stream, []).append(seconds)
        if waited:
            line.wait(transfer)
    line.wait_all()
    assert line.now >= max(map(sum, streams.values()), default=0) - 1e-6
    assert line.now <= sum(map(sum, streams.values())) + 1e-6


def test_what_uses_both_directions_shares_each():
    line = LinkTimeline()
    both = line.submit("a", Transfer(1.0, ("out", "in"), 1.0))
    out = line.submit("b", Transfer(1.0, ("out",), 1.0))
    line.wait_all()
    assert both.end == out.end == pytest.approx(2.0)


def test_what_no_link_holds_up_takes_its_own_time():
    line = LinkTimeline()
    line.submit("a", Transfer(1.0))
    line.submit("b", Transfer(1.0))
    line.wait_all()
    assert line.now == 1.0
