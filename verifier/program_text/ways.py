"""Finds the forks of a program between two ways: where ranks stand, by stack, and where others do.

Two stacks are followed from the outermost frame to the first in which they differ. In that frame's function stands the
fork, or in one that it calls. Where the text of a line is not what the ranks ran, nothing is said.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from simcoll.core.record import Source
from simcoll.core.source_roots import OWN, kind_of
from simcoll.spec.call import Buffer
from simcoll.verifier.findings.finding import Side
from simcoll.verifier.program_text.forks import (
    Fork,
    caught_fork,
    chosen_between,
    chosen_values,
    closes_block,
    ends_outside,
    exits_before,
    exits_in,
    fork_of,
    forks_within,
    header_parts,
    inner_forks,
    is_given,
    leaving_forks,
    may_catch,
    may_differ,
    round_by_head,
)
from simcoll.verifier.program_text.rank_comparisons import nodes_behind
from simcoll.verifier.program_text.syntax import Function, Loop, Step, calls_in, name_of, steps_to, text_of


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """The position of a side's ranks: frames, outermost first. ``past``: they have gone on from the innermost one."""

    side: Side
    frames: tuple[Source, ...]
    past: bool


@dataclass(frozen=True, slots=True, eq=False)
class Between:
    """A fork between two ways: the frame in which it stands, and which of the ways went inside.

    ``again``: those outside came round again without the way, an answer where no fork behind them is one.
    """

    fork: Fork
    frame: Source
    inside: Way
    outside: Way
    again: bool = False


def way_of(side: Side) -> Way | None:
    """The way of a side; None where its line is not known, or is not what stands in the file now."""
    source = side.stood if side.stood.file else side.sources[0].source if side.sources else None
    if source is None or not side.ranks:
        return None
    # Packages need not be installed where the report is made.
    frames = tuple(one for one in source.stack[::-1] if kind_of(one.file) == OWN or _is_unchanged(one))
    return Way(side, frames, side.past) if frames and all(map(_is_unchanged, frames)) else None


def _is_unchanged(frame: Source) -> bool:
    text = text_of(frame.file)
    return text is not None and bool(frame.code) and text.line(frame.line) == frame.code.strip()


def forks_between(a: Way, b: Way) -> Iterator[Between]:
    """Forks one way of which leads to where one side is, and the other to where the other is, innermost first."""
    aligned = _aligned(a, b)
    if aligned is None:
        return
    a, b = aligned
    common = _common(a.frames, b.frames)
    if common == len(a.frames) == len(b.frames):
        if a.past != b.past:
            yield from _rounds(*((b, a) if a.past else (a, b)), common)
        elif (a.side.call is None) != (b.side.call is None):
            yield from _rounds_before(*((b, a) if a.side.call is None else (a, b)))
        else:
            yield from _values_apart(a, b)
    elif common < min(len(a.frames), len(b.frames)):
        one, other = a.frames[common], b.frames[common]
        if (one.file, one.function) == (other.file, other.function):
            yield from _apart_in(a, b, common)
        elif common:
            yield from _apart_at(a, b, common)


def _aligned(a: Way, b: Way) -> tuple[Way, Way] | None:
    """Both from the same outermost frame on: records leave out the frames of a deep stack."""
    for one, other, swapped in ((a, b, False), (b, a, True)):
        first = _where(one.frames[0])
        places = [place for place, frame in enumerate(other.frames) if _where(frame) == first]
        if places:
            cut = replace(other, frames=other.frames[places[0] :])
            return (cut, one) if swapped else (one, cut)
    return (a, b) if a.frames[0].function == b.frames[0].function and a.frames[0].file == b.frames[0].file else None


def _where(frame: Source) -> tuple[str, int, str]:
    return frame.file, frame.line, frame.function


def _common(a: Sequence[Source], b: Sequence[Source]) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((number for number, (one, other) in pairs if _where(one) != _where(other)), min(len(a), len(b)))


def function_of(frame: Source) -> Function | None:
    """The function of the text in which a frame stands."""
    text = text_of(frame.file)
    return None if text is None else text.function(frame.function, frame.line)


