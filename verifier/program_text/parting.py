"""Finds where ranks parted: of the forks between the ways of two sides, the one that explains most.

What ranks ran at other times tells forks apart: a branch that the others take as well sent nobody past a call.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Group, Source
from simcoll.core.source_roots import OWN, kind_of
from simcoll.core.trace import Trace
from simcoll.spec.collectives import COLLECTIVES
from simcoll.verifier.findings.describe import minority, presence_text
from simcoll.verifier.findings.finding import EarlierDivergence, Finding, Parting, Severity, Side
from simcoll.verifier.findings.rules import CALL_SKIPPED, DEADLOCK_CYCLE, FIELD_RULES, MEMBERSHIP_MISMATCH
from simcoll.verifier.program_text.forks import fork_of
from simcoll.verifier.program_text.rank_comparisons import comparisons_behind, holds
from simcoll.verifier.program_text.syntax import Loop, calls_in, name_of, steps_to, text_of
from simcoll.verifier.program_text.ways import (
    Between,
    Way,
    comes_again,
    comes_first,
    exits_of_rounds,
    forks_between,
    forks_of_rounds,
    function_of,
    way_of,
)

_CODES: Final = ("SC10", "SC110", "SC20", "SC401", "SC504", "SC702")
_FIELDS: Final = frozenset(rule.code for rule in FIELD_RULES)
_SIDES: Final = 8
_ASKED: Final = 8
"""Ranks of a side whose records are asked."""
_HELD: Final = ((True, "true"), (False, "false"))
"""What ranks did at a comparison."""
_BY_RANK: Final = re.compile(
    r"rank|master|main_process|is_main|leader|process_index|stage|coord|gpu_?id|device_?id", re.IGNORECASE
)
"""What stands in conditions by which programs part their ranks on purpose."""


_Calls: TypeAlias = npt.NDArray[np.int64]
"""Calls in a row, one below the other."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What is known of the lines that ranks ran.

    ``ever`` tells whether ranks ran, at any time, these lines of a file, ``before`` the stack of the call that a side's
    ranks made before the one at which they stand, innermost frame first; empty where it is not known. ``met`` tells the
    same of collectives alone, which other ranks have made too. ``below`` tells whether ranks made a call below these
    frames, outermost first, from these lines of the last one's file. ``stays`` gives the calls of a side's ranks below
    them, each row of calls that no other call interrupts by itself: the numbers of a call's stack and of its kind.
    """

    ever: Callable[[Sequence[int], str, int, int], bool]
    before: Callable[[Side], Sequence[Source]] = lambda side: ()
    met: Callable[[Side], Sequence[Source]] = lambda side: ()
    below: Callable[[Sequence[int], Sequence[Source], int, int], bool] = lambda ranks, frames, first, last: False
    stays: Callable[[Side, Sequence[Source], int, int], Sequence[_Calls]] = lambda side, frames, first, last: ()


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

    def before(side: Side, *, met: bool = False) -> Sequence[Source]:
        trace = by_rank.get(side.ranks[0])
        if trace is None or not side.sources:
            return ()
        return _stack_before(trace, side.sources[0].source, side.past, met)

    def below(ranks: Sequence[int], frames: Sequence[Source], first: int, last: int) -> bool:
        return any(
            _is_below(source.stack[::-1], frames, first, last)
            for rank in ranks[:_ASKED]
            for source in (by_rank[rank].sources if rank in by_rank else ())
        )

    def stays(side: Side, frames: Sequence[Source], first: int, last: int) -> Sequence[_Calls]:
        trace = by_rank.get(side.ranks[0])
        return () if trace is None else _stays(trace, frames, first, last)

    return Ran(ever, before, partial(before, met=True), below, stays)


def _stays(trace: Trace, frames: Sequence[Source], first: int, last: int) -> Sequence[_Calls]:
    inside = np.array([_is_below(source.stack[::-1], frames, first, last) for source in trace.sources] + [False])
    lines = np.minimum(trace.slots["source"].astype(np.int64), len(trace.sources))
    edges = np.flatnonzero(np.diff(np.concatenate([[False], inside[lines], [False]]).astype(np.int8)))
    calls = np.stack([lines, trace.slots["signature"].astype(np.int64)], axis=1)
    return [calls[start:stop] for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)]


def _is_below(stack: Sequence[Source], frames: Sequence[Source], first: int, last: int) -> bool:
    """True for a stack, outermost frame first, with these frames in it, but for the line of the last one."""
    *callers, at = frames
    return any(
        frame.file == at.file
        and first <= frame.line <= last
        and [(one.file, one.line) for one in stack[:place]] == [(one.file, one.line) for one in callers]
        for place, frame in enumerate(stack)
    )


def _stack_before(trace: Trace, source: Source, past: bool, met: bool) -> Sequence[Source]:
    """The stack of the call before the last one of this line; of that one where the rank has gone on from there.

    ``met``: of the collective before it.
    """
    here = [number for number, one in enumerate(trace.sources) if one.stack == source.stack]
    column = trace.slots["source"]
    rows = np.flatnonzero(np.isin(column, here))
    if past and not (met and len(rows)):
        return source.stack
    earlier = np.arange(int(rows[-1]) + past) if len(rows) else rows
    earlier = earlier[trace.slots["p2p_sequence"][earlier] == 0] if met else earlier
    if not len(earlier) or int(column[earlier[-1]]) >= len(trace.sources):
        return ()
    return trace.sources[int(column[earlier[-1]])].stack


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
        found, parting = _parting(finding.came_apart.sides, ran, finding.group)
        if parting is not None:
            told = replace(finding, parted=parting)
            return told if found is None else _as_skipped_earlier(told, finding.came_apart, found)
    skipped, at_once = finding.code == CALL_SKIPPED.code, _waits_in_messages(finding)
    found, parting = _parting(finding.sides, ran, finding.group, at_once=at_once, skipped=skipped)
    if parting is None and finding.code == MEMBERSHIP_MISMATCH.code:
        parting = _in_other_rounds(finding.sides)
    told = replace(finding, parted=parting)
    if found is not None:
        return _as_skipped(told, found)
    apart = _come_past(finding, ran)
    return told if apart is None else _with_skipped(told, *apart)


def _in_other_rounds(sides: Sequence[Side]) -> Parting | None:
    """The condition on the rank by which ranks come to one line in unlike rounds of a loop."""
    ways = [way for side in sides[:_SIDES] if (way := way_of(side)) is not None]
    found = [next(filter(_is_by_rank, forks_of_rounds(ways[0], other)), None) for other in ways[1:]]
    if len(ways) < len(sides) or not found or found[0] is None or None in found:
        return None
    ranks = tuple(sorted(rank for way in ways for rank in way.side.ranks))
    return Parting(_source_of(found[0]), ((ranks, "took it in different rounds"),))


def _source_of(one: Between) -> Source:
    """The line of a fork, with its text."""
    text = text_of(one.frame.file)
    code = "" if text is None else text.line(one.fork.line)
    return Source(one.frame.file, one.fork.line, one.frame.function, code)


def _come_past(finding: Finding, ran: Ran) -> tuple[Side, Side] | None:
    """Who made a call, and who came past its line since the last call that all made, if one of two sides did.

    No text tells why: the line calls what a program decides elsewhere, such as a cache or what needs a gradient.
    """
    if not _may_be_skipped(finding):
        return None
    ways = [way for side in finding.sides if not side.past and (way := way_of(side)) is not None]
    if len(ways) < 2:
        return None
    before, same = (ran.before(way.side) for way in ways)
    if before != same or (not before and finding.sequence != 1):
        return None
    first = comes_first(before[::-1], *ways)
    return None if first is None else (ways[not first].side, ways[first].side)


def _waits_in_messages(finding: Finding) -> bool:
    """True for a cycle of waits in which ranks wait in messages: these stand at different lines by their roles."""
    calls = [side.call for side in finding.sides if side.call is not None]
    return finding.code == DEADLOCK_CYCLE.code and any(call.op in ("send", "recv") for call in calls)


def _parting(
    sides: Sequence[Side], ran: Ran, group: Group | None = None, *, at_once: bool = False, skipped: bool = False
) -> tuple[Between | None, Parting | None]:
    """The fork that explains most; ``group`` is that of the finding.

    ``at_once``: of those in the user's own code that the others have come past, and whose branch they were never in.
    ``skipped``: that made some ranks leave out calls, and no others.
    """
    ways = [way for side in sides[:_SIDES] if (way := way_of(side)) is not None]
    for other in ways[1:]:
        forks = [one for one in forks_between(ways[0], other) if not _went_both(one, ran)]
        if skipped:
            forks = [one for one in forks if not _went_on_alike(one)]
        if at_once:
            forks = [one for one in forks if not (one.again or (not one.fork.loop and _been(one, ran)))]
            forks = [one for one in forks if _is_own(one)]
        found = _chosen(forks, ran, group)
        if found is not None:
            # A loop that ranks go round unequally often has been given something else.
            behind = _by_rank(ways, heads=False, skipped=skipped) if found.fork.loop else None
            if behind is not None and any(_is_argument(behind.source, way) for way in ways):
                return None, behind
            return found, behind or replace(_told(found, ways), others=_as_likely(found, forks, ran))
    return None, _by_rank(ways, heads=True, skipped=skipped)


def _by_rank(ways: Sequence[Way], *, heads: bool, skipped: bool) -> Parting | None:
    """The comparison with the rank behind what the ranks use at their lines, if it tells the sides apart exactly.

    ``heads``: or behind what the heads of the statements around these lines use. What a call takes, or what goes on in
    a function that the line enters, is not asked where others ``skipped`` the call.
    """
    inner = [(frame, way.frames[place + 1 :]) for way in ways for place, frame in [*enumerate(way.frames)][::-1]]
    for frame, entered in ((frame, entered) for frame, entered in inner if kind_of(frame.file) == OWN):
        text, function = text_of(frame.file), function_of(frame)
        if text is None or function is None:
            continue
        name, own = entered[0].function if entered and skipped else "", bool(entered) or not skipped
        for words, comparison in comparisons_behind(text, function, frame.line, heads=heads, own=own, entered=name):
            found = {known: [way.side.ranks for way in ways if _all(comparison, way, known)] for known in (True, False)}
            if all(found.values()) and len(found[True]) + len(found[False]) == len(ways):
                at = comparison.lineno
                line = Source(frame.file, at, text.name_at(at), text.line(at))
                told = "it" if _is_only_condition(words, line.code) else words
                sides = ((tuple(sorted(sum(found[known], ()))), f"found {told} {did}") for known, did in _HELD)
                return Parting(line, tuple(sides), behind=True)
    return None


def _is_argument(line: Source, way: Way) -> bool:
    """True if a comparison at a line is in what a way's call is given: it decides about no round of a loop."""
    frame, made = way.frames[-1], way.side.call
    function = function_of(frame) if frame.file == line.file else None
    if made is None or function is None:
        return False
    names, last = COLLECTIVES[made.op].functions, steps_to(function, frame.line)[-1:]
    calls = [call for step in last for call in calls_in(step.statement) if name_of(call.func) in names]
    given = [part for call in calls for part in (*call.args, *(one.value for one in call.keywords))]
    inside = (node for part in given for node in ast.walk(part) if isinstance(node, ast.Compare))
    return any(node.lineno == line.line for node in inside)


