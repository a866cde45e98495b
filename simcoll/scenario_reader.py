"""Reads a scenario file: TOML in, a :class:`~simcoll.scenario.Scenario` out, errors with line and key.

What the keys are stands in :mod:`simcoll.scenario_keys`; names that one part of the file uses of another are looked up
here, so that what is returned holds together.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from simcoll.call import ANY_SOURCE
from simcoll.scenario import (
    WORLD,
    BufferPlan,
    CallPlan,
    Expectation,
    Expected,
    Fault,
    GroupPlan,
    Loop,
    Override,
    Parameter,
    Peer,
    Relative,
    Scenario,
    SlowLink,
    Step,
)
from simcoll.scenario_keys import KEYS, KINDS
from simcoll.scenario_table import MAX_ELEMENTS, Table
from simcoll.semantics import REDUCE_OPS
from simcoll.spec import Kind
from simcoll.toml_document import TomlDocument, parse_toml, read_toml
from simcoll.verbs import ACTIONS, VERBS
from simcoll.verifier.rules import RULES

MAX_RANKS = 4096
"""Each simulated rank is a thread."""

MAX_REPEAT = 100_000
MAX_CALLS = 20_000
"""Calls that a file states, without their repeats."""

MAX_NESTING = 8
_MAX_PARAMETERS = 10_000
_MAX_NAME = 80

DTYPES = (
    "float64 float32 float16 int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool complex64 complex128".split()  # noqa: SIM905
)
"""The dtypes of torch that numpy has too."""

_OPS = (*VERBS, *ACTIONS)
_WORLD_NAME = "world"
_DISTANCE = re.compile(r"[+-]\d{1,6}", re.ASCII)


def read_scenario(path: Path) -> Scenario:
    """Read a scenario file; raises TomlError, one line that names the file, the line and the key."""
    return scenario_of(read_toml(path))


def parse_scenario(text: str, name: str = "scenario.toml") -> Scenario:
    """A scenario from text; raises TomlError."""
    return scenario_of(parse_toml(name, text))


def scenario_of(document: TomlDocument) -> Scenario:
    """A scenario from a TOML document; raises ScenarioError."""
    return _Reader(Table(document, (), "", document.value), document.name).scenario()


class _Reader:
    """Reads one document; knows the names that were given so far."""

    def __init__(self, top: Table, path: str) -> None:
        self._top = top
        self._path = path
        self._world = top.whole("ranks", least=1, most=MAX_RANKS)
        self._groups: dict[str, GroupPlan] = {}
        self._buffers: dict[str, BufferPlan] = {}
        self._names: set[str] = set()
        self._calls = 0

    def scenario(self) -> Scenario:
        top = self._top
        for table in top.tables("buffers"):
            self._buffer(table)
        for table in top.tables("groups"):
            self._group(table)
        calls = tuple(self._call(table, 0) for table in top.tables("calls"))
        faults, slow_links = self._faults(top.tables("faults"))
        topology, expect = top.table("topology"), top.table("expect")
        return Scenario(
            self._path,
            top.text("title"),
            top.text("description", lines=True),
            self._world,
            calls,
            tuple(self._groups.values()),
            tuple(self._buffers.values()),
            faults,
            slow_links,
            None if topology is None else _topology(topology, Path(self._path).parent),
            top.text("sends", "synchronous", ("synchronous", "buffered", "either")),
            top.whole("seed"),
            None if expect is None else self._expect(expect),
        )

    def _buffer(self, table: Table) -> None:
        name = _new_name(table, self._buffers)
        if not table.has("of"):
            shape = table.shape("shape") if table.has("shape") else (4,)
            self._buffers[name] = BufferPlan(name, shape, table.text("dtype", "float32", DTYPES), table.line)
            return
        for key in ("shape", "dtype"):
            if table.has(key):
                table.refuse(key, "does not go with `of`: a part has the dtype and the rows of the whole")
        whole = self._buffers[table.text("of", choices=self._buffers)]
        rows = whole.shape[0] if whole.shape else 0
        span = table.wholes("rows", most=rows)
        if span is None or len(span) != 2 or span[0] > span[1]:
            table.refuse("rows" if span else "", f"`rows` is to be [first, end], at most {rows}, as `{whole.name}` has")
        shape = (span[1] - span[0], *whole.shape[1:])
        self._buffers[name] = BufferPlan(name, shape, whole.dtype, table.line, whole.name, (span[0], span[1]))

    def _group(self, table: Table) -> None:
        name = _new_name(table, (*self._groups, _WORLD_NAME))
        variants = tuple(
            (frozenset(each.ranks("on", self._world)), each.ranks("ranks", self._world))
            for each in table.tables("variants")
        )
        ranks, made_by = table.ranks("ranks", self._world), table.rank_set("made_by", self._world)
        self._groups[name] = GroupPlan(name, ranks, table.line, made_by, variants)

    def _call(self, table: Table, depth: int) -> CallPlan | Loop:
        self._calls += 1
        if self._calls > MAX_CALLS:
            table.refuse("", f"is call number {MAX_CALLS + 1:,}, expected at most {MAX_CALLS:,}; use `repeat`")
        if table.has("repeat") or table.has("calls"):
            return self._loop(table, depth)
        name = table.text("name")
        if len(name) > _MAX_NAME:
            table.refuse("name", f"has {len(name)} characters, expected at most {_MAX_NAME}")
        op = self._op(table)
        step = Step(op, table.line_of("op"), name=name)
        step = self._action(table, step) if op in ACTIONS else step
        fields = self._stated(table, op)
        self._names |= {op, name} - {""}
        plan = CallPlan(
            _with(step, fields),
            table.rank_set("ranks", self._world),
            tuple(self._override(each, op) for each in table.tables("overrides")),
        )
        self._check_memory(table, plan)
        return plan

    def _loop(self, table: Table, depth: int) -> Loop:
        for key in table.stated:
            if key not in ("repeat", "calls", "ranks", "name"):
                table.refuse(key, "does not go with `repeat`, which takes `calls` and `ranks` alone")
        if not table.has("calls") or depth >= MAX_NESTING:
            table.refuse("repeat", f"needs nested `calls`, [[calls.calls]], up to {MAX_NESTING} levels deep")
        repeat = table.whole("repeat", 1, most=MAX_REPEAT)
        inner = tuple(self._call(each, depth + 1) for each in table.tables("calls"))
        return Loop(repeat, inner, table.line, table.rank_set("ranks", self._world))

    def _op(self, table: Table) -> str:
        return table.text("op", choices=_OPS)

    def _action(self, table: Table, step: Step) -> Step:
        """What only an action states."""
        of = table.text("call")
        if of and of not in self._names:
            table.text("call", choices=sorted(self._names))
        if step.op in ("new_group", "destroy_group", "write", "compute"):
            needed = {"write": "buffer", "compute": "seconds"}.get(step.op, "group")
            if not table.has(needed):
                table.refuse("op", f"is {step.op!r}, which needs the key `{needed}`")
        if step.op == "parameters" and not table.has("parameters"):
            table.refuse("op", "is 'parameters', which needs [[calls.parameters]]")
        return _with(step, {"of": of})

    def _override(self, table: Table, op: str) -> Override:
        fields = self._stated(table, op)
        if "op" in fields:
            fields["line"] = table.line_of("op")
        elif fields:
            fields["line"] = table.line_of(next(key for key in table.stated if key != "ranks"))
        return Override(frozenset(table.ranks("ranks", self._world)), MappingProxyType(fields))

    def _stated(self, table: Table, op: str) -> dict[str, object]:
        """The fields of a step that a table states."""
        readers = {
            "op": lambda: self._op(table),
            "group": lambda: self._group_name(table, "group"),
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
            "buffer": lambda: self._buffer_name(table, "buffer"),
            "output": lambda: self._buffer_name(table, "output"),
            "seconds": lambda: table.number("seconds"),
            "parameters": lambda: _parameters(table),
        }
        if table.has("shape") and table.has("shapes"):
            table.refuse("shapes", "does not go with `shape`: state one of them")
        renamed = {"shape": "shapes", "async": "asynchronous"}
        fields: dict[str, object] = {renamed.get(key, key): read() for key, read in readers.items() if table.has(key)}
        self._check_fit(table, str(fields.get("op", op)))
        return fields

    def _check_fit(self, table: Table, op: str) -> None:
        """What contradicts the op whatever the rest says."""
        verb = VERBS.get(op)
        if table.has("async") and table.flag("async") and (verb is None or verb.blocking):
            table.refuse("async", f"does not go with {op}" + (f"; use `i{op}`" if f"i{op}" in VERBS else ""))
        if verb is None:
            return
        if table.has("shapes") and not verb.spelling.coalesced:
            table.refuse("shapes", f"does not go with {op}, which takes one tensor; use `shape`")
        message = verb.spec.kind is Kind.POINT_TO_POINT
        receives = verb.buffers == ("outputs",)
        if table.kind == "calls" and message and not receives and not table.has("peer"):
            table.refuse("op", f"is {op!r}, which needs the key `peer`: to whom")
        if message and not receives and table.raw("peer") == "any":
            table.refuse("peer", f"is 'any', which is for receives; a {op} names its receiver")

    def _check_memory(self, table: Table, plan: CallPlan) -> None:
        """Simulated ranks share one process's memory."""
        stated = [plan.step.shapes, *(each.fields.get("shapes", ()) for each in plan.overrides)]
        largest = max(sum(map(math.prod, shapes)) for shapes in stated if isinstance(shapes, tuple))
        parts = self._world if plan.step.op in VERBS and VERBS[plan.step.op].spec.divided else 1
        if largest * self._world * parts > 4 * MAX_ELEMENTS:
            table.refuse(
                "shapes" if table.has("shapes") else "shape",
                f"makes {largest * self._world * parts:,} elements on {self._world} ranks together, expected at most"
                f" {4 * MAX_ELEMENTS:,}: simulated ranks have real arrays; `simcoll estimate` prices large calls",
            )

    def _group_name(self, table: Table, key: str) -> str:
        name = table.text(key, choices=(*self._groups, _WORLD_NAME))
        return WORLD if name == _WORLD_NAME else name

    def _buffer_name(self, table: Table, key: str) -> str:
        if not self._buffers:
            table.refuse(key, "names a buffer, but there is no [[buffers]]")
        return table.text(key, choices=self._buffers)

    def _faults(self, tables: Iterable[Table]) -> tuple[tuple[Fault, ...], tuple[SlowLink, ...]]:
        faults: list[Fault] = []
        links: list[SlowLink] = []
        for table in tables:
            kind = table.text("kind", choices=KINDS)
            self._check_keys(table, kind)
            if kind == "slow-link":
                links.append(self._slow_link(table))
            else:
                faults.append(self._fault(table, kind))
        return tuple(faults), tuple(links)

    def _check_keys(self, table: Table, kind: str) -> None:
        own = KINDS[kind][0]
        where = frozenset[str]() if kind == "slow-link" else frozenset({"ranks", "call", "at", "iteration"})
        for key in table.stated:
            if key not in own | where | {"kind"}:
                takes = ", ".join(sorted(own | where))
                table.refuse(key, f"does not go with {kind!r}, which takes {takes}")
        if own and kind.startswith(("wrong", "slow")) and not any(map(table.has, own)):
            table.refuse("kind", f"is {kind!r}, which needs {' or '.join(f'`{key}`' for key in sorted(own))}")

    def _fault(self, table: Table, kind: str) -> Fault:
        if not table.has("ranks"):
            table.refuse("kind", f"is {kind!r}, which needs the key `ranks`: where it happens")
        if table.has("call") + table.has("at") != 1 and (kind != "slow-rank" or table.has("at")):
            table.refuse("kind", f"is {kind!r}, which needs either `call` or `at`: at which call it happens")
        call = table.text("call")
        if call and call not in self._names:
            table.text("call", choices=sorted(self._names))
        if kind.startswith("wrong"):
            fields = self._stated(table, table.text("op", ""))
        else:
            fields = {key: table.raw(key) for key in ("seconds",) if table.has(key) and table.number(key) >= 0}
            fields |= _fate(table)
        return Fault(
            kind,
            frozenset(table.ranks("ranks", self._world)),
            table.line_of("kind"),
            call,
            table.whole("at", 0, least=1),
            table.whole("iteration", 0, least=1),
            MappingProxyType(fields),
        )

    def _slow_link(self, table: Table) -> SlowLink:
        between = table.ranks("between", self._world)
        if len(between) != 2:
            table.refuse("between", f"has {len(between)} ranks, expected the two ends of a path, such as [0, 4]")
        factor = table.number("factor", 1.0, above=0.0, most=1.0)
        return SlowLink((between[0], between[1]), factor, table.number("latency"), table.line)

    def _expect(self, table: Table) -> Expectation:
        value = table.raw("findings")
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            for code in value:
                if code not in RULES:
                    table.refuse("findings", f"names {code!r:.20}, expected one of {', '.join(RULES)}")
            findings = tuple(Expected(code) for code in value)
        else:
            findings = tuple(self._expected(each) for each in table.tables("findings"))
        seconds = table.number("seconds") if table.has("seconds") else None
        return Expectation(findings, seconds, table.number("within", 0.01))

    def _expected(self, table: Table) -> Expected:
        def ranks(key: str) -> tuple[int, ...] | None:
            return tuple(sorted(table.ranks(key, self._world, empty=True))) if table.has(key) else None

        return Expected(
            table.text("code", choices=RULES),
            ranks("culprits"),
            ranks("ranks"),
            table.whole("sequence") if table.has("sequence") else None,
            self._group_name(table, "group") if table.has("group") else None,
            table.text("severity", choices=("error", "warning")) if table.has("severity") else None,
        )