def _steps(frame: Source) -> list[Step]:
    function = function_of(frame)
    return [] if function is None else steps_to(function, frame.line)


def _rounds(there: Way, gone: Way, common: int) -> Iterator[Between]:
    """Both made the call of one line, and one side goes on with it: loops that the other side left earlier.

    Or it left the call out in an earlier round, which is an answer where the rounds themselves are alike.
    """
    for frame in reversed(there.frames[:common]):
        steps = _steps(frame)
        for place, step in reversed([*enumerate(steps)]):
            fork = fork_of(step)
            if fork is not None and fork.loop:
                yield from _left(step, fork, frame, there, gone)
                yield from _left_out(steps[place:], frame, there, gone)


def _rounds_before(there: Way, gone: Way) -> Iterator[Between]:
    """One side left out the call of a line in an earlier round of a loop than that in which it came to this line."""
    for frame in reversed(there.frames):
        steps = _steps(frame)
        for place, step in reversed([*enumerate(steps)]):
            if isinstance(step.parent, Loop):
                yield from _left_out(steps[place:], frame, there, gone)


def _left_out(steps: Sequence[Step], frame: Source, there: Way, gone: Way) -> Iterator[Between]:
    """Ways past a call from one round of a loop, the first of these steps, to the next, innermost first."""
    loop = steps[0].parent
    for step in reversed(steps):
        yield from (Between(one, frame, gone, there, again=True) for one in _exits_of_round(step, loop))
        fork = fork_of(step) if step is not steps[0] else None
        if fork is not None and not fork.loop and may_differ(fork, loop):
            yield Between(fork, frame, there, gone, again=True)


def _exits_of_round(step: Step, loop: ast.AST) -> Iterator[Fork]:
    """The exits before a step of a loop that ranks may take in different rounds."""
    return (one for one in exits_before(step) if not one.raises and may_differ(one, loop))


def _values_apart(a: Way, b: Way) -> Iterator[Between]:
    """Both are at one line, with another operation, root, dtype or size: conditions by which the program chooses it."""
    for one, other in [*zip(_stated(a.side), _stated(b.side), strict=True), *_sizes_apart(a.side, b.side)]:
        if one == other or "" in (one, other):
            continue
        for frame in reversed(a.frames):
            text, function = text_of(frame.file), function_of(frame)
            if text is None or function is None:
                continue
            fork = chosen_values(function, one, other, nodes_behind(text, function, frame.line))
            if fork is not None:
                yield Between(fork, frame, a, b)


def _stated(side: Side) -> tuple[str, str, str]:
    """The reduce operation, root and dtype of a side's call, each empty where it has none."""
    call, buffer = side.call, _first_buffer(side)
    if call is None:
        return "", "", ""
    root = "" if call.root is None else str(call.root)
    return call.reduce_op or "", root, "" if buffer is None else buffer.dtype


def _sizes_apart(a: Side, b: Side) -> list[tuple[str, str]]:
    """The lengths of two sides' tensors along the one dimension in which they differ, if there is one."""
    shapes = [() if buffer is None else buffer.shape for buffer in (_first_buffer(a), _first_buffer(b))]
    if len(shapes[0]) != len(shapes[1]):
        return []
    apart = [(str(one), str(other)) for one, other in zip(*shapes, strict=True) if one != other]
    return apart if len(apart) == 1 else []


def _first_buffer(side: Side) -> Buffer | None:
    return None if side.call is None else next(iter((*side.call.inputs, *side.call.outputs)), None)


def _left(step: Step, loop: Fork, frame: Source, there: Way, gone: Way, *, to_behind: bool = False) -> list[Between]:
    """The exits inside of a loop that one side is in and the other has left, and its head."""
    head = [Between(loop, frame, there, gone)] if header_parts(step.parent) else []
    exits = [Between(one, frame, gone, there) for one in leaving_forks(step.parent, to_behind=to_behind)]
    return exits + head


