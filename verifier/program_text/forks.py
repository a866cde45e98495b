"""Forks of a program: the branches, loops and early exits that lead to a line, or past it, by the program's text."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeGuard

from simcoll.verifier.program_text.syntax import (
    Function,
    Loop,
    Scope,
    Step,
    blocks_of,
    calls_in,
    head_of,
    name_of,
    nodes_within,
)

_Comprehension = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_FRAMES = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
"""Names of the frames that comprehensions have, before Python 3.12 all of them."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A line that decides which way the program goes, and the lines of one way.

    ``inside`` and ``outside`` say what ranks did that went this way and that did not; ``loop`` that it is a loop, which
    ranks may leave after another number of rounds; ``leaves`` that this way only leaves the function or the loop;
    ``alone`` that it comes back to the other ways, and that these call nothing before; ``alike`` that it is a loop over
    numbers or parts of a model, or an exit after a number of rounds, which most programs make equally on all ranks;
    ``by_rank`` that it is a loop over what depends on the rank;
    ``varies`` that it is a branch in a loop that ranks run alike which depends on the round; ``by_round`` that it
    depends on nothing else; ``settled`` that it is a branch in a loop on what no round changes; ``raises`` that it
    leaves by an exception.
    """

    line: int
    first: int
    last: int
    inside: str
    outside: str
    loop: bool = False
    leaves: bool = False
    alone: bool = False
    alike: bool = False
    by_rank: bool = False
    varies: bool = False
    by_round: bool = False
    settled: bool = False
    raises: bool = False


_NOT_BEHIND = (ast.Return, ast.Raise, ast.Continue)
_ENDS = frozenset({"sys.exit", "exit", "quit", "os._exit", "os.abort"})
"""Calls that end the process, as programs write them."""
_PARTS_OF_MODELS = frozenset(
    f"{prefix}{parts}" for prefix in ("", "named_") for parts in ("parameters", "buffers", "modules", "children")
)
"""Methods of a module, which ranks mostly hold alike."""
TOOK, NOT = "took it", "did not take it"
"""What ranks did at a branch."""
ROUNDS: Final = ("in the loop", "past it")
"""What ranks did at the head of a loop."""


def fork_of(step: Step, around: Sequence[Step] = ()) -> Fork | None:
    """The fork that leads into a step's block, below the steps ``around`` it; None where every way leads into it."""
    parent, lines = step.parent, step.lines()
    if isinstance(parent, ast.If):
        did, other = ((TOOK, NOT), parent.orelse) if step.field == "body" else ((NOT, TOOK), parent.body)
        alone = not any(map(calls_in, other)) and (not ends_outside(step.block) or _returns_alike(step, other, around))
        rounds = _rounds(around)
        varies = any(isinstance(node, ast.Name) and node.id in rounds for node in ast.walk(parent.test))
        by_round, settled = varies and _is_of(parent.test, rounds), _is_settled(parent.test, around)
        return Fork(parent.lineno, *lines, *did, alone=alone, varies=varies, by_round=by_round, settled=settled)
    if isinstance(parent, Loop):
        if step.field == "orelse":
            return None
        over = getattr(parent, "iter", None)
        return Fork(parent.lineno, *lines, *ROUNDS, loop=True, alike=_is_alike(parent), by_rank=_depends_on_rank(over))
    if step.field.startswith("handler"):
        handler = parent.handlers[int(step.field.split()[1])]  # type: ignore[attr-defined]
        return Fork(handler.lineno, *lines, "caught an exception there", "did not")
    if isinstance(parent, ast.Match):
        case = parent.cases[int(step.field.split()[1])]
        others = [part for one in parent.cases if one is not case for part in (*one.body, one.guard) if part]
        alone = not ends_outside(step.block) and not any(map(calls_in, others))
        return Fork(case.pattern.lineno, *lines, TOOK, NOT, alone=alone)
    return None


def _returns_alike(step: Step, other: Sequence[ast.stmt], around: Sequence[Step]) -> bool:
    """True if a branch of a function returns, and the other ways do too without a call: all come back to the caller."""
    if len(around) != 1 or not isinstance(step.block[-1], ast.Return):
        return False
    rest = (*other, *around[0].block[around[0].index + 1 :])
    return not any(map(calls_in, rest)) and not any(isinstance(one, ast.Raise) for one in rest)