def _is_only_condition(words: str, code: str) -> bool:
    """True if a line asks for nothing but this comparison: ``if rank == 0:``, ``a if rank == 0 else b``."""
    return not code.startswith("while ") and any(f"if {words}{end}" in code for end in (":", " else "))


def parting_of(sides: Sequence[Side], ran: Ran) -> Parting | None:
    """Where the ranks of the first side went in and those of the second did not, if a fork of their own tells."""
    found, parting = _parting(sides, ran)
    inside = found is not None and (found.inside.side is sides[0]) != found.fork.leaves
    return parting if inside else None


def parting_at_line(sides: Sequence[Side], ran: Ran) -> Parting | None:
    """The condition by which the program gives these ranks unlike values at the line where all of them are."""
    return _parting(sides, ran)[1]


def exit_between(waiting: Side, gone: Side, ran: Ran) -> Parting | None:
    """The exit by which ``gone`` got past the call at which the others wait, in this round of a loop or an earlier one.

    A condition on the rank is none if those gone never were behind it: ends of messages part by it on purpose. The head
    of a loop is one if they were in the loop before.
    """
    ways = [way for side in (waiting, gone) if (way := way_of(side)) is not None]
    if len(ways) < 2:
        return None
    candidates = [*forks_between(*ways), *exits_of_rounds(*ways)]
    heads = [one for one in candidates if one.fork.loop and one.outside.side is gone and _been(one, ran)]
    exits = [one for one in candidates if one.fork.leaves and one.inside.side is gone] + heads
    exits = [one for one in exits if not _is_by_rank(one) or _was_past(one, ran)]
    found = _chosen(exits, ran)
    return None if found is None else _told(found, ways)


