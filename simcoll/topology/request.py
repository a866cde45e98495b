"""A topology as a command line or a scenario asks for it: a file, a preset, or a cluster by its hardware.

Importing this module imports nothing but the standard library.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcoll.errors import TopologyError

if TYPE_CHECKING:
    from simcoll.topology.graph import Topology

_PRESET = ("gpu", "nodes")
_FILE = ("gpu", "nodes", "gpus_per_node", "nic_gbps", "fabric")
_FILE_SUFFIXES = (".json", ".yaml", ".yml", ".xml", ".txt")


@dataclass(frozen=True, slots=True)
class TopologyRequest:
    """``topology`` is a file or the name of a preset; the other fields are arguments of `simcoll.cluster`."""

    topology: str | None = None
    gpu: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    nics_per_node: int | None = None
    nic_gbps: float | None = None
    fabric: str | None = None
    nvlink_domain: int | None = None

    @property
    def is_given(self) -> bool:
        """True if anything was asked for."""
        return self.topology is not None or bool(self.hardware())

    def build(self) -> Topology:
        """The topology; raises TopologyError, one line, where none is asked for and for options that do not fit."""
        if self.topology is not None:
            return self._named(self.topology)
        if not self.is_given:
            raise TopologyError("no topology is given; give --topology FILE|PRESET, or --gpu FAMILY --nodes N")
        from simcoll.topology.clusters import cluster

        return cluster(**self.hardware())

    def _named(self, name: str) -> Topology:
        if _is_file(name):
            from simcoll.topology.file import read_topology
            from simcoll.topology.import_hints import Hints

            self._refuse_others(name, _FILE)
            return read_topology(name, Hints(**self.hardware()))
        from simcoll.topology.presets import preset

        given = self.hardware()
        topology = preset(name, **{field: given[field] for field in _PRESET if field in given})
        self._refuse_others(name, _PRESET)
        return topology

    def hardware(self) -> dict[str, Any]:
        """The arguments of `simcoll.cluster` that are given."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "topology"}
        return {name: value for name, value in values.items() if value is not None}

    def _refuse_others(self, name: str, fitting: tuple[str, ...]) -> None:
        others = [f"--{field.replace('_', '-')}" for field in self.hardware() if field not in fitting]
        if others:
            raise TopologyError(f"{name} states its own hardware; leave {', '.join(others)} out")


def topology_named(name: str) -> Topology:
    """A preset, otherwise a file, as it stands; raises TopologyError."""
    return TopologyRequest(name).build()


def _is_file(name: str) -> bool:
    """True if a name is a file: no preset, and it exists or looks like a path; others get the nearest presets."""
    from simcoll.topology.presets import PRESETS

    if name.strip().lower() in PRESETS:
        return False
    path = Path(name)
    looks = len(path.parts) > 1 or path.suffix.lower() in _FILE_SUFFIXES
    return looks or os.path.exists(name)
