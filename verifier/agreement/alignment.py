"""Aligns one rank's sequence of calls with another's: the calls that belong together, and those that one of them lacks.

A global alignment with affine gaps (Gotoh: An improved algorithm for matching biological sequences, J. Mol. Biol. 1982)
in a band that grows until no better alignment can lie outside of it (Ukkonen: Algorithms for approximate string
matching, Information and Control 1985). The time is that of the shorter sequence times the width of the band, which is
about twice the number of calls that differ.

:class:`Words` has for each recorded call its word in the check, and its token in the alignment.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from simcoll.core.native import native
from simcoll.core.record import Source
from simcoll.spec.call import Call
from simcoll.spec.checksum import joined_word, statement_digest
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.table import Kind, Statement
from simcoll.verifier.agreement.known_fields import flow_sum, known_statement

_MASK = (1 << 64) - 1

_ANY = -1
_EVERY = -1
"""The group rank under which the word of all ranks is kept."""

STATEMENT, OUTLINE, OP, LINE = range(4)
"""The columns of :meth:`Words.features`."""


@dataclass(frozen=True, slots=True)
class Word:
    """One rank's call as numbers: its statement's digest (0 where flows speak as well), its statement, and its word.

    ``stated`` counts the distinct statements of all traces. ``even`` says that the word is the statement's alone: where
    all ranks of a group state the same, such words add up to zero. ``parts`` are the statement's digest and the flows,
    of which, with the rank, the word is made; it is one object for ranks whose parts are the same.
    """

    digest: int
    stated: int
    even: bool
    parts: tuple[int, int]

    def whole(self, group_rank: int, size: int) -> int:
        """The word of this rank, computed where digests leave it open."""
        return joined_word(*self.parts, group_rank, size)


@dataclass(slots=True)
class Words:
    """Words by call, group rank and group size; calls that are equal in several traces count once.

    A *token* is a statement and the line of the program that made it, as a small number: ranks whose calls agree and
    come from one line have one token, whatever their flows. Where calls of a line are told apart by their callers
    (:meth:`~simcoll.verifier.agreement.columns.GroupColumns.by_stack`), each stack counts as a line of its own.
    ``unknown`` fields are left out of all calls.
    """

    unknown: frozenset[str] = frozenset()
    _calls: dict[Call, int] = field(default_factory=dict)
    _known: dict[int, tuple[int, Call]] = field(default_factory=dict)
    _words: dict[tuple[int, int, int], Word] = field(default_factory=dict)
    _statements: dict[Statement, tuple[int, int]] = field(default_factory=dict)
    _outlines: dict[object, int] = field(default_factory=dict)
    _ops: dict[str, int] = field(default_factory=dict)
    _lines: dict[tuple[str, int, int], int] = field(default_factory=dict)
    _stacks: dict[tuple[Source, ...], int] = field(default_factory=dict)
    _seen: dict[tuple[int, int | None], tuple[int, Source]] = field(default_factory=dict)
    _tokens: dict[tuple[int, int], int] = field(default_factory=dict)
    _kinds: list[tuple[int, int]] = field(default_factory=list)
    _made: dict[tuple[int, int], int] = field(default_factory=dict)

    def of(self, call: Call, group_rank: int, size: int) -> Word:
        """The word of a call, computed at its first use."""
        key = (self._number(call), _EVERY if self.alike(call) else group_rank, size)
        if key not in self._words:
            self._words[key] = self._word(call, group_rank, size)
        return self._words[key]

    def alike(self, call: Call) -> bool:
        """True if the call's word is one object for all ranks of a group."""
        return COLLECTIVES[call.op].ranks_alike(call)

    def _number(self, call: Call) -> int:
        """The number of a call. Ranks' traces share the objects of equal calls, so a known call is found by its id."""
        known = self._known.get(id(call))
        if known is None:
            known = self._known[id(call)] = self._calls.setdefault(call, len(self._calls)), call
        return known[0]

    def token(self, stated: int, source: Source, stack: int = _ANY) -> int:
        """The token of a call with this statement and source line; with ``stack``, of calls with that stack alone."""
        line = self._lines.setdefault((source.file, source.line, stack), len(self._lines))
        return self._tokens.setdefault((stated, line), len(self._tokens))

    def stack(self, source: Source, depth: int | None = None) -> int:
        """A number for a line and its callers, equal where line and callers are equal.

        With ``depth``, only so many callers count, the innermost, and no frames of packages.
        """
        known = self._seen.get((id(source), depth))
        if known is None:
            stack = source.stack if depth is None else (source, *source.callers[:depth])
            known = self._seen[id(source), depth] = self._stacks.setdefault(stack, len(self._stacks)), source
        return known[0]

    def call(self, call: Call, source: Source) -> int:
        """A number for a call, the line that made it and its callers, equal where all three are equal."""
        return self._made.setdefault((self._number(call), self.stack(source)), len(self._made))

    def features(self) -> npt.NDArray[np.int64]:
        """One row a token: statement, its outline, its op, the line, as numbers that are equal where these are.

        The outline of a statement is all of it but shapes and memory orders, which ranks may state differently.
        """
        rows = [(stated, *self._kinds[stated], line) for stated, line in self._tokens]
        return np.array(rows, np.int64).reshape(-1, 4)

    def nowhere(self) -> list[int]:
        """The numbers in column :data:`LINE` of the calls whose line is unknown."""
        return [number for (file, _, _), number in self._lines.items() if not file]

    def carries(self) -> npt.NDArray[np.bool_]:
        """True for the tokens (the index) whose call moves data."""
        moves = [COLLECTIVES[op].kind is not Kind.SYNCHRONISATION for op in self._ops]
        return np.array(moves, np.bool_)[self.features()[:, OP]]

    def _word(self, call: Call, group_rank: int, size: int) -> Word:
        spec = COLLECTIVES[call.op]
        statement = known_statement(spec, call, group_rank, size, self.unknown)
        if statement not in self._statements:
            self._statements[statement] = (statement_digest(statement), len(self._statements))
            self._kinds.append(self._kind(statement))
        digest, number = self._statements[statement]
        flows, says_all = flow_sum(spec, call, group_rank, size, self.unknown)
        return Word(digest if says_all else 0, number, flows == 0, (digest, flows))

    def _kind(self, statement: Statement) -> tuple[int, int]:
        contents = tuple([(content.dtype, content.count) for content in statement.contents])
        outline = statement.op, statement.reduce_op, statement.root, statement.device, contents, statement.form
        return (
            self._outlines.setdefault(outline, len(self._outlines)),
            self._ops.setdefault(statement.op, len(self._ops)),
        )


