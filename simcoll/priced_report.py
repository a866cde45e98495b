"""What a page has of a job that is priced on a topology: its picture, what holds the job up, what calls cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simcoll.bottlenecks import marks_of_job
from simcoll.pricing import price
from simcoll.pricing_page import tables_of_calls
from simcoll.topology_figure import figure_of

if TYPE_CHECKING:
    from simcoll.reports.page_shell import Priced
    from simcoll.topology import Topology
    from simcoll.verifier.trace import Trace


def priced_report(traces: Sequence[Trace], topology: Topology) -> Priced:
    """Picture and tables; raises PricingError, TopologyError and EstimateError for what cannot be priced."""
    priced = price(traces, topology)
    return {"figures": [figure_of(topology, marks_of_job(priced))], "tables": tables_of_calls(priced)}
