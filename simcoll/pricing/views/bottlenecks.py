"""Which links hold calls up: in words, and as the marks of a picture."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from simcoll.core.estimate import Bottleneck
from simcoll.core.units import show_rate

if TYPE_CHECKING:
    from simcoll.pricing.price import Pricing

Marks = dict[tuple[Hashable, Hashable], str]
"""Links by their ends, and what is said of each."""

_MARKED = 3
"""Links of a job that a picture points at."""


def marks_of_estimate(link: Bottleneck | None) -> Marks:
    """What holds one collective up."""
    return {} if link is None else {(link.source, link.target): f"bottleneck: {bottleneck_text(link)}"}


def bottleneck_text(link: Bottleneck) -> str:
    """The link, and how busy it is."""
    return f"{link.link} {link.source} -> {link.target}, {link.utilisation:.0%} of {show_rate(link.bandwidth)}"


def marks_of_job(priced: Pricing) -> Marks:
    """The links that hold a job up for longest."""
    from simcoll.pricing.views.summary import links_of
    from simcoll.pricing.views.text import shown

    return {
        (one.source, one.target): f"bottleneck: {one.link} {one.source} -> {one.target}, busy for {shown(one.busy)}"
        for one in links_of(priced)[:_MARKED]
    }
