"""A cluster as a graph: the form of a topology, the nodes that are its ranks, and the simplest one.

A topology is a ``networkx.DiGraph``. Every node has ``kind`` (one of `KINDS`); every edge has ``bandwidth`` (bytes/s)
and ``latency`` (s), one direction each. Nodes of kind gpu are the ranks, by their attribute ``rank`` or, where none
has one, in the order in which they were added. Any such graph will do; a `Topology` is one that keeps values
derived from it until it is changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from numbers import Integral, Real
from operator import index
from types import NoneType
from typing import Any, TypeGuard, TypeVar

import networkx as nx

from simcoll.errors import TopologyError

KINDS = ("gpu", "nvswitch", "pcie", "cpu", "nic", "switch")
LINKS = ("nvlink", "c2c", "pcie", "cpu", "network")
"""The values of an edge's attribute ``link``, the nearest first; ``cpu`` is a link between two sockets."""

_LINK_BY_KIND = {"nvswitch": "nvlink", "cpu": "pcie", "pcie": "pcie"}

MAX_GPUS = 1 << 17
"""More than any cluster has; a graph of so many takes about ten seconds and some GiB to build."""

Value = TypeVar("Value")


class _Noticed(dict[Any, Any]):
    """A dict of a graph whose every change is counted, for all graphs together: an edge may be edited in place."""

    changes = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        _Noticed.changes += 1
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        _Noticed.changes += 1
        super().__delitem__(key)

    def __ior__(self, other: Any) -> _Noticed:  # type: ignore[misc]
        self.update(other)
        return self

    def update(self, *args: Any, **kwargs: Any) -> None:
        _Noticed.changes += 1
        super().update(*args, **kwargs)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        _Noticed.changes += 1
        return super().setdefault(key, default)

    def pop(self, *args: Any) -> Any:
        _Noticed.changes += 1
        return super().pop(*args)

    def popitem(self) -> tuple[Any, Any]:
        _Noticed.changes += 1
        return super().popitem()

    def clear(self) -> None:
        _Noticed.changes += 1
        super().clear()


class Topology(nx.DiGraph):  # type: ignore[type-arg]
    """A ``networkx.DiGraph`` that keeps values derived from it for as long as it does not change."""

    graph_attr_dict_factory = _Noticed
    node_dict_factory = _Noticed
    node_attr_dict_factory = _Noticed
    adjlist_outer_dict_factory = _Noticed
    adjlist_inner_dict_factory = _Noticed
    edge_attr_dict_factory = _Noticed

    def __init__(self, incoming_graph_data: Any = None, **attributes: Any) -> None:
        self._derived: dict[Hashable, Any] = {}
        self._derived_at = -1
        super().__init__(incoming_graph_data, **attributes)

    def __getstate__(self) -> dict[str, Any]:
        """A copy or another process computes anew: changes are counted differently there."""
        return {**self.__dict__, "_derived": {}, "_derived_at": -1}


def _directed(graph: object) -> None:
    if not isinstance(graph, nx.DiGraph) or graph.is_multigraph():
        raise TopologyError(
            f"the topology is a {type(graph).__name__}, expected a networkx.DiGraph: simcoll.cluster, preset, "
            "read_topology and flat make one"
        )


def derived(graph: nx.DiGraph[Any], key: Hashable, build: Callable[[nx.DiGraph[Any]], Value]) -> Value:
    """``build(graph)``: a `Topology` computes it once for as long as it does not change, another graph anew.

    Raises TopologyError for anything but a ``networkx.DiGraph``.
    """
    if not isinstance(graph, Topology):
        _directed(graph)
        return build(graph)
    if graph._derived_at != (now := _Noticed.changes):
        graph._derived.clear()
    try:
        value: Value = graph._derived[key]
    except KeyError:
        value = graph._derived[key] = build(graph)
        # Not as of now: another thread may have changed the graph meanwhile.
        graph._derived_at = now
    return value


def ranks(graph: nx.DiGraph[Any]) -> tuple[Hashable, ...]:
    """The gpu nodes in the order of the ranks that they are; raises TopologyError for a half numbered graph."""
    return derived(graph, "ranks", _ranks)


def _ranks(graph: nx.DiGraph[Any]) -> tuple[Hashable, ...]:
    gpus = {node: attributes for node, attributes in graph.nodes.items() if attributes.get("kind") == "gpu"}
    numbers = {_rank(node, attributes["rank"]): node for node, attributes in gpus.items() if "rank" in attributes}
    if not numbers:
        return tuple(gpus)
    if set(numbers) != set(range(len(gpus))):
        raise TopologyError(
            f"the gpu nodes of the topology have the ranks {named(numbers)}, expected 0 to {len(gpus) - 1}, each once; "
            "number all of them or none"
        )
    return tuple(numbers[rank] for rank in range(len(gpus)))


def _rank(node: Hashable, rank: object) -> int:
    try:
        return index(rank)  # type: ignore[arg-type]  # whatever is no integer is refused, numpy's are fine
    except TypeError:
        raise TopologyError(f"gpu {node!r} has the rank {rank!r}, expected an integer") from None