Ints = npt.NDArray[np.int64]

UNKNOWN = -1
"""A token that nobody recorded: it may be any call."""

_WINDOW = 1 << 13
"""Calls after a difference that are aligned at a time; the last quarter of each window is aligned again in the next."""

_UNIT = 1 << 20
"""One point; below it count lines, which decide only where the calls themselves leave a choice."""

# A pair of different calls is a little cheaper than one missing call, and much cheaper than one missing on each side.
_OPEN, _EXTEND = 3 * _UNIT // 2, 4 * _UNIT
# Being behind by a call at the end costs a little less than lacking it.
_TAIL = 7 * _UNIT // 2
# The same op from the same line is the same call, whatever else it states, also where its rank is ahead at the end.
_SAME_LINE, _OTHER_CALL = 3 * _UNIT // 2, 5 * _UNIT
_TIGHT, _NARROW, _WIDE = 8, 32, 4096
_FAR = np.int64(1) << np.int64(56)
_COMPARED = 1 << 10
"""So many pairs of numbers are compared one by one."""
_TABLE = 1 << 20
"""So many pairs of different calls are priced at once."""
_TOGETHER = 1 << 26
"""So many steps of bands are kept at once, in bytes, where more than one band is looked at."""


def _among(values: Ints, others: Ints) -> npt.NDArray[np.bool_]:
    """Which of these numbers are among the others; few are compared one by one, sooner than by sorting."""
    if len(values) * len(others) > _COMPARED:
        return np.isin(values, others)
    found: npt.NDArray[np.bool_] = (values[:, None] == others).any(axis=1)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """The path of a sequence along the reference.

    ``partner`` has, for each of its calls, the place in the reference, or -1 for a call that the reference lacks; calls
    beyond the reference's end count on from there. ``reached`` is how many calls of the reference it has come to: those
    after it are still to come.
    """

    partner: Ints
    reached: int


