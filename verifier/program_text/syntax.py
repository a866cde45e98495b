"""The text of a program's file, what it parses to, and the way from a function to a line in it.

The text is parsed, never run or imported. Files are those that records name: whatever they are, reading is bounded.
"""

from __future__ import annotations

import ast
import io
import os
import stat
import threading
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from simcoll.core.io import opened_record
from simcoll.errors import UnreadableError

_MOST_BYTES: Final = 2 << 20
_MOST_LEVELS: Final = 120
"""Levels of a text's tree: those who walk down it call themselves for each, and to copy one takes six calls a level."""
_CLIPPED: Final = 1000
"""Characters of a line that a record keeps."""

Function: TypeAlias = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
Loop = (ast.For, ast.AsyncFor, ast.While)
Scope = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


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

    def name_at(self, line: int) -> str:
        """The name of the innermost function around a line."""
        around = [node for node in _functions(self.tree) if node.lineno <= line <= (node.end_lineno or 0)]
        return max(around, key=lambda node: node.lineno).name if around else "<module>"


@lru_cache(maxsize=64)
def text_of(file: str) -> Text | None:
    """The text of a file; None where it is gone, no regular file, too long, nested too deeply, or no Python."""
    try:
        with opened_record(file, "a program") as fd:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            data = os.read(fd, _MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            return None
        tree = _parsed(data)
        return None if _is_deep(tree) else Text(_lines(data), tree)
    except (UnreadableError, SyntaxError, ValueError, RecursionError, MemoryError, SystemError):
        return None


def _lines(data: bytes) -> tuple[str, ...]:
    """The lines of a program's text as its interpreter counts them, in its encoding: a form feed ends none."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return tuple(io.TextIOWrapper(io.BytesIO(data), encoding, "replace").read().split("\n"))


_PARSING = threading.Lock()
_ATTEMPTS = 3


def _parsed(data: bytes) -> ast.Module:
    """The tree of a program's text.

    Python 3.11 counts the depth of a tree for all threads in one place, and raises SystemError where two of them parse
    at a time (https://github.com/python/cpython/issues/106905): so ours do it in turn, and once more where another was
    in between.
    """
    with _PARSING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(_ATTEMPTS - 1):
            with suppress(SystemError):
                return ast.parse(data)
        return ast.parse(data)


def _is_deep(tree: ast.Module) -> bool:
    """True if a tree has more levels than those may have who walk down it level by level."""
    level: list[ast.AST] = [tree]
    for _ in range(_MOST_LEVELS):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return False
    return True


@lru_cache(maxsize=64)
def _functions(tree: ast.Module) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]:
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


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
        """A value that is equal for equal steps."""
        return id(self.parent), self.field, self.index

    def lines(self) -> tuple[int, int]:
        """The first and the last line of the block."""
        return self.block[0].lineno, self.block[-1].end_lineno or self.block[-1].lineno


def steps_to(function: Function, line: int) -> list[Step]:
    """The way from a function to a line in it, outermost statement first."""
    return [*_way_to(function, line)]


@lru_cache(maxsize=1024)
def _way_to(function: Function, line: int) -> tuple[Step, ...]:
    found: list[Step] = []
    parent: ast.AST = function
    while not found or not isinstance(parent, Scope):
        step = next((step for step in _steps_in(parent) if _holds(step.statement, line)), None)
        if step is None or (step.statement.lineno == getattr(parent, "lineno", 0) and _only_waits(step.block)):
            break
        found.append(step)
        parent = step.statement
    return tuple(found)


def _only_waits(block: Sequence[ast.stmt]) -> bool:
    """True for ``work.wait()``, behind the head of its statement: a call of that line is the head's."""
    calls = [call for statement in block for call in calls_in(statement)]
    return bool(calls) and all(name_of(call.func) == "wait" for call in calls)


def _holds(statement: ast.stmt, line: int) -> bool:
    return statement.lineno <= line <= (statement.end_lineno or statement.lineno)


def _steps_in(parent: ast.AST) -> Iterator[Step]:
    for field, block in blocks_of(parent):
        for index in range(len(block)):
            yield Step(parent, field, block, index)


def blocks_of(parent: ast.AST) -> Iterator[tuple[str, Sequence[ast.stmt]]]:
    """The blocks of a compound statement, by names that tell them apart."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(parent, field, None)
        if isinstance(block, list) and block:
            yield field, block
    for number, one in enumerate((*getattr(parent, "handlers", ()), *getattr(parent, "cases", ()))):
        yield f"{'handler' if isinstance(one, ast.ExceptHandler) else 'case'} {number}", one.body


def head_of(statement: ast.stmt) -> list[ast.expr]:
    """The expressions of a statement; of a compound one, those that run before its blocks."""
    items = (item.context_expr for item in getattr(statement, "items", ()))
    return [*(child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.expr)), *items]


def calls_in(node: ast.AST) -> list[ast.Call]:
    """The calls of a piece of a program, without those of functions that it defines."""
    return [found for found in (node, *nodes_within(node)) if isinstance(found, ast.Call)]


def name_of(function: ast.AST) -> str:
    """The last part of a name or of an attribute; empty for anything else."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def nodes_within(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below one, without those of functions that it defines."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Scope):
            yield child
            yield from nodes_within(child)