def inner_forks(statement: ast.stmt, called: str) -> list[Fork]:
    """The expression by which a statement, or the head of a compound one, calls a function or not, if there is one.

    It is conditional, an ``and``, an ``or``, or a comprehension that calls ``called`` in each round.
    """
    found = []
    parts = _parts_of(statement)
    first, last = statement.lineno, max((part.end_lineno or part.lineno for part in parts), default=statement.lineno)
    for node in (node for part in parts for node in (part, *nodes_within(part))):
        if _may_call(node):
            found.append(_fork_in(node))
        elif isinstance(node, _Comprehension) and (called in _FRAMES or called in _names_called(node)):
            over = [part.iter for part in node.generators]
            by_rank = any(map(_depends_on_rank, over))
            found.append(Fork(node.lineno, first, last, *ROUNDS, loop=True, by_rank=by_rank))
    return found if len(found) == 1 else []


def _parts_of(statement: ast.stmt) -> Sequence[ast.stmt | ast.expr]:
    """A statement, or the expressions of a compound one that run before its blocks."""
    return head_of(statement) if any(True for _ in blocks_of(statement)) else [statement]


def _fork_in(node: ast.IfExp | ast.BoolOp) -> Fork:
    """The fork of an expression that makes calls on one of its ways alone."""
    if isinstance(node, ast.BoolOp):
        calling = [part for part in node.values[1:] if calls_in(part)]
        return Fork(node.lineno, calling[0].lineno, _end(calling[-1]), TOOK, NOT, alone=True)
    part, did = (node.body, (TOOK, NOT)) if calls_in(node.body) else (node.orelse, (NOT, TOOK))
    return Fork(node.test.lineno, part.lineno, _end(part), *did, alone=True)


def _end(node: ast.expr) -> int:
    return node.end_lineno or node.lineno


def forks_within(statement: ast.stmt, line: int, other: int) -> list[Fork]:
    """The expressions of one statement a way of which has the first of two lines in it, and not the other one."""
    found = []
    for node in (node for part in _parts_of(statement) for node in (part, *nodes_within(part))):
        for part, did in _ways_of(node):
            if part.lineno <= line <= _end(part) and not part.lineno <= other <= _end(part):
                at = node.test.lineno if isinstance(node, ast.IfExp) else node.lineno  # type: ignore[attr-defined]
                found.append(Fork(at, part.lineno, _end(part), *did))
    return found


def _ways_of(node: ast.AST) -> list[tuple[ast.expr, tuple[str, str]]]:
    """The parts of an expression that run only on one of its ways, and what ranks did that ran them or not."""
    if isinstance(node, ast.IfExp):
        return [(node.body, (TOOK, NOT)), (node.orelse, (NOT, TOOK))]
    return [(part, (TOOK, NOT)) for part in node.values[1:]] if isinstance(node, ast.BoolOp) else []


def round_by_head(statement: ast.stmt, called: Function | None) -> tuple[Step, Fork] | None:
    """The loop whose head calls a function in each round: a ``while`` by its test, a ``for`` by a generator."""
    generates = called is not None and _is_generator(called)
    if not isinstance(statement, Loop) or not (isinstance(statement, ast.While) or generates):
        return None
    step = Step(statement, "body", statement.body, 0)
    fork = fork_of(step)
    return None if fork is None else (step, replace(fork, first=statement.lineno))


def _is_generator(function: Function) -> bool:
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in nodes_within(function))


def closes_block(statement: ast.stmt, called: tuple[str, int, Function | None] | None) -> bool:
    """True if a ``with`` calls this line, in a function of this name and text, when its block is left."""
    if not isinstance(statement, ast.With | ast.AsyncWith) or called is None:
        return False
    name, line, function = called
    yields = [] if function is None else [node.lineno for node in nodes_within(function) if isinstance(node, ast.Yield)]
    return name in ("__exit__", "__aexit__") or any(number < line for number in yields)


