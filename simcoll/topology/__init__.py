"""Clusters as graphs: hardware, presets, files, importers of NCCL, nvidia-smi and ASTRA-sim, placement, drawing.

``simcoll.estimator`` prices collectives on a graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcoll.public_paths import lazy_names

if TYPE_CHECKING:
    from simcoll.errors import TopologyError
    from simcoll.topology.graph import Topology, derived, flat

__all__ = ["Topology", "TopologyError", "derived", "flat"]

__getattr__ = lazy_names(
    __name__,
    {
        "Topology": "simcoll.topology.graph",
        "TopologyError": "simcoll.errors",
        "derived": "simcoll.topology.graph",
        "flat": "simcoll.topology.graph",
    },
)
