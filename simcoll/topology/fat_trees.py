"""Clusters whose network is drawn out: two- and three-level fat trees, by server or optimised for rails.

A layer of spine switches is one node, and so is the core: an edge is the sum of the cables that it stands for, as if
traffic were spread over them evenly (adaptive routing). So a leaf's uplinks are a bottleneck where they are fewer than
its downlinks, and collisions of single flows are not modelled. Source: M. Al-Fares et al., "A scalable, commodity data
center network architecture", SIGCOMM 2008; NVIDIA, DGX SuperPOD reference architecture (rails).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simcoll.errors import TopologyError
from simcoll.topology.clusters import ClusterArguments, Servers, build, plan
from simcoll.topology.graph import Topology, connect, positive, whole

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True, slots=True)
class Layers:
    """A fat tree of like switches: ports of each, levels, and the ratio of a leaf's downlinks to its uplinks."""

    radix: int
    levels: int
    oversubscription: float

    @property
    def down(self) -> int:
        """A leaf's ports for NICs."""
        return int(self.radix * self.oversubscription / (1 + self.oversubscription))

    @property
    def leaves_per_pod(self) -> int:
        """A spine switch has a port for each leaf of its pod, and with three levels as many towards the core."""
        return self.radix if self.levels == 2 else self.radix // 2

    @property
    def leaves(self) -> int:
        """The most leaves that there can be: one pod of them, or as many pods as a core switch has ports."""
        return self.leaves_per_pod * (1 if self.levels == 2 else self.radix)


def fat_tree(
    *,
    levels: int = 2,
    radix: int = 64,
    oversubscription: float = 1.0,
    rails: bool = False,
    **servers: Unpack[ClusterArguments],
) -> Topology:
    """`simcoll.cluster`, with its arguments, on a fat tree of switches that have ``radix`` ports.

    ``levels`` is 2 (leaf, spine) or 3 (leaf, spine of a pod, core). ``oversubscription`` 2 means that a leaf has twice
    as much towards the servers as towards the spine. All NICs of a server are on one leaf; with ``rails`` NIC i of
    every server of a group is on the group's leaf i. Raises TopologyError for more NICs than the tree has room for.
    """
    return on_fat_tree(plan(**servers), _layers(levels, radix, oversubscription), rails=rails)


def rail_optimised(
    *, levels: int = 2, radix: int = 64, oversubscription: float = 1.0, **servers: Unpack[ClusterArguments]
) -> Topology:
    """A `fat_tree` whose leaves are rails: NIC i of every server of a group is on the group's leaf i."""
    return fat_tree(levels=levels, radix=radix, oversubscription=oversubscription, rails=True, **servers)


def _layers(levels: int, radix: int, oversubscription: float) -> Layers:
    whole("radix", radix, least=2)
    positive("oversubscription", oversubscription)
    if levels not in (2, 3):
        raise TopologyError(f"levels is {levels!r}, expected 2 (leaf and spine) or 3 (leaf, spine and core)")
    layers = Layers(radix, levels, oversubscription)
    if not 0 < layers.down < radix:
        raise TopologyError(
            f"oversubscription is {oversubscription!r}: of a leaf's {radix} ports {layers.down} would go to servers, "
            "expected at least one to servers and one to the spine"
        )
    return layers


def on_fat_tree(servers: Servers, layers: Layers, *, rails: bool = False) -> Topology:
    """The servers on a fat tree, from the checked arguments of `fat_tree`."""
    leaves = _leaves(servers, layers, rails=rails)
    count = max(leaves.values(), default=-1) + 1
    if count > layers.leaves:
        raise TopologyError(
            f"{len(leaves):,} NICs need {count:,} leaves, but {layers.levels} levels of {layers.radix}-port switches "
            f"have at most {layers.leaves:,}; give a larger radix{' or levels=3' if layers.levels == 2 else ''}"
        )
    graph = build(servers)
    _add_switches(graph, servers, layers, count)
    for nic, leaf in leaves.items():
        connect(graph, nic, f"leaf{leaf}", servers.host.nic_bandwidth, servers.fabric.latency, link="network")
    return graph


def _leaves(servers: Servers, layers: Layers, *, rails: bool) -> dict[str, int]:
    """The leaf of each NIC; servers fill the leaves in order, and none is split over two where one has room for it."""
    nics, down = servers.host.nics, layers.down
    if rails:
        return {node: server // down * nics + nic for server, nic, node in servers.nics()}
    if nics > down:
        return {node: (server * nics + nic) // down for server, nic, node in servers.nics()}
    return {node: server // (down // nics) for server, _, node in servers.nics()}


def _add_switches(graph: Topology, servers: Servers, layers: Layers, leaves: int) -> None:
    """Leaves, the spine of each pod, and with three levels the core, all the cables between two of them as one edge."""
    uplink = layers.down * servers.host.nic_bandwidth / layers.oversubscription
    hop = servers.fabric.hop_latency
    for leaf in range(leaves):
        graph.add_node(f"leaf{leaf}", kind="switch", level=1)
        spine = f"spine{leaf // layers.leaves_per_pod}"
        graph.add_node(spine, kind="switch", level=2)
        connect(graph, f"leaf{leaf}", spine, uplink, hop, link="network")
    if layers.levels == 2 or not leaves:
        return
    graph.add_node("core0", kind="switch", level=3)
    for pod in range((leaves - 1) // layers.leaves_per_pod + 1):
        connect(graph, f"spine{pod}", "core0", uplink * layers.leaves_per_pod, hop, link="network")
