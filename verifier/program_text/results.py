"""Finds out whether a function reads the result of an asynchronous call before it makes another call."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Final, TypeGuard

from simcoll.core.record import Source
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.table import Rooted
from simcoll.verifier.program_text.syntax import (
    blocks_of,
    calls_in,
    head_of,
    name_of,
    nodes_within,
    steps_to,
    text_of,
)

_OF_NO_VALUE: Final = frozenset(
    {"data_ptr", "device", "dim", "dtype", "element_size", "grad", "is_contiguous", "is_cuda", "itemsize", "layout"}
    | {"names", "nbytes", "ndim", "ndimension", "nelement", "numel", "record_stream", "requires_grad", "shape", "size"}
    | {"storage_offset", "stride", "untyped_storage"}
)
"""What a tensor says of itself without its values."""
_TOLD_BY_TYPE: Final = frozenset({"id", "isinstance", "len", "type"})
_RESULTS: Final = frozenset({"tensor", "tensor_list", "output", "output_tensor", "output_tensor_list"})
"""The parameters that take the place of a result: the first one of each of :data:`_BRINGING`."""
_FUNCTIONS: Final = frozenset(name for spec in COLLECTIVES.values() for name in spec.functions)
_BRINGING: Final = frozenset(
    name
    for spec in COLLECTIVES.values()
    for name in spec.functions
    # A root that has the tensors of all ranks is given its own one first.
    if not (spec.rooted is Rooted.TO_ROOT and spec.divided)
)


def reads_between(call: Source, following: Source) -> bool:
    """True if the statements between a call and a ``following`` one read the tensor that the call brings its result in.

    False wherever the text does not tell: where the two are no statements of one block, the call is not the only one
    of its statement, the place of its result is no plain name, or the reading depends on a condition.
    """
    text = text_of(call.file)
    if text is None or (text.line(call.line), text.line(following.line)) != (call.code, following.code):
        return False
    function = text.function(call.function, call.line)
    if function is None or call.file != following.file:
        return False
    for one, other in zip(steps_to(function, call.line), steps_to(function, following.line), strict=False):
        if one.place() != other.place():
            same = one.place()[:2] == other.place()[:2]
            between = one.block[one.index + 1 : other.index] if same else ()
            name = _result_of(one.statement)
            return name != "" and _is_read(name, between)
    return False


def _result_of(statement: ast.stmt) -> str:
    """The name of the tensor into which the one call of a simple statement brings its result; empty for any other."""
    calls = calls_in(statement)
    if len(calls) != 1 or not isinstance(statement, ast.Expr | ast.Assign) or name_of(calls[0].func) not in _BRINGING:
        return ""
    named = [one.value for one in calls[0].keywords if one.arg in _RESULTS]
    first = [*calls[0].args[:1], *named]
    return first[0].id if first and isinstance(first[0], ast.Name) else ""


def _is_read(name: str, statements: Sequence[ast.stmt]) -> bool:
    """True if statements that run one after the other read the values of a tensor before its name is given anew."""
    for statement in statements:
        if isinstance(statement, ast.With | ast.AsyncWith) and _is_read(name, statement.body):
            return True
        simple = not any(blocks_of(statement))
        nodes = [
            node for part in ([statement] if simple else head_of(statement)) for node in (part, *nodes_within(part))
        ]
        if _reads(name, nodes):
            return True
        if any(_is_named(node, name) and not isinstance(node.ctx, ast.Load) for node in nodes):
            return False
    return False


def _reads(name: str, nodes: Sequence[ast.AST]) -> bool:
    """True if an expression reads a tensor's values; the calls of collectives are judged by what ranks recorded."""
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    bare = [one for call in calls if name_of(call.func) in _TOLD_BY_TYPE | _FUNCTIONS for one in ast.walk(call)]
    bare += [node.value for node in nodes if isinstance(node, ast.Attribute) and node.attr in _OF_NO_VALUE]
    own = {id(node) for node in bare}
    return any(_is_named(node, name) and isinstance(node.ctx, ast.Load) and id(node) not in own for node in nodes)


def _is_named(node: ast.AST, name: str) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and node.id == name
