"""Reads the ``[[faults]]`` of a scenario: faults of ranks, and slow links."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from simcoll.simulation.keys import KINDS
from simcoll.simulation.read_calls import CallReader
from simcoll.simulation.scenario import Fault, ScenarioLink
from simcoll.simulation.table import Names, ScenarioTable

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
