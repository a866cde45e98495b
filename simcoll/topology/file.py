"""Topology files: simcoll's own in JSON or YAML, read and written, and other tools', told apart by their content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx as nx

from simcoll.core.io import write_whole
from simcoll.errors import TopologyError
from simcoll.topology.documents import Json, dump_yaml, parse_json, parse_yaml, read_text
from simcoll.topology.format import document_of, graph_of
from simcoll.topology.graph import Topology, check
from simcoll.topology.import_astra_sim import is_network, topology_of_network
from simcoll.topology.import_hints import Hints, repeated
from simcoll.topology.import_nccl import topology_of_graphs, topology_of_system
from simcoll.topology.import_nvidia_smi import is_matrix, topology_of_matrix
from simcoll.topology.xml import parse_xml

_YAML = (".yaml", ".yml")


def read_topology(path: str | Path, hints: Hints | None = None) -> Topology:
    """The topology in a file, whichever of the formats it has; raises TopologyError, which names the line.

    ``hints`` say what an NCCL or nvidia-smi file leaves out, and how many servers like the one it describes there are.
    """
    path, hints = Path(path), hints or Hints()
    graph = _parsed(path, read_text(path), hints)
    try:
        check(graph)
    except TopologyError as error:
        raise TopologyError(f"{path}: {error}") from None
    graph.graph.setdefault("name", path.stem)
    return graph


def _parsed(path: Path, text: str, hints: Hints) -> Topology:
    name = str(path)
    if text.lstrip().startswith("<"):
        root = parse_xml(name, text)
        return topology_of_graphs(root, hints) if root.tag == "graphs" else topology_of_system(root, hints)
    is_json = text.lstrip()[:1] in ("{", "[") and path.suffix.lower() not in _YAML
    if not is_json and is_matrix(text):
        return topology_of_matrix(name, text, hints)
    given = [key for key in ("gpu", "gpus_per_node", "nic_gbps", "fabric") if getattr(hints, key) is not None]
    if given:
        raise TopologyError(f"{name} states its own hardware; leave {', '.join(given)} out")
    document = parse_json(name, text) if is_json else parse_yaml(name, text)
    graph = topology_of_network(document) if is_network(document.value) else graph_of(document)
    return repeated(graph, hints.nodes)


def write_topology(path: str | Path, graph: nx.DiGraph[Any]) -> None:
    """Write a topology file, YAML by its ending and otherwise JSON, whole or not at all; raises TopologyError."""
    path = Path(path)
    document = document_of(graph)
    write_text(path, dump_yaml(document) if path.suffix.lower() in _YAML else dump_json(document))


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all; raises TopologyError."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise TopologyError(f"cannot write {path}: {error.strerror}; choose another file") from None


def dump_json(document: dict[str, Json]) -> str:
    """A topology document as text, with a line for each node and each link."""
    parts = []
    for key, value in document.items():
        if key in ("nodes", "links") and isinstance(value, list):
            entries = ",\n    ".join(json.dumps(entry) for entry in value)
            parts.append(f'  "{key}": [\n    {entries}\n  ]' if value else f'  "{key}": []')
        else:
            parts.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
