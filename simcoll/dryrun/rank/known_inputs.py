"""What the ranks of a dry run gave to collectives, as far as it is little: the next pass works out results from it.

A rank alone writes its inputs of up to 256 numbers a call to a file of its own, up to 1 MiB. With the files of all
ranks that ran, a later pass answers a call by the table's own meaning. A member that did not run, or did not come to
the call, counts as the first one that did. Results are known where all members gave what they know themselves, and are
guesses still where not.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simcoll.errors import SimcollError
from simcoll.spec.call import Call
from simcoll.spec.semantics import Array, Outputs
from simcoll.spec.table import Kind, spec_of

_MOST_ELEMENTS = 256
_MOST_BYTES = 1 << 20
_MOST_OF_ALL = 1 << 28
"""Of all ranks of a job, in bytes."""

_KINDS = "biuf"
"""numpy's kinds of numbers that JSON has, exactly."""


@dataclass(frozen=True, slots=True)
class GivenInputs:
    """What one rank gave to a call, as JSON; ``guessed`` if that rests on values which nobody knew."""

    text: str
    guessed: bool


InputsByRank = Mapping[int, Mapping[str, GivenInputs]]
"""By rank and place of the call."""


@dataclass(frozen=True, slots=True)
class KnownInputs:
    """What ranks gave in the pass before; where not ``trusted``, all results are still said to be guesses."""

    given: InputsByRank
    trusted: bool = True


def inputs_name(rank: int) -> str:
    """The file of a rank's inputs."""
    return f"rank{rank:05d}.inputs"


def read_inputs(path: Path) -> dict[str, GivenInputs]:
    """What a rank gave, by place; a line that was cut short is left out, and a file that is not there is empty."""
    try:
        lines = path.read_text().splitlines(keepends=True)
    except (OSError, UnicodeDecodeError):
        return {}
    whole = [line.rstrip("\n").split(" ", 2) for line in lines if line.endswith("\n")]
    return {words[0]: GivenInputs(words[2], words[1] == "1") for words in whole if len(words) == 3}


class InputsFile:
    """A rank's own file, and what is known from the pass before."""

    def __init__(self, path: Path, world_size: int, known: KnownInputs | None) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._room = min(_MOST_BYTES, _MOST_OF_ALL // world_size)
        self._groups: dict[str, int] = {}
        self.known = known

    def of_group(self, members: Sequence[int], place: int) -> GroupInputs:
        """The side of one group, of which this rank has the given place; groups of the same members are numbered."""
        name = hashlib.blake2b(repr(list(members)).encode(), digest_size=12).hexdigest()
        self._groups[name] = number = self._groups.get(name, 0) + 1
        return GroupInputs(self, f"{name}.{number}", members, place)

    def write(self, line: str) -> None:
        """Add a line while there is room."""
        if (room := self._room - len(line)) >= 0:
            self._room = room
            os.write(self._file, line.encode())


class GroupInputs:
    """Writes what a rank gives to a group's calls, and answers them."""

    def __init__(self, all_of: InputsFile, name: str, members: Sequence[int], place: int) -> None:
        self._all = all_of
        self._name = name
        self._members = members
        self._place = place
        self._calls = 0

    def answer(self, call: Call, inputs: Sequence[Array], *, guessed: bool) -> tuple[Outputs, bool] | None:
        """What the call gives this rank and whether that is known; None where nothing is known of it."""
        spec = spec_of(call)
        if spec.kind is Kind.POINT_TO_POINT or spec.kind is Kind.SYNCHRONISATION or len(self._members) < 2:
            return None
        self._calls += 1
        if sum(buffer.elements for buffer in call.inputs) > _MOST_ELEMENTS:
            return None
        where = f"{self._name}.{self._calls}"
        sent = inputs if spec.sends_inputs(call, self._place) else ()
        if all(array.dtype.kind in _KINDS for array in sent):
            text = json.dumps([call.to_json(), [[array.dtype.name, array.tolist()] for array in sent]])
            self._all.write(f"{where} {int(guessed)} {text}\n")
        return None if self._all.known is None else self._worked_out(call, where, self._all.known)

    def _worked_out(self, call: Call, where: str, known: KnownInputs) -> tuple[Outputs, bool] | None:
        size, spec = len(self._members), spec_of(call)
        given = {place: known.given.get(rank, {}).get(where) for place, rank in enumerate(self._members)}
        came = {place: (*_read(one), one.guessed) for place, one in given.items() if one is not None}
        stated = spec.statement(call, self._place, size)
        came = {place: one for place, one in came.items() if spec.statement(one[0], place, size) == stated}
        first = next((one for one in came.values() if one[1]), None)
        if first is None or (len(came) < size and spec.flows(call, self._place, size) is not None):
            return None
        rows = [came.get(place, first) for place in range(size)]
        try:
            results = spec.result([row[0] for row in rows], [row[1] for row in rows])[self._place]
        except (ValueError, IndexError):
            return None  # what ranks state does not fit together
        sizes = [None if result is None else result.size for result in results]
        if any(size not in (None, buffer.elements) for size, buffer in zip(sizes, call.outputs, strict=True)):
            return None
        certain = known.trusted and len(came) == size and not any(row[2] for row in rows)
        return results, certain


def _read(given: GivenInputs) -> tuple[Call, list[Array]]:
    try:
        call, inputs = json.loads(given.text)
        return Call.from_json(call), [np.array(values, _dtype(name)) for name, values in inputs]
    except (ValueError, TypeError, OverflowError) as error:
        raise SimcollError(f"what a rank gave to a call cannot be read: {given.text!r:.80}") from error


def _dtype(name: str) -> np.dtype[np.generic]:
    dtype = np.dtype(str(name))
    if dtype.kind not in _KINDS:
        raise ValueError(f"dtype {name!r:.20}: expected one of numbers")
    return dtype
