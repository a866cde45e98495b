"""Reads the ``[[calls]]`` of a scenario: steps, ranks, overrides, loops; its ``[[faults]]`` with the slow links."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from simcoll.simulation.keys import KINDS
from simcoll.simulation.operations import ACTIONS, VERBS, keys_of
from simcoll.simulation.scenario import (
    CallPlan,
    Fault,
    Loop,
    Override,
    Peer,
    Relative,
    ScenarioLink,
    ScenarioParameter,
    ScenarioStep,
)
from simcoll.simulation.toml_table import MAX_ELEMENTS, MAX_NAME, Names, ScenarioTable
from simcoll.spec.call import ANY_SOURCE
from simcoll.spec.semantics import REDUCE_OPS
from simcoll.spec.table import Kind

MAX_FAULTS = 200
_WHERE = frozenset({"ranks", "call", "at", "iteration"})
"""The keys for the place of a fault."""


class FaultReader:
    """Reads the faults of one file, after its calls."""

    def __init__(self, names: Names, calls: CallReader) -> None:
        self._names = names
        self._calls = calls

    def faults(self, tables: Iterable[ScenarioTable]) -> tuple[tuple[Fault, ...], tuple[ScenarioLink, ...]]:
        """The faults of ranks, and the slow links."""
        faults: list[Fault] = []
        links: list[ScenarioLink] = []
        for number, table in enumerate(tables, 1):
            if number > MAX_FAULTS:
                table.refuse("", f"is fault number {number}, expected at most {MAX_FAULTS}")
            kind = table.text("kind", choices=KINDS)
            _check_keys(table, kind)
            if kind == "slow-link":
                links.append(_slow_link(table, self._names.world))
            else:
                faults.append(self._fault(table, kind))
        return tuple(faults), tuple(links)

    def _fault(self, table: ScenarioTable, kind: str) -> Fault:
        if not table.has("ranks"):
            table.refuse("kind", f"is {kind!r}, which needs the key `ranks`: where it happens")
        if table.has("call") + table.has("at") != 1 and (kind != "slow-rank" or table.has("at")):
            table.refuse("kind", f"is {kind!r}, which needs either `call` or `at`: at which call it happens")
        return Fault(
            kind,
            frozenset(table.ranks("ranks", self._names.world)),
            table.line_of("kind"),
            self._names.call(table, "call"),
            table.whole("at", 0, least=1),
            table.whole("iteration", 0, least=1),
            MappingProxyType({**self._calls.fields(table, ""), **_end_fields(table)}),
        )


def _check_keys(table: ScenarioTable, kind: str) -> None:
    own = KINDS[kind][0]
    where = frozenset[str]() if kind == "slow-link" else _WHERE
    for key in table.given:
        if key not in own | where | {"kind"}:
            table.refuse(key, f"does not go with {kind!r}, which takes {', '.join(sorted(own | where))}")
    needed = {"between"} if kind == "slow-link" else own if kind.startswith(("wrong", "slow")) else frozenset[str]()
    if needed and not any(map(table.has, needed)):
        table.refuse("kind", f"is {kind!r}, which needs {' or '.join(f'`{key}`' for key in sorted(needed))}")


def _slow_link(table: ScenarioTable, world: int) -> ScenarioLink:
    between = table.ranks("between", world)
    if len(between) != 2:
        table.refuse("between", f"has {len(between)} ranks, expected the two ends of a path, such as [0, 4]")
    factor = table.number("factor", 1.0, above=0.0, most=1.0)
    return ScenarioLink((between[0], between[1]), factor, table.number("latency"), table.line)


def _end_fields(table: ScenarioTable) -> dict[str, object]:
    """The fields of a crash or an exit."""
    fields: dict[str, object] = {}
    if table.has("exception"):
        fields["exception"] = table.text("exception")
        if not table.text("exception").isidentifier():
            table.refuse("exception", f"is {table.text('exception')!r:.40}, expected a type such as ValueError")
    if table.has("message"):
        fields["message"] = table.text("message")
    if table.has("exit_code"):
        fields["exit_code"] = table.whole("exit_code", most=255)
    return fields


MAX_REPEAT = 100_000
MAX_CALLS = 20_000
"""The most calls and overrides of a file, without repeats."""

MAX_NESTING = 8
_MAX_PARAMETERS = 10_000

DTYPES = (
    "float64 float32 float16 int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool complex64 complex128".split()  # noqa: SIM905
)
"""The dtypes that both torch and numpy have."""

_OPS = (*VERBS, *ACTIONS)
_DISTANCE = re.compile(r"[+-]\d{1,6}", re.ASCII)
_RENAMED = MappingProxyType({"shape": "shapes", "async": "asynchronous"})
"""Keys whose field in a step has another name."""

_NEEDED = MappingProxyType({"write": "buffer", "compute": "seconds", "new_group": "group", "destroy_group": "group"})
"""The key that an action needs."""


class CallReader:
    """Reads the calls of one file."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._calls = 0

    def call(self, table: ScenarioTable, depth: int = 0) -> CallPlan | Loop:
        """One entry of ``calls``, with the calls that it repeats."""
        self._count(table)
        return self._loop(table, depth) if table.has("repeat") or table.has("calls") else self._plan(table)

    def _count(self, table: ScenarioTable) -> None:
        self._calls += 1
        if self._calls > MAX_CALLS:
            table.refuse("", f"is number {MAX_CALLS + 1:,} of the calls, expected at most {MAX_CALLS:,}; use `repeat`")

    def _plan(self, table: ScenarioTable) -> CallPlan:
        name, op = table.text("name"), table.text("op", choices=_OPS)
        if len(name) > MAX_NAME:
            table.refuse("name", f"has {len(name)} characters, expected at most {MAX_NAME}")
        _check_needed(table, op)
        fields: dict[str, Any] = {"of": self._names.call(table, "call"), **self.fields(table, op)}
        plan = CallPlan(
            replace(ScenarioStep(op, table.line_of("op"), name=name), **fields),
            table.rank_set("ranks", self._names.world),
            tuple(self._override(each, op) for each in table.tables("overrides")),
        )
        self._names.calls |= {op, name} - {""}
        self._check_memory(table, plan)
        return plan

    def _loop(self, table: ScenarioTable, depth: int) -> Loop:
        for key in table.given:
            if key not in ("repeat", "calls", "ranks", "name"):
                table.refuse(key, "does not go with `repeat`, which takes `calls` and `ranks` alone")
        if not table.has("calls") or depth >= MAX_NESTING:
            table.refuse("repeat", f"needs nested `calls`, [[calls.calls]], up to {MAX_NESTING} levels deep")
        repeat = table.whole("repeat", 1, most=MAX_REPEAT)
        inner = tuple(self.call(each, depth + 1) for each in table.tables("calls"))
        return Loop(repeat, inner, table.line, table.rank_set("ranks", self._names.world))

    def _override(self, table: ScenarioTable, op: str) -> Override:
        self._count(table)
        fields = self.fields(table, op)
        if "op" in fields:
            fields["line"] = table.line_of("op")
        return Override(frozenset(table.ranks("ranks", self._names.world)), MappingProxyType(fields))

    def fields(self, table: ScenarioTable, op: str) -> dict[str, object]:
        """The fields of a step that a table sets; ``op`` is that of the call, empty where it is not known."""
        names = self._names
        readers: dict[str, Callable[[], object]] = {
            "op": lambda: table.text("op", choices=_OPS),
            "group": lambda: names.group(table, "group"),
            "shape": lambda: (table.shape("shape"),),
            "shapes": lambda: table.shapes("shapes"),
            "dtype": lambda: table.text("dtype", choices=DTYPES),
            "device": lambda: table.text("device"),
            "order": lambda: _order(table),
            "reduce_op": lambda: table.text("reduce_op", choices=REDUCE_OPS),
            "root": lambda: table.whole("root"),
            "peer": lambda: _peer(table),
            "tag": lambda: table.whole("tag", most=(1 << 31) - 1),
            "input_splits": lambda: table.wholes("input_splits"),
            "output_splits": lambda: table.wholes("output_splits"),
            "parts": lambda: table.wholes("parts"),
            "async": lambda: table.flag("async"),
            "buffer": lambda: names.buffer(table, "buffer"),
            "output": lambda: names.buffer(table, "output"),
            "seconds": lambda: table.number("seconds"),
            "parameters": lambda: _parameters(table),
        }
        if table.has("shape") and table.has("shapes"):
            table.refuse("shapes", "does not go with `shape`: state one of them")
        found: dict[str, object] = {_RENAMED.get(key, key): read() for key, read in readers.items() if table.has(key)}
        # A fault may change a call's op, and sets nothing else then.
        op = str(found.get("op", op)) if table.kind != "faults" else ""
        if op:
            _check_fit(table, op, readers)
        return found

    def _check_memory(self, table: ScenarioTable, plan: CallPlan) -> None:
        """Refuse a call that is too large: simulated ranks share one process's memory."""
        given = [plan.step.shapes, *(each.fields.get("shapes", ()) for each in plan.overrides)]
        largest = max(sum(map(math.prod, shapes)) for shapes in given if isinstance(shapes, tuple))
        world = self._names.world
        parts = world if plan.step.op in VERBS and VERBS[plan.step.op].spec.divided else 1
        if largest * world * parts > 4 * MAX_ELEMENTS:
            table.refuse(
                "shapes" if table.has("shapes") else "shape",
                f"makes {largest * world * parts:,} elements on {world} ranks together, expected at most"
                f" {4 * MAX_ELEMENTS:,}: simulated ranks have real arrays; `simcoll estimate` prices large calls",
            )


