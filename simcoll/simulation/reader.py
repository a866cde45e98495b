"""Reads a scenario file: TOML in, a :class:`~simcoll.simulation.scenario.Scenario` out, errors with line and key.

The keys are defined in :mod:`simcoll.simulation.keys`. Names that one part of the file uses of another are looked up
while it is read, so that the result is consistent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simcoll.backends.engine.schedules import SENDS
from simcoll.core.toml import TomlDocument, read_toml
from simcoll.simulation.read_calls import DTYPES, CallReader, FaultReader
from simcoll.simulation.scenario import BufferPlan, Expectation, Expected, GroupPlan, Scenario
from simcoll.simulation.toml_table import WORLD_NAME, Names, ScenarioTable, new_name
from simcoll.topology.request import TopologyRequest
from simcoll.values.choice import VALUES
from simcoll.verifier.findings.rules import RULES

MAX_RANKS = 4096
"""The most ranks: each simulated rank is a thread."""


def read_scenario(path: Path) -> Scenario:
    """Read a scenario file; raises TomlError, one line that names the file, the line and the key."""
    return scenario_of(read_toml(path, "; a scenario repeats calls with `repeat`"))


def scenario_of(document: TomlDocument) -> Scenario:
    """A scenario from a TOML document; raises ScenarioError."""
    top = ScenarioTable(document, (), "", document.value)
    names = Names(top.whole("ranks", least=1, most=MAX_RANKS))
    for table in top.tables("buffers"):
        buffer = _buffer(table, names)
        names.buffers[buffer.name] = buffer
    for table in top.tables("groups"):
        group = _group(table, names)
        names.groups[group.name] = group
    reader = CallReader(names)
    calls = tuple(reader.call(table) for table in top.tables("calls"))
    faults, slow_links = FaultReader(names, reader).faults(top.tables("faults"))
    topology, expect = top.table("topology"), top.table("expect")
    return Scenario(
        document.name,
        top.text("title"),
        top.text("description", lines=True),
        names.world,
        calls,
        tuple(names.groups.values()),
        tuple(names.buffers.values()),
        faults,
        slow_links,
        None if topology is None else _topology(topology, Path(document.name).parent),
        top.text("sends", SENDS[0], SENDS),
        top.whole("seed"),
        top.text("values", VALUES[0], VALUES),
        None if expect is None else _expect(expect, names),
    )


def _buffer(table: ScenarioTable, names: Names) -> BufferPlan:
    name = new_name(table, names.buffers)
    if not table.has("of"):
        shape = table.shape("shape") if table.has("shape") else (4,)
        return BufferPlan(name, shape, table.text("dtype", "float32", DTYPES), table.line)
    for key in ("shape", "dtype"):
        if table.has(key):
            table.refuse(key, "does not go with `of`: a part has the dtype and the rows of the whole")
    whole = names.buffers[names.buffer(table, "of")]
    rows = whole.shape[0] if whole.shape else 0
    span = table.wholes("rows", most=rows)
    if span is None or len(span) != 2 or span[0] > span[1]:
        table.refuse("rows" if span else "", f"`rows` is to be [first, end], at most {rows}, as `{whole.name}` has")
    shape = (span[1] - span[0], *whole.shape[1:])
    return BufferPlan(name, shape, whole.dtype, table.line, whole.name, (span[0], span[1]))


def _group(table: ScenarioTable, names: Names) -> GroupPlan:
    name = new_name(table, (*names.groups, WORLD_NAME))
    variants = tuple(
        (frozenset(each.ranks("on", names.world)), each.ranks("ranks", names.world))
        for each in table.tables("variants")
    )
    members, made_by = table.ranks("ranks", names.world), table.rank_set("made_by", names.world)
    return GroupPlan(name, members, table.line, made_by, variants)


def _expect(table: ScenarioTable, names: Names) -> Expectation:
    value = table.raw("findings")
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        for code in value:
            if code not in RULES:
                table.refuse("findings", f"names {code!r:.20}, expected one of {', '.join(RULES)}")
        findings = tuple(Expected(code) for code in value)
    else:
        findings = tuple(_expected(each, names) for each in table.tables("findings"))
    seconds = table.number("seconds") if table.has("seconds") else None
    return Expectation(findings, seconds, table.number("within", 0.01))


def _expected(table: ScenarioTable, names: Names) -> Expected:
    def ranks(key: str) -> tuple[int, ...] | None:
        return tuple(sorted(table.ranks(key, names.world, empty=True))) if table.has(key) else None

    return Expected(
        table.text("code", choices=RULES),
        ranks("culprits"),
        ranks("ranks"),
        table.whole("sequence") if table.has("sequence") else None,
        names.group(table, "group") if table.has("group") else None,
        table.text("severity", choices=("error", "warning")) if table.has("severity") else None,
    )


def _topology(table: ScenarioTable, folder: Path) -> TopologyRequest:
    if table.has("preset") and table.has("file"):
        table.refuse("file", "does not go with `preset`: state one of them")
    hardware: dict[str, Any] = {}
    for key in ("nodes", "gpus_per_node", "nics_per_node", "nvlink_domain"):
        if table.has(key):
            hardware[key] = table.whole(key, least=1, most=1 << 20)
    for key in ("gpu", "fabric"):
        if table.has(key):
            hardware[key] = table.text(key)
    if table.has("nic_gbps"):
        hardware["nic_gbps"] = table.number("nic_gbps", above=0.0)
    if table.has("file"):
        return TopologyRequest(str(folder / table.text("file")), **hardware)
    return TopologyRequest(table.text("preset") if table.has("preset") else None, **hardware)
