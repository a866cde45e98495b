"""Finds the condition by which a program's list of sends and receives lacks one, in the text that builds the list.

``batch_isend_irecv`` makes all messages of a list at one line, so that no stack tells who left one out. The list is
followed to what adds to it and takes from it: literals, ``append``, ``+=``, slices, comprehensions, functions that
return it. A condition explains the lack if it leads to such a message, and to none that the rank did make.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from simcoll.core.record import Source
from simcoll.verifier.program_text.forks import ends_outside
from simcoll.verifier.program_text.rank_comparisons import (
    Renamed,
    calls_it_rank,
    is_true,
    number_of,
    numbers_on,
)
from simcoll.verifier.program_text.syntax import (
    Function,
    Loop,
    Text,
    calls_in,
    name_of,
    nodes_within,
    steps_to,
    text_of,
)

_BATCH = "batch_isend_irecv"
_OPS = {"isend": "send", "irecv": "recv", "send": "send", "recv": "recv"}
OTHER_END = {"send": "recv", "recv": "send"}
"""The call at the other end of a message."""
_MOST = 3
"""Conditions, one of which is known to have left a message out, beyond which none is named."""
_DEPTH = 6
"""Names and functions that are followed from one to the next."""


@dataclass(frozen=True, slots=True)
class ListedMessage:
    """A send or receive (``op``) of a list, with the global rank at its other end."""

    op: str
    peer: int


@dataclass(frozen=True, slots=True)
class Shorter:
    """The line of a condition by which a list lacks a message.

    ``true`` says that the condition holds where the message is in the list. ``others`` are lines of conditions that may
    have left it out as well.
    """

    source: Source
    true: bool
    others: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Condition:
    """A test that has to come out as ``true``; in ``each`` round of a loop it may come out otherwise."""

    test: ast.expr
    line: int
    true: bool
    each: bool = False

    def holds(self, rank: int, known: Mapping[str, int]) -> bool | None:
        """Whether it comes out so on a rank, as far as the text says."""
        found = is_true(self.test, rank, known)
        return None if found is None else found is self.true


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """What adds one message to a list, or takes some from it, under these conditions; ``op`` is empty if not known."""

    conditions: tuple[_Condition, ...]
    op: str = ""
    peer: ast.expr | None = None
    adds: bool = True


def shorter_by(at: Source, rank: int, size: int, lacks: ListedMessage, made: Sequence[ListedMessage]) -> Shorter | None:
    """The condition by which the list that this rank (global, of ``size``) gave a line lacks a message.

    ``made`` are those that it has. Of several that it may be the innermost comes first. None where the text has none,
    or more than a few.
    """
    text = text_of(at.file)
    function = None if text is None else text.function(at.function, at.line)
    if text is None or function is None or not calls_it_rank(text):
        return None
    changes = list(_changes_at(text, function, at.line))
    known = numbers_on(text, rank, size)
    met = {
        (one.line, one.true)
        for change in changes
        for one in (change.conditions if _is_made(change, changes, made, rank, known) else ())
        if not one.each
    }
    found: list[tuple[_Condition, bool, bool | None]] = []
    for change in changes:
        if change.adds and not _may_be(change, lacks, rank, known):
            continue
        names = _with_peer(known, change, lacks)
        told = [(one, one.holds(rank, names)) for one in change.conditions]
        if not change.adds and any(holds is False for _, holds in told):
            continue
        found += [
            (one, change.adds, holds)
            for one, holds in reversed(told)
            if (one.line, one.true) not in met and not (change.adds and holds)
        ]
    certain = [one for one in found if one[2] is not None]
    lines: dict[int, tuple[_Condition, bool]] = {}
    for one, adds, _ in certain or found:
        lines.setdefault(one.line, (one, adds))
    if not 1 <= len(lines) <= _MOST:
        return None
    first, *others = (Source(at.file, line, text.name_at(line), text.line(line)) for line in lines)
    condition, adds = lines[first.line]
    return Shorter(first, condition.true is adds, tuple(others))


def _is_made(
    change: _Change,
    changes: Sequence[_Change],
    made: Sequence[ListedMessage],
    rank: int,
    known: Mapping[str, int],
) -> bool:
    """True if a rank is known to have made the message that is added here."""
    alike = [one for one in changes if one.adds and one.op in (change.op, "")]
    mine = [one for one in made if one.op == change.op]
    if not change.adds or not mine:
        return False
    peer = _peer(change, rank, known)
    if peer is not None:
        # Another part of the list may have added it.
        return (
            any(one.peer == peer for one in mine) and sum(_peer(one, rank, known) in (peer, None) for one in alike) == 1
        )
    return len(alike) <= len(mine)


def _peer(change: _Change, rank: int, known: Mapping[str, int]) -> int | None:
    return None if change.peer is None else number_of(change.peer, rank, known)


def _may_be(change: _Change, lacks: ListedMessage, rank: int, known: Mapping[str, int]) -> bool:
    return change.op in (lacks.op, "") and _peer(change, rank, known) in (lacks.peer, None)


def _with_peer(known: Mapping[str, int], change: _Change, lacks: ListedMessage) -> Mapping[str, int]:
    """The known names, with the one by which the message's other end is named."""
    name = change.peer.id if change.adds and isinstance(change.peer, ast.Name) else None
    return known if name is None or name in known else {**known, name: lacks.peer}


