"""Forks of a program: the branches, loops and early exits that lead to a line, or past it, by the program's text.

The text is parsed, never run or imported. Files are those that records name: whatever they are, reading is bounded.
"""

from __future__ import annotations

import ast
import os
import stat
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias, TypeGuard

from simcoll.core.io import opened_record
from simcoll.errors import UnreadableError

_MOST_BYTES: Final = 2 << 20
_CLIPPED: Final = 1000
"""Characters of a line that a record keeps."""

Function: TypeAlias = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
_Loop = (ast.For, ast.AsyncFor, ast.While)
_Scope = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """The text of a program's file, and what it parses to."""

    lines: tuple[str, ...]
    tree: ast.Module

    def line(self, number: int) -> str:
        """A line as records keep it; empty where there is none."""
        return self.lines[number - 1].strip()[:_CLIPPED] if 0 < number <= len(self.lines) else ""

    def function(self, name: str, line: int) -> Function | None:
        """The innermost function of this name around a line; of a lambda or a comprehension, the one around it."""
        around = [node for node in _functions(self.tree) if node.lineno <= line <= (node.end_lineno or 0)]
        if name == "<module>" or (name.startswith("<") and not around):
            return self.tree
        named = [node for node in around if name.startswith("<") or node.name == name]
        return max(named, key=lambda node: node.lineno, default=None)


