"""Finds out whether a function reads the result of an asynchronous call before another call, or before its wait."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

from simcoll.core.record import Source
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.table import Rooted
from simcoll.verifier.program_text.syntax import (
    Function,
    Scope,
    Step,
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
_LISTS: Final = frozenset({"all_gather", "all_gather_coalesced", "all_reduce_coalesced", "all_to_all"})
"""The functions whose result comes in a list of tensors."""
_ENDING: Final = (
    _FUNCTIONS
    | {"collect_all", "is_completed", "result", "synchronize", "value"}
    | {"wait", "wait_all", "wait_event", "wait_stream"}
)
"""Calls behind which the result may be there."""
_COMPUTING: Final = frozenset(
    {"abs", "add", "all", "allclose", "amax", "amin", "any", "argmax", "argmin", "clone", "count_nonzero", "cumsum"}
    | {"div", "dot", "eq", "equal", "exp", "isfinite", "isinf", "isnan", "item", "log", "matmul", "max", "mean", "min"}
    | {"mm", "mul", "ne", "neg", "nonzero", "norm", "pow", "prod", "sigmoid", "softmax", "sort", "sqrt", "square"}
    | {"std", "sub", "sum", "tolist", "topk", "unique", "var"}
)
"""Methods of a tensor, and functions of torch, that compute with its values."""
_JOINING: Final = frozenset({"cat", "concat", "hstack", "stack", "vstack"})
_SHOWING: Final = frozenset({"bool", "float", "int", "print", "repr", "str", "sum"})
_VIEWING: Final = frozenset({"detach", "flatten", "squeeze", "unsqueeze", "view"})
_HARMLESS: Final = _COMPUTING | _JOINING | _SHOWING | _VIEWING | _TOLD_BY_TYPE
"""Calls that wait for no work, whoever else knows of it."""


def reads_between(call: Source, following: Source) -> bool:
    """True if the statements between a call and a ``following`` one read the tensor that the call brings its result in.

    False wherever the text does not tell: where no block around the call has the following one further down, the call
    is not the only one of its statement, the place of its result is no plain name, or the reading depends on a
    condition.
    """
    text = text_of(call.file)
    if text is None or (text.line(call.line), text.line(following.line)) != (call.code, following.code):
        return False
    function = text.function(call.function, call.line)
    if function is None or call.file != following.file:
        return False
    steps, others = steps_to(function, call.line), steps_to(function, following.line)
    for level, (one, other) in enumerate(zip(steps, others, strict=False)):
        if one.place() != other.place():
            same = one.place()[:2] == other.place()[:2] and one.index < other.index
            name = _result_of(steps[-1].statement) if same else ""
            # The rest of the blocks around the call, and what stands before the other one.
            inner = [statement for step in reversed(steps[level + 1 :]) for statement in _rest_of(step)]
            return name != "" and _is_read(name, [*inner, *one.block[one.index + 1 : other.index]])
    return False


def _rest_of(step: Step) -> Sequence[ast.stmt]:
    """The statements behind one in its block, up to the first that may leave the block."""
    rest = step.block[step.index + 1 :]
    leaves = (place for place, one in enumerate(rest) if any(map(_may_leave, (one, *nodes_within(one)))))
    return rest[: next(leaves, len(rest))]


def _may_leave(node: ast.AST) -> bool:
    return isinstance(node, ast.Break | ast.Continue | ast.Return | ast.Raise)


def _result_of(statement: ast.stmt) -> str:
    """The name of the tensor into which the one call of a simple statement brings its result; empty for any other."""
    calls = calls_in(statement)
    return _given(calls[0]) if len(calls) == 1 and isinstance(statement, ast.Expr | ast.Assign) else ""


def _given(call: ast.Call) -> str:
    """The name of the tensor into which a call brings its result; empty where it is none, or the call brings none."""
    if name_of(call.func) not in _BRINGING:
        return ""
    named = [one.value for one in call.keywords if one.arg in _RESULTS]
    first = [*call.args[:1], *named]
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


def read_before_wait(call: Source) -> Source | None:
    """The line that reads the result of an asynchronous call before the function uses the call's work at all.

    The work has to be given to a plain name, or put into a list, by a statement of its own. None wherever the text does
    not tell: where a statement in between may wait for all that is in flight, or only views or hands on the tensor.
    """
    text = text_of(call.file)
    function = None if text is None or text.line(call.line) != call.code else text.function(call.function, call.line)
    steps = [] if function is None else steps_to(function, call.line)
    if text is None or function is None or not steps:
        return None
    statement, following = steps[-1].statement, steps[-1].block[steps[-1].index + 1 :]
    work, made, listed = _work_of(statement)
    if made is None or not work or name_of(made.func) == "recv" or _may_wait_elsewhere(work, function):
        return None
    name = _given(made)
    looked_at = _Looked(name, name_of(made.func) in _LISTS, work, listed)
    line = _line_that_computes(looked_at, following) if name else None
    return None if not line else Source(call.file, line, call.function, text.line(line))


@dataclass(frozen=True, slots=True)
class _Looked:
    """The tensor that is looked for by its name, or its list's, and the name of the work, or of its list."""

    name: str
    in_list: bool
    work: str
    listed: bool


