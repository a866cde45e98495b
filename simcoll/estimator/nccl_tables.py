"""NCCL's tuning tables as facts: its tuner's assumptions on algorithms, protocols and GPU generations.

Source: NCCL 2.30.7 (github.com/NVIDIA/nccl, commit 5067397c), ``src/graph/tuning.cc``. Seconds and bytes/s; triples are
(LL, LL128, Simple).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

PROTOCOLS = ("LL", "LL128", "Simple")
LL, LL128, SIMPLE = range(3)

VOLTA, AMPERE, HOPPER, BLACKWELL = range(4)

GENERATIONS: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("v100", "t4"), VOLTA),
        **dict.fromkeys(("a100", "a800", "a10", "a10g", "a30", "a40", "l4", "l40", "l40s", "rtx4090"), AMPERE),
        **dict.fromkeys(("h100", "h800", "h20", "h200", "gh200"), HOPPER),
        **dict.fromkeys(("b100", "b200", "b300", "gb10", "gb200", "gb300"), BLACKWELL),
    }
)
"""The tables' row of a GPU family: by compute capability below 8, 8.x (Ada included), 9.x, 10 and above."""


def _us(*values: float) -> tuple[float, ...]:
    return tuple(value * 1e-6 for value in values)


def _gb(*values: float) -> tuple[float, ...]:
    return tuple(value * 1e9 for value in values)


BASE_LATENCY = {"tree": _us(6.8, 14.0, 8.4), "ring": _us(6.6, 14.0, 8.4), "pat": _us(8.0, 8.0, 8.0)}
"""Seconds before the first step."""

STEP_LATENCY = {
    "nvlink": {"tree": _us(0.6, 1.25, 4.0), "ring": _us(0.6, 1.9, 3.4), "pat": _us(0.0, 0.0, 4.0)},
    "pcie": {"tree": _us(1.0, 1.9, 4.0), "ring": _us(1.0, 2.5, 5.7), "pat": _us(0.0, 0.0, 4.0)},
    "network": {"tree": _us(5.0, 8.5, 14.0), "ring": _us(2.7, 4.0, 14.0), "pat": _us(0.0, 0.0, 14.0)},
}
"""Seconds of one step over a link of that kind."""

NVLS_LATENCY = 25e-6
"""Seconds of a reduction in the NVSwitch."""

NVLS_TREE_STEP = 20.9e-6
"""Seconds of a step of NVLS-tree between NVLink domains."""

PAT_RANK = 2.8e-6
"""Seconds that PAT takes for each rank, beside its steps, of which `PAT_STEPS_AT_ONCE` overlap."""

PAT_STEPS_AT_ONCE = 3.5
PAT_BANDWIDTH = 0.75

NET_OVERHEAD = {"amd": 2e-6}
"""Seconds that a step inside a server takes at least when a collective also crosses the network; else 1 us."""

NET_OVERHEAD_OTHERWISE = 1e-6
NET_OVERHEAD_SIMPLE = 3.0

LL_BANDWIDTH = (_gb(39.0, 39.0, 20.4), _gb(87.7, 22.5, 19.0), _gb(141.0, 45.0, 35.0), _gb(282.0, 90.0, 70.0))
"""The most that LL carries, by generation and (one, two, more nodes); with several nodes the CPU picks the row."""

LL_RING_SHARE = 0.5
LL_TREE_SHARE = 1 / 3.8
LL128_RING_SHARE = 0.92
LL128_TREE_SHARE = (7 / 9, 120 / 128)
"""The protocol's share of the bandwidth; LL128 over a tree: on one node, on several."""

TREE_SHARE = 0.92

TREE_CORRECTION = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5),
        *(0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
    ),
)
"""The share of a tree's bandwidth that an all_reduce achieves, by protocol and log2(bytes / 64)."""


def ll_bandwidth(generation: int, nodes: int, cpu: str | None) -> float:
    """The most that LL carries in all, bytes/s."""
    if nodes == 1:
        return LL_BANDWIDTH[generation][0]
    return LL_BANDWIDTH[1 if cpu == "amd" else 0][min(nodes, 3) - 1]


def net_overhead(cpu: str | None, protocol: int) -> float:
    """Seconds that a step inside a server takes at least where the collective crosses the network."""
    overhead = NET_OVERHEAD.get(cpu or "", NET_OVERHEAD_OTHERWISE)
    return overhead * (NET_OVERHEAD_SIMPLE if protocol == SIMPLE else 1.0)