def _apart_in(a: Way, b: Way, depth: int) -> Iterator[Between]:
    """Both are in one function, at different lines."""
    one, other = _steps(a.frames[depth]), _steps(b.frames[depth])
    level = next(
        (number for number, (x, y) in enumerate(zip(one, other, strict=False)) if x.place() != y.place()),
        min(len(one), len(other)),
    )
    if level == len(one) == len(other):
        yield from _within(a, b, depth, one[-1].statement) if one else ()
        return
    if level == min(len(one), len(other)):
        there, gone = (a, b) if len(one) > len(other) else (b, a)
        if level and closes_block(one[level - 1].statement, _next(gone, depth)):
            found = list(_leading_to(there, gone, depth, level - 1))
            # Or the side in the block has come round again, without what the other one is inside of as it leaves it.
            again = not found and _comes_again(one[:level], a.frames[:depth])
            yield from found
            yield from (replace(fork, again=True) for fork in _leading_to(gone, there, depth, level - 1) if again)
        return
    x, y = one[level], other[level]
    if x.field != y.field:
        cleans_up = "finalbody" in (x.field, y.field)
        there, gone = (b, a) if x.field == "finalbody" else (a, b)
        yield from _leading_to(there, gone, depth, level - 1) if cleans_up else _by_branch(a, b, depth, x, y)
        return
    early, late, block = (a, b, x.block) if x.index < y.index else (b, a, x.block)
    low, high = sorted((x.index, y.index))
    # The late side has come past where the early one is, which is inside of something that it left out.
    passed = [] if early.past else list(_leading_to(early, late, depth, level))
    # Or the early side has come round again, or gone for good, without what the late one is inside of.
    again = early.past or _comes_again(one[: level + 1], a.frames[:depth])
    left_out = list(_leading_to(late, early, depth, level)) if again else []
    left_out += [Between(fork, early.frames[depth], early, late) for fork in exits_in(block[low + 1 : high]) if again]
    if again and not (early.past or late.past):
        left_out += _rounds_left_out(late, early, depth, level)
    if late.past:
        left_out += _left_behind(late, early, depth, level) or _rounds(early, late, depth)
    # An exception is an answer only where nothing else is.
    told = [*passed, *(replace(one, again=True) for one in left_out)]
    yield from told or _caught(early, late, depth, level)


def _within(a: Way, b: Way, depth: int, statement: ast.stmt) -> Iterator[Between]:
    """Both are in one statement, at different lines: what leads to the first of these, or else to the last.

    The last is an answer only where the first comes again, or no fork is on its way.
    """
    early, late = sorted((a, b), key=lambda way: way.frames[depth].line)
    for there, other in ((early, late), (late, early)):
        frame = there.frames[depth]
        below = [one for one in _leading_to(there, other, depth, -1) if one.frame is not frame]
        forks = forks_within(statement, frame.line, other.frames[depth].line)
        found = [*below, *(Between(fork, frame, there, other) for fork in reversed(forks))]
        yield from found
        if found:
            return


def _left_behind(gone: Way, there: Way, depth: int, level: int) -> list[Between]:
    """Ways out behind the last call of a side from the innermost loop around both: the others have come round again."""
    frame = gone.frames[depth]
    loops = [step for step in _steps(frame)[: level + 1] if isinstance(step.parent, Loop)]
    exits = leaving_forks(loops[-1].parent) if loops else []
    found = [Between(fork, frame, gone, there) for fork in exits if fork.line > frame.line]
    head = fork_of(loops[-1]) if loops and header_parts(loops[-1].parent) else None
    return found if head is None else [*found, Between(head, frame, there, gone)]


def _rounds_left_out(ahead: Way, other: Way, depth: int, level: int) -> list[Between]:
    """Exits by which a side may have left out a round of the loop around both, if a later round alone takes it there.

    Rounds make the same calls, so that nothing shows until a round that makes more, such as every tenth or the last.
    """
    steps = _steps(ahead.frames[depth])
    inside = [number for number, step in enumerate(steps[: level + 1]) if isinstance(step.parent, Loop)]
    if not inside or not any(isinstance(step.parent, ast.If) for step in steps[level + 1 :]):
        return []
    loop = steps[inside[-1]].parent
    exits = (one for step in _steps(other.frames[depth])[inside[-1] : level + 1] for one in _exits_of_round(step, loop))
    return [Between(replace(one, alike=False), ahead.frames[depth], ahead, other) for one in exits]