def _all(comparison: ast.Compare, way: Way, known: bool) -> bool:
    """True if a comparison is known to hold, or not to, on all ranks of a side."""
    return all(holds(comparison, rank) is known for rank in way.side.ranks)


def _as_skipped(finding: Finding, found: Between) -> Finding:
    """The finding on a call skipped or extra in the place of one on its fields, where that is what the fork says."""
    fork, inside, outside = found.fork, found.inside.side, found.outside.side
    makers, lackers = (outside, inside) if fork.leaves else (inside, outside)
    return _with_skipped(finding, makers, lackers) if fork.alone or fork.loop or fork.leaves else finding


def _may_be_skipped(finding: Finding) -> bool:
    """True for a finding on the fields of a call, with two sides."""
    return finding.code in _FIELDS and len(finding.sides) == 2


def _with_skipped(finding: Finding, makers: Side, lackers: Side) -> Finding:
    """The finding on a call skipped or extra in the place of one on its fields."""
    if makers.call is None or lackers.call is None or finding.sequence is None or not _may_be_skipped(finding):
        return finding
    sides = {id(makers): makers, id(lackers): replace(lackers, note="made this call, and not that one")}
    return replace(
        finding,
        code=CALL_SKIPPED.code,
        severity=CALL_SKIPPED.severity,
        message=presence_text(makers.ranks, lackers.ranks, makers.call.op, finding.sequence),
        culprits=minority(makers.ranks, lackers.ranks),
        sides=tuple(sides[id(side)] for side in finding.sides),
    )


