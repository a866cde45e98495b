"""Max-min fair shares of links, and how long transfers take that have them.

This is progressive filling (Bertsekas and Gallager, Data Networks). All transfers' rates rise alike until a link is
full; those that cross it keep their rate, and the others rise on.
"""

from __future__ import annotations

import numpy as np

from simcoll.estimator.flow.paths import Floats, Integers
from simcoll.estimator.flow.routes import Routes

_FULL = 1e-9
"""A link is full, and a transfer done, within this fraction."""

_SHARES = 200
"""After so many changes of the transfers under way, those that are left keep their rates."""


def fair_rates(routes: Routes, transfers: int, bandwidth: Floats) -> Floats:
    """Each transfer's rate in bytes/s; infinite for one that uses no link."""
    links, link = np.unique(routes.link, return_inverse=True)
    left, rising = bandwidth[links], np.ones(transfers, bool)
    rates, level = np.full(transfers, np.inf), 0.0
    transfer, share = routes.transfer, routes.share
    while len(transfer):
        used = np.bincount(link, share, len(links))
        room = np.divide(left, used, out=np.full(len(links), np.inf), where=used > 0)
        rise = room.min()
        if rise == np.inf:  # no link holds back what is left
            break
        level += rise
        left = left - rise * used
        stopped = np.unique(transfer[(room <= rise * (1 + _FULL))[link]])
        rates[stopped] = level
        rising[stopped] = False
        on = rising[transfer]
        transfer, link, share = transfer[on], link[on], share[on]
    return rates


def loads(routes: Routes, sizes: Floats, links: int) -> Floats:
    """The bytes on each link."""
    found: Floats = np.bincount(routes.link, routes.share * sizes[routes.transfer], links).astype(float)
    return found


def ends(routes: Routes, sizes: Floats, bandwidth: Floats) -> Floats:
    """When the last byte of each transfer is out, in seconds, if all begin at once and share fairly.

    When one ends, the others share anew, unless that cannot help: the busiest link is busy until the last end.
    """
    rates = fair_rates(routes, len(sizes), bandwidth)
    found: Floats = sizes / rates
    least = float((loads(routes, sizes, len(bandwidth)) / bandwidth).max(initial=0.0))
    if found.max(initial=0.0) <= least * (1 + _FULL):
        return found
    return _shared_anew(routes, sizes.astype(float), bandwidth, rates)


def _shared_anew(routes: Routes, left: Floats, bandwidth: Floats, rates: Floats) -> Floats:
    found, now = np.zeros(len(left)), 0.0
    running = np.flatnonzero((left > 0) & np.isfinite(rates))
    for _ in range(_SHARES):
        if not len(running):
            break
        need = left[running] / rates[running]
        first = need.min()
        now += first
        done = need <= first * (1 + _FULL)
        found[running[done]] = now
        left[running] = left[running] - first * rates[running]
        running = running[~done]
        rates[running] = fair_rates(_only(routes, running, len(left)), len(left), bandwidth)[running]
    found[running] = now + left[running] / rates[running]
    return found


def _only(routes: Routes, transfers: Integers, count: int) -> Routes:
    running = np.zeros(count, bool)
    running[transfers] = True
    kept = running[routes.transfer]
    return Routes(routes.transfer[kept], routes.link[kept], routes.share[kept])
