"""Fair shares: no link is overfull, and whoever could get more would take it from one that has no more."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simcoll.estimator.flow.phases import ends, fair_rates, loads
from simcoll.estimator.flow.routes import Routes


@st.composite
def shared(draw: st.DrawFn) -> tuple[Routes, int, np.ndarray]:
    """Some transfers, each over some of some links."""
    links, transfers = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    used = [draw(st.sets(st.integers(0, links - 1), min_size=1)) for _ in range(transfers)]
    bandwidth = draw(st.lists(st.floats(1, 100), min_size=links, max_size=links))
    pairs = [(transfer, link) for transfer, each in enumerate(used) for link in sorted(each)]
    transfer, link = np.array(pairs, np.int64).T
    return Routes(transfer, link, np.ones(len(pairs))), transfers, np.array(bandwidth)


@given(shared())
def test_max_min_fairness(case: tuple[Routes, int, np.ndarray]) -> None:
    """Each transfer crosses a full link on which none is faster (Bertsekas and Gallager)."""
    routes, transfers, bandwidth = case
    rates = fair_rates(routes, transfers, bandwidth)
    load = loads(routes, rates, len(bandwidth))
    assert (load <= bandwidth * (1 + 1e-6)).all()
    for transfer in range(transfers):
        full = [each for each in routes.link[routes.transfer == transfer] if load[each] >= bandwidth[each] * (1 - 1e-6)]
        assert any(rates[routes.transfer[routes.link == link]].max() <= rates[transfer] * (1 + 1e-6) for link in full)


@given(shared(), st.data())
def test_no_transfer_ends_before_its_links_could_carry_it(
    case: tuple[Routes, int, np.ndarray], data: st.DataObject
) -> None:
    routes, transfers, bandwidth = case
    sizes = np.array(data.draw(st.lists(st.floats(1, 1e9), min_size=transfers, max_size=transfers)))
    found = ends(routes, sizes, bandwidth)
    assert found.max() >= (loads(routes, sizes, len(bandwidth)) / bandwidth).max() * (1 - 1e-6)
    first = sizes / np.array([bandwidth[routes.link[routes.transfer == each]].min() for each in range(transfers)])
    assert (found >= first * (1 - 1e-6)).all()


def test_what_is_left_gets_the_share_of_what_has_ended() -> None:
    """Two on a link of 10: 10 and 30 bytes take 2 s and, half of it at twice the rate, 4 s."""
    routes = Routes(np.array([0, 1, 2]), np.array([0, 0, 1]), np.ones(3))
    assert ends(routes, np.array([10.0, 30.0, 5.0]), np.array([10.0, 1.0])).tolist() == [2.0, 4.0, 5.0]
    assert ends(routes, np.array([10.0, 30.0, 3.0]), np.array([10.0, 1.0])).tolist() == [2.0, 4.0, 3.0]
