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
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, TypeVar

from simcoll.verifier.program_text.forks import RANK_NAMES
from simcoll.verifier.program_text.syntax import (
    Function,
    Text,
    calls_in,
    head_of,
    name_of,
    nodes_within,
    steps_to,
)

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


@dataclass(frozen=True, slots=True)
class _Kind:
    """A rank, in the job or on its host: the last parts of its names, and its variable of the environment."""

    names: frozenset[str]
    variable: str


_IN_JOB: Final = _Kind(RANK_NAMES, "RANK")
_ON_HOST: Final = _Kind(frozenset({"local_rank"}), "LOCAL_RANK")
_BY_HOSTS: Final = ("rank", "rank % 8", "rank % 4")
"""Ranks on a host by those in the job: of one host, or of hosts with so many."""


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


def calls_it_rank(text: Text) -> bool:
    """True unless a program gives a rank in a group a name by which others have the rank in the job."""
    return not any(name.rpartition(".")[2] in RANK_NAMES for name in places_in_groups(text))


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


def _is_rank(node: ast.AST, kind: _Kind = _IN_JOB) -> bool:
    """True for ``rank``, ``self.rank``, ``get_rank()`` and ``os.environ["RANK"]``; a rank in a group is another."""
    if _is_in_environment(node, kind.variable) or _is_variable(node, kind.variable):
        return True
    if isinstance(node, ast.Call):
        return not node.args and not node.keywords and not _is_in_group(node) and _is_rank(node.func, kind)
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in kind.names


_RANKS_IN_GROUPS: Final = frozenset({"get_group_rank", "get_local_rank", "rank"})
"""Methods that tell a rank in a group, or in a dimension of a mesh."""


def _is_in_group(call: ast.Call) -> bool:
    """True for a call that gives a rank in a group: ``dist.get_rank(group)``, ``group.rank()``."""
    if name_of(call.func) == "get_rank":
        return bool(call.args or call.keywords)
    return isinstance(call.func, ast.Attribute) and call.func.attr in _RANKS_IN_GROUPS


@lru_cache(maxsize=64)
def places_in_groups(text: Text) -> frozenset[str]:
    """The names that a program gives a rank in a group, and attributes of ``self``, by whatever other names they go."""
    given = (pair for node in ast.walk(text.tree) for pair in _given(node))
    made = (target for target, value in given if any(_is_in_group(call) for call in calls_in(value)))
    return frozenset(key for target in made for key in _keys_in([target]))


class Renamed(ast.NodeTransformer):
    """Expressions with a ``new`` one in the place of some names, attributes of ``self``, or ranks of a kind.

    Their lines stay.
    """

    def __init__(
        self, names: frozenset[str], new: str, attributes: frozenset[str] = frozenset(), kind: _Kind | None = None
    ) -> None:
        self._names, self._attributes, self._kind = names, attributes, kind
        self._new = ast.parse(new, mode="eval").body

    def of(self, node: _Expression) -> _Expression:
        """A copy of an expression with the new name."""
        found: _Expression = self.visit(copy.deepcopy(node))
        return found

    def visit(self, node: ast.AST) -> Any:
        """The new expression in the place of a rank, else the node with what is below it renamed."""
        if self._kind is not None and isinstance(node, ast.expr) and _is_rank(node, self._kind):
            return self._at(node)
        return super().visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """The name itself, or the new expression in its place."""
        return self._at(node) if node.id in self._names else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """The attribute with what it is of as it is now, or the new expression in its place."""
        if _of_self(node) in self._attributes:
            return self._at(node)
        node.value = self.visit(node.value)
        return node

    def _at(self, node: ast.expr) -> ast.expr:
        new = copy.deepcopy(self._new)
        for one in ast.walk(new):
            if isinstance(one, ast.expr):
                ast.copy_location(one, node)
        return new


