"""What a page has of a job that is priced on a topology: its picture, what holds the job up, what calls cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simcoll.pricing.price import price
from simcoll.pricing.views.bottlenecks import marks_of_job
from simcoll.pricing.views.page import tables_of_calls
from simcoll.pricing.views.topology_figure import figure_of

if TYPE_CHECKING:
    from simcoll.core.trace import Trace
    from simcoll.reports.page_shell import Priced
    from simcoll.topology.graph import Topology


def priced_report(traces: Sequence[Trace], topology: Topology) -> Priced:
    """Picture and tables; raises PricingError, TopologyError and EstimateError for what cannot be priced."""
    priced = price(traces, topology)
    return {"figures": [figure_of(topology, marks_of_job(priced))], "tables": tables_of_calls(priced)}
