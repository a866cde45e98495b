"""Topology files: simcoll's own in JSON or YAML, read and written, and other tools', recognised by their content.

simcoll's own document (``simcoll.topology/1``) is a graph as plain data, written and read back. It has either ``nodes``
and ``links``, or in their place one of three short forms: ``cluster`` (the arguments of `simcoll.cluster`), ``preset``
with ``count`` servers, or ``flat`` (those of `simcoll.flat`). ``topology.schema.json`` beside this module states the
same. Bandwidths are bytes/s in each direction, latencies seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar, cast

import networkx as nx

from simcoll.core.documents import Place
from simcoll.core.io import write_whole
from simcoll.errors import TopologyError
from simcoll.topology.clusters import cluster
from simcoll.topology.graph import KINDS, LINKS, Topology, check, flat, is_number
from simcoll.topology.import_astra_sim import is_network, topology_of_network
from simcoll.topology.import_hints import Hints, repeated
from simcoll.topology.import_nccl import topology_of_graphs, topology_of_system
from simcoll.topology.import_nvidia_smi import is_matrix, topology_of_matrix
from simcoll.topology.json_yaml import Document, Json, dump_yaml, parse_json, parse_yaml, read_text
from simcoll.topology.presets import preset
from simcoll.topology.xml import parse_xml

Value = TypeVar("Value")

SCHEMA = "simcoll.topology/1"

_GRAPH = ("name", "gpu", "fabric", "cpu")
_NODE = ("kind", "rank", "host", "model", "level", "sharp")
_EDGE = ("bandwidth", "latency", "link")
_FORMS = ("nodes", "cluster", "preset", "flat")

_EXPECTED: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys((*_GRAPH, "model", "preset", "from", "to"), ((str,), "a text")),
    "rank": ((int,), "a whole number"),
    "level": ((int,), "a whole number"),
    "count": ((int,), "a whole number"),
    "host": ((str, int), "a text or a whole number"),
    "sharp": ((bool,), "true or false"),
    "oneway": ((bool,), "true or false"),
    "attributes": ((dict,), "an object"),
    "nodes": ((list,), "a list"),
    "links": ((list,), "a list"),
    "cluster": ((dict,), "an object"),
    "flat": ((dict,), "an object"),
    "kind": ((str,), f"one of {', '.join(KINDS)}"),
    "link": ((str,), f"one of {', '.join(LINKS)}"),
    "bandwidth": ((int, float), "bytes/s above 0"),
    "latency": ((int, float), "seconds of at least 0"),
    "schema": ((str,), repr(SCHEMA)),
}
"""The types that each key may have, and the expectation that an error states."""


def graph_of(document: Document) -> Topology:
    """The topology that a document describes; raises TopologyError, which names the line and what was expected."""
    top = _members(document, document.value, (), ("schema",), (*_GRAPH, *_FORMS, "links", "count", "attributes"))
    if top["schema"] != SCHEMA:
        raise document.error(("schema",), f"is {top['schema']!r}, expected {SCHEMA!r}")
    forms = [form for form in _FORMS if form in top]
    if len(forms) != 1:
        raise document.error((), f"{len(forms)} of {', '.join(_FORMS)}, expected exactly one of them")
    for key, form in (("links", "nodes"), ("count", "preset")):
        if key in top and form not in top:
            raise document.error((key,), f"without {form}, expected them together")
    graph = _explicit(document, top) if forms == ["nodes"] else _short(document, top, forms[0])
    graph.graph.update({key: top[key] for key in _GRAPH if key in top} | _attributes(document, top, ()))
    notes = graph.graph.get("notes", [])
    if not (isinstance(notes, list) and all(isinstance(text, str) for text in notes)):
        raise document.error(("attributes", "notes"), "is no list of texts, expected one")
    _checked(document, (), lambda: check(graph))
    return graph


def _short(document: Document, top: Mapping[str, Json], form: str) -> Topology:
    """A graph by one of the short forms, whose errors are those of the function behind it."""
    if form == "preset":
        name, count = cast(str, top["preset"]), cast("int | None", top.get("count"))
        return _checked(document, ("preset",), lambda: preset(name, nodes=count))
    build: Callable[..., Topology] = cluster if form == "cluster" else flat
    known = tuple(signature(build).parameters)
    needed = known if form == "flat" else ()
    arguments = _members(document, top[form], (form,), needed, known, {})
    return _checked(document, (form,), lambda: build(**arguments))


def _explicit(document: Document, top: Mapping[str, Json]) -> Topology:
    graph = Topology()
    for number, entry in enumerate(cast("list[Json]", top["nodes"])):
        _add_node(document, graph, entry, ("nodes", number))
    for number, entry in enumerate(cast("list[Json]", top.get("links", []))):
        _add_link(document, graph, entry, ("links", number))
    return graph


def _add_node(document: Document, graph: Topology, entry: Json, place: Place) -> None:
    node = _members(document, entry, place, ("name", "kind"), (*_NODE, "attributes"))
    if node["name"] in graph:
        raise document.error((*place, "name"), f"is {node['name']!r} as an earlier node's, expected a name of its own")
    if node["kind"] not in KINDS:
        raise document.error((*place, "kind"), f"is {node['kind']!r}, expected {_EXPECTED['kind'][1]}")
    graph.add_node(node["name"])
    graph.nodes[node["name"]].update(
        {key: node[key] for key in _NODE if key in node} | _attributes(document, node, place)
    )


def _add_link(document: Document, graph: Topology, entry: Json, place: Place) -> None:
    link = _members(document, entry, place, ("from", "to", "bandwidth", "latency"), ("link", "oneway", "attributes"))
    for end in ("from", "to"):
        if link[end] not in graph:
            raise document.error((*place, end), f"is {link[end]!r}, expected the name of a node")
    if "link" in link and link["link"] not in LINKS:
        raise document.error((*place, "link"), f"is {link['link']!r}, expected {_EXPECTED['link'][1]}")
    for key, fits in (("bandwidth", link["bandwidth"] > 0), ("latency", link["latency"] >= 0)):
        if not fits:
            raise document.error((*place, key), f"is {link[key]!r}, expected {_EXPECTED[key][1]}")
    attributes = _attributes(document, link, place)
    ends = [(link["from"], link["to"]), (link["to"], link["from"])][: 1 if link.get("oneway") else 2]
    for one, other in ends:
        if one == other or graph.has_edge(one, other):
            problem = (
                "a node's link to itself" if one == other else "a second link; parallel links are one, with their sum"
            )
            raise document.error(place, f"joins {one!r} to {other!r}: {problem}")
        graph.add_edge(one, other)
        graph.edges[one, other].update({key: link[key] for key in _EDGE if key in link} | attributes)


def _attributes(document: Document, entry: Mapping[str, Json], place: Place) -> dict[str, Any]:
    """Returns the attributes of a node, a link or the graph besides those that the format knows."""
    attributes = cast("dict[str, Any]", entry.get("attributes", {}))
    known = next((key for key in attributes if key in {*_GRAPH, *_NODE, *_EDGE}), None)
    if known is not None:
        raise document.error((*place, "attributes", known), "is one of the format's own keys, expected it outside")
    return attributes


def _members(
    document: Document,
    value: Json,
    place: Place,
    needed: Iterable[str],
    known: Iterable[str],
    expected: Mapping[str, tuple[tuple[type, ...], str]] = _EXPECTED,
) -> dict[str, Any]:
    """An object with all the needed keys, no unknown ones, and values of their types."""
    if not isinstance(value, dict):
        raise document.error(place, f"is {_shown(value)}, expected an object")
    missing = next((key for key in needed if key not in value), None)
    if missing is not None:
        raise document.error(place, f"has no {missing!r}, expected one")
    allowed = dict.fromkeys((*needed, *known))
    for key, member in value.items():
        if key not in allowed:
            raise document.error((*place, key), f"is unknown, expected one of {', '.join(allowed)}")
        types, what = expected.get(key, ((object,), ""))
        if not isinstance(member, types) or (isinstance(member, bool) and not {bool, object} & set(types)):
            raise document.error((*place, key), f"is {_shown(member)}, expected {what}")
    return value


def _shown(value: Json) -> str:
    named = {dict: "an object", list: "a list", type(None): "empty"}
    text = named.get(type(value)) or repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _checked(document: Document, place: Place, build: Callable[[], Value]) -> Value:
    """Returns the result of a function; its TopologyError gets the line of the part that it is about."""
    try:
        return build()
    except TopologyError as error:
        raise document.error(place, f": {error}" if place else str(error)) from None


def document_of(graph: nx.DiGraph[Any]) -> dict[str, Json]:
    """The document that describes a graph; raises TopologyError for values that JSON lacks."""
    check(graph)
    names = {node: str(node) for node in graph}
    if len(set(names.values())) < len(names):
        raise TopologyError("two nodes of the topology have the same name as text; rename one of them")
    top: dict[str, Json] = {"schema": SCHEMA, **_described("the topology", graph.graph, _GRAPH)}
    top["nodes"] = [
        {"name": names[node], **_described(f"node {node!r}", attributes, _NODE)}
        for node, attributes in graph.nodes.items()
    ]
    top["links"] = [
        _link(graph, names, one, other) for one, other in graph.edges if not _is_reverse(graph, names, one, other)
    ]
    return top


def _is_reverse(graph: nx.DiGraph[Any], names: Mapping[Hashable, str], one: Hashable, other: Hashable) -> bool:
    """True if the link in the other direction states this edge: of two like ones the first by name is written."""
    return (
        graph.has_edge(other, one) and graph.edges[one, other] == graph.edges[other, one] and names[other] < names[one]
    )


def _link(graph: nx.DiGraph[Any], names: Mapping[Hashable, str], one: Hashable, other: Hashable) -> dict[str, Json]:
    attributes = graph.edges[one, other]
    entry: dict[str, Json] = {"from": names[one], "to": names[other]}
    entry |= _described(f"edge {one!r} -> {other!r}", attributes, _EDGE)
    if not (graph.has_edge(other, one) and graph.edges[other, one] == attributes):
        entry["oneway"] = True
    return entry


def _described(what: str, attributes: Mapping[str, Any], known: Iterable[str]) -> dict[str, Json]:
    """The known attributes, and the others, if any, under ``attributes``."""
    named = {key: _plain(what, key, attributes[key]) for key in known if attributes.get(key) is not None}
    others = {key: _plain(what, key, value) for key, value in attributes.items() if key not in known}
    return named | ({"attributes": others} if others else {})


def _plain(what: str, key: object, value: Any) -> Json:
    """A value as JSON has it; numpy's numbers and tuples become Python's numbers and lists."""
    if isinstance(value, (str, bool)) or value is None:
        return value
    if key == "host" and not isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(what, key, member) for name, member in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(what, key, member) for member in value]
    if is_number(value) and abs(value) < float("inf"):
        return int(value) if float(value).is_integer() and not isinstance(value, float) else float(value)
    raise TopologyError(f"{what} has the {key} {value!r}, which a topology file cannot hold")


_YAML = (".yaml", ".yml")


def read_topology(path: str | Path, hints: Hints | None = None) -> Topology:
    """The topology in a file, whichever of the formats it has; raises TopologyError, which names the line.

    ``hints`` have the facts that an NCCL or nvidia-smi file leaves out, and the number of servers like the described
    one.
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
