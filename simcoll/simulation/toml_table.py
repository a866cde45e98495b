"""One table of a scenario file, read value by value: the type and bounds of each are checked.

An error names the file, the line and the key, the given and the expected value. An unknown key is refused with the
nearest known one. :class:`Names` has the groups, buffers and calls of the file that have been read so far.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeGuard

from simcoll.core.documents import Place
from simcoll.core.ranges import parse_ranks
from simcoll.core.toml import TomlDocument, spelled
from simcoll.simulation.keys import KEYS
from simcoll.simulation.scenario import WORLD, BufferPlan, GroupPlan, ScenarioError

WORLD_NAME = "world"
"""The name of the group of all ranks."""

MAX_NAME = 80
"""The most characters of a name."""


@dataclass(slots=True)
class Names:
    """The names of a file that have been read so far; ``world`` is the number of ranks, ``calls`` has names and ops."""

    world: int
    groups: dict[str, GroupPlan] = field(default_factory=dict)
    buffers: dict[str, BufferPlan] = field(default_factory=dict)
    calls: set[str] = field(default_factory=set)

    def group(self, table: ScenarioTable, key: str) -> str:
        """The name of an existing group."""
        name = table.text(key, choices=(*self.groups, WORLD_NAME))
        return WORLD if name == WORLD_NAME else name

    def buffer(self, table: ScenarioTable, key: str) -> str:
        """The name of an existing buffer."""
        if not self.buffers:
            table.refuse(key, "names a buffer, but there is no [[buffers]]")
        return table.text(key, choices=self.buffers)

    def call(self, table: ScenarioTable, key: str) -> str:
        """The name or the op of existing calls; empty where the key is absent."""
        return table.text(key, choices=sorted(self.calls) or ("a call before this one",))


def new_name(table: ScenarioTable, taken: Iterable[str]) -> str:
    """A name that is unique among its kind."""
    name = table.text("name")
    if not name or len(name) > MAX_NAME or name in taken:
        table.refuse("name", f"is {name!r:.60}, expected a name of its own of up to {MAX_NAME} characters")
    return name


MAX_DIMENSIONS = 8
MAX_ELEMENTS = 1 << 26
"""The most elements of one tensor: simulated ranks have real arrays."""

MAX_NUMBER = 1 << 40
_SHOWN = 60
_LONGEST_RANKS = 4096
"""The most characters of a text of ranks."""


class ScenarioTable:
    """A table at a place of the document; ``kind`` is its entry of :data:`~simcoll.simulation.keys.KEYS`."""

    def __init__(self, document: TomlDocument, place: Place, kind: str, value: object) -> None:
        self._document = document
        self.place = place
        self.kind = kind
        if not isinstance(value, Mapping):
            self._refuse_value(place, value, f"a table such as [{spelled(place)}]")
        self._value = value
        known = [key.name for key in KEYS[kind]]
        for key in value:
            if key not in known:
                raise self._error(key, f"is no key of {_titled(kind)}{nearest(key, known)}")
        for needed in KEYS[kind]:
            if needed.needed and needed.name not in value and not self._is_loop:
                raise self._error("", f"{_titled(kind)} needs the key `{needed.name}`: {needed.meaning}")

    @property
    def _is_loop(self) -> bool:
        """True if the table is a repeat, which has calls in place of an op."""
        return self.kind == "calls" and "repeat" in self._value

    @property
    def line(self) -> int:
        """The line at which the table begins."""
        return self._document.line(self.place)

    def line_of(self, key: str) -> int:
        """The line of a key."""
        return self._document.line((*self.place, key))

    def has(self, key: str) -> bool:
        """True if the file has the key."""
        return key in self._value

    @property
    def given(self) -> Sequence[str]:
        """The keys that the file has."""
        return list(self._value)

    def text(self, key: str, default: str = "", choices: Iterable[str] = (), *, lines: bool = False) -> str:
        """A printable text: one line unless ``lines``; one of ``choices`` if there are any."""
        value = self._value.get(key, default)
        if not isinstance(value, str):
            self._refuse(key, "a text in quotes")
        if not (value.replace("\n", " ").replace("\t", " ") if lines else value).isprintable():
            self._refuse(key, "a text that can be printed")
        choices = list(choices)
        if choices and value not in choices and key in self._value:
            close = nearest(value, choices)
            raise self._error(key, f"is {_shown(value)}{close or f', expected one of {_listed(choices)}'}")
        return value

    def whole(self, key: str, default: int = 0, least: int = 0, most: int = MAX_NUMBER) -> int:
        """A whole number within bounds."""
        value = self._value.get(key, default)
        if key in self._value and (not _is_whole(value) or not least <= value <= most):
            self._refuse(key, f"a whole number from {least:,} to {most:,}")
        return int(value)

    def number(self, key: str, default: float = 0.0, *, above: float = -1e-300, most: float = 1e9) -> float:
        """A number greater than ``above``."""
        value = self._value.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not above < value <= most:
            self._refuse(key, f"a number {'above' if above >= 0 else 'of at least'} 0, at most {most:,g}")
        return float(value)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self._value.get(key, default)
        if not isinstance(value, bool):
            self._refuse(key, "true or false")
        return value

    def ranks(self, key: str, world: int, *, empty: bool = False) -> tuple[int, ...]:
        """Global ranks in the order of the file, from a number, a list, or a text of ranges."""
        value = self._value.get(key)
        expected = f'ranks below {world}, as 2, [0, 3] or "0-3,7"'
        if isinstance(value, str):
            try:
                value = parse_ranks(value if len(value) <= _LONGEST_RANKS else "")
            except ValueError:
                self._refuse(key, expected)
        found = value if isinstance(value, list) else [value]
        if not all(_is_whole(rank) and 0 <= rank < world for rank in found) or not (found or empty):
            self._refuse(key, expected)
        if len(set(found)) < len(found):
            self._refuse(key, "each rank once")
        return tuple(found)

    def rank_set(self, key: str, world: int) -> frozenset[int] | None:
        """Global ranks; None where the key is absent."""
        return frozenset(self.ranks(key, world)) if key in self._value else None

    def shape(self, key: str) -> tuple[int, ...]:
        """A shape; a number means one dimension."""
        return self._shape(key, self._value.get(key))

    def shapes(self, key: str) -> tuple[tuple[int, ...], ...]:
        """A list of shapes."""
        value = self._value.get(key)
        if not isinstance(value, list) or not 0 < len(value) <= 1024:
            self._refuse(key, "a list of up to 1,024 shapes, such as [[4], [20, 10]]")
        found = tuple(self._shape(key, shape) for shape in value)
        if sum(map(math.prod, found)) > MAX_ELEMENTS:
            self._refuse(key, f"at most {MAX_ELEMENTS:,} elements together")
        return found

    def _shape(self, key: str, value: object) -> tuple[int, ...]:
        sizes = value if isinstance(value, list) else [value]
        if len(sizes) > MAX_DIMENSIONS or not all(_is_whole(size) and size >= 0 for size in sizes):
            self._refuse(key, f"a shape of up to {MAX_DIMENSIONS} dimensions, such as [20, 10]")
        if math.prod(sizes) > MAX_ELEMENTS:
            self._refuse(key, f"at most {MAX_ELEMENTS:,} elements: simulated ranks have real arrays")
        return tuple(sizes)

    def wholes(self, key: str, *, least: int = 0, most: int = MAX_ELEMENTS) -> tuple[int, ...] | None:
        """A list of whole numbers; None where the key is absent."""
        value = self._value.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > 1 << 16 or not all(map(_is_whole, value)):
            self._refuse(key, "a list of whole numbers, such as [2, 2, 4]")
        if not all(least <= number <= most for number in value):
            self._refuse(key, f"whole numbers from {least:,} to {most:,}")
        return tuple(value)

    def raw(self, key: str) -> object:
        """The unchecked value; None where it is absent."""
        return self._value.get(key)

    def table(self, key: str) -> ScenarioTable | None:
        """A table in this one; None where it is absent."""
        return (
            ScenarioTable(self._document, (*self.place, key), self._inner(key), self._value[key])
            if self.has(key)
            else None
        )

    def tables(self, key: str) -> list[ScenarioTable]:
        """The tables of a list."""
        value = self._value.get(key, [])
        if not isinstance(value, list):
            self._refuse(key, f"tables that begin with [[{spelled((*self.place, key))}]]")
        return [
            ScenarioTable(self._document, (*self.place, key, position), self._inner(key), each)
            for position, each in enumerate(value)
        ]

    def _inner(self, key: str) -> str:
        """The kind of the tables under a key; calls may contain calls, and overrides have the keys of calls."""
        if key in ("calls", "parameters"):
            return "calls" if key == "calls" else "calls.parameters"
        return f"{self.kind}.{key}".lstrip(".")

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Raise an error about a key, or with an empty key about the table; ``problem`` follows its name."""
        raise self._error(key, problem)

    def _refuse(self, key: str, expected: str) -> NoReturn:
        self._refuse_value((*self.place, key), self._value.get(key), expected)

    def _refuse_value(self, place: Place, value: object, expected: str) -> NoReturn:
        raise ScenarioError(str(self._document.error(place, f"is {_shown(value)}, expected {expected}")))

    def _error(self, key: str, problem: str) -> ScenarioError:
        if not key and self.place:
            problem = f": {problem}"
        return ScenarioError(str(self._document.error((*self.place, key) if key else self.place, problem)))


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean ...?``, or an empty text where no known name is similar."""
    found = difflib.get_close_matches(name[:_SHOWN], list(known), n=1)
    return f"; did you mean `{found[0]}`?" if found else ""


def _titled(kind: str) -> str:
    return f"[{kind}]" if kind in ("topology", "expect") else f"[[{kind}]]" if kind else "a scenario"


def _listed(choices: Sequence[str]) -> str:
    return ", ".join(choices)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: object) -> str:
    """A value in TOML's spelling, shortened."""
    if value is None:
        return "absent"
    if isinstance(value, bool):
        return str(value).lower()
    text = ascii(value) if isinstance(value, str) else f"{value!r:.200}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