def _next(way: Way, depth: int) -> tuple[str, int, Function | None] | None:
    """The function that a way's frame has called: its name, its line and its text; None of the innermost frame."""
    if depth + 1 == len(way.frames):
        return None
    frame = way.frames[depth + 1]
    return frame.function, frame.line, function_of(frame)


def _by_branch(a: Way, b: Way, depth: int, x: Step, y: Step) -> Iterator[Between]:
    """Both are below one compound statement, in different blocks of it."""
    for mine, theirs, step in ((a, b, x), (b, a, y)):
        fork = fork_of(step)
        if fork is not None:
            yield Between(fork, mine.frames[depth], mine, theirs)
            return


def _leading_to(there: Way, past: Way, depth: int, level: int) -> Iterator[Between]:
    """Forks on the way from a statement in which a side is to its line, and exits before it, innermost first."""
    # Who makes another call has come there by no exception that nothing catches.
    caught = past.past or any(may_catch(step) for frame in there.frames[depth:] for step in _steps(frame))
    return (one for one in _all_leading_to(there, past, depth, level) if caught or not one.fork.raises)


def _all_leading_to(there: Way, past: Way, depth: int, level: int) -> Iterator[Between]:
    for number in range(len(there.frames) - 1, depth - 1, -1):
        frame = there.frames[number]
        steps = _steps(frame)
        inner = there.frames[number + 1].function if number + 1 < len(there.frames) else _op(there.side)
        if steps:
            yield from (Between(fork, frame, there, past) for fork in inner_forks(steps[-1].statement, inner))
        if steps and (number > depth or level == len(steps) - 1):
            called = function_of(there.frames[number + 1]) if number + 1 < len(there.frames) else None
            if (in_head := round_by_head(steps[-1].statement, called)) is not None:
                yield from _left(*in_head, frame, there, past, to_behind=number == depth)
        if number > depth and frame.function.startswith("<") and frame.function != "<module>":
            # The function around a comprehension or a lambda comes with its own frame.
            continue
        found: list[Between] = []
        for place in reversed(range(level + 1 if number == depth else 0, len(steps))):
            step = steps[place]
            if number == depth and ends_outside(step.block):
                # No way of a fork in this block leads to the other side.
                found.clear()
            exits = [Between(fork, frame, past, there) for fork in exits_before(step)]
            if (fork := fork_of(step, steps[:place])) is not None and fork.loop:
                known = {(one.fork.line, one.fork.first) for one in exits}
                left = _left(step, fork, frame, there, past, to_behind=number == depth)
                found += exits + [one for one in left if (one.fork.line, one.fork.first) not in known]
                continue
            if fork is not None and not (number > depth and _is_given(step, frame, there.frames[number - 1])):
                found.append(Between(fork, frame, there, past))
            elif step.field == "orelse" and isinstance(step.parent, Loop):
                # Whoever leaves a loop from inside does not come to its ``else``.
                left_loop = leaving_forks(step.parent, to_behind=number == depth)
                found += [Between(one, frame, past, there) for one in left_loop]
            found += exits
        yield from found


def _is_given(step: Step, frame: Source, caller: Source) -> bool:
    """True for a branch on a parameter to which the caller's line gives a constant."""
    function, steps = function_of(frame), _steps(caller)
    return function is not None and bool(steps) and is_given(step.parent, function, steps[-1].statement)


def _caught(there: Way, past: Way, depth: int, level: int) -> Iterator[Between]:
    """Handlers by which a side left the ``try`` that the other is in, innermost first.

    In a loop of their own they lead to its next round: that is how attempts are repeated.
    """
    for number in range(len(there.frames) - 1, depth - 1, -1):
        frame = there.frames[number]
        steps = _steps(frame)
        steps = steps[level + 1 :] if number == depth else steps
        loops = [place for place, step in enumerate(steps) if isinstance(step.parent, Loop) and step.field == "body"]
        for step in reversed(steps[: loops[0]] if loops else steps):
            if (fork := caught_fork(step)) is not None:
                yield Between(fork, frame, past, there)