def _as_skipped_earlier(finding: Finding, apart: EarlierDivergence, found: Between) -> Finding:
    """The finding on a call skipped or extra where its ranks came apart, if the fork says so; with what showed it."""
    before = tuple(record for record in finding.before if record.sequence < apart.sequence)
    there = replace(finding, sequence=apart.sequence, sides=apart.sides, differing=(), before=before, came_apart=None)
    skipped = _as_skipped(there, found)
    if skipped is there:
        return finding
    message = f"{skipped.message}; it shows at collective {finding.sequence}: {finding.message}"
    return replace(skipped, message=message)


def _told(found: Between, ways: Sequence[Way]) -> Parting:
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
    parts = tuple((tuple(sorted(ranks)), did) for did, ranks in said.items())
    return Parting(_source_of(found), parts)


def _chosen(found: list[Between], ran: Ran, group: Group | None = None) -> Between | None:
    """The fork that explains most: of the user's own code, not left behind earlier, no exit that ranks had just passed,
    a call of some ranks alone on purpose, not taken at other times, no loop of which ranks may have left out a round by
    their rank, no loop that ranks run alike, on ranks, no loop of which others made no round, the innermost.
    """
    by_rank = any(_leaves_out(one, ran) for one in found)
    for better in (
        _is_own,
        lambda one: not _was_behind(one, ran),
        lambda one: not _had_passed(one, ran),
        lambda one: not _is_run_alike(one, ran),
        lambda one: _calls_by_rank(one, ran, group),
        lambda one: not (one.fork.settled and (_been(one, ran) if one.again else _just_went(one, ran))),
        lambda one: not (by_rank and one.fork.loop and not _is_by_rank(one)),
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
    return _before_all(found) if found else None


def _before_all(found: Sequence[Between]) -> Between:
    """The first of forks of which none explains more, or the branch around it and others: exits of that one branch.

    The ranks may have left by any of these exits, and have gone into their branch by whichever they took.
    """
    first, function = found[0], function_of(found[0].frame)
    exits = [one for one in found if one.fork.leaves and one.frame == first.frame and one.inside is first.inside]
    if function is None or len(exits) < 2 or first not in exits:
        return first
    ways = [steps_to(function, one.fork.line) for one in exits]
    for depth, step in enumerate(ways[0]):
        place = (id(step.parent), step.field)
        others = [way for way in ways[1:] if len(way) > depth and (id(way[depth].parent), way[depth].field) == place]
        fork = fork_of(step)
        around = fork is not None and not fork.loop and not step.lines()[0] <= first.frame.line <= step.lines()[1]
        if others and fork is not None and around:
            return replace(first, fork=replace(fork, leaves=True))
    return first


def _went_both(one: Between, ran: Ran) -> bool:
    """True for a branch that those outside took as well, or an exit that those who are past did not take.

    They have been there, and could not go another way later: all ranks take the branch in the same rounds of a loop, or
    the program comes there once.
    """
    fork = one.fork
    if fork.loop or one.again:
        return False
    if fork.by_round and _been(one, ran):
        return True
    if fork.leaves:
        return (
            one.frame in one.outside.frames
            and not comes_again(_down_to(one.outside, one.frame))
            and _was_past(one, ran)
        )
    if one.frame not in one.inside.frames:
        return False
    frames = (*_down_to(one.inside, one.frame)[:-1], replace(one.frame, line=fork.line))
    return not comes_again(frames) and ran.below(one.outside.side.ranks, frames, fork.first, fork.last)


def _is_run_alike(one: Between, ran: Ran) -> bool:
    """True for a loop in which those outside made as many calls as the others each time they came to it."""
    if not one.fork.loop or one.frame not in one.inside.frames:
        return False
    mine, theirs = (_stays_of(way, one, ran) for way in (one.outside, one.inside))
    lengths, others = _lengths(mine), _lengths(theirs)
    if not lengths or others[: len(lengths)] == lengths:
        return 0 < len(lengths) < len(others)
    last = len(lengths) - 1
    more = len(others) == len(lengths) and others[:last] == lengths[:last] and others[last] > lengths[last]
    return more and _may_come_in_a_row(one) and _repeats(mine[last], theirs[last])


def _may_come_in_a_row(one: Between) -> bool:
    """True for an innermost loop to which a loop around it may bring ranks again with no other call in between."""
    frames = _down_to(one.inside, one.frame)
    around, inner = [_loops(frame) for frame in frames], one.inside.frames[len(frames) :]
    innermost = around[-1][-1:] == [one.fork.line] and not any(_loops(frame) for frame in inner)
    return innermost and sum(map(len, around)) > 1


def _loops(frame: Source) -> list[int]:
    """The lines of the loops in a frame's function that are around it, outermost first."""
    function = function_of(frame)
    steps = [] if function is None else steps_to(function, frame.line)
    return [fork.line for step in steps if isinstance(step.parent, Loop) and (fork := fork_of(step)) is not None]


def _repeats(whole: _Calls, more: _Calls) -> bool:
    """True for calls of one line that are of several kinds, in a row that is whole, and begins anew in a longer one."""
    kinds = [len(np.unique(column)) for column in whole.T]
    fits = (length for length in range(2, len(whole) + 1) if len(whole) % length == 0)
    return (
        kinds[0] == 1
        and kinds[1] > 1
        and any(all(np.array_equal(calls[length:], calls[:-length]) for calls in (whole, more)) for length in fits)
    )


def _as_likely(found: Between, forks: Sequence[Between], ran: Ran) -> tuple[Source, ...]:
    """The heads of loops around the one found that may have parted the ranks as well.

    Either no call tells their rounds from those of the one found, or those outside also came to that one more rarely.
    """
    told = []
    inner = [_lengths(_stays_of(way, found, ran)) for way in (found.outside, found.inside)]
    for one in forks if found.fork.loop and all(inner) else ():
        around = one.fork.loop and not one.again and one.outside is found.outside and _is_around(one, found)
        if not around or _is_own(one) < _is_own(found):
            continue
        stays = [_lengths(_stays_of(way, one, ran)) for way in (one.outside, one.inside)]
        if all(stays) and (stays == inner or len(inner[0]) < len(inner[1])):
            told.append(_source_of(one))
    return tuple(told)


def _stays_of(way: Way, one: Between, ran: Ran) -> Sequence[_Calls]:
    """The calls that ranks made below a fork, each time they came to it."""
    return ran.stays(way.side, _down_to(one.inside, one.frame), one.fork.first, one.fork.last)


def _lengths(stays: Sequence[_Calls]) -> list[int]:
    return [len(calls) for calls in stays]


def _is_around(outer: Between, inner: Between) -> bool:
    """True if a fork is around another one, in its function or in one that calls it."""
    if outer.frame == inner.frame:
        return outer.fork.line != inner.fork.line and outer.fork.first <= inner.fork.line <= outer.fork.last
    frames = inner.inside.frames
    return outer.frame in frames and inner.frame in frames and frames.index(outer.frame) < frames.index(inner.frame)


def _went_on_alike(one: Between) -> bool:
    """True for a loop in which ranks that left out a call are: the others made all their calls, those of it too."""
    return one.fork.loop and one.inside.side.call is None and not one.inside.side.past


def _calls_by_rank(one: Between, ran: Ran, group: Group | None) -> bool:
    """True for a branch on the rank in which some ranks alone make a collective of the finding's group.

    It parts them however often they came round before, and so explains more than a loop that they may run unequally.
    """
    fork, side = one.fork, one.inside.side
    collective = side.call is not None and side.call.op not in ("send", "recv")
    collective = collective and (side.place is None or side.place.group == group)
    branch = fork.alone and not (fork.loop or fork.leaves or fork.by_round)
    return branch and collective and _is_by_rank(one) and not _been(one, ran)


def _leaves_out(one: Between, ran: Ran) -> bool:
    """True for an exit on the rank by which ranks may have left out a round of a loop, though not every round."""
    return one.again and one.fork.leaves and _is_own(one) and _is_by_rank(one) and _fits(one, ran)


def _was_past(one: Between, ran: Ran) -> bool:
    """True if those who are said to have left made a call, at any time, behind this exit: where the others are."""
    frames, line = _down_to(one.outside, one.frame), one.frame.line
    return ran.below(one.inside.side.ranks, frames, line, line)


def _down_to(way: Way, frame: Source) -> tuple[Source, ...]:
    """The frames of a way from the outermost to this one; this one alone where it is none of them."""
    return way.frames[: way.frames.index(frame) + 1] if frame in way.frames else (frame,)


def _is_own(one: Between) -> bool:
    return kind_of(one.frame.file) == OWN


def _fits(one: Between, ran: Ran) -> bool:
    """True if those outside never went this way, or, of a loop, went round it as well."""
    if one.again and one.fork.loop and _just_went(one, ran) is False:
        return False
    return one.fork.varies or (not one.fork.leaves and _been(one, ran)) == one.fork.loop


def _been(one: Between, ran: Ran) -> bool:
    """True if those outside went this way at any time."""
    return ran.ever(one.outside.side.ranks, one.frame.file, one.fork.first, one.fork.last)


def _just_went(one: Between, ran: Ran) -> bool | None:
    """True if the last call of those outside was on this way; None where it is not known."""
    stack, fork = ran.before(one.outside.side), one.fork
    return (
        any(frame.file == one.frame.file and fork.first <= frame.line <= fork.last for frame in stack)
        if stack
        else None
    )


def _was_behind(one: Between, ran: Ran) -> bool:
    """True if those outside had come past this way before their last call, which all ranks have made."""
    here = [frame.line for frame in one.outside.frames if _is_in_function(frame, one.frame)]
    before = [frame.line for frame in ran.met(one.outside.side) if _is_in_function(frame, one.frame)]
    return not one.again and bool(here and before) and one.fork.last < before[-1] < here[0]


def _had_passed(one: Between, ran: Ran) -> bool:
    """True for an exit behind which those who are said to have left made their last call, from where they have gone on.

    They would have left in a later round, and the others have come round too. That only the others have is likelier,
    unless it is a loop of the exit's own function that takes everybody round.
    """
    if not one.fork.leaves or one.again or _in_one_loop(one):
        return False
    before = [frame.line for frame in ran.before(one.inside.side) if _is_in_function(frame, one.frame)]
    here = any(_is_in_function(frame, one.frame) for frame in one.inside.frames)
    return bool(before) and before[0] > one.fork.last and not here


def _in_one_loop(one: Between) -> bool:
    """True if a loop of the fork's function is around it and around the line at which those outside are."""
    function = function_of(one.frame)
    ways = () if function is None else [steps_to(function, line) for line in (one.fork.first, one.frame.line)]
    around = [{id(step.parent) for step in way if isinstance(step.parent, Loop)} for way in ways]
    return bool(around) and not around[0].isdisjoint(around[1])


def _is_in_function(frame: Source, of: Source) -> bool:
    return (frame.file, frame.function) == (of.file, of.function)


def _is_by_rank(one: Between) -> bool:
    if one.fork.loop:
        return one.fork.by_rank
    return names_rank(_source_of(one).code)


def names_rank(code: str) -> bool:
    """True for a condition by which programs part their ranks on purpose."""
    return _BY_RANK.search(code) is not None
