"""Finds where ranks parted: the line of the program that sent some of them to one call and the others past it.

Two stacks are followed from the outermost frame to the first in which they differ. In that frame's function stands the
fork, or in one that it calls. Where the text of a line is not what the ranks ran, nothing is said.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from simcoll.core.record import Source
from simcoll.core.source_roots import OWN, kind_of
from simcoll.core.trace import Trace
from simcoll.verifier.agreement.chosen_by_rank import comparisons_behind, holds
from simcoll.verifier.agreement.forks import (
    Fork,
    Function,
    Step,
    caught_fork,
    chosen_between,
    chosen_values,
    ends_outside,
    exits_before,
    exits_in,
    fork_of,
    header_parts,
    inner_forks,
    is_given,
    leaving_forks,
    round_by_head,
    steps_to,
    text_of,
)
from simcoll.verifier.agreement.skipped_calls import minority, presence
from simcoll.verifier.findings.finding import Finding, Parting, Severity, Side
from simcoll.verifier.findings.rules import CALL_SKIPPED, FIELD_RULES

_CODES: Final = ("SC10", "SC110", "SC20", "SC401", "SC504", "SC702")
_FIELDS: Final = frozenset(rule.code for rule in FIELD_RULES)
_SIDES: Final = 8
_ASKED: Final = 8
"""Ranks of a side whose records are asked."""
_HELD: Final = ((True, "found it true"), (False, "found it false"))
"""What ranks did at a comparison."""
_BY_RANK: Final = re.compile(r"rank|master|main_process|is_main|leader|process_index|stage|coord", re.IGNORECASE)
"""What stands in conditions by which programs part their ranks on purpose."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What is known of the lines that ranks ran.

    ``ever`` tells whether ranks ran, at any time, these lines of a file, ``before`` the stack of the call that a side's
    ranks made before the one at which they stand, innermost frame first; empty where it is not known.
    """

    ever: Callable[[Sequence[int], str, int, int], bool]
    before: Callable[[Side], Sequence[Source]] = lambda side: ()


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """The position of a side's ranks: frames, outermost first. ``past``: they have gone on from the innermost one."""

    side: Side
    frames: tuple[Source, ...]
    past: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """A fork in a frame, and which of two ways went inside.

    ``again``: those outside came round again without the way, an answer where no fork behind them is one.
    """

    fork: Fork
    frame: Source
    inside: _Way
    outside: _Way
    again: bool = False


def ran_by(traces: Sequence[Trace]) -> Ran:
    """The lines that these ranks ran, by their records: those of their calls, and of those calls' callers."""
    by_rank = {trace.rank: trace for trace in traces}
    known: dict[int, frozenset[tuple[str, int]]] = {}

    def ever(ranks: Sequence[int], file: str, first: int, last: int) -> bool:
        for rank in ranks[:_ASKED]:
            if rank not in known:
                sources = by_rank[rank].sources if rank in by_rank else ()
                known[rank] = frozenset((one.file, one.line) for source in sources for one in source.stack)
            if any((file, line) in known[rank] for line in range(first, last + 1)):
                return True
        return False

    def before(side: Side) -> Sequence[Source]:
        trace = by_rank.get(side.ranks[0])
        return () if trace is None or not side.sources else _stack_before(trace, side.sources[0].source, side.past)

    return Ran(ever, before)


def _stack_before(trace: Trace, source: Source, past: bool) -> Sequence[Source]:
    """The stack of the call before the last one of this line; of that one where the rank has gone on from there."""
    if past:
        return source.stack
    here = [number for number, one in enumerate(trace.sources) if one.stack == source.stack]
    column = trace.slots["source"]
    rows = np.flatnonzero(np.isin(column, here))
    if not len(rows) or rows[-1] == 0 or int(column[rows[-1] - 1]) >= len(trace.sources):
        return ()
    return trace.sources[int(column[rows[-1] - 1])].stack


ran_nothing: Final = Ran(lambda ranks, file, first, last: False)
"""The knowledge of ranks whose records are not at hand."""