def _op(side: Side) -> str:
    return "" if side.call is None else side.call.op


def comes_again(frames: Sequence[Source]) -> bool:
    """True if a stack, outermost frame first, may come about again: it stands in a loop, or a function calls itself.

    So may one that does not begin with the program, and one with frames that are no statements, as of comprehensions.
    """
    names = [(frame.file, frame.function) for frame in frames]
    if len(set(names)) < len(names) or [name for _, name in names if name.startswith("<")] != ["<module>"]:
        return True
    steps = [_steps(frame) for frame in frames]
    return not all(steps) or any(isinstance(step.parent, Loop) for one in steps for step in one)


def comes_past(before: Source | None, now: Source | None, line: Source) -> bool | None:
    """True if a rank that made its last call at ``before``, and is at ``now``, came past a line without a call there.

    ``before`` is None for a rank that made no call, ``now`` for one that has gone on for good. The answer is None for
    lines that are not in one function.
    """
    ways = [one.stack[::-1] for one in (before, now, line) if one is not None]
    depth = next((number for number in range(min(map(len, ways))) if len({way[number] for way in ways}) > 1), None)
    if depth is None or len({(way[depth].file, way[depth].function) for way in ways}) > 1:
        return None
    places = [way[depth].line for way in ways]
    wanted = places.pop()
    came = places.pop(0) if before is not None else 0
    here = places[0] if places else None
    if here is None or came < here:
        early = came < wanted or (before is not None and came == wanted and _is_earlier(ways[0], ways[-1]))
        return early and (here is None or wanted < here)
    around = [{id(step.parent) for step in _steps(way[depth]) if isinstance(step.parent, Loop)} for way in ways]
    return bool(set.intersection(*around)) and not here <= wanted <= came


def comes_first(since: Sequence[Source], a: Way, b: Way) -> bool | None:
    """True if the program comes from its last call to where ``a`` is before it comes to where ``b`` is.

    ``since`` is the stack of that call, outermost frame first; empty if it has made none that is known. The answer is
    None for lines that are not in one block of a function, in which those of ``with`` and ``try`` count as what they
    stand in, and for a line that may have made that call and another one in one visit; also if it is not known where a
    program that may come again was.
    """
    depth = _common(a.frames, b.frames)
    stacks = [stack for stack in (since, a.frames, b.frames) if stack]
    if any(len(stack) <= depth or _common(stack, a.frames) < min(depth, len(a.frames)) for stack in stacks):
        return None
    at = [stack[depth] for stack in stacks]
    loops = {tuple(id(step.parent) for step in _steps(frame) if isinstance(step.parent, Loop)) for frame in at}
    if len({_place(frame) for frame in at}) > 1 or len(loops) > 1 or not all(map(_steps, at)):
        return None
    if not _are_in_one_block(*(_steps(way.frames[depth]) for way in (a, b))):
        return None
    lines = a.frames[depth].line, b.frames[depth].line
    if not since:
        return None if _comes_again(_steps(a.frames[depth]), a.frames[:depth]) else lines[0] < lines[1]
    came = since[depth].line
    if any(way.frames[depth].line == came and not _calls_once(way, since, depth) for way in (a, b)):
        return None
    rounds = [(line <= came, line) for line in lines]
    comes_round = _comes_again(_steps(since[depth]), since[:depth])
    return rounds[0] < rounds[1] if comes_round or not any(again for again, _ in rounds) else None


def _are_in_one_block(one: Sequence[Step], other: Sequence[Step]) -> bool:
    """True if two lines, by the ways to them, stand in one block, or below two of its statements that all come to.

    The line of a ``with`` itself may be that of what it calls as it is left.
    """
    pairs = ((x, y) for x in _on_every_way(one) for y in _on_every_way(other))
    same = ((x, y) for x, y in pairs if (id(x.parent), x.field) == (id(y.parent), y.field))
    return any(x.statement is not y.statement or (x, y) == (one[-1], other[-1]) for x, y in same)