@lru_cache(maxsize=64)
def text_of(file: str) -> Text | None:
    """The text of a file; None where it is gone, no regular file, too long, or no Python."""
    try:
        with opened_record(file, "a program") as fd:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            data = os.read(fd, _MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(data)
        return Text(tuple(data.decode("utf-8", "replace").splitlines()), tree)
    except (UnreadableError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One level on the way from a function to a line: a statement, and the block of which parent it stands in."""

    parent: ast.AST
    field: str
    block: Sequence[ast.stmt]
    index: int

    @property
    def statement(self) -> ast.stmt:
        """The statement that holds the line."""
        return self.block[self.index]

    def place(self) -> tuple[int, str, int]:
        """What is equal where steps are."""
        return id(self.parent), self.field, self.index

    def lines(self) -> tuple[int, int]:
        """The first and the last line of the block."""
        return self.block[0].lineno, self.block[-1].end_lineno or self.block[-1].lineno


def steps_to(function: Function, line: int) -> list[Step]:
    """The way from a function to a line in it, outermost statement first."""
    found: list[Step] = []
    parent: ast.AST = function
    while not found or not isinstance(parent, _Scope):
        step = next((step for step in _steps_in(parent) if _holds(step.statement, line)), None)
        if step is None:
            break
        found.append(step)
        parent = step.statement
    return found


def _holds(statement: ast.stmt, line: int) -> bool:
    return statement.lineno <= line <= (statement.end_lineno or statement.lineno)


def _steps_in(parent: ast.AST) -> Iterator[Step]:
    for field, block in _blocks(parent):
        for index in range(len(block)):
            yield Step(parent, field, block, index)


def _blocks(parent: ast.AST) -> Iterator[tuple[str, Sequence[ast.stmt]]]:
    """The blocks of a compound statement, by names that tell them apart."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(parent, field, None)
        if isinstance(block, list) and block:
            yield field, block
    for number, one in enumerate((*getattr(parent, "handlers", ()), *getattr(parent, "cases", ()))):
        yield f"{'handler' if isinstance(one, ast.ExceptHandler) else 'case'} {number}", one.body


@dataclass(frozen=True, slots=True)
class Fork:
    """A line that decides which way the program goes, and the lines of one way.

    ``inside`` and ``outside`` say what ranks did that went this way and that did not; ``loop`` that it is a loop, which
    ranks may leave after another number of rounds; ``leaves`` that this way only leaves the function or the loop;
    ``alone`` that it comes back to the other ways, and that these call nothing before.
    """

    line: int
    first: int
    last: int
    inside: str
    outside: str
    loop: bool = False
    leaves: bool = False
    alone: bool = False


_TOOK, _NOT = "took it", "did not take it"


def fork_of(step: Step) -> Fork | None:
    """The fork that leads into a step's block; None where every way leads into it."""
    parent, lines = step.parent, step.lines()
    if isinstance(parent, ast.If):
        did, other = ((_TOOK, _NOT), parent.orelse) if step.field == "body" else ((_NOT, _TOOK), parent.body)
        return Fork(parent.lineno, *lines, *did, alone=not any(map(_calls, other)) and not ends_outside(step.block))
    if isinstance(parent, _Loop):
        return Fork(parent.lineno, *lines, "in the loop", "past it", loop=True)
    if step.field.startswith("handler"):
        handler = parent.handlers[int(step.field.split()[1])]  # type: ignore[attr-defined]
        return Fork(handler.lineno, *lines, "caught an exception there", "did not")
    if step.field.startswith("case"):
        pattern: ast.pattern = parent.cases[int(step.field.split()[1])].pattern  # type: ignore[attr-defined]
        return Fork(pattern.lineno, *lines, _TOOK, _NOT)
    return None


def inner_forks(statement: ast.stmt) -> list[Fork]:
    """The conditional expression, or the ``and`` or ``or``, by which a simple statement makes a call or not."""
    if any(True for _ in _blocks(statement)):
        return []
    lines = [node.lineno for node in _within(statement) if _may_call(node)]
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    return [Fork(line, first, last, _TOOK, _NOT, alone=True) for line in lines] if len(lines) == 1 else []


def _may_call(node: ast.AST) -> TypeGuard[ast.IfExp | ast.BoolOp]:
    """Whether an expression makes calls on one of its ways and none on the other."""
    if isinstance(node, ast.IfExp):
        return bool(_calls(node.body)) != bool(_calls(node.orelse))
    return isinstance(node, ast.BoolOp) and any(map(_calls, node.values[1:]))


def chosen_between(statement: ast.stmt, one: str, other: str) -> Fork | None:
    """The conditional expression of which one way calls the first function and the other way the second."""
    for node in _within(statement):
        if isinstance(node, ast.IfExp):
            ways = [{_name(call.func) for call in _calls(part)} for part in (node.body, node.orelse)]
            if one in ways[0] - ways[1] and other in ways[1] - ways[0]:
                return Fork(node.lineno, 0, 0, _TOOK, _NOT)
            if one in ways[1] - ways[0] and other in ways[0] - ways[1]:
                return Fork(node.lineno, 0, 0, _NOT, _TOOK)
    return None


def _calls(node: ast.AST) -> list[ast.Call]:
    return [found for found in (node, *_within(node)) if isinstance(found, ast.Call)]


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below one, without those of functions that it defines."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _Scope):
            yield child
            yield from _within(child)


def exits_in(statements: Sequence[ast.stmt]) -> list[Fork]:
    """The conditions under which the program leaves a stretch of statements before its end, the last one first."""
    return [fork for statement in reversed(statements) for fork in _exits(statement, in_loop=False)]


def _exits(statement: ast.stmt, *, in_loop: bool) -> list[Fork]:
    if isinstance(statement, _Scope):
        return []
    inner = in_loop or isinstance(statement, _Loop)
    found = []
    for field, block in _blocks(statement):
        step = Step(statement, field, block, 0)
        leaves = any(_leaves(one, in_loop=inner) for one in block)
        fork = fork_of(step)
        if leaves and fork is not None and not fork.loop:
            found.append(Fork(fork.line, fork.first, fork.last, fork.inside, fork.outside, leaves=True))
        found += [fork for one in reversed(block) for fork in _exits(one, in_loop=inner)]
    return found


def _leaves(statement: ast.stmt, *, in_loop: bool) -> bool:
    if isinstance(statement, ast.Return | ast.Raise):
        return True
    return isinstance(statement, ast.Break | ast.Continue) and not in_loop


def ends_outside(block: Sequence[ast.stmt]) -> bool:
    """Whether a block never comes to what stands behind it."""
    return isinstance(block[-1], ast.Return | ast.Raise | ast.Break | ast.Continue)


def leaving_forks(loop: ast.stmt) -> list[Fork]:
    """The conditions under which the program leaves a loop from inside, by ``break`` or ``return``."""
    found = []
    for statement in getattr(loop, "body", ()):
        found += [fork for fork in _exits(statement, in_loop=False) if not _continues(statement, fork)]
    return found


def _continues(statement: ast.stmt, fork: Fork) -> bool:
    """Whether the way of a fork goes on with the next round."""
    nodes = [statement, *_within(statement)]
    return any(isinstance(node, ast.Continue) and fork.first <= node.lineno <= fork.last for node in nodes)


def endless(loop: ast.AST) -> bool:
    """Whether a loop ends only from inside: ``while True``."""
    return isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant) and bool(loop.test.value)