def _check_needed(table: ScenarioTable, op: str) -> None:
    needed = _NEEDED.get(op)
    if needed is not None and not table.has(needed):
        table.refuse("op", f"is {op!r}, which needs the key `{needed}`")
    if op == "parameters" and not table.has("parameters"):
        table.refuse("op", "is 'parameters', which needs [[calls.parameters]]")
    verb = VERBS.get(op)
    if verb is None or verb.spec.kind is not Kind.POINT_TO_POINT or verb.buffers == ("outputs",):
        return
    if not table.has("peer"):
        table.refuse("op", f"is {op!r}, which needs the key `peer`: to whom")
    if table.raw("peer") == "any":
        table.refuse("peer", f"is 'any', which is for receives; a {op} names its receiver")


def _check_fit(table: ScenarioTable, op: str, keys: Mapping[str, object]) -> None:
    """Refuse keys that an op does not take."""
    takes = keys_of(op)
    for key in table.given:
        if key in keys and key not in takes:
            other = f"; use `i{op}`" if key == "async" and f"i{op}" in VERBS else ""
            other = "; `shapes` is for all_reduce_coalesced, use `shape`" if key == "shapes" else other
            table.refuse(key, f"does not go with {op}, which takes {', '.join(sorted(takes - {'op', 'group'}))}{other}")


