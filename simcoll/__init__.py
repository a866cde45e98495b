"""simcoll records what every rank says to every other rank, proves that they agree, and prices it.

Importing this package imports no torch; the names that need it import it when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcoll.public_paths import find_moved_modules, lazy_names

if TYPE_CHECKING:
    from simcoll.backends.simulated import simulate
    from simcoll.core.estimate import Estimate
    from simcoll.errors import (
        CollectiveMismatchError,
        ConfigurationError,
        MissingRankError,
        SimcollError,
        TopologyError,
    )
    from simcoll.estimator.estimate import estimate
    from simcoll.estimator.time_estimator import time_estimator
    from simcoll.plan.planning import plan
    from simcoll.pricing.price import price
    from simcoll.recorder.dump import dump
    from simcoll.recorder.steps import mark_steps, step
    from simcoll.simulation.explore import explore
    from simcoll.topology.clusters import cluster
    from simcoll.topology.fat_trees import fat_tree, rail_optimised
    from simcoll.topology.file import read_topology, write_topology
    from simcoll.topology.graph import Topology, flat
    from simcoll.topology.presets import preset
    from simcoll.wrapper.hooks import disable, enable, wrap_process_group

__version__ = "0.1.0"

_HOMES = {
    "CollectiveMismatchError": "simcoll.errors",
    "ConfigurationError": "simcoll.errors",
    "Estimate": "simcoll.core.estimate",
    "MissingRankError": "simcoll.errors",
    "SimcollError": "simcoll.errors",
    "Topology": "simcoll.topology.graph",
    "TopologyError": "simcoll.errors",
    "cluster": "simcoll.topology.clusters",
    "disable": "simcoll.wrapper.hooks",
    "dump": "simcoll.recorder.dump",
    "enable": "simcoll.wrapper.hooks",
    "estimate": "simcoll.estimator.estimate",
    "explore": "simcoll.simulation.explore",
    "fat_tree": "simcoll.topology.fat_trees",
    "flat": "simcoll.topology.graph",
    "mark_steps": "simcoll.recorder.steps",
    "plan": "simcoll.plan:",
    "preset": "simcoll.topology.presets",
    "price": "simcoll.pricing.price",
    "rail_optimised": "simcoll.topology.fat_trees",
    "read_topology": "simcoll.topology.file",
    "simulate": "simcoll.backends.simulated",
    "step": "simcoll.recorder.steps",
    "time_estimator": "simcoll.estimator.time_estimator",
    "wrap_process_group": "simcoll.wrapper.hooks",
    "write_topology": "simcoll.topology.file",
}

__all__ = [
    "CollectiveMismatchError",
    "ConfigurationError",
    "Estimate",
    "MissingRankError",
    "SimcollError",
    "Topology",
    "TopologyError",
    "__version__",
    "cluster",
    "disable",
    "dump",
    "enable",
    "estimate",
    "explore",
    "fat_tree",
    "flat",
    "mark_steps",
    "plan",
    "preset",
    "price",
    "rail_optimised",
    "read_topology",
    "simulate",
    "step",
    "time_estimator",
    "wrap_process_group",
    "write_topology",
]


__getattr__ = lazy_names(__name__, _HOMES)
find_moved_modules()


def __dir__() -> list[str]:
    return sorted(__all__)