def asks_for_list(at: Source, line: int) -> bool:
    """True if a condition at a line asks for nothing but the list that another line gives to ``batch_isend_irecv``."""
    text = text_of(at.file)
    function = None if text is None else text.function(at.function, at.line)
    given = None if function is None else _given_at(function, at.line)
    if function is None or not isinstance(given, ast.Name):
        return False
    tests = [node.test for node in nodes_within(function) if isinstance(node, ast.If) and node.lineno == line]
    used = {node.id for test in tests for node in ast.walk(test) if isinstance(node, ast.Name)}
    return used - {"len"} == {given.id}


def _changes_at(text: Text, function: Function, line: int) -> Iterator[_Change]:
    """What changes the list that a line gives to ``batch_isend_irecv``."""
    given = _given_at(function, line)
    if given is not None:
        around = frozenset(id(step.block) for step in steps_to(function, line))
        yield from _Builder(text, around).changes(given, function, (), 0)


def _given_at(function: Function, line: int) -> ast.expr | None:
    """What a line gives to ``batch_isend_irecv``."""
    last = steps_to(function, line)[-1:]
    calls = [call for step in last for call in calls_in(step.statement) if name_of(call.func) == _BATCH]
    calls = [call for call in calls if call.lineno <= line <= (call.end_lineno or call.lineno)]
    given = [*calls[0].args, *(one.value for one in calls[0].keywords)] if len(calls) == 1 else []
    return given[0] if given else None


