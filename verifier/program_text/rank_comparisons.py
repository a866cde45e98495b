"""Finds the comparisons of a program with its rank on which the values at a line depend, by the program's text.

Ranks that come to one line with another tensor, group or function were given it earlier. Only comparisons with
constants are looked at: for them the text alone says on which ranks they hold. Of a list of messages the text also says
more where names stand for numbers that follow from the rank and the number of ranks (:func:`numbers_on`).
"""

from __future__ import annotations

import ast
import copy
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final, TypeVar

from simcoll.verifier.program_text.forks import RANK_NAMES
from simcoll.verifier.program_text.syntax import Function, Text, head_of, name_of, nodes_within, steps_to

_Expression = TypeVar("_Expression", bound=ast.expr)

_MOST: Final = 1 << 20
"""The largest number that is computed with."""
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Mod: operator.mod,
        ast.FloorDiv: operator.floordiv,
    }
)
_COMPARISONS: Final[Mapping[type[ast.cmpop], Callable[[int, int], bool]]] = MappingProxyType(
    {
        ast.Eq: operator.eq,
        ast.NotEq: operator.ne,
        ast.Lt: operator.lt,
        ast.LtE: operator.le,
        ast.Gt: operator.gt,
        ast.GtE: operator.ge,
    }
)


def holds(comparison: ast.Compare, rank: int) -> bool | None:
    """Whether a comparison of the rank with constants holds on a rank; None where it is none, or is not computed."""
    if len(comparison.ops) != 1 or not any(_is_rank(node) for node in ast.walk(comparison)):
        return None
    return _compared(comparison, rank, _NO_NAMES)


def _compared(comparison: ast.Compare, rank: int, known: Mapping[str, int]) -> bool | None:
    kind, left, right = type(comparison.ops[0]), number_of(comparison.left, rank, known), comparison.comparators[0]
    if left is None or len(comparison.ops) != 1:
        return None
    if kind in (ast.In, ast.NotIn):
        numbers = [number_of(one, rank, known) for one in getattr(right, "elts", ())]
        return None if not numbers or None in numbers else (left in numbers) == (kind is ast.In)
    other = number_of(right, rank, known)
    return None if other is None or kind not in _COMPARISONS else _COMPARISONS[kind](left, other)


