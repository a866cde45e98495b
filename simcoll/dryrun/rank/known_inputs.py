"""The small inputs that ranks give to collectives: the next pass of the dry run computes results from them.

A rank writes its inputs of up to 256 numbers per call to a file of its own, up to 1 MiB. With the files of all ranks
that ran, the next pass computes a call's result as the table defines it. A member that did not run, or did not reach
the call, counts as equal to the first one that did. A result is certain where no member's inputs depend on guesses.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simcoll.errors import SimcollError
from simcoll.spec.call import Call
from simcoll.spec.collectives import spec_of
from simcoll.spec.semantics import Array, Outputs
from simcoll.spec.table import Kind

_MOST_ELEMENTS = 256
_MOST_BYTES = 1 << 20
_MOST_OF_ALL = 1 << 28
"""The limit for all ranks of a job, in bytes."""

_KINDS = "biuf"
"""numpy's kinds of numbers that JSON represents exactly."""


@dataclass(frozen=True, slots=True)
class GivenInputs:
    """The inputs of one rank to a call, as JSON; ``guessed`` if they depend on guessed values."""

    text: str
    guessed: bool


InputsByRank = Mapping[int, Mapping[str, GivenInputs]]
"""The inputs by rank and place of the call."""


@dataclass(frozen=True, slots=True)
class KnownInputs:
    """The inputs of the pass before; all results count as guessed unless ``trusted``."""

    given: InputsByRank
    trusted: bool = True

    def document(self) -> dict[str, object]:
        """The same as JSON has it, read back by :func:`known_inputs`."""
        given = [
            [rank, place, one.text, one.guessed]
            for rank, of_rank in self.given.items()
            for place, one in of_rank.items()
        ]
        return {"trusted": self.trusted, "given": given}


def known_inputs(document: Mapping[str, Any]) -> KnownInputs:
    """What :meth:`KnownInputs.document` wrote."""
    given: dict[int, dict[str, GivenInputs]] = {}
    for rank, place, text, guessed in document["given"]:
        given.setdefault(rank, {})[place] = GivenInputs(text, guessed)
    return KnownInputs(given, document["trusted"])


def inputs_name(rank: int) -> str:
    """The name of the file with a rank's inputs."""
    return f"rank{rank:05d}.inputs"


def read_inputs(path: Path) -> dict[str, GivenInputs]:
    """A rank's inputs by place; an incomplete line is left out, and a missing file counts as empty."""
    try:
        lines = path.read_text().splitlines(keepends=True)
    except (OSError, UnicodeDecodeError):
        return {}
    whole = [line.rstrip("\n").split(" ", 2) for line in lines if line.endswith("\n")]
    return {words[0]: GivenInputs(words[2], words[1] == "1") for words in whole if len(words) == 3}


class InputsFile:
    """A rank's own file of inputs, and the inputs of the pass before."""

    def __init__(self, path: Path, world_size: int, known: KnownInputs | None) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._room = min(_MOST_BYTES, _MOST_OF_ALL // world_size)
        self._groups: dict[str, int] = {}
        self.known = known

    def of_group(self, members: Sequence[int], place: int) -> GroupInputs:
        """The inputs of one group, in which this rank has the given place; groups of the same members are numbered."""
        name = hashlib.blake2b(repr(list(members)).encode(), digest_size=12).hexdigest()
        self._groups[name] = number = self._groups.get(name, 0) + 1
        return GroupInputs(self, f"{name}.{number}", members, place)

    def note_sent(self, name: str, data: bytes) -> None:
        """Add data that the rank sends by other means, so that the passes go on while it changes."""
        self.write(f"{name} 0 {hashlib.blake2b(data, digest_size=16).hexdigest()}\n")

    def write(self, line: str) -> None:
        """Add a line if there is room."""
        if (room := self._room - len(line)) >= 0:
            self._room = room
            os.write(self._file, line.encode())


class GroupInputs:
    """Writes a rank's inputs to a group's calls, and computes results from those of the pass before."""

    def __init__(self, all_of: InputsFile, name: str, members: Sequence[int], place: int) -> None:
        self._all = all_of
        self.name = name
        self._members = members
        self._place = place
        self._calls = 0

    def answer(self, call: Call, inputs: Sequence[Array], *, guessed: bool) -> tuple[Outputs, bool] | None:
        """The call's result on this rank and whether it is certain; None where it is unknown."""
        spec = spec_of(call)
        if spec.kind is Kind.POINT_TO_POINT or spec.kind is Kind.SYNCHRONISATION or len(self._members) < 2:
            return None
        self._calls += 1
        if sum(buffer.elements for buffer in call.inputs) > _MOST_ELEMENTS:
            return None
        where = f"{self.name}.{self._calls}"
        sent = inputs if spec.sends_inputs(call, self._place) else ()
        if (document := written_arrays(sent)) is not None:
            text = json.dumps([call.to_json(), document])
            self._all.write(f"{where} {int(guessed)} {text}\n")
        return None if self._all.known is None else self._result(call, where, self._all.known)

    def _result(self, call: Call, where: str, known: KnownInputs) -> tuple[Outputs, bool] | None:
        size, spec = len(self._members), spec_of(call)
        given = {place: known.given.get(rank, {}).get(where) for place, rank in enumerate(self._members)}
        present = {place: (*_read(one), one.guessed) for place, one in given.items() if one is not None}
        declared = spec.statement(call, self._place, size)
        present = {place: one for place, one in present.items() if spec.statement(one[0], place, size) == declared}
        first = next((one for one in present.values() if one[1]), None)
        if first is None or (len(present) < size and spec.flows(call, self._place, size) is not None):
            return None
        rows = [present.get(place, first) for place in range(size)]
        try:
            results = spec.result([row[0] for row in rows], [row[1] for row in rows])[self._place]
        except (ValueError, IndexError):
            return None  # the ranks' calls contradict each other
        sizes = [None if result is None else result.size for result in results]
        if any(size not in (None, buffer.elements) for size, buffer in zip(sizes, call.outputs, strict=True)):
            return None
        certain = known.trusted and len(present) == size and not any(row[2] for row in rows)
        return results, certain


def written_arrays(arrays: Sequence[Array]) -> list[object] | None:
    """A JSON form of arrays, read back by :func:`read_arrays`; None where JSON has no form of their numbers."""
    if not all(array.dtype.kind in _KINDS for array in arrays):
        return None
    return [[array.dtype.name, array.tolist()] for array in arrays]


def read_arrays(document: Sequence[tuple[str, object]]) -> list[Array]:
    """The arrays that :func:`written_arrays` wrote."""
    return [np.array(values, _dtype(name)) for name, values in document]


def _read(given: GivenInputs) -> tuple[Call, list[Array]]:
    try:
        call, inputs = json.loads(given.text)
        return Call.from_json(call), read_arrays(inputs)
    except (ValueError, TypeError, OverflowError) as error:
        raise SimcollError(f"what a rank gave to a call cannot be read: {given.text!r:.80}") from error


def _dtype(name: str) -> np.dtype[np.generic]:
    dtype = np.dtype(str(name))
    if dtype.kind not in _KINDS:
        raise ValueError(f"dtype {name!r:.20}: expected one of numbers")
    return dtype