class _Builder:
    """Follows a list to what it is built of; ``around`` are the blocks around the line that uses it."""

    def __init__(self, text: Text, around: frozenset[int]) -> None:
        self._text = text
        self._around = around
        self._seen: set[tuple[int, str]] = set()

    def changes(
        self, node: ast.expr, function: Function, under: tuple[_Condition, ...], depth: int
    ) -> Iterator[_Change]:
        """What adds to, or takes from, the list that an expression stands for."""
        if depth > _DEPTH:
            return
        if isinstance(node, ast.List | ast.Tuple):
            for part in node.elts:
                if isinstance(part, ast.Starred):
                    yield from self.changes(part.value, function, under, depth)
                else:
                    yield self._added(part, function, under)
        elif isinstance(node, ast.IfExp):
            for part, true in ((node.body, True), (node.orelse, False)):
                condition = _Condition(node.test, node.test.lineno, true)
                yield from self.changes(part, function, (*under, condition), depth)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            for part in (node.left, node.right):
                yield from self.changes(part, function, under, depth)
        elif isinstance(node, ast.Subscript):
            yield from self.changes(node.value, function, under, depth)
            yield _Change(under, adds=False)
        elif isinstance(node, ast.ListComp | ast.GeneratorExp):
            yield from self._comprehended(node, function, under, depth)
        elif isinstance(node, ast.Name):
            yield from self._named(node.id, function, under, depth + 1)
        elif isinstance(node, ast.Call):
            yield from self._returned(node, under, depth + 1)

    def _added(self, node: ast.expr, function: Function, under: tuple[_Condition, ...]) -> _Change:
        """The change that adds one expression."""
        if isinstance(node, ast.Name):
            values = [value for value, _ in _values(function, node.id)]
            node = values[0] if len(values) == 1 else node
        if not isinstance(node, ast.Call) or name_of(node.func) != "P2POp":
            return _Change(under)
        given = dict(zip(("op", "tensor", "peer"), node.args, strict=False))
        given |= {one.arg: one.value for one in node.keywords if one.arg is not None}
        op = _OPS.get(name_of(given["op"]), "") if "op" in given else ""
        return _Change(under, op, given.get("peer"))

    def _comprehended(
        self, node: ast.ListComp | ast.GeneratorExp, function: Function, under: tuple[_Condition, ...], depth: int
    ) -> Iterator[_Change]:
        tests = [test for part in node.generators for test in part.ifs]
        for part in node.generators:
            if isinstance(part.iter, ast.Name):
                found = [value for value, _ in _values(function, part.iter.id)]
                inner = [value for value in found if isinstance(value, ast.ListComp)] if len(found) == 1 else []
                tests += [test for value in inner for one in value.generators for test in one.ifs]
                same = [value.elt.id for value in inner if isinstance(value.elt, ast.Name)]
                if same and isinstance(part.target, ast.Name):
                    tests = [_renamed(test, same[0], part.target.id) for test in tests]
        conditions = tuple(_Condition(test, test.lineno, True, each=True) for test in tests)
        yield self._added(node.elt, function, (*under, *conditions))

    def _named(self, name: str, function: Function, under: tuple[_Condition, ...], depth: int) -> Iterator[_Change]:
        if (id(function), name) in self._seen:
            return
        self._seen.add((id(function), name))
        for value, statement in _values(function, name):
            yield from self.changes(value, function, (*under, *self._conditions(function, statement)), depth)
        for statement in (node for node in nodes_within(function) if isinstance(node, ast.Expr | ast.Delete)):
            yield from self._by_method(name, statement, function, under, depth)

    def _by_method(
        self,
        name: str,
        statement: ast.Expr | ast.Delete,
        function: Function,
        under: tuple[_Condition, ...],
        depth: int,
    ) -> Iterator[_Change]:
        conditions = (*under, *self._conditions(function, statement))
        if isinstance(statement, ast.Delete):
            of = [one.value for one in statement.targets if isinstance(one, ast.Subscript)]
            yield from (_Change(conditions, adds=False) for one in of if name_of(one) == name)
            return
        call = statement.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return
        if not isinstance(call.func.value, ast.Name) or call.func.value.id != name:
            return
        if call.func.attr in ("append", "insert") and call.args:
            yield self._added(call.args[-1], function, conditions)
        elif call.func.attr == "extend" and call.args:
            yield from self.changes(call.args[0], function, conditions, depth)
        elif call.func.attr in ("pop", "remove", "clear"):
            yield _Change(conditions, adds=False)

    def _returned(self, call: ast.Call, under: tuple[_Condition, ...], depth: int) -> Iterator[_Change]:
        """What is in the list that the program's one function of this name returns."""
        name = name_of(call.func)
        made = [node for node in ast.walk(self._text.tree) if isinstance(node, ast.FunctionDef) and node.name == name]
        for node in nodes_within(made[0]) if len(made) == 1 else ():
            if isinstance(node, ast.Return) and node.value is not None:
                conditions = (*under, *self._conditions(made[0], node))
                yield from self.changes(node.value, made[0], conditions, depth)

    def _conditions(self, function: Function, statement: ast.stmt) -> tuple[_Condition, ...]:
        """The conditions under which a statement runs, without those under which the list is used."""
        found: list[_Condition] = []
        each = False
        for step in steps_to(function, statement.lineno):
            if id(step.block) in self._around:
                continue
            each = each or isinstance(step.parent, Loop)
            if isinstance(step.parent, ast.If):
                found.append(_Condition(step.parent.test, step.parent.lineno, step.field == "body", each))
            found += [_Condition(one.test, one.lineno, true, each) for one, true in _exits(step.block[: step.index])]
        return tuple(found)


def _exits(statements: Sequence[ast.stmt]) -> Iterator[tuple[ast.If, bool]]:
    """The conditions by which the statements behind these are left out, as they have to come out for them to run."""
    for one in statements:
        if isinstance(one, ast.If):
            ways = ((one.body, False), (one.orelse, True))
            yield from ((one, true) for block, true in ways if block and ends_outside(block))


def _values(function: Function, name: str) -> Iterator[tuple[ast.expr, ast.stmt]]:
    """The expressions that a function gives to a name or adds to it, each with its statement."""
    for node in nodes_within(function):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
        given = node.value if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) else None
        if given is not None and isinstance(node, ast.stmt) and name in [_plain(one) for one in targets]:
            yield given, node


def _plain(target: ast.AST) -> str:
    return target.id if isinstance(target, ast.Name) else ""


def _renamed(test: ast.expr, old: str, new: str) -> ast.expr:
    """A test with another name in the place of one; the lines stay."""
    return test if old == new else Renamed(frozenset({old}), new).of(test)