def _order(table: ScenarioTable) -> tuple[int, ...]:
    if table.raw("order") == "channels_last":
        return (0, 2, 3, 1)
    order = table.wholes("order", most=63) if isinstance(table.raw("order"), list) else None
    if order is None or sorted(order) != list(range(len(order))):
        table.refuse(
            "order", 'is to list each dimension once, outermost first, such as [1, 0], or to be "channels_last"'
        )
    return order


def _peer(table: ScenarioTable) -> Peer:
    value = table.raw("peer")
    if not isinstance(value, str):
        return table.whole("peer")
    if value == "any":
        return ANY_SOURCE
    if _DISTANCE.fullmatch(value) is None:
        table.refuse("peer", f'is {value!r:.40}, expected a group rank, a distance such as "+1", or "any"')
    return Relative(int(value))


def _parameters(table: ScenarioTable) -> tuple[ScenarioParameter, ...]:
    found = table.tables("parameters")
    if not found or len(found) > _MAX_PARAMETERS:
        table.refuse("parameters", f"has {len(found)} parameters, expected 1 to {_MAX_PARAMETERS:,}")
    return tuple(
        ScenarioParameter(
            each.text("name"),
            each.shape("shape"),
            each.text("dtype", "float32", DTYPES),
            each.flag("trained", default=True),
        )
        for each in found
    )
