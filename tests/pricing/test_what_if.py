"""What-if options: what is read, what is refused, and what a slow link changes."""

from __future__ import annotations

import pytest

import simcoll
from simcoll.pricing.collective_prices import PricingError
from simcoll.pricing.compute import Straggler, none
from simcoll.pricing.what_if import SlowLink, parse_compute, parse_slow_link, parse_straggler, slowed, step_seconds


def test_what_is_typed_is_read():
    assert parse_straggler("3:1.5") == Straggler(3, factor=1.5)
    assert parse_straggler("3:+0.02") == Straggler(3, seconds=0.02)
    assert parse_slow_link("a,b,2") == SlowLink(("a", "b"), 2.0)
    assert parse_slow_link("host3,10") == SlowLink(("host3",), 10.0)
    assert parse_compute("none") == none
    assert step_seconds("1e15", "1e15", "0.5") == 2.0


@pytest.mark.parametrize("text", ["", "3", "x:2", "3:", "3:nan", "3:-1", "3:inf", "-1:2", "3:+x"])
def test_a_straggler_that_is_none(text):
    with pytest.raises(PricingError, match="expected RANK:FACTOR"):
        parse_straggler(text)


@pytest.mark.parametrize("text", ["", "a", "a,b", "a,b,0", "a,b,c,2", ",2", "a,b,nan", "a,,2"])
def test_a_link_that_is_none(text):
    with pytest.raises(PricingError, match="expected NODE"):
        parse_slow_link(text)


@pytest.mark.parametrize(
    "given", [("x", "1", "1"), ("1", None, "1"), ("1", "0", "1"), ("1", "1", "0"), ("1", "1", "2")]
)
def test_compute_that_cannot_be(given):
    with pytest.raises(PricingError):
        step_seconds(*given)


def test_a_slow_link_is_slow_both_ways_and_the_original_stays():
    topology = simcoll.cluster(gpu="h100", nodes=2)
    before = topology.edges["host0/nic0", "network"]["bandwidth"]
    copy = slowed(topology, [SlowLink(("network", "host0/nic0"), 4.0)])
    assert copy.edges["host0/nic0", "network"]["bandwidth"] == before / 4
    assert copy.edges["network", "host0/nic0"]["bandwidth"] == before / 4
    assert copy.edges["host0/nic1", "network"]["bandwidth"] == before
    assert topology.edges["host0/nic0", "network"]["bandwidth"] == before


def test_a_host_is_all_its_links():
    topology = simcoll.cluster(gpu="h100", nodes=2)
    copy = slowed(topology, [SlowLink(("host1",), 2.0)])
    changed = {edge for edge in topology.edges if copy.edges[edge]["bandwidth"] != topology.edges[edge]["bandwidth"]}
    assert changed
    assert all(any(str(node).startswith("host1/") for node in edge) for edge in changed)


@pytest.mark.parametrize(("nodes", "said"), [(("nope",), "no node 'nope'"), (("host0/gpu0", "network"), "not joined")])
def test_a_link_that_the_topology_lacks(nodes, said):
    with pytest.raises(PricingError, match=said):
        slowed(simcoll.cluster(gpu="h100", nodes=2), [SlowLink(nodes, 2.0)])