def with_partings(findings: Sequence[Finding], ran: Ran) -> tuple[Finding, ...]:
    """The findings, each with where its ranks parted as far as the program's text tells.

    Calls that differ because some ranks alone went a way on which they make one more are a call skipped, or extra.
    """
    return tuple(_with_parting(one, ran) if may_part(one) else one for one in findings)


def may_part(finding: Finding) -> bool:
    """True for an error on a call that ranks do not all make alike."""
    return finding.code.startswith(_CODES) and finding.severity is Severity.ERROR


def _with_parting(finding: Finding, ran: Ran) -> Finding:
    if finding.came_apart is not None:
        found, parting = _parting(finding.came_apart.sides, ran)
        if parting is not None:
            return replace(finding, parted=parting)
    found, parting = _parting(finding.sides, ran)
    told = replace(finding, parted=parting)
    return told if found is None else _as_skipped(told, found)


def _parting(sides: Sequence[Side], ran: Ran) -> tuple[_Found | None, Parting | None]:
    ways = [way for side in sides[:_SIDES] if (way := _way(side)) is not None]
    for other in ways[1:]:
        found = _chosen(list(_candidates(ways[0], other)), ran)
        if found is not None:
            # A loop that ranks go round unequally often has been given something else.
            behind = _by_rank(ways) if found.fork.loop else None
            return found, behind or _told(found, ways)
    return None, _by_rank(ways)


def _by_rank(ways: Sequence[_Way]) -> Parting | None:
    """The comparison with the rank behind what the ranks use at their lines, if it tells the sides apart exactly."""
    for frame in (frame for way in ways for frame in reversed(way.frames) if kind_of(frame.file) == OWN):
        text, function = text_of(frame.file), _function(frame)
        if text is None or function is None:
            continue
        for comparison in comparisons_behind(text, function, frame.line):
            found = {known: [way.side.ranks for way in ways if _all(comparison, way, known)] for known in (True, False)}
            if all(found.values()) and len(found[True]) + len(found[False]) == len(ways):
                at = comparison.lineno
                line = Source(frame.file, at, text.name_at(at), text.line(at))
                sides = ((tuple(sorted(sum(found[known], ()))), did) for known, did in _HELD)
                return Parting(line, tuple(sides))
    return None


def parting_of(sides: Sequence[Side], ran: Ran) -> Parting | None:
    """Where the ranks of the first side went in and those of the second did not, if a fork of their own tells."""
    found, parting = _parting(sides, ran)
    inside = found is not None and (found.inside.side is sides[0]) != found.fork.leaves
    return parting if inside else None


def exit_between(waiting: Side, gone: Side, ran: Ran) -> Parting | None:
    """The exit by which ``gone`` got past the call at which the others wait, in this round of a loop or an earlier one.

    A condition on the rank is none if those gone never were there: ends of messages part by it on purpose.
    """
    ways = [way for side in (waiting, gone) if (way := _way(side)) is not None]
    if len(ways) < 2:
        return None
    candidates = [*_candidates(*ways), *_exits_of_rounds(*ways)]
    exits = [one for one in candidates if one.fork.leaves and one.inside.side is gone]
    line = ways[0].frames[-1]
    if not ran.ever(gone.ranks, line.file, line.line, line.line):
        exits = [one for one in exits if not _is_by_rank(one)]
    found = _chosen(exits, ran)
    return None if found is None else _told(found, ways)


def _exits_of_rounds(there: _Way, gone: _Way) -> Iterator[_Found]:
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


def _all(comparison: ast.Compare, way: _Way, known: bool) -> bool:
    """True if a comparison is known to hold, or not to, on all ranks of a side."""
    return all(holds(comparison, rank) is known for rank in way.side.ranks)


def _as_skipped(finding: Finding, found: _Found) -> Finding:
    """The finding on a call skipped or extra in the place of one on its fields, where that is what the fork says."""
    fork, inside, outside = found.fork, found.inside.side, found.outside.side
    makers, lackers = (outside, inside) if fork.leaves else (inside, outside)
    both = makers.call is not None and lackers.call is not None
    by_fork = fork.alone or fork.loop or fork.leaves
    if finding.code not in _FIELDS or len(finding.sides) != 2 or not both or not by_fork or finding.sequence is None:
        return finding
    assert makers.call is not None
    sides = {id(makers): makers, id(lackers): replace(lackers, note="made this call, and not that one")}
    return replace(
        finding,
        code=CALL_SKIPPED.code,
        severity=CALL_SKIPPED.severity,
        message=presence(makers.ranks, lackers.ranks, makers.call.op, finding.sequence),
        culprits=minority(makers.ranks, lackers.ranks),
        sides=tuple(sides[id(side)] for side in finding.sides),
    )


