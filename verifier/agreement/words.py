"""What each recorded call says: its word in the check, and its token in the alignment of the ranks' sequences."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Source
from simcoll.spec.call import Call
from simcoll.spec.checksum import joined_word, statement_digest
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.table import Kind, Statement
from simcoll.verifier.findings.known_fields import flow_sum, known_statement

_MASK = (1 << 64) - 1

STATEMENT, OUTLINE, OP, LINE = range(4)
"""The columns of :meth:`Words.features`."""


@dataclass(frozen=True, slots=True)
class Word:
    """What one rank's call says: its word, its statement's digest (0 where flows speak as well), and its statement.

    ``stated`` counts the distinct statements of all traces. ``even`` says that the word is the statement's alone: where
    all ranks of a group state the same, such words add up to zero.
    """

    whole: int
    digest: int
    stated: int
    even: bool


@dataclass(slots=True)
class Words:
    """Words by call, group rank and group size; calls that are equal in several traces count once.

    A *token* is a statement and the line of the program that made it, as a small number: ranks whose calls agree and
    come from one line have one token, whatever their flows. ``unknown`` fields are left out of all calls.
    """

    unknown: frozenset[str] = frozenset()
    _calls: dict[Call, int] = field(default_factory=dict)
    _known: dict[int, tuple[int, Call]] = field(default_factory=dict)
    _words: dict[tuple[int, int, int], Word] = field(default_factory=dict)
    _statements: dict[Statement, tuple[int, int]] = field(default_factory=dict)
    _outlines: dict[object, int] = field(default_factory=dict)
    _ops: dict[str, int] = field(default_factory=dict)
    _lines: dict[tuple[str, int], int] = field(default_factory=dict)
    _tokens: dict[tuple[int, int], int] = field(default_factory=dict)
    _kinds: list[tuple[int, int]] = field(default_factory=list)
    _made: dict[tuple[int, Source], int] = field(default_factory=dict)

    def of(self, call: Call, group_rank: int, size: int) -> Word:
        """The word of a call, computed at its first use."""
        key = (self._number(call), group_rank, size)
        if key not in self._words:
            self._words[key] = self._word(call, group_rank, size)
        return self._words[key]

    def _number(self, call: Call) -> int:
        """Which call it is. The ranks' traces share the objects of equal calls: one that is held is known by its id."""
        known = self._known.get(id(call))
        if known is None:
            known = self._known[id(call)] = self._calls.setdefault(call, len(self._calls)), call
        return known[0]

    def token(self, word: Word, source: Source) -> int:
        """The token of a call that says this and was made there."""
        line = self._lines.setdefault((source.file, source.line), len(self._lines))
        return self._tokens.setdefault((word.stated, line), len(self._tokens))

    def call(self, call: Call, source: Source) -> int:
        """A number for a call and the line that made it, equal where both are."""
        return self._made.setdefault((self._number(call), source), len(self._made))

    def features(self) -> npt.NDArray[np.int64]:
        """One row a token, in numbers that are equal where these are: statement, its outline, its op, the line.

        The outline of a statement is all of it but shapes and memory orders, which ranks may state differently.
        """
        rows = [(stated, *self._kinds[stated], line) for stated, line in self._tokens]
        return np.array(rows, np.int64).reshape(-1, 4)

    def nowhere(self) -> list[int]:
        """The numbers in :data:`LINE` of what no known line made."""
        return [number for (file, _), number in self._lines.items() if not file]

    def carries(self) -> npt.NDArray[np.bool_]:
        """Whether a call moves data, by token."""
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
        return Word(joined_word(digest, flows, group_rank, size), digest if says_all else 0, number, flows == 0)

    def _kind(self, statement: Statement) -> tuple[int, int]:
        contents = tuple(replace(content, shape=None, order=None) for content in statement.contents)
        outline = replace(statement, contents=contents, valid=True)
        return (
            self._outlines.setdefault(outline, len(self._outlines)),
            self._ops.setdefault(statement.op, len(self._ops)),
        )
