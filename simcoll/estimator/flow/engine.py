"""The flow engine: a collective's transfers, routed over the topology and sharing its links, step by step.

A table has the function that makes the schedule of each row and algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import networkx as nx
import numpy as np

from simcoll.core.estimate import BARE, Bottleneck, Estimate, Overheads
from simcoll.errors import TopologyError
from simcoll.estimator.flow import exchange_schedules as exchange
from simcoll.estimator.flow import hierarchical_schedules as host
from simcoll.estimator.flow import ring_schedules as ring
from simcoll.estimator.flow import tree_schedules as tree
from simcoll.estimator.flow.layout import HostLayout, layout
from simcoll.estimator.flow.paths import Floats
from simcoll.estimator.flow.phases import Phase, Prices
from simcoll.estimator.flow.routes import router
from simcoll.estimator.flow.schedule import Schedule
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.table import Kind
from simcoll.topology.graph import LINKS, derived

Builder = Callable[[HostLayout, float, int], Schedule]

_BUILDERS: Mapping[tuple[str, str], Builder] = MappingProxyType(
    {
        ("all_reduce", "ring"): ring.all_reduce,
        ("all_reduce", "tree"): tree.all_reduce,
        ("all_reduce", "halving_doubling"): exchange.halving_doubling_all_reduce,
        ("all_reduce", "hierarchical"): host.all_reduce,
        ("all_reduce", "nvls"): host.nvls_all_reduce,
        ("all_reduce", "nvls_tree"): host.nvls_tree,
        ("all_reduce", "direct"): exchange.direct_all_reduce,
        ("broadcast", "ring"): ring.broadcast,
        ("broadcast", "tree"): tree.broadcast,
        ("broadcast", "hierarchical"): host.broadcast,
        ("broadcast", "direct"): exchange.from_root,
        ("reduce", "ring"): ring.reduce,
        ("reduce", "tree"): tree.reduce,
        ("reduce", "hierarchical"): host.reduce,
        ("reduce", "direct"): exchange.to_root,
        ("all_gather", "ring"): ring.all_gather,
        ("all_gather", "bruck"): exchange.bruck_all_gather,
        ("all_gather", "pat"): exchange.pat_all_gather,
        ("all_gather", "hierarchical"): host.all_gather,
        ("all_gather", "nvls"): host.nvls_all_gather,
        ("all_gather", "direct"): exchange.direct_all_gather,
        ("gather", "direct"): exchange.direct_gather,
        ("gather", "tree"): tree.gather,
        ("scatter", "direct"): exchange.direct_scatter,
        ("scatter", "tree"): tree.scatter,
        ("reduce_scatter", "ring"): ring.reduce_scatter,
        ("reduce_scatter", "halving_doubling"): exchange.halving_doubling_reduce_scatter,
        ("reduce_scatter", "pat"): exchange.pat_reduce_scatter,
        ("reduce_scatter", "hierarchical"): host.reduce_scatter,
        ("reduce_scatter", "nvls"): host.nvls_reduce_scatter,
        ("reduce_scatter", "direct"): exchange.direct_reduce_scatter,
        ("all_to_all", "pairwise"): exchange.pairwise_all_to_all,
        ("all_to_all", "direct"): exchange.direct_all_to_all,
        ("all_to_all", "bruck"): exchange.bruck_all_to_all,
        ("all_to_all", "hierarchical"): host.all_to_all,
        ("barrier", "tree"): tree.all_reduce,
        ("barrier", "ring"): ring.all_reduce,
        ("barrier", "direct"): exchange.direct_all_gather,
        ("monitored_barrier", "direct"): exchange.meet_at_root,
        ("send", "direct"): exchange.message,
        ("recv", "direct"): exchange.message,
    }
)


def algorithms(op: str) -> tuple[str, ...]:
    """The algorithms that the table has for a collective; raises TopologyError for one that it does not have."""
    try:
        return COLLECTIVES[op].schedules
    except KeyError:
        raise TopologyError(f"op is {op!r}, expected one of {', '.join(COLLECTIVES)}") from None


def schedule(op: str, algorithm: str, layout: HostLayout, size: float, root: int = 0) -> Schedule:
    """Returns the algorithm's transfers; pipelines in one chunk (`TransferStep.split`).

    ``size`` is nccl-tests' size in bytes, ``root`` a place in the group. Raises TopologyError for an algorithm that the
    row does not have, or that needs another topology.
    """
    if algorithm not in algorithms(op):
        raise TopologyError(f"algorithm of {op} is {algorithm!r}, expected one of {', '.join(algorithms(op))}")
    if not 0 <= root < layout.size:
        raise TopologyError(f"root is {root}, expected the place of a rank in the group, 0 to {layout.size - 1}")
    if layout.size == 1:
        return ()
    return _BUILDERS[op, algorithm](layout, size, root)


@dataclass(frozen=True, slots=True, eq=False)
class FlowPlan:
    """A collective whose steps are priced one by one, on no other's links."""

    op: str
    size: int
    group: HostLayout
    algorithm: str
    prices: Prices
    phases: tuple[Phase, ...]

    @property
    def seconds(self) -> float:
        """The seconds that it takes by itself, from its launch on."""
        return self.prices.overheads.launch + sum(phase.seconds for phase in self.phases)