def _on_every_way(steps: Sequence[Step]) -> Iterator[Step]:
    """The statements around a line, innermost first, as long as all who come to the next one come into its block."""
    for step in reversed(steps):
        yield step
        if step.field != "body" or not isinstance(step.parent, ast.With | ast.AsyncWith | ast.Try):
            return


def forks_of_rounds(a: Way, b: Way) -> Iterator[Between]:
    """Forks in the innermost loop around one line, at which both are, that decide in which rounds ranks come to it."""
    if _common(a.frames, b.frames) < max(len(a.frames), len(b.frames)):
        return
    for frame in reversed(a.frames):
        steps = _steps(frame)
        inside = [number for number, step in enumerate(steps) if isinstance(step.parent, Loop)]
        if inside:
            for place in reversed(range(inside[-1], len(steps))):
                branch = fork_of(steps[place], steps[:place]) if place > inside[-1] else None
                forks = [*([] if branch is None else [branch]), *exits_before(steps[place])]
                yield from (Between(fork, frame, a, b) for fork in forks)
            return


def _calls_once(way: Way, since: Sequence[Source], depth: int) -> bool:
    """True if a way stands at the last call's line, and each visit of it makes this one call, by its own name."""
    steps = [_steps(frame) for frame in way.frames[depth:]]
    if _common(way.frames, since) < max(len(way.frames), len(since)) or not all(steps):
        return False
    repeats = any(isinstance(step.parent, Loop) for one in steps[1:] for step in one)
    calls = calls_in(steps[-1][-1].statement)
    names = [name_of(call.func) for call in calls if not _is_of_torch(call)]
    return names == [_op(way.side)] and not repeats


def _is_of_torch(call: ast.Call) -> bool:
    """True for ``torch.ones(3)`` and the like: a function of torch itself, which calls no code of the program."""
    of = call.func.value if isinstance(call.func, ast.Attribute) else None
    return isinstance(of, ast.Name) and of.id == "torch"


def _is_earlier(one: Sequence[Source], other: Sequence[Source]) -> bool:
    """True if a stack, outermost frame first, is at an earlier line than another one where they part."""
    apart = next(((a, b) for a, b in zip(one, other, strict=False) if a != b), None)
    return apart is not None and _place(apart[0]) == _place(apart[1]) and apart[0].line < apart[1].line


def _place(frame: Source) -> tuple[str, str]:
    return frame.file, frame.function


def _comes_again(around: Sequence[Step], callers: Sequence[Source]) -> bool:
    """True if a function may run the same block again: it stands in a loop, or is called from one."""
    loops = (fork for step in around if (fork := fork_of(step)) is not None and fork.loop)
    outer = (fork for frame in callers for step in _steps(frame) if (fork := fork_of(step)) is not None and fork.loop)
    return any(True for _ in loops) or any(True for _ in outer)


def _apart_at(a: Way, b: Way, depth: int) -> Iterator[Between]:
    """Both are at one line, in different functions that it calls."""
    frame = a.frames[depth - 1]
    for step in _steps(frame)[-1:]:
        fork = chosen_between(step.statement, a.frames[depth].function, b.frames[depth].function)
        if fork is not None:
            yield Between(fork, frame, a, b)


def exits_of_rounds(there: Way, gone: Way) -> Iterator[Between]:
    """Exits that ``gone`` may have taken in an earlier round of a loop, if it is now in another branch of it."""
    aligned = _aligned(there, gone)
    if aligned is None:
        return
    there, gone = aligned
    depth = _common(there.frames, gone.frames)
    if depth == min(len(there.frames), len(gone.frames)):
        return
    one, other = _steps(there.frames[depth]), _steps(gone.frames[depth])
    level = next(
        (number for number, (x, y) in enumerate(zip(one, other, strict=False)) if x.place() != y.place()), None
    )
    if level is None or one[level].field == other[level].field:
        return
    if _comes_again(one[:level], there.frames[:depth]):
        yield from (found for found in _leading_to(there, gone, depth, level - 1) if found.fork.leaves)