class _Pairs:
    """The costs of pairing the calls of two sequences.

    Calls that state the same belong together from whatever lines they come; with ``by_line`` only those of one line do.
    """

    def __init__(self, features: Ints, reference: Ints, other: Ints, *, by_line: bool = False) -> None:
        self._features, self._by_line = features, by_line
        self.reference, self.other = reference, other

    def along(self, count: int) -> Ints:
        """The costs of pairing the first ``count`` calls place by place."""
        return self.cost(self.reference[:count], self.other[:count])

    def within(self, band: int) -> Callable[[int], Ints]:
        """A function that gives a row of the band of :func:`_banded`; what lies outside of the sequences is far."""
        n, m, width = len(self.reference), len(self.other), 2 * band + 1
        padded = np.full(m + 2 * width + n, m, np.int64)
        padded[band : band + m] = np.arange(m)
        tokens, beyond = np.append(self.other, 0)[padded], padded == m

        def row(i: int) -> Ints:
            cost = self.cost(self.reference[i], tokens[i : i + width])
            cost[beyond[i : i + width]] = _FAR
            return cost

        return row

    def least(self) -> tuple[Ints, Ints]:
        """For each call of either sequence what it costs at least, paired with any call of the other."""
        # Of each token once: a rank makes few different calls.
        theirs, place = np.unique(self.reference, return_inverse=True)
        mine, own = np.unique(self.other, return_inverse=True)
        return self._least(theirs, mine)[place], self._least(mine, theirs)[own]

    def _least(self, own: Ints, others: Ints) -> Ints:
        if others[0] == UNKNOWN:
            return np.zeros(len(own), np.int64)
        mine, theirs = self._features[own], self._features[others]

        def found(column: int) -> npt.NDArray[np.bool_]:
            return _among(mine[:, column], theirs[:, column])

        def found_there(column: int) -> npt.NDArray[np.bool_]:
            return _among(*(one[:, column] + (one[:, LINE] << 32) for one in (mine, theirs)))

        if self._by_line:
            cost = np.where(found_there(STATEMENT), 0, _OTHER_CALL)
        else:
            cost = np.where(found_there(OP), _SAME_LINE, _OTHER_CALL)
            cost[found(OUTLINE)] = _UNIT
            cost[found(STATEMENT)] = 0
        cost[own == UNKNOWN] = 0
        return cost

    def cost(self, reference: Ints, other: Ints) -> Ints:
        """The costs of pairing calls of these tokens."""
        alike = self._features[reference] == self._features[other]
        if self._by_line:
            cost = np.where(alike[..., STATEMENT] & alike[..., LINE], 0, _OTHER_CALL)
        else:
            cost = np.where(alike[..., OP] & alike[..., LINE], _SAME_LINE, _OTHER_CALL).astype(np.int64)
            cost[alike[..., OUTLINE]] = _UNIT
            cost[alike[..., STATEMENT]] = 0
            cost += ~alike[..., LINE]
        cost[(reference == UNKNOWN) | (other == UNKNOWN)] = 0
        return cost


@dataclass(frozen=True, slots=True, eq=False)
class _Banding:
    """A question: the best path within a band, and its cost (:func:`_banded`)."""

    pairs: _Pairs
    band: int
    tail: int


_Aligning: TypeAlias = Generator[_Banding, tuple[int, Path], Path]


def align(features: Ints, reference: Ints, other: Ints, *, by_line: bool = False) -> Path:
    """Align two sequences of tokens at the least cost, window by window where they are long.

    A pair of different calls costs less than a call missing on each side.
    """
    return align_all(features, reference, [other], by_line=by_line)[0]


