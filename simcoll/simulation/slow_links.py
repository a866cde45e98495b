"""Applies a scenario's slow links to its topology."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcoll.simulation.scenario import Scenario, ScenarioLink

if TYPE_CHECKING:
    from simcoll.topology.graph import Topology


def with_slow_links(scenario: Scenario, topology: Topology | None) -> Topology | None:
    """A copy of a topology with the paths slowed that the scenario's faults name.

    Raises ScenarioError where there is no topology, or where it has no such rank.
    """
    if not scenario.slow_links:
        return topology
    if topology is None:
        raise scenario.error(scenario.slow_links[0].line, "slow-link: there is no topology; state one in [topology]")
    slowed = topology.copy()
    for link in scenario.slow_links:
        for edge in _path(scenario, link, topology):
            attributes = dict(slowed.edges[edge])
            attributes["bandwidth"] *= link.factor
            attributes["latency"] += link.latency
            slowed.add_edge(*edge, **attributes)
    return slowed


def _path(scenario: Scenario, link: ScenarioLink, topology: Topology) -> set[tuple[object, object]]:
    """The links that messages between the two ranks use, in both directions; one of several equal ones."""
    from simcoll.estimator.flow.routes import router

    prepared = router(topology)
    network = prepared.network
    if max(link.between) >= len(network.ranks):
        there = f"the topology has {len(network.ranks)} ranks, none is number {max(link.between)}"
        raise scenario.error(link.line, f"slow-link: {there}")
    ends = network.ranks[np.array(link.between)]
    members = prepared.fabric.member[prepared.routes(ends, ends[::-1]).link]
    return {(network.nodes[network.source[edge]], network.nodes[network.target[edge]]) for edge in members}