def _with(step: Step, fields: Mapping[str, object]) -> Step:
    values = {name: getattr(step, name) for name in Step.__dataclass_fields__}
    return Step(**{**values, **fields})


def _new_name(table: Table, taken: Iterable[str]) -> str:
    name = table.text("name")
    if not name or len(name) > _MAX_NAME or name in taken:
        table.refuse("name", f"is {name!r:.60}, expected a name of its own of up to {_MAX_NAME} characters")
    return name


def _order(table: Table) -> tuple[int, ...]:
    if table.raw("order") == "channels_last":
        return (0, 2, 3, 1)
    order = table.wholes("order", most=63) if isinstance(table.raw("order"), list) else None
    if order is None or sorted(order) != list(range(len(order))):
        table.refuse(
            "order", 'is to list each dimension once, outermost first, such as [1, 0], or to be "channels_last"'
        )
    return order


def _peer(table: Table) -> Peer:
    value = table.raw("peer")
    if not isinstance(value, str):
        return table.whole("peer")
    if value == "any":
        return ANY_SOURCE
    if _DISTANCE.fullmatch(value) is None:
        table.refuse("peer", f'is {value!r:.40}, expected a group rank, a distance such as "+1", or "any"')
    return Relative(int(value))


def _parameters(table: Table) -> tuple[Parameter, ...]:
    found = table.tables("parameters")
    if not found or len(found) > _MAX_PARAMETERS:
        table.refuse("parameters", f"has {len(found)} parameters, expected 1 to {_MAX_PARAMETERS:,}")
    return tuple(
        Parameter(
            each.text("name"),
            each.shape("shape"),
            each.text("dtype", "float32", DTYPES),
            each.flag("trained", default=True),
        )
        for each in found
    )


def _fate(table: Table) -> dict[str, object]:
    """What a crash or an exit states."""
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


def _topology(table: Table, folder: Path) -> argparse.Namespace:
    """The options of the command line that the table stands for."""
    if table.has("preset") and table.has("file"):
        table.refuse("file", "does not go with `preset`: state one of them")
    options: dict[str, object] = {key.name: None for key in KEYS["topology"]}
    for key in ("nodes", "gpus_per_node", "nics_per_node", "nvlink_domain"):
        if table.has(key):
            options[key] = table.whole(key, least=1, most=1 << 20)
    for key in ("gpu", "fabric", "preset"):
        if table.has(key):
            options[key] = table.text(key)
    if table.has("nic_gbps"):
        options["nic_gbps"] = table.number("nic_gbps", above=0.0)
    file = str(folder / table.text("file")) if table.has("file") else None
    named = options.pop("preset")
    del options["file"]
    return argparse.Namespace(topology=file or named, **options)
