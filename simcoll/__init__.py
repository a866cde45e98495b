"""simcoll records what every rank says to every other rank, proves that they agree, and prices it.

Importing this package imports no torch; the names that need it import it when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simcoll.activation import disable, enable, wrap_process_group
    from simcoll.backends.simulated import simulate
    from simcoll.clusters import cluster
    from simcoll.collecting import dump
    from simcoll.errors import CollectiveMismatchError, ConfigurationError, MissingRankError, SimcollError
    from simcoll.estimate_value import Estimate
    from simcoll.estimating import time_estimator
    from simcoll.estimator import estimate
    from simcoll.exploring import explore
    from simcoll.fat_trees import fat_tree, rail_optimised
    from simcoll.presets import preset
    from simcoll.pricing import price
    from simcoll.topology import Topology, TopologyError, flat
    from simcoll.topology_file import read_topology, write_topology

__version__ = "0.1.0"

_HOMES = {
    "CollectiveMismatchError": "simcoll.errors",
    "ConfigurationError": "simcoll.errors",
    "Estimate": "simcoll.estimate_value",
    "MissingRankError": "simcoll.errors",
    "SimcollError": "simcoll.errors",
    "Topology": "simcoll.topology",
    "TopologyError": "simcoll.topology",
    "cluster": "simcoll.clusters",
    "disable": "simcoll.activation",
    "dump": "simcoll.collecting",
    "enable": "simcoll.activation",
    "estimate": "simcoll.estimator",
    "explore": "simcoll.exploring",
    "fat_tree": "simcoll.fat_trees",
    "flat": "simcoll.topology",
    "preset": "simcoll.presets",
    "price": "simcoll.pricing",
    "rail_optimised": "simcoll.fat_trees",
    "read_topology": "simcoll.topology_file",
    "simulate": "simcoll.backends.simulated",
    "time_estimator": "simcoll.estimating",
    "wrap_process_group": "simcoll.activation",
    "write_topology": "simcoll.topology_file",
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
    "preset",
    "price",
    "rail_optimised",
    "read_topology",
    "simulate",
    "time_estimator",
    "wrap_process_group",
    "write_topology",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'simcoll' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value  # found at once the next time: `simcoll.estimate` is called in loops
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