def align_all(features: Ints, reference: Ints, others: Sequence[Ints], *, by_line: bool = False) -> list[Path]:
    """Align each of some sequences with the reference, as :func:`align` does: all go on together, as a row of one band
    takes numpy as long as a row of many.
    """
    ways = [_aligning(features, reference, other, by_line) for other in others]
    paths: dict[int, Path] = {}
    answers: dict[int, tuple[int, Path] | None] = dict.fromkeys(range(len(others)))
    while answers:
        asked: dict[tuple[int, int], dict[int, _Pairs]] = {}
        for index, answer in answers.items():
            try:
                asks = next(ways[index]) if answer is None else ways[index].send(answer)
            except StopIteration as end:
                paths[index] = end.value
            else:
                asked.setdefault((asks.band, asks.tail), {})[index] = asks.pairs
        answers = {}
        for (band, tail), those in asked.items():
            for some in _batches(those, band):
                found = _banded([those[index] for index in some], band, tail)
                answers.update(zip(some, found, strict=True))
    return [paths[index] for index in range(len(others))]


def _batches(pairs: Mapping[int, _Pairs], band: int) -> Iterator[list[int]]:
    """The bands that are looked at together, of about one length, by their numbers."""
    order = sorted(pairs, key=lambda index: len(pairs[index].reference))
    while order:
        size = max(_TOGETHER // ((len(pairs[order[-1]].reference) + 1) * (2 * band + 1)), 1)
        yield order[-size:]
        del order[-size:]


def _aligning(features: Ints, reference: Ints, other: Ints, by_line: bool) -> _Aligning:
    partner = np.full(len(other), -1, np.int64)
    i = j = 0
    while True:
        alike = common_prefix(reference[i:], other[j:])
        partner[j : j + alike] = np.arange(i, i + alike)
        i, j = i + alike, j + alike
        if i == len(reference) or j == len(other):
            partner[j:] = np.arange(i, i + len(other) - j)
            return Path(partner, i)
        here, there = reference[i : i + _WINDOW], other[j : j + _WINDOW]
        last = i + len(here) == len(reference) and j + len(there) == len(other)
        path = yield from _window(features, here, there, by_line, 0 if not last else _TAIL)
        if last:
            partner[j:] = np.where(path.partner < 0, -1, path.partner + i)
            return Path(partner, path.reached + i)
        near = np.flatnonzero((path.partner >= 0) & (path.partner < min(path.reached, _WINDOW * 3 // 4)))
        if not len(near):
            # No calls of a whole window belong together.
            partner[j:] = np.arange(len(reference), len(reference) + len(other) - j)
            return Path(partner, i)
        done = int(near[-1]) + 1
        partner[j : j + done] = np.where(path.partner[:done] < 0, -1, path.partner[:done] + i)
        i, j = int(partner[j + done - 1]) + 1, j + done


def _window(features: Ints, reference: Ints, other: Ints, by_line: bool, tail: int) -> _Aligning:
    pairs = _Pairs(features, reference, other, by_line=by_line)
    n, m = len(reference), len(other)
    least = [np.concatenate([[0], np.cumsum(np.minimum(each, _EXTEND))]) for each in pairs.least()]
    if int(pairs.along(min(n, m)).sum()) + abs(n - m) * tail <= _beyond(least, 0) + _OPEN:
        return Path(np.arange(m), min(n, m))
    # A band in which most paths stay, as long as none outside of it is as good.
    cost, path = yield _Banding(pairs, _TIGHT, tail)
    if cost < _beyond(least, _TIGHT):
        return path
    band = _NARROW
    while True:
        cost, path = yield _Banding(pairs, min(band, _WIDE), tail)
        if cost <= _beyond(least, band) or band >= min(_WIDE, max(n, m)):
            return path
        band *= 8


def _beyond(least: Sequence[Ints], band: int) -> int:
    """The least cost of a path that leaves the band.

    It lacks more calls of one sequence than the band is wide. Each call of the other sequence costs what it costs at
    least, except as many at the end as the path may leave to come. ``least`` has the sums of these costs by length.
    """
    [n, m] = (len(each) - 1 for each in least)
    left = max(0, m - band - 1), max(0, n - band - 1)
    return (band + 1) * _EXTEND + min(int(each[min(k, len(each) - 1)]) for each, k in zip(least, left, strict=True))


def common_prefix(reference: Ints, other: Ints) -> int:
    """The length of the sequences' common prefix, in calls."""
    length = min(len(reference), len(other))
    apart = np.flatnonzero(reference[:length] != other[:length])
    return int(apart[0]) if len(apart) else length


_DIAGONAL, _VERTICAL, _HORIZONTAL = 0, 1, 2
_OPENS_VERTICAL, _OPENS_HORIZONTAL = np.uint8(4), np.uint8(8)


def _banded(problems: Sequence[_Pairs], band: int, tail: int) -> list[tuple[int, Path]]:
    """For each of some pairs of sequences the cost of the best path that stays within ``band`` of the diagonal, and it.

    Row i of a band holds the columns j = i - band ... i + band. ``tail`` is the cost of each call after the end of
    the other sequence. It is compiled in ``_bands.c``, as a row of a band cannot be worked out without the one before.
    """
    priced = _priced(problems)
    if priced is not None and (compiled := native("simcoll.verifier.agreement._bands")) is not None:
        return [_in_c(compiled, priced.costs, *those, band, tail) for those in priced.places]
    return _row_by_row(problems, priced, band, tail)


@dataclass(frozen=True, slots=True, eq=False)
class _Priced:
    """The costs of pairing each distinct call of some references (a row) with each of some others (a column), and the
    rows and columns of each pair of sequences. The last column is far from all.
    """

    costs: Ints
    places: Sequence[tuple[Ints, Ints]]


def _priced(problems: Sequence[_Pairs]) -> _Priced | None:
    """None where there are too many different calls."""
    kinds, rows = np.unique(np.concatenate([one.reference for one in problems]), return_inverse=True)
    others, columns = np.unique(np.concatenate([one.other for one in problems]), return_inverse=True)
    if len(kinds) * len(others) > _TABLE:
        return None
    costs = problems[0].cost(kinds[:, None], others[None, :])
    costs = np.concatenate([costs, np.full((len(costs), 1), _FAR)], axis=1)
    ends = np.cumsum([(len(one.reference), len(one.other)) for one in problems], axis=0)[:-1]
    parts = np.split(rows, ends[:, 0]), np.split(columns, ends[:, 1])
    return _Priced(costs, [*zip(*parts, strict=True)])


def _in_c(compiled: Any, costs: Ints, here: Ints, there: Ints, band: int, tail: int) -> tuple[int, Path]:
    """As :func:`_row_by_row` of one pair of sequences."""
    width, n, m = 2 * band + 1, len(here), len(there)
    best, vertical = np.empty((2, width + 1), np.int64)
    steps, partner = np.empty((n + 1) * width, np.uint8), np.empty(m, np.int64)
    costs, here, there = (np.ascontiguousarray(one, np.int64) for one in (costs, here, there))
    numbers = (costs.shape[1], n, m, band, _OPEN, _EXTEND, tail)
    arrays = ([one.ctypes.data for one in some] for some in ((costs, here, there), (best, vertical, steps, partner)))
    table = np.array([*next(arrays), *numbers, *next(arrays), 0, 0], np.int64)
    compiled.run(table.ctypes.data)
    reached, cost = table[-2:].tolist()
    return cost, Path(partner, reached)


def _row_by_row(problems: Sequence[_Pairs], priced: _Priced | None, band: int, tail: int) -> list[tuple[int, Path]]:
    """The twin of ``_bands.c``: a row of all bands at a time."""
    count, width = len(problems), 2 * band + 1
    lengths = np.array([len(one.reference) for one in problems])
    others = np.array([len(one.other) for one in problems])
    rows, every = int(lengths.max()) + 1, np.arange(count)
    ended = {length: np.flatnonzero(lengths == length) for length in lengths.tolist()}
    paired = _rows(problems, priced, band)
    slope = np.arange(width) * _EXTEND
    first = np.where(np.arange(width) < band, _FAR, slope - band * _EXTEND + _OPEN)
    first[band] = 0
    best, final = np.tile(first, (count, 1)), np.empty((count, width), np.int64)
    vertical, above, extended, horizontal = (np.full((count, width), _FAR) for _ in range(4))
    extended[:, -1] += _EXTEND
    steps = np.zeros((rows, count, width), np.uint8)
    steps[0] = _HORIZONTAL
    steps[0, :, band + 1 : band + 2] |= _OPENS_HORIZONTAL
    # Where the other sequence ends in each row.
    last = others - np.arange(rows)[:, None] + band
    within = np.clip(last, 0, width - 1)
    at_end = np.empty((rows, count), np.int64)
    at_end[0] = best[every, within[0]]
    for i in range(1, rows):
        diagonal = best + paired(i - 1)
        above[:, :-1] = best[:, 1:] + (_OPEN + _EXTEND)
        extended[:, :-1] = vertical[:, 1:] + _EXTEND
        vertical = np.minimum(above, extended)
        reached = np.minimum(diagonal, vertical)
        horizontal[:, 1:] = np.minimum.accumulate(reached - slope, axis=1)[:, :-1] + slope[1:] + _OPEN
        best = np.minimum(reached, horizontal)
        # In bytes: no diagonal is a vertical one, and no vertical one either is a horizontal one.
        elsewhere = diagonal > best
        step = elsewhere.view(np.uint8) + (elsewhere & (vertical > best)).view(np.uint8)
        step += (above <= extended).view(np.uint8) * _OPENS_VERTICAL
        opens = horizontal[:, 1:] == reached[:, :-1] + (_OPEN + _EXTEND)
        step[:, 1:] += opens.view(np.uint8) * _OPENS_HORIZONTAL
        steps[i] = step
        at_end[i] = best[every, within[i]]
        if (those := ended.get(i)) is not None:
            final[those] = best[those]
    inside = (last >= 0) & (last < width)
    found = []
    for index, (n, m) in enumerate(zip(lengths.tolist(), others.tolist(), strict=True)):
        ends = np.flatnonzero(inside[: n + 1, index])
        columns = np.arange(max(0, n - band), min(m, n + band + 1))
        costs = [at_end[ends, index] + (n - ends) * tail, final[index, columns - n + band] + (m - columns) * tail]
        here, there = np.append(ends, np.full(len(columns), n)), np.append(np.full(len(ends), m), columns)
        cost = np.concatenate(costs)
        # The cheapest end, of those the farthest, of those the first.
        best_end = int(np.where(cost == cost.min(), here + there, -1).argmax())
        path = _trace_back(steps[:, index], band, int(here[best_end]), int(there[best_end]), m, n)
        found.append((int(cost[best_end]), path))
    return found


def _rows(problems: Sequence[_Pairs], priced: _Priced | None, band: int) -> Callable[[int], Ints]:
    """A function that gives a row of each band (:meth:`_Pairs.within`), of which those beyond a sequence are any."""
    lengths = [(len(one.reference), len(one.other)) for one in problems]
    longest, width = max(n for n, _ in lengths), 2 * band + 1
    if priced is None:
        each = [(one.within(band), n - 1) for one, (n, _) in zip(problems, lengths, strict=True)]
        return lambda i: np.stack([row(min(i, last)) for row, last in each])
    costs, far = priced.costs, priced.costs.shape[1] - 1
    here = np.zeros((len(problems), longest), np.int64)
    there = np.full((len(problems), longest + max(m for _, m in lengths) + 2 * width), far)
    for index, (rows, columns) in enumerate(priced.places):
        here[index, : len(rows)] = rows
        there[index, band : band + len(columns)] = columns
    return lambda i: costs[here[:, i, None], there[:, i : i + width]]


def _trace_back(steps: npt.NDArray[np.uint8], band: int, i: int, j: int, m: int, n: int) -> Path:
    partner = np.full(m, -1, np.int64)
    partner[j:] = np.arange(n, n + m - j)
    reached, move = i, None
    while i > 0 or j > 0:
        step = int(steps[i, j - i + band])
        here = step & 3 if move is None else move
        if here == _DIAGONAL:
            length = _diagonals(steps[: i + 1, j - i + band])
            i, j, move = i - length, j - length, None
            partner[j : j + length] = np.arange(i, i + length)
        elif here == _VERTICAL:
            i, move = i - 1, None if step & _OPENS_VERTICAL else _VERTICAL
        else:
            j, move = j - 1, None if step & _OPENS_HORIZONTAL else _HORIZONTAL
    return Path(partner, reached)


def _diagonals(column: npt.NDArray[np.uint8]) -> int:
    """How many steps at the end of a column are diagonal; the first of a column is none."""
    size = _NARROW
    while True:
        others = np.flatnonzero(column[-size:][::-1] & 3)
        if len(others):
            return int(others[0])
        size *= 8
