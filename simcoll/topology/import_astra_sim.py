"""ASTRA-sim's network files (analytical back end, YAML or JSON) as graphs.

A network is a product of dimensions, each a Ring, FullyConnected or Switch of ``npus_count`` NPUs; NPU 1 differs from
NPU 0 in the first dimension. Source: astra-network-analytical, its NetworkParser and building blocks. Bandwidths are
called GB/s there and are GiB/s, of one link in each direction; latencies are nanoseconds of one link, so that a Switch,
whose members are two links apart, costs twice as much.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import cast

from simcoll.topology.graph import MAX_GPUS, Topology, connect, is_number
from simcoll.topology.json_yaml import Document, Json

_GIB = float(1 << 30)
_KEYS = ("topology", "npus_count", "bandwidth", "latency")
_BLOCKS = ("Ring", "FullyConnected", "Switch")
_MAX_LINKS = 1 << 22


def is_network(value: Json) -> bool:
    """True if a document looks like an ASTRA-sim network."""
    return isinstance(value, dict) and "npus_count" in value


def topology_of_network(document: Document) -> Topology:
    """The topology that an ASTRA-sim network file describes; raises TopologyError, which names the line."""
    blocks, counts, bandwidths, latencies = _columns(document)
    npus = math.prod(counts)
    graph = Topology(name=f"ASTRA-sim {' x '.join(map(str, counts))}")
    for npu in range(npus):
        graph.add_node(f"npu{npu}", kind="gpu", rank=npu)
    stride = 1
    for dimension, (block, count) in enumerate(zip(blocks, counts, strict=True)):
        bandwidth, latency = bandwidths[dimension] * _GIB, latencies[dimension] * 1e-9
        firsts = (npu for npu in range(npus) if npu // stride % count == 0)
        for number, first in enumerate(firsts):
            members = [f"npu{first + stride * position}" for position in range(count)]
            hub = f"dimension{dimension}/switch{number}"
            if block == "Switch":
                graph.add_node(hub, kind="switch", level=dimension + 1)
            for one, other in _pairs(block, members, hub):
                connect(graph, one, other, bandwidth, latency, link="network")
        stride *= count
    return graph


def _pairs(block: str, members: list[str], hub: str) -> Iterator[tuple[str, str]]:
    """The links of one building block; a ring of two is one link."""
    if block == "Switch":
        yield from ((member, hub) for member in members)
    elif block == "Ring" and len(members) > 2:
        yield from zip(members, members[1:] + members[:1], strict=True)
    else:
        yield from itertools.combinations(members, 2)


def _columns(document: Document) -> tuple[list[str], list[int], list[float], list[float]]:
    """The four lists, equally long and within bounds; other keys are ASTRA-sim's own business."""
    top = cast("dict[str, Json]", document.value)
    for key in _KEYS:
        value = top.get(key)
        if not isinstance(value, list) or not value:
            place = (key,) if key in top else ()
            raise document.error(
                place,
                "expected a list with an entry for each dimension" if key in top else f"has no {key}, expected one",
            )
        if len(value) != len(cast("list[Json]", top["topology"])):
            raise document.error((key,), f"has {len(value)} entries, expected as many as topology has")
        for position, entry in enumerate(value):
            _check(document, key, position, entry)
    counts = cast("list[int]", top["npus_count"])
    blocks = cast("list[str]", top["topology"])
    _bounded(document, blocks, counts)
    return blocks, counts, cast("list[float]", top["bandwidth"]), cast("list[float]", top["latency"])


def _check(document: Document, key: str, position: int, entry: Json) -> None:
    expected = {
        "topology": (entry in _BLOCKS, f"one of {', '.join(_BLOCKS)}"),
        "npus_count": (isinstance(entry, int) and is_number(entry) and entry > 1, "a whole number above 1"),
        "bandwidth": (is_number(entry) and entry > 0, "GB/s above 0"),
        "latency": (is_number(entry) and entry >= 0, "nanoseconds of at least 0"),
    }
    fits, what = expected[key]
    if not fits:
        raise document.error((key, position), f"is {str(entry)[:40]!r}, expected {what}")


def _bounded(document: Document, blocks: list[str], counts: list[int]) -> None:
    npus = math.prod(counts)
    links = sum(
        npus * (count - 1 if block == "FullyConnected" else 2) for block, count in zip(blocks, counts, strict=True)
    )
    if npus > MAX_GPUS or links > _MAX_LINKS:
        raise document.error(
            ("npus_count",), f"gives too large a network, expected at most {MAX_GPUS:,} NPUs and {_MAX_LINKS:,} links"
        )