def flat(ranks: int, bandwidth: float, latency: float) -> Topology:
    """A star: every rank on one ideal full-duplex switch.

    ``bandwidth`` is bytes/s of a rank's link in each direction, ``latency`` seconds from end to end (half of it on each
    of the two links). Raises TopologyError for numbers that describe no cluster.
    """
    whole("ranks", ranks)
    if ranks > MAX_GPUS:
        raise TopologyError(f"ranks is {ranks}, expected at most {MAX_GPUS:,}")
    positive("bandwidth", bandwidth)
    if not (is_number(latency) and 0 <= latency < math.inf):
        raise TopologyError(f"latency is {latency!r}, expected seconds of at least 0")
    star = Topology(name=f"flat {ranks}")
    star.add_node("switch", kind="switch")
    for rank in range(ranks):
        star.add_node(f"gpu{rank}", kind="gpu", rank=rank, host=rank)
        connect(star, f"gpu{rank}", "switch", bandwidth, latency / 2)
    return star


def connect(
    graph: nx.DiGraph[Any], one: Hashable, other: Hashable, bandwidth: float, latency: float, **attributes: object
) -> None:
    """Join two nodes by a full-duplex link: an edge each way; bytes/s in each direction, seconds."""
    graph.add_edge(one, other, bandwidth=bandwidth, latency=latency, **attributes)
    graph.add_edge(other, one, bandwidth=bandwidth, latency=latency, **attributes)


def check(graph: nx.DiGraph[Any]) -> None:
    """Raise TopologyError, which names the node or edge, unless the graph is a topology with at least one rank."""
    _directed(graph)
    for name in ("gpu", "fabric", "cpu"):
        if not isinstance(graph.graph.get(name), (str, NoneType)):
            raise TopologyError(f"the graph has {name} {graph.graph[name]!r}, expected a text")
    for node, attributes in graph.nodes.items():
        _node(node, attributes)
    for one, other, attributes in graph.edges(data=True):
        _edge(one, other, attributes)
    if not ranks(graph):
        raise TopologyError("the topology has no node of kind gpu, expected one for each rank")


def _node(node: Hashable, attributes: dict[str, Any]) -> None:
    kind = attributes.get("kind")
    if kind not in KINDS:
        raise TopologyError(f"node {node!r} has kind {kind!r}, expected one of {', '.join(KINDS)}")
    if not isinstance(attributes.get("host"), Hashable):
        raise TopologyError(f"node {node!r} has host {attributes['host']!r}, expected a value that hashes")
    if not isinstance(attributes.get("level", 1), Integral):
        raise TopologyError(f"node {node!r} has level {attributes['level']!r}, expected a whole number")


def _edge(one: Hashable, other: Hashable, attributes: dict[str, Any]) -> None:
    """NaN compares false, so that it fails both tests."""
    bandwidth, latency, link = attributes.get("bandwidth"), attributes.get("latency"), attributes.get("link")
    if not (is_number(bandwidth) and bandwidth > 0):
        raise TopologyError(f"edge {one!r} -> {other!r} has bandwidth {bandwidth!r:.40}, expected bytes/s above 0")
    if not (is_number(latency) and 0 <= latency < math.inf):
        raise TopologyError(f"edge {one!r} -> {other!r} has latency {latency!r:.40}, expected seconds of at least 0")
    if link is not None and link not in LINKS:
        raise TopologyError(f"edge {one!r} -> {other!r} has link {link!r}, expected one of {', '.join(LINKS)}")


def is_number(value: object) -> TypeGuard[float]:
    """True for a real number that a float can hold, except a bool."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def positive(name: str, value: object) -> None:
    """Raise TopologyError, which names the argument, unless the value is a finite number above 0."""
    if not (is_number(value) and 0 < value < math.inf):
        raise TopologyError(f"{name} is {value!r}, expected a number above 0")


def whole(name: str, value: object, least: int = 1) -> None:
    """Raise TopologyError, which names the argument, unless the value is an integer of at least ``least``."""
    if not (isinstance(value, Integral) and is_number(value) and value >= least):
        raise TopologyError(f"{name} is {value!r}, expected a whole number of at least {least}")


def link_kind(graph: nx.DiGraph[Any], one: Hashable, other: Hashable) -> str:
    """Returns a link's kind, one of `LINKS`: as its edge states it, or else by the kinds of its ends."""
    stated = graph.edges[one, other].get("link")
    if stated is not None:
        return str(stated)
    ends = {graph.nodes[one]["kind"], graph.nodes[other]["kind"]}
    if "switch" in ends or ends == {"nic"}:
        return "network"
    if ends == {"gpu"}:
        return "nvlink"
    if ends == {"cpu"}:
        return "cpu"
    return next((link for kind, link in _LINK_BY_KIND.items() if kind in ends), "pcie")


def hosts(graph: nx.DiGraph[Any]) -> dict[object, list[Hashable]]:
    """The gpu nodes of each host, in the order of their ranks; a gpu without the attribute ``host`` is its own host."""
    found: dict[object, list[Hashable]] = {}
    for node in ranks(graph):
        found.setdefault(graph.nodes[node].get("host", node), []).append(node)
    return found


def named(nodes: Iterable[Hashable], limit: int = 4) -> str:
    """A few nodes as text for an error."""
    listed = [repr(node) for node in nodes]
    return ", ".join(listed[:limit]) + (f" and {len(listed) - limit} more" if len(listed) > limit else "")