def _way(side: Side) -> _Way | None:
    """The way of a side; None where its line is not known, or is not what stands in the file now."""
    source = side.stood if side.stood.file else side.sources[0].source if side.sources else None
    if source is None or not side.ranks:
        return None
    # Packages need not be installed where the report is made.
    frames = tuple(one for one in source.stack[::-1] if kind_of(one.file) == OWN or _is_unchanged(one))
    return _Way(side, frames, side.past) if frames and all(map(_is_unchanged, frames)) else None


def _is_unchanged(frame: Source) -> bool:
    text = text_of(frame.file)
    return text is not None and bool(frame.code) and text.line(frame.line) == frame.code.strip()


def _told(found: _Found, ways: Sequence[_Way]) -> Parting:
    """The parting with the ranks of all ways that are known to have gone inside, or not."""
    fork, said = found.fork, dict[str, list[int]]()
    for way in ways:
        inside = way.side is found.inside.side
        if not inside and way.side is not found.outside.side:
            same = [
                frame
                for frame in way.frames
                if (frame.file, frame.function) == (found.frame.file, found.frame.function)
            ]
            if fork.leaves or not same:
                continue
            inside = any(fork.first <= frame.line <= fork.last for frame in same) and not (fork.loop and way.past)
        said.setdefault(fork.inside if inside else fork.outside, []).extend(way.side.ranks)
    text = text_of(found.frame.file)
    code = "" if text is None else text.line(fork.line)
    parts = tuple((tuple(sorted(ranks)), did) for did, ranks in said.items())
    return Parting(Source(found.frame.file, fork.line, found.frame.function, code), parts)


def _chosen(found: list[_Found], ran: Ran) -> _Found | None:
    """The fork that explains most: of the user's own code, not left behind earlier, not taken at other times, no loop
    that ranks run alike, on ranks, no loop of which others made no round, the innermost.
    """
    for better in (
        _is_own,
        lambda one: not _was_behind(one, ran),
        lambda one: not (one.fork.settled and (_been(one, ran) if one.again else _just_went(one, ran))),
        lambda one: _fits(one, ran) and not one.again and not one.fork.alike,
        lambda one: _fits(one, ran) and not one.fork.alike,
        lambda one: _fits(one, ran) and not one.again,
        lambda one: _fits(one, ran),
        lambda one: not one.again,
        lambda one: not one.fork.alike,
        _is_by_rank,
        lambda one: not one.fork.loop or _just_went(one, ran) is not False,
    ):
        found = [one for one in found if better(one)] or found
    return found[0] if found else None


def _is_own(one: _Found) -> bool:
    return kind_of(one.frame.file) == OWN


def _fits(one: _Found, ran: Ran) -> bool:
    """True if those outside never went this way, or, of a loop, went round it as well."""
    if one.again and one.fork.loop and _just_went(one, ran) is False:
        return False
    return one.fork.varies or (not one.fork.leaves and _been(one, ran)) == one.fork.loop


def _been(one: _Found, ran: Ran) -> bool:
    """True if those outside went this way at any time."""
    return ran.ever(one.outside.side.ranks, one.frame.file, one.fork.first, one.fork.last)


def _just_went(one: _Found, ran: Ran) -> bool | None:
    """True if the last call of those outside was on this way; None where it is not known."""
    stack, fork = ran.before(one.outside.side), one.fork
    return (
        any(frame.file == one.frame.file and fork.first <= frame.line <= fork.last for frame in stack)
        if stack
        else None
    )


def _was_behind(one: _Found, ran: Ran) -> bool:
    """True if those outside had come past this way before their last call, which all ranks have made."""
    here = [frame.line for frame in one.outside.frames if _is_in_function(frame, one.frame)]
    before = [frame.line for frame in ran.before(one.outside.side) if _is_in_function(frame, one.frame)]
    return not one.again and bool(here and before) and one.fork.last < before[-1] < here[0]