@lru_cache(maxsize=64)
def _names_of_rank(text: Text, kind: _Kind = _IN_JOB) -> frozenset[str]:
    """The names that a program only ever gives its rank: ``r = dist.get_rank()``, ``r = int(os.environ["RANK"])``.

    Or by which functions have the rank as a parameter: one gives it ``init_process_group`` as its rank, and hands it to
    the others.
    """
    bound = _bound(text)
    given = Counter(
        target.id
        for node in ast.walk(text.tree)
        if isinstance(node, ast.Assign)
        for target, value in _pairs(node)
        if isinstance(target, ast.Name) and _gives_rank(value, kind)
    )
    joins = _calls_by_name(text).get("init_process_group", ()) if kind is _IN_JOB else ()
    told = {(name_of(one.value), around) for call, around in joins for one in call.keywords if one.arg == "rank"}
    handed = {name for name, around in told if _is_only_handed(text, name, around)}
    return frozenset(name for name, count in given.items() if count == bound[name]) | handed


def _is_only_handed(text: Text, name: str, joining: Function) -> bool:
    """True if a name is a parameter of ``joining``, and elsewhere only of functions whose every call is given it."""
    functions = (node for node in ast.walk(text.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    having = [one for one in functions if name in _parameters(one)]
    calls = {one: _calls_by_name(text).get(one.name, ()) for one in having if one is not joining}
    given = (_given_to(one, call, name, 0) for one, made in calls.items() for call, _ in made)
    only = len(having) == _bound(text)[name] and joining in having and all(calls.values())
    return only and all(isinstance(value, ast.Name) and value.id == name for value in given)


def _given_to(
    function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call, name: str, bound: int
) -> ast.expr | None:
    """What a call gives a parameter, if it says so; ``bound`` parameters come from elsewhere."""
    place = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    by_name = [one.value for one in call.keywords if one.arg == name]
    if by_name or name not in place or any(isinstance(one, ast.Starred) for one in call.args):
        return next(iter(by_name), None)
    at = place.index(name) - bound
    return call.args[at] if 0 <= at < len(call.args) else None


@lru_cache(maxsize=64)
def _attributes_of_rank(text: Text, kind: _Kind = _IN_JOB) -> frozenset[str]:
    """The attributes of ``self`` that a program only ever gives its rank: ``self.gpu_id = rank``.

    A parameter of a constructor is the rank if every call of the class gives it the rank.
    """
    written = Counter(
        _of_self(node)
        for node in ast.walk(text.tree)
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
    )
    given = Counter(
        _of_self(target)
        for node in ast.walk(text.tree)
        for target, value in _given(node)
        if _of_self(target) and _is_given_rank(text, value, kind)
    )
    return frozenset(name for name, count in given.items() if count == written[name])


def _given(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """The targets of an assignment that are given a value, and the values."""
    if isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        return [(node.target, node.value)]
    return _pairs(node) if isinstance(node, ast.Assign) else []


def _is_given_rank(text: Text, value: ast.expr, kind: _Kind) -> bool:
    """True for an expression that is the rank, or a parameter of a constructor that is always given it."""
    names = _names_of_rank(text, kind)

    def is_it(one: ast.expr) -> bool:
        return _is_rank(one, kind) or _gives_rank(one, kind) or (isinstance(one, ast.Name) and one.id in names)

    if is_it(value) or not isinstance(value, ast.Name):
        return is_it(value)
    constructor = _constructors(text).get(id(value))
    if constructor is None or value.id not in constructor.parameters:
        return False
    calls = _calls_by_name(text).get(constructor.made.name, ())
    given = [one for one, _ in _given_to_init(text, constructor.made, value.id)]
    return 0 < len(given) == len(calls) and all(map(is_it, given))


def _of_self(node: ast.AST) -> str:
    """The name of an attribute of ``self``; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) and _is_self(node.value) else ""


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


@lru_cache(maxsize=64)
def _classes(text: Text) -> tuple[ast.ClassDef, ...]:
    return tuple(node for node in ast.walk(text.tree) if isinstance(node, ast.ClassDef))


def _methods_of(one: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in one.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def _init_of(one: ast.ClassDef) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    return next((node for node in _methods_of(one) if node.name == "__init__"), None)


@dataclass(frozen=True, slots=True, eq=False)
class _Constructor:
    """The class that a constructor makes, and the parameters of which it changes none."""

    made: ast.ClassDef
    parameters: frozenset[str]


@lru_cache(maxsize=64)
def _constructors(text: Text) -> dict[int, _Constructor]:
    """The constructor in which each name of a program stands, by the identity of its node."""
    found: dict[int, _Constructor] = {}
    for made in _classes(text):
        if (init := _init_of(made)) is not None:
            names = [node for node in ast.walk(init) if isinstance(node, ast.Name)]
            changed = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
            constructor = _Constructor(made, frozenset(_parameters(init) - changed))
            found |= {id(node): constructor for node in names}
    return found


@lru_cache(maxsize=64)
def _calls_by_name(text: Text) -> dict[str, list[tuple[ast.Call, Function]]]:
    """A program's calls by the last part of the name of what they call, each with the function that it stands in."""
    found: dict[str, list[tuple[ast.Call, Function]]] = {}
    todo: list[tuple[ast.AST, Function]] = [(text.tree, text.tree)]
    while todo:
        node, function = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node
        if isinstance(node, ast.Call):
            found.setdefault(name_of(node.func), []).append((node, function))
        todo += [(child, function) for child in ast.iter_child_nodes(node)]
    return found


def _given_to_init(text: Text, made: ast.ClassDef, name: str) -> list[tuple[ast.expr, Function]]:
    """What the program's calls of a class give a parameter of its constructor, and the functions that call it."""
    init, calls = _init_of(made), _calls_by_name(text).get(made.name, ())
    given = [] if init is None else [(_given_to(init, call, name, 1), around) for call, around in calls]
    return [(value, around) for value, around in given if value is not None]


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


def _gives_rank(value: ast.expr, kind: _Kind = _IN_JOB) -> bool:
    return isinstance(value, ast.Call | ast.Subscript) and _is_rank(value, kind)


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

    Those in the line's own statement come first: nothing behind them decides in their place. Not so where one way is
    ``None``, as of a list that the root alone gives.
    With ``heads`` those by the heads of statements around the line follow, innermost first: ``with no_sync() if ...``.
    Without ``own`` what the line uses is left out, unless it makes calls in rounds. What goes on in the function
    ``entered`` from the line is no use of a value. Each comes in the program's words, and as one of ``rank``.
    """
    found: dict[int, ast.Compare] = {}
    steps = steps_to(function, line)[::-1]
    if steps and not (own or any(isinstance(node, ast.comprehension) for node in nodes_within(steps[0].statement))):
        steps = steps[1:]
    for step in steps if heads else steps[:1]:
        nodes = _behind(text, function, head_of(step.statement), entered)
        behind = (
            node
            for node in nodes
            if isinstance(node, ast.Compare) and id(node) not in found and not _keys_in([node]) & places_in_groups(text)
        )
        chosen = _chosen_in(head_of(step.statement))
        in_order = sorted(behind, key=lambda node: (id(node) not in chosen, node.lineno))
        found.update((id(node), node) for node in in_order)
    return [(ast.unparse(node), one) for node in found.values() for one in _as_of_rank(text, node)]


def _chosen_in(parts: Sequence[ast.expr]) -> set[int]:
    """The identities of the nodes in the tests by which expressions choose one of two values."""
    choices = (node for part in parts for node in ast.walk(part) if isinstance(node, ast.IfExp))
    both = (node for node in choices if not any(_is_none(way) for way in (node.body, node.orelse)))
    return {id(one) for node in both for one in ast.walk(node.test)}


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def nodes_behind(text: Text, function: Function, line: int) -> frozenset[int]:
    """The identities of the nodes of a text on which the values depend that a line of a function uses."""
    steps = steps_to(function, line)
    parts = head_of(steps[-1].statement) if steps else ()
    return frozenset(id(node) for node in _behind(text, function, parts, ""))


def _as_of_rank(text: Text, comparison: ast.Compare) -> list[ast.Compare]:
    """A comparison as one of ``rank``; of the rank on a host, one for each number of ranks that hosts mostly have."""
    spelled = Renamed(_names_of_rank(text), "rank", _attributes_of_rank(text)).of(comparison)
    names, attributes = _names_of_rank(text, _ON_HOST), _attributes_of_rank(text, _ON_HOST)
    on_host = [Renamed(names, number, attributes, _ON_HOST).of(spelled) for number in _BY_HOSTS]
    return on_host if ast.unparse(on_host[0]) != ast.unparse(spelled) else [spelled]


def _behind(text: Text, function: Function, parts: Sequence[ast.expr], entered: str) -> Iterator[ast.AST]:
    """All nodes on which expressions depend: those of assignments to their names, and of conditions around these.

    Attributes of ``self`` have their values from the methods of the class, a parameter of its constructor from the
    calls of the class.
    """
    seen, scopes = dict[int, ast.AST](), [(function, [*parts])]
    while scopes:
        scope, given = scopes.pop()
        yield from _behind_in(text, scope, given, entered, seen, scopes)


def _behind_in(
    text: Text,
    function: Function,
    parts: Sequence[ast.expr],
    entered: str,
    seen: dict[int, ast.AST],
    scopes: list[tuple[Function, list[ast.expr]]],
) -> Iterator[ast.AST]:
    """The nodes of one function, but those ``seen``; what they depend on in others is added to ``scopes``."""
    own, parameters = _writes_of(text, function), _parameters(function)
    outer = {} if function is text.tree else _writes_of(text, text.tree)
    of_class = _classes_of(text, function)
    names, kinds = set[str](), (_IN_JOB, _ON_HOST)
    ranks = frozenset().union(*(_names_of_rank(text, kind) for kind in kinds))
    of_self = frozenset().union(*(_attributes_of_rank(text, kind) for kind in kinds))
    todo: list[ast.AST] = [*parts]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node  # kept: no other node may have its identity meanwhile
        yield node
        attribute = _of_self(node)
        if not attribute:
            todo += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.Lambda)]
        todo += [
            _not_zero(one)
            for one in _tested_in(node)
            if _is_rank(one) or _is_rank(one, _ON_HOST) or name_of(one) in ranks or _of_self(one) in of_self
        ]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id != entered:
            todo += _body_of(text, node.func.id)
        if (name := _key(node)) and name not in names:
            names.add(name)
            todo += own.get(name, ()) if name in own or name in parameters else outer.get(name, ())
            if of_class and function is _init_of(of_class[0]) and name in parameters:
                scopes += [(around, [value]) for value, around in _given_to_init(text, of_class[0], name)]
            for method in (one for part in of_class for one in _methods_of(part)) if attribute else ():
                scopes += [(method, behind)] if (behind := _writes_of(text, method).get(name)) else []


def _key(node: ast.AST) -> str:
    """A name, or ``self`` with an attribute; empty for anything else."""
    attribute = _of_self(node)
    return f"self.{attribute}" if attribute else node.id if isinstance(node, ast.Name) else ""


def _keys_in(targets: Sequence[ast.expr]) -> set[str]:
    """The names and the attributes of ``self`` that targets write or change."""
    found, todo = set[str](), [*targets]
    while todo:
        node: ast.AST = todo.pop()
        if key := _key(node):
            found.add(key)
        else:
            todo += ast.iter_child_nodes(node)  # type: ignore[arg-type]  # expressions and their contexts
    return found


def _classes_of(text: Text, function: Function) -> list[ast.ClassDef]:
    """The class of which a function is a method, and those of the same text that it is made of; empty if it is none."""
    by_name = {one.name: one for one in _classes(text)}
    found = [one for one in _classes(text) if function in one.body]
    for one in found:
        found += [by_name[base] for base in map(name_of, one.bases) if base in by_name and by_name[base] not in found]
    return found


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


@lru_cache(maxsize=64)
def _writes_by_function(text: Text) -> dict[int, dict[str, list[ast.expr]]]:
    """What is known of :func:`_writes_of` each function, by the identity of its node."""
    return {}


def _writes_of(text: Text, function: Function) -> dict[str, list[ast.expr]]:
    """The names that the statements of a function write, each with what that depends on."""
    known = _writes_by_function(text)
    if id(function) in known:
        return known[id(function)]
    found: dict[str, list[ast.expr]] = {}
    for targets, behind in _writes(function, (), _imported(text)):
        for name in _keys_in(targets):
            found.setdefault(name, []).extend(behind)
    known[id(function)] = found
    return found


def _writes(
    node: ast.AST, around: tuple[ast.expr, ...], modules: frozenset[str]
) -> Iterator[tuple[list[ast.expr], list[ast.expr]]]:
    """What statements give values to or call methods of, with the values and the conditions around them."""
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


def _written(node: ast.AST, modules: frozenset[str]) -> tuple[list[ast.expr], list[ast.expr]]:
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
    return targets, values