def _names_called(node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> set[str]:
    """The names of the functions that a comprehension calls in each round."""
    made = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
    return {name_of(call.func) for part in made for call in calls_in(part)}


def _may_call(node: ast.AST) -> TypeGuard[ast.IfExp | ast.BoolOp]:
    """True if an expression makes calls on one of its ways and none on the other."""
    if isinstance(node, ast.IfExp):
        return bool(calls_in(node.body)) != bool(calls_in(node.orelse))
    return isinstance(node, ast.BoolOp) and any(map(calls_in, node.values[1:]))


def chosen_between(statement: ast.stmt, one: str, other: str) -> Fork | None:
    """The conditional expression of which one way calls the first function and the other way the second."""
    for node in nodes_within(statement):
        if isinstance(node, ast.IfExp):
            ways = [{name_of(call.func) for call in calls_in(part)} for part in (node.body, node.orelse)]
            if one in ways[0] - ways[1] and other in ways[1] - ways[0]:
                return Fork(node.test.lineno, 0, 0, TOOK, NOT)
            if one in ways[1] - ways[0] and other in ways[0] - ways[1]:
                return Fork(node.test.lineno, 0, 0, NOT, TOOK)
    return None


def chosen_values(function: Function, one: str, other: str, used: Collection[int]) -> Fork | None:
    """The one condition of a function on which it takes the first value or the second: names or constants.

    ``used`` has the identities of the nodes that count: of the conditional expressions, and of tests.
    """
    found = []
    for node, ways in _choices(function):
        is_used = id(node) in used or id(node.test) in used
        if is_used and ways in ((one, other), (other, one)):
            did = (TOOK, NOT) if ways == (one, other) else (NOT, TOOK)
            found.append(Fork(node.lineno, 0, 0, *did))
    return found[0] if len(found) == 1 else None


def _choices(function: Function) -> Iterator[tuple[ast.IfExp | ast.If, tuple[str, str]]]:
    """The values of conditional expressions, and those that an ``if`` gives to one name, or leaves to it otherwise.

    Otherwise is its ``else``, or the statement before it.
    """
    for parent in (function, *nodes_within(function)):
        if isinstance(parent, ast.IfExp):
            yield parent, (_leaf(parent.body), _leaf(parent.orelse))
        for _, block in blocks_of(parent):
            for place, node in enumerate(block):
                if isinstance(node, ast.If) and len(node.body) == 1 and len(node.orelse) <= 1:
                    given = _assigned(node.body)
                    otherwise = _assigned(node.orelse or block[:place])
                    yield from ((node, (given[name], otherwise[name])) for name in given if name in otherwise)


def _assigned(statements: Sequence[ast.stmt]) -> dict[str, str]:
    """The last values that assignments of a block give to their targets."""
    assignments = (one for one in statements if isinstance(one, ast.Assign))
    return {ast.unparse(target): _leaf(one.value) for one in assignments for target in one.targets}


def _leaf(value: ast.expr) -> str:
    """A value as calls are recorded with it: ``max`` of ``dist.ReduceOp.MAX``, ``0`` of ``0``."""
    return (str(value.value) if isinstance(value, ast.Constant) else name_of(value)).lower()


def caught_fork(step: Step) -> Fork | None:
    """The handler by which ranks leave the body of a ``try``, or never come to its ``else``, and go on behind it, if
    there is one.
    """
    inside = step.field in ("body", "orelse")
    handlers: Sequence[ast.ExceptHandler] = getattr(step.parent, "handlers", ()) if inside else ()
    if len(handlers) != 1 or ends_outside(handlers[0].body):
        return None
    fork = fork_of(Step(step.parent, "handler 0", handlers[0].body, 0))
    return None if fork is None else replace(fork, leaves=True)


def may_catch(step: Step) -> bool:
    """True if an exception below a step may end there: it stands in a ``try`` with a handler, or in a ``with``."""
    return step.field == "body" and (
        bool(getattr(step.parent, "handlers", ())) or isinstance(step.parent, ast.With | ast.AsyncWith)
    )


def is_given(branch: ast.AST, function: Function, caller: ast.stmt) -> bool:
    """True for an ``if`` on a parameter alone that the caller's statement gives a constant: it goes one way there."""
    test = branch.test if isinstance(branch, ast.If) else None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test = test.operand
    if not isinstance(test, ast.Name) or isinstance(function, ast.Module):
        return False
    calls = [call for call in calls_in(caller) if name_of(call.func) == function.name]
    return len(calls) == 1 and isinstance(_argument(calls[0], function, test.id), ast.Constant)


def _argument(call: ast.Call, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> ast.expr | None:
    """The expression that a call gives a parameter; None where it gives none, or another way than by name or place."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    bound = isinstance(call.func, ast.Attribute) and names[:1] in (["self"], ["cls"])
    place = names.index(name) - bound if name in names else -1
    if not 0 <= place < len(call.args) or any(isinstance(one, ast.Starred) for one in call.args):
        return None
    return call.args[place]


def exits_before(step: Step) -> list[Fork]:
    """The conditions under which the program leaves a step's block before it, the last one first."""
    exits, counted = exits_in(step.block[: step.index]), _counted(step.parent)
    return [replace(fork, alike=_is_on(fork, step.block, counted)) for fork in exits] if counted else exits


def exits_in(statements: Sequence[ast.stmt]) -> list[Fork]:
    """The conditions under which the program leaves a stretch of statements before its end, the last one first."""
    return [fork for statement in reversed(statements) for fork in _exits(statement, in_loop=False)]


def _exits(statement: ast.stmt, *, in_loop: bool) -> list[Fork]:
    if isinstance(statement, Scope):
        return []
    inner = in_loop or isinstance(statement, Loop)
    found = []
    for field, block in blocks_of(statement):
        step = Step(statement, field, block, 0)
        leaves = any(_leaves(one, in_loop=inner) for one in block)
        fork = fork_of(step)
        if leaves and fork is not None and not fork.loop:
            way = (fork.line, fork.first, fork.last, fork.inside, fork.outside)
            found.append(Fork(*way, leaves=True, raises=isinstance(block[-1], ast.Raise)))
        found += [fork for one in reversed(block) for fork in _exits(one, in_loop=inner)]
    return found


def _leaves(statement: ast.stmt, *, in_loop: bool) -> bool:
    if isinstance(statement, ast.Return | ast.Raise) or _ends_process(statement):
        return True
    return isinstance(statement, ast.Break | ast.Continue) and not in_loop


def _ends_process(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func) in _ENDS


def ends_outside(block: Sequence[ast.stmt]) -> bool:
    """True for a block that never comes to the statements behind it."""
    return _leaves(block[-1], in_loop=False)


def leaving_forks(loop: ast.AST, *, to_behind: bool = False) -> list[Fork]:
    """The conditions under which the program leaves a loop from inside; ``to_behind``: to the statements behind it."""
    elsewhere = _NOT_BEHIND if to_behind else (ast.Continue,)
    found, counted = [], _counted(loop)
    for statement in getattr(loop, "body", ()):
        statements = [node for node in (statement, *nodes_within(statement)) if isinstance(node, ast.stmt)]
        for fork in _exits(statement, in_loop=False):
            way = [node for node in statements if fork.first <= node.lineno <= fork.last]
            if not any(isinstance(node, elsewhere) or (to_behind and _ends_process(node)) for node in way):
                found.append(replace(fork, alike=_is_on(fork, statements, counted)))
    return found


def _counted(loop: ast.AST) -> set[str]:
    """The names by which a loop counts its rounds: the first of an ``enumerate``, and those that grow by a constant."""
    over, target = getattr(loop, "iter", None), getattr(loop, "target", None)
    numbered = isinstance(over, ast.Call) and name_of(over.func) == "enumerate" and isinstance(target, ast.Tuple)
    names: list[ast.expr] = [target.elts[0]] if numbered and isinstance(target, ast.Tuple) else []
    grow = (node for node in nodes_within(loop) if isinstance(node, ast.AugAssign))
    names += [node.target for node in grow if isinstance(node.value, ast.Constant)]
    return {name.id for name in names if isinstance(name, ast.Name)}


def _is_on(fork: Fork, statements: Sequence[ast.stmt], names: set[str]) -> bool:
    """True for an exit whose condition names one of these, and no rank."""
    tests = [node.test for node in statements if isinstance(node, ast.If) and node.lineno == fork.line]
    named = any(isinstance(node, ast.Name) and node.id in names for test in tests for node in ast.walk(test))
    return named and not any(map(_depends_on_rank, tests))


def may_differ(fork: Fork, loop: ast.AST) -> bool:
    """True for a condition in a loop that depends on the rank, or on more than what is alike in each round."""
    tests = [node.test for node in nodes_within(loop) if isinstance(node, ast.If) and node.lineno == fork.line]
    target = getattr(loop, "target", None) if _is_alike(loop) else None
    rounds = _counted(loop) | {name_of(node) for node in (() if target is None else ast.walk(target))}
    parts = [node for test in tests for node in ast.walk(test)]
    by_rank = any(name_of(node) in RANK_NAMES | {"local_rank"} for node in parts)
    counts = any(isinstance(node, ast.Name) and node.id in rounds for node in parts)
    return bool(tests) and (by_rank or not counts or any(isinstance(node, ast.Call) for node in parts))


def header_parts(loop: ast.AST) -> bool:
    """True for a loop whose head may end it after another number of rounds on another rank: not ``while True``."""
    if isinstance(loop, ast.While):
        return not (isinstance(loop.test, ast.Constant) and bool(loop.test.value))
    over = getattr(loop, "iter", None)
    values = over.args if _is_range(over) else getattr(over, "elts", None)
    return values is None or not all(_is_of(value, set()) for value in values)


RANK_NAMES: Final = frozenset({"rank", "global_rank", "get_rank"})
"""The last parts of names by which programs have a rank in the job."""


def _depends_on_rank(over: ast.AST | None) -> bool:
    return over is not None and any(name_of(node) in RANK_NAMES | {"local_rank"} for node in ast.walk(over))


def _is_alike(loop: ast.AST) -> bool:
    over = getattr(loop, "iter", None)
    return not _depends_on_rank(over) and (
        _is_range(over) or (isinstance(over, ast.Call) and name_of(over.func) in _PARTS_OF_MODELS)
    )


def _rounds(around: Sequence[Step]) -> set[str]:
    """The names of what loops go through that all ranks run alike."""
    targets = [step.parent.target for step in around if isinstance(step.parent, ast.For) and _is_alike(step.parent)]
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


_SIZES: Final = frozenset({"world_size", "get_world_size"})
"""The last parts of names by which programs have the number of ranks."""


def _is_of(value: ast.expr, names: set[str]) -> bool:
    """True if an expression is made of these names, the number of ranks and constants alone."""
    if isinstance(value, ast.Name | ast.Attribute):
        return name_of(value) in _SIZES or (isinstance(value, ast.Name) and value.id in names)
    if isinstance(value, ast.Call):
        return name_of(value.func) in _SIZES
    parts = [part for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr)]
    return isinstance(value, _OF_PARTS) and all(_is_of(part, names) for part in parts)


def _is_settled(test: ast.expr, around: Sequence[Step]) -> bool:
    """True for a condition on names alone to which the outermost loop around it does nothing that could change them."""
    loop = next((step.parent for step in around if isinstance(step.parent, Loop)), None)
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    if loop is None or not names or not all(isinstance(node, _OF_NAMES) for node in ast.walk(test)):
        return False
    return names.isdisjoint(_changed_in(loop, by_use=not _is_identity(test)))


_OF_PARTS = (ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp)
_OF_NAMES = (
    ast.Name,
    ast.Constant,
    ast.Compare,
    ast.BoolOp,
    ast.UnaryOp,
    ast.expr_context,
    ast.cmpop,
    ast.boolop,
    ast.unaryop,
)
"""What conditions on names alone are made of."""


def _is_identity(test: ast.expr) -> bool:
    """True for ``a is None`` and the like, whose outcome no change of an object's contents alters."""
    return isinstance(test, ast.Compare) and all(isinstance(op, ast.Is | ast.IsNot) for op in test.ops)


def _changed_in(loop: ast.AST, *, by_use: bool) -> set[str]:
    """Names that a loop gives other values; ``by_use``: or whose objects it uses in a way that may change them."""
    found = set()
    for node in nodes_within(loop):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif by_use and isinstance(node, ast.Attribute | ast.Subscript):
            found |= {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
        elif by_use and isinstance(node, ast.Call):
            parts = [*node.args, *(keyword.value for keyword in node.keywords)]
            found |= {name.id for part in parts for name in ast.walk(part) if isinstance(name, ast.Name)}
    return found


def _is_range(over: ast.AST | None) -> TypeGuard[ast.Call]:
    return isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id == "range"