def _is_in_function(frame: Source, of: Source) -> bool:
    return (frame.file, frame.function) == (of.file, of.function)


def _is_by_rank(one: _Found) -> bool:
    text = text_of(one.frame.file)
    return text is not None and not one.fork.loop and _BY_RANK.search(text.line(one.fork.line)) is not None


def _candidates(a: _Way, b: _Way) -> Iterator[_Found]:
    """Forks one way of which leads to where one side is, and the other to where the other is, innermost first."""
    aligned = _aligned(a, b)
    if aligned is None:
        return
    a, b = aligned
    common = _common(a.frames, b.frames)
    if common == len(a.frames) == len(b.frames):
        if a.past != b.past:
            yield from _rounds(*((b, a) if a.past else (a, b)), common)
        else:
            yield from _values_apart(a, b)
    elif common < min(len(a.frames), len(b.frames)):
        one, other = a.frames[common], b.frames[common]
        if (one.file, one.function) == (other.file, other.function):
            yield from _apart_in(a, b, common)
        elif common:
            yield from _apart_at(a, b, common)


def _aligned(a: _Way, b: _Way) -> tuple[_Way, _Way] | None:
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


def _function(frame: Source) -> Function | None:
    text = text_of(frame.file)
    return None if text is None else text.function(frame.function, frame.line)


def _steps(frame: Source) -> list[Step]:
    function = _function(frame)
    return [] if function is None else steps_to(function, frame.line)


def _rounds(there: _Way, gone: _Way, common: int) -> Iterator[_Found]:
    """Both made the call of one line, and one side goes on with it: loops that the other side left earlier."""
    for frame in reversed(there.frames[:common]):
        for step in reversed(_steps(frame)):
            fork = fork_of(step)
            if fork is not None and fork.loop:
                yield from _left(step, fork, frame, there, gone)


def _values_apart(a: _Way, b: _Way) -> Iterator[_Found]:
    """Both are at one line, with another operation, root or dtype: conditions by which the program chooses it."""
    for one, other in zip(_stated(a.side), _stated(b.side), strict=True):
        if one == other or "" in (one, other):
            continue
        for frame in reversed(a.frames):
            function = _function(frame)
            fork = None if function is None else chosen_values(function, one, other)
            if fork is not None:
                yield _Found(fork, frame, a, b)


def _stated(side: Side) -> tuple[str, str, str]:
    """The reduce operation, root and dtype of a side's call, each empty where it has none."""
    call = side.call
    if call is None:
        return "", "", ""
    dtype = next((buffer.dtype for buffer in (*call.inputs, *call.outputs)), "")
    return call.reduce_op or "", "" if call.root is None else str(call.root), dtype


def _left(step: Step, loop: Fork, frame: Source, there: _Way, gone: _Way, *, to_behind: bool = False) -> list[_Found]:
    """The exits inside of a loop that one side is in and the other has left, and its head."""
    head = [_Found(loop, frame, there, gone)] if header_parts(step.parent) else []
    exits = [_Found(one, frame, gone, there) for one in leaving_forks(step.parent, to_behind=to_behind)]
    return exits + head


def _apart_in(a: _Way, b: _Way, depth: int) -> Iterator[_Found]:
    """Both are in one function, at different lines."""
    one, other = _steps(a.frames[depth]), _steps(b.frames[depth])
    level = next(
        (number for number, (x, y) in enumerate(zip(one, other, strict=False)) if x.place() != y.place()),
        min(len(one), len(other)),
    )
    if level == min(len(one), len(other)):
        return
    x, y = one[level], other[level]
    if x.field != y.field:
        yield from _by_branch(a, b, depth, x, y)
        return
    early, late, block = (a, b, x.block) if x.index < y.index else (b, a, x.block)
    low, high = sorted((x.index, y.index))
    # The late side has come past where the early one is, which is inside of something that it left out.
    passed = [] if early.past else list(_leading_to(early, late, depth, level))
    # Or the early side has come round again, or gone for good, without what the late one is inside of.
    again = early.past or _comes_again(one[: level + 1], a.frames[:depth])
    left_out = list(_leading_to(late, early, depth, level)) if again else []
    left_out += [_Found(fork, early.frames[depth], early, late) for fork in exits_in(block[low + 1 : high]) if again]
    # An exception is an answer only where nothing else is.
    told = [*passed, *(replace(one, again=True) for one in left_out)]
    yield from told or _caught(early, late, depth, level)