def is_true(test: ast.expr, rank: int, known: Mapping[str, int]) -> bool | None:
    """Whether a condition holds on a rank, where names stand for these numbers; None where the text does not say."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = is_true(test.operand, rank, known)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        parts = [is_true(part, rank, known) for part in test.values]
        decides = isinstance(test.op, ast.Or)
        return decides if decides in parts else None if None in parts else not decides
    return _compared(test, rank, known) if isinstance(test, ast.Compare) else None


_NO_NAMES: Final[Mapping[str, int]] = MappingProxyType({})


def number_of(node: ast.expr, rank: int, known: Mapping[str, int]) -> int | None:
    """The value of an expression on a rank, where names stand for these numbers; None where the text does not say."""
    if isinstance(node, ast.Constant):
        # Variables of the environment are texts: os.environ["RANK"] == "0".
        value = int(node.value) if isinstance(node.value, str) and node.value in _DIGITS else node.value
        return value if type(value) is int and abs(value) <= _MOST else None
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = number_of(node.left, rank, known), number_of(node.right, rank, known)
        divides = isinstance(node.op, ast.Mod | ast.FloorDiv)
        if left is None or right is None or (divides and not right):
            return None
        found = _OPERATORS[type(node.op)](left, right)
        return found if abs(found) <= _MOST else None
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    return rank if _is_rank(node) else None


def numbers_on(text: Text, rank: int, size: int) -> dict[str, int]:
    """The names that a program binds once, to what follows from the rank and the number of ranks, and their values."""
    known: dict[str, int] = {}
    bound = _bound(text)
    given = [
        (target.id, value)
        for node in ast.walk(text.tree)
        if isinstance(node, ast.Assign)
        for target, value in _pairs(node)
        if isinstance(target, ast.Name) and bound[target.id] == 1
    ]
    for _ in range(_PASSES):
        for name, value in given:
            if name not in known:
                number = rank if _gives_rank(value) else size if _gives_size(value) else number_of(value, rank, known)
                known |= {} if number is None else {name: number}
    return known


_DIGITS: Final = frozenset(map(str, range(1 << 16)))

_PASSES: Final = 3
"""So many names may follow from each other where the text has them in another order."""


def _is_rank(node: ast.AST) -> bool:
    """True for ``rank``, ``self.rank``, ``get_rank()`` and ``os.environ["RANK"]``; a rank in a group is another."""
    if _is_in_environment(node, "RANK") or _is_variable(node, "RANK"):
        return True
    if isinstance(node, ast.Call):
        return not node.args and not node.keywords and _is_rank(node.func)
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in RANK_NAMES


class Renamed(ast.NodeTransformer):
    """Expressions with a ``new`` name in the place of some; their lines stay."""

    def __init__(self, names: frozenset[str], new: str) -> None:
        self._names, self._new = names, new

    def of(self, node: _Expression) -> _Expression:
        """A copy of an expression with the new name."""
        found: _Expression = self.visit(copy.deepcopy(node))
        return found

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """The name itself, or the new one in its place."""
        return ast.copy_location(ast.Name(self._new, node.ctx), node) if node.id in self._names else node


@lru_cache(maxsize=64)
def _names_of_rank(text: Text) -> frozenset[str]:
    """The names that a program only ever gives its rank: ``r = dist.get_rank()``, ``r = int(os.environ["RANK"])``."""
    bound = _bound(text)
    given = Counter(
        target.id
        for node in ast.walk(text.tree)
        if isinstance(node, ast.Assign)
        for target, value in _pairs(node)
        if isinstance(target, ast.Name) and _gives_rank(value)
    )
    return frozenset(name for name, count in given.items() if count == bound[name])


def _bound(text: Text) -> Counter[str]:
    """How often a program binds each name."""
    nodes = list(ast.walk(text.tree))
    bound = Counter(node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load))
    bound.update(node.arg for node in nodes if isinstance(node, ast.arg))
    return bound


def _pairs(node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    pairs: list[tuple[ast.expr, ast.expr]] = []
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs += zip(target.elts, node.value.elts, strict=False)
        else:
            pairs.append((target, node.value))
    return pairs


def _gives_rank(value: ast.expr) -> bool:
    return isinstance(value, ast.Call | ast.Subscript) and _is_rank(value)


def _gives_size(value: ast.expr) -> bool:
    call = isinstance(value, ast.Call) and not value.args and not value.keywords
    return _is_variable(value, "WORLD_SIZE") or (call and name_of(value.func) == "get_world_size")  # type: ignore[attr-defined]


def _is_variable(value: ast.AST, name: str) -> bool:
    """True for a variable of the environment as a number: ``int(os.environ["RANK"])``."""
    is_int = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "int"
    return is_int and bool(value.args) and _is_in_environment(value.args[0], name)  # type: ignore[attr-defined]


def _is_in_environment(node: ast.AST, name: str) -> bool:
    """True for a variable of the environment: ``os.environ["RANK"]``, ``os.getenv("RANK", "0")``."""
    if isinstance(node, ast.Subscript):
        key, known = node.slice, name_of(node.value) == "environ"
    elif isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Name | ast.Attribute):
        of = name_of(getattr(node.func, "value", node.func))
        key, known = node.args[0], name_of(node.func) == "getenv" or (name_of(node.func), of) == ("get", "environ")
    else:
        return False
    return known and isinstance(key, ast.Constant) and key.value == name


def comparisons_behind(
    text: Text, function: Function, line: int, *, heads: bool = False, own: bool = True, entered: str = ""
) -> list[tuple[str, ast.Compare]]:
    """The comparisons with the rank by which the program chose what a line of a function uses, in order of lines.

    With ``heads`` those by the heads of statements around the line follow, innermost first: ``with no_sync() if ...``.
    Without ``own`` what the line uses is left out, unless it makes calls in rounds. What goes on in the function
    ``entered`` from the line is no use of a value. Each comes in the program's words, and as one of ``rank``.
    """
    spelled, found = Renamed(_names_of_rank(text), "rank"), dict[int, ast.Compare]()
    steps = steps_to(function, line)[::-1]
    if steps and not (own or any(isinstance(node, ast.comprehension) for node in nodes_within(steps[0].statement))):
        steps = steps[1:]
    for step in steps if heads else steps[:1]:
        nodes = _behind(text, function, head_of(step.statement), entered)
        behind = (node for node in nodes if isinstance(node, ast.Compare) and id(node) not in found)
        found.update((id(node), node) for node in sorted(behind, key=lambda node: node.lineno))
    return [(ast.unparse(node), spelled.of(node)) for node in found.values()]


def _behind(text: Text, function: Function, parts: Sequence[ast.expr], entered: str) -> Iterator[ast.AST]:
    """All nodes on which expressions depend: those of assignments to their names, and of conditions around these."""
    modules = _imported(text)
    writes = list(_writes(function, (), modules))
    if function is not text.tree:
        own = {name for targets, _ in writes for name in targets} | _parameters(function)
        writes += [(targets - own, behind) for targets, behind in _writes(text.tree, (), modules)]
    names, seen, ranks = set[str](), set[int](), _names_of_rank(text)
    todo: list[ast.AST] = [*parts]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        todo += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.Lambda)]
        todo += [_not_zero(test) for test in _tested_in(node) if _is_rank(test) or name_of(test) in ranks]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id != entered:
            todo += _body_of(text, node.func.id)
        if isinstance(node, ast.Name) and node.id not in names:
            names.add(node.id)
            todo += [part for targets, behind in writes if node.id in targets for part in behind]


def _tested_in(node: ast.AST) -> list[ast.expr]:
    """The expressions whose truth an expression asks for."""
    if isinstance(node, ast.IfExp):
        return [node.test]
    if isinstance(node, ast.BoolOp):
        return node.values
    return [node.operand] if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) else []


@lru_cache(maxsize=64)
def _not_zero(rank: ast.expr) -> ast.Compare:
    """What the truth of a rank says."""
    return ast.copy_location(ast.Compare(rank, [ast.NotEq()], [ast.copy_location(ast.Constant(0), rank)]), rank)


@lru_cache(maxsize=64)
def _imported(text: Text) -> frozenset[str]:
    """The names that a program imports, mostly those of modules, which a call of their functions does not change."""
    found = (one for node in ast.walk(text.tree) if isinstance(node, ast.Import | ast.ImportFrom) for one in node.names)
    return frozenset((one.asname or one.name).partition(".")[0] for one in found)


def _parameters(function: Function) -> set[str]:
    return (
        set()
        if isinstance(function, ast.Module)
        else {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    )


def _body_of(text: Text, name: str) -> list[ast.AST]:
    """The statements of the program's own function of a name, if there is one."""
    made = [node for node in text.tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return [*made[0].body] if len(made) == 1 else []


def _writes(
    node: ast.AST, around: tuple[ast.expr, ...], modules: frozenset[str]
) -> Iterator[tuple[set[str], list[ast.expr]]]:
    """The names that statements give values to or call methods of, with the values and the conditions around them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        # An ``and`` of one part: the truth of the test is asked for.
        conditions = (*around, ast.BoolOp(ast.And(), [child.test])) if isinstance(child, ast.If) else around
        targets, values = _written(child, modules)
        if targets:
            yield targets, [*values, *conditions]
        yield from _writes(child, conditions, modules)


def _methods(call: ast.Call) -> list[ast.Call]:
    """A call and those whose result it calls, down to that of a method; none where there is no method."""
    found = [call]
    while isinstance(found[-1].func, ast.Call):
        found.append(found[-1].func)
    return found if isinstance(found[-1].func, ast.Attribute) else []


def _written(node: ast.AST, modules: frozenset[str]) -> tuple[set[str], list[ast.expr]]:
    targets: list[ast.expr] = []
    values: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets, values = node.targets, [node.value]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets, values = [node.target], [] if node.value is None else [node.value]
    elif isinstance(node, ast.For | ast.AsyncFor):
        targets, values = [node.target], [node.iter]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and (called := _methods(node.value)):
        # A method may change what it is called on: values.reverse(), engine.on(event)(handler).
        of = called[-1].func.value  # type: ignore[attr-defined]  # a method's
        targets = [] if isinstance(of, ast.Name) and of.id in modules else [of]
        values = [value for call in called for value in call.args]
    names = {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return names, values
