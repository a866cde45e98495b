"""`simcoll.price`: what the communication of a recorded job costs on a topology, and what would change it.

The job is replayed in virtual time (`simcoll.pricing.replay`): its matched collectives, each at the price of
`simcoll.estimate`, and between them the compute that the ranks' records show. docs/pricing.md has the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from simcoll.core.trace import Trace
from simcoll.errors import PricingError
from simcoll.pricing.collective_prices import PLAIN, EstimateOptions, JobPrices, prices_of
from simcoll.pricing.compute import COUNTED, Counted, Straggler, with_compute, with_stragglers
from simcoll.pricing.job import Floats, RecordedJob, recorded_job
from simcoll.pricing.replay import replay
from simcoll.pricing.replayed import Replayed
from simcoll.pricing.waits import Slowed, with_waits
from simcoll.pricing.what_if import SlowLink, scaled, slowed

__all__ = ["Pricing", "PricingError", "PricingScenario", "price", "price_job"]


@dataclass(frozen=True, slots=True)
class PricingScenario:
    """The changes to a recorded job: how collectives run, what is slow, how many ranks; and the compute between calls.

    ``compute`` is one of `simcoll.pricing.compute`: ``Counted(share)``, ``measured``, ``none``, ``per_step(seconds)``.
    """

    choice: EstimateOptions = PLAIN
    compute: Callable[..., Floats] | Counted = COUNTED
    slow_links: tuple[SlowLink, ...] = ()
    stragglers: tuple[Straggler, ...] = ()
    world_size: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Pricing:
    """A job as it would run on a topology: the job as replayed, the price of each collective, and when it ran.

    ``slowed`` is the part of each column's compute in the replay that is a wait for the slowest rank, or contention.
    """

    name: str
    topology: str
    job: RecordedJob
    prices: JobPrices
    replayed: Replayed
    slowed: Slowed

    @property
    def seconds(self) -> float:
        """From the first rank's begin to the last one's end."""
        return self.replayed.seconds


def price(traces: Sequence[Trace], topology: nx.DiGraph[Any], scenario: PricingScenario | None = None) -> Pricing:
    """Price a job from the traces of its ranks (`simcoll.blackbox.gather.gather`, `simcoll.simulate`).

    Rank i is rank i of the topology. Ranks that left no record take part in nothing but the price of their groups'
    collectives. Raises PricingError, TopologyError and EstimateError for what cannot be.
    """
    return price_job(recorded_job(traces), topology, scenario)


def price_job(
    job: RecordedJob, topology: nx.DiGraph[Any], scenario: PricingScenario | None = None, name: str = ""
) -> Pricing:
    """Price a job whose traces have been matched, as `price` does."""
    scenario = scenario or PricingScenario()
    compute = scenario.compute.on(topology) if isinstance(scenario.compute, Counted) else scenario.compute
    changed = with_compute(job, compute)
    if scenario.world_size is not None:
        changed = scaled(changed, scenario.world_size)
    changed = with_stragglers(changed, scenario.stragglers)
    graph = slowed(topology, scenario.slow_links)
    prices = prices_of(changed, graph, scenario.choice)
    counted = scenario.compute if isinstance(scenario.compute, Counted) and job.counted else None
    changed, slowed_by = with_waits(changed, prices, None if counted is None else counted.rates(topology))
    shown = str(graph.graph.get("name", "topology"))
    return Pricing(name or shown, shown, changed, prices, replay(changed, prices), slowed_by)