def _by_branch(a: _Way, b: _Way, depth: int, x: Step, y: Step) -> Iterator[_Found]:
    """Both are below one compound statement, in different blocks of it."""
    for mine, theirs, step in ((a, b, x), (b, a, y)):
        fork = fork_of(step)
        if fork is not None:
            yield _Found(fork, mine.frames[depth], mine, theirs)
            return


def _leading_to(there: _Way, past: _Way, depth: int, level: int) -> Iterator[_Found]:
    """Forks on the way from a statement in which a side is to its line, and exits before it, innermost first."""
    for number in range(len(there.frames) - 1, depth - 1, -1):
        frame = there.frames[number]
        steps = _steps(frame)
        inner = there.frames[number + 1].function if number + 1 < len(there.frames) else _op(there.side)
        if steps:
            yield from (_Found(fork, frame, there, past) for fork in inner_forks(steps[-1].statement, inner))
        if steps and (number > depth or level == len(steps) - 1):
            called = _function(there.frames[number + 1]) if number + 1 < len(there.frames) else None
            if (in_head := round_by_head(steps[-1].statement, called)) is not None:
                yield from _left(*in_head, frame, there, past, to_behind=number == depth)
        if number > depth and frame.function.startswith("<") and frame.function != "<module>":
            # The function around a comprehension or a lambda comes with its own frame.
            continue
        found: list[_Found] = []
        for place in reversed(range(level + 1 if number == depth else 0, len(steps))):
            step = steps[place]
            if number == depth and ends_outside(step.block):
                # No way of a fork in this block leads to the other side.
                found.clear()
            exits = [_Found(fork, frame, past, there) for fork in exits_before(step)]
            if (fork := fork_of(step, steps[:place])) is not None and fork.loop:
                known = {(one.fork.line, one.fork.first) for one in exits}
                left = _left(step, fork, frame, there, past, to_behind=number == depth)
                found += exits + [one for one in left if (one.fork.line, one.fork.first) not in known]
                continue
            if fork is not None and not (number > depth and _is_given(step, frame, there.frames[number - 1])):
                found.append(_Found(fork, frame, there, past))
            found += exits
        yield from found


def _is_given(step: Step, frame: Source, caller: Source) -> bool:
    """True for a branch on a parameter to which the caller's line gives a constant."""
    function, steps = _function(frame), _steps(caller)
    return function is not None and bool(steps) and is_given(step.parent, function, steps[-1].statement)


def _caught(there: _Way, past: _Way, depth: int, level: int) -> Iterator[_Found]:
    """Handlers by which a side left the ``try`` that the other is in, innermost first."""
    for number in range(len(there.frames) - 1, depth - 1, -1):
        frame = there.frames[number]
        steps = _steps(frame)
        for step in reversed(steps[level + 1 :] if number == depth else steps):
            if (fork := caught_fork(step)) is not None:
                yield _Found(fork, frame, past, there)


def _op(side: Side) -> str:
    return "" if side.call is None else side.call.op


def _comes_again(around: Sequence[Step], callers: Sequence[Source]) -> bool:
    """True if a function may run the same block again: it stands in a loop, or is called from one."""
    loops = (fork for step in around if (fork := fork_of(step)) is not None and fork.loop)
    outer = (fork for frame in callers for step in _steps(frame) if (fork := fork_of(step)) is not None and fork.loop)
    return any(True for _ in loops) or any(True for _ in outer)


def _apart_at(a: _Way, b: _Way, depth: int) -> Iterator[_Found]:
    """Both are at one line, in different functions that it calls."""
    frame = a.frames[depth - 1]
    for step in _steps(frame)[-1:]:
        fork = chosen_between(step.statement, a.frames[depth].function, b.frames[depth].function)
        if fork is not None:
            yield _Found(fork, frame, a, b)