def price(
    op: str,
    size: int,
    graph: nx.DiGraph[Any],
    ranks: Sequence[int] | None = None,
    algorithm: str | None = None,
    *,
    root: int = 0,
    overheads: Overheads | None = None,
    delays: Sequence[float] | None = None,
) -> Estimate:
    """Returns the cost of a collective on the graph.

    ``size`` is nccl-tests' size in bytes, ``ranks`` the group's (all by default; the first and the last of them for
    send and recv), ``root`` a place in the group, ``delays`` the lateness of each rank of the group in seconds. The
    algorithm is the cheapest of the row's that apply where none is given. Without ``overheads`` it is the bare graph's
    price. Raises TopologyError for a graph that is no topology or cannot be routed, and an algorithm that does not
    apply.
    """
    found = plan(op, size, graph, ranks, algorithm, root=root, overheads=overheads)
    late = _late(found, delays)
    return estimate_of(found, found.seconds + late, late, overheads is not None)


def plan(
    op: str,
    size: int,
    graph: nx.DiGraph[Any],
    ranks: Sequence[int] | None = None,
    algorithm: str | None = None,
    *,
    root: int = 0,
    overheads: Overheads | None = None,
) -> FlowPlan:
    """Plan a collective: its cheapest applicable algorithm, or the one given, as priced steps."""
    names = algorithms(op) if algorithm is None else (algorithm,)
    if not size >= 0:
        raise TopologyError(f"size is {size!r}, expected bytes of at least 0")
    size = 0 if COLLECTIVES[op].kind is Kind.SYNCHRONISATION else size
    way = router(graph)
    group = _group(graph, ranks)
    nodes = np.array([way.network.number[node] for node in group.nodes], np.int64)
    prices = Prices(way, nodes, overheads or BARE)
    plans, refused = [], []
    for name in names:
        try:
            made = schedule(op, name, group, float(size), root)
        except TopologyError as error:
            refused.append(error)
            continue
        plans.append(FlowPlan(op, size, group, name, prices, tuple(prices.phases(made))))
    if not plans:
        raise refused[0]
    return min(plans, key=lambda each: each.seconds)


def _group(graph: nx.DiGraph[Any], ranks: Sequence[int] | None) -> HostLayout:
    key = ("layout", None if ranks is None else tuple(ranks))
    return derived(graph, key, lambda each: layout(each, ranks))


def estimate_of(found: FlowPlan, seconds: float, late: float, calibrated: bool) -> Estimate:
    """The plan as an estimate, if it took so many seconds, ``late`` of them waiting for ranks or for links."""
    count = found.group.size
    rate = found.size / seconds if seconds else 0.0
    launch = found.prices.overheads.launch
    latency = sum(phase.latency for phase in found.phases)
    terms = [("launch", launch), ("latency", latency), ("bandwidth", seconds - late - launch - latency)]
    terms += [("waiting", late)] if late else []
    return Estimate(
        found.op,
        found.size,
        count,
        seconds,
        found.algorithm,
        None,
        COLLECTIVES[found.op].traffic(count) * rate,
        rate,
        _bottleneck(found, seconds),
        "flow",
        calibrated,
        tuple(terms),
    )


def _bottleneck(found: FlowPlan, seconds: float) -> Bottleneck | None:
    """The link that is busy for longest; None where no byte is sent."""
    total = sum((phase.loads for phase in found.phases), np.zeros(1))
    busy: Floats = total / found.prices.bandwidth
    if not busy.any():
        return None
    network, fabric = found.prices.router.network, found.prices.router.fabric
    link = int(fabric.member[int(busy.argmax())])
    return Bottleneck(
        network.nodes[network.source[link]],
        network.nodes[network.target[link]],
        LINKS[network.kind[link]],
        float(network.bandwidth[link]),
        min(1.0, float(busy.max()) / seconds),
    )


def _late(found: FlowPlan, delays: Sequence[float] | None) -> float:
    """Returns the seconds by which it ends later because ranks come late.

    A transfer begins when both ends have done their earlier steps, and never before its step's turn; a pipeline, and
    shifts, when all of their ranks have.
    """
    if delays is None:
        return 0.0
    if len(delays) != found.group.size or not all(delay >= 0 for delay in delays):
        raise TopologyError(
            f"delays are {list(delays)[:16]}, expected seconds of at least 0 for each of {found.group.size} ranks"
        )
    ready = np.zeros(len(found.group.nodes))
    ready[: found.group.size] = delays
    now = 0.0
    for phase in found.phases:
        _pass_on(phase, ready, now)
        now += phase.seconds
    return max(0.0, float(ready.max()) - now)


def _pass_on(phase: Phase, ready: Floats, now: float) -> None:
    """Set the time at which each rank is ready after the phase."""
    step = phase.step
    if step is None or step.stages is not None:
        taking = np.arange(len(ready)) if step is None else np.union1d(step.sources, step.targets)
        ready[taking] = max(now, float(ready[taking].max())) + phase.seconds
        return
    lasts = phase.seconds / step.rounds
    taking = np.union1d(step.sources, step.targets)
    for number in range(step.rounds):
        start = now + number * lasts
        if np.ptp(np.maximum(ready[taking], start)) == 0.0:
            ready[taking] = np.maximum(ready[taking], start) + (step.rounds - number) * lasts
            return
        begins = np.maximum(np.maximum(ready[step.sources], ready[step.targets]), start) + lasts
        np.maximum.at(ready, step.sources, begins)
        np.maximum.at(ready, step.targets, begins)