def _work_of(statement: ast.stmt) -> tuple[str, ast.Call | None, bool]:
    """The name that a simple statement gives a call's work, and the call; True: or of the list to which it adds it."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.value, ast.Call):
        target = statement.targets[0]
        return target.id if isinstance(target, ast.Name) else "", statement.value, False
    adds = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(adds, ast.Call) and name_of(adds.func) == "append" and isinstance(adds.func, ast.Attribute):
        made = adds.args[0] if len(adds.args) == 1 else None
        if isinstance(adds.func.value, ast.Name) and isinstance(made, ast.Call):
            return adds.func.value.id, made, True
    return "", None, False


def _may_wait_elsewhere(work: str, function: Function) -> bool:
    """True if functions that could be called in between know the name of the work."""
    inner = [node for node in ast.walk(function) if isinstance(node, Scope) and node is not function]
    return any(_is_named(node, work) for scope in inner for node in ast.walk(scope))


def _line_that_computes(looked: _Looked, statements: Sequence[ast.stmt]) -> int | None:
    """The first line that computes with a tensor, 0 where none is known to; None where they go on behind these."""
    for statement in statements:
        compound = any(blocks_of(statement))
        head = [
            node for part in (head_of(statement) if compound else [statement]) for node in (part, *nodes_within(part))
        ]
        if _may_end(head, looked):
            return 0
        lines: list[int] = [node.lineno for node in head if _computes(node, looked.name, in_list=looked.in_list)]  # type: ignore[attr-defined]
        if lines:
            return min(lines)
        if isinstance(statement, ast.With | ast.AsyncWith):
            found = _line_that_computes(looked, statement.body)
            if found is not None:
                return found
        everything = [*nodes_within(statement)]
        if _may_end(everything, looked) or any(
            _is_named(node, looked.name) and not isinstance(node.ctx, ast.Load) for node in everything
        ):
            return 0
    return None


def _may_end(nodes: Sequence[ast.AST], looked: _Looked) -> bool:
    """True if expressions use a work, or may wait for all that is in flight, or use the tensor on a condition.

    Whoever else has the list of the work may wait for it in any function.
    """
    calls = {name_of(node.func) for node in nodes if isinstance(node, ast.Call)}
    if calls & _ENDING or (looked.listed and calls - _HARMLESS) or any(_is_named(node, looked.work) for node in nodes):
        return True
    unsure = (node for node in nodes if isinstance(node, ast.IfExp | ast.BoolOp | ast.comprehension))
    return any(_is_named(one, looked.name) for node in unsure for one in ast.walk(node))


def _computes(node: ast.AST, name: str, *, in_list: bool) -> bool:
    """True for an expression or an assignment that needs the values of a tensor, or of one in a list."""
    if isinstance(node, ast.BinOp):
        return any(_is_tensor(one, name, in_list=in_list) for one in (node.left, node.right))
    if isinstance(node, ast.UnaryOp | ast.FormattedValue):
        one = node.operand if isinstance(node, ast.UnaryOp) else node.value
        return _is_tensor(one, name, in_list=in_list)
    if isinstance(node, ast.AugAssign):
        return _is_tensor(node.value, name, in_list=in_list)
    if isinstance(node, ast.Compare):
        by_identity = any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops)
        return not by_identity and any(_is_tensor(one, name, in_list=in_list) for one in (node.left, *node.comparators))
    if not isinstance(node, ast.Call):
        return False
    function = name_of(node.func)
    if isinstance(node.func, ast.Attribute) and _is_tensor(node.func.value, name, in_list=in_list):
        return function in _COMPUTING
    of_torch = isinstance(node.func, ast.Attribute) and name_of(node.func.value) == "torch"
    if (of_torch and function in _JOINING) or (isinstance(node.func, ast.Name) and function in _SHOWING):
        # A list of tensors will do.
        listed = [part for one in node.args for part in (one.elts if isinstance(one, ast.List | ast.Tuple) else [one])]
        return any(_is_tensor(one, name, in_list=False) for one in listed)
    return of_torch and function in _COMPUTING and any(_is_tensor(one, name, in_list=in_list) for one in node.args)


def _is_tensor(node: ast.AST, name: str, *, in_list: bool) -> bool:
    """True for the tensor of a name, parts and views of it; ``in_list``: for those of its list."""
    if isinstance(node, ast.Subscript):
        return _is_tensor(node.value, name, in_list=in_list and not isinstance(node.value, ast.Name))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _VIEWING:
        return _is_tensor(node.func.value, name, in_list=in_list)
    return not in_list and _is_named(node, name)
