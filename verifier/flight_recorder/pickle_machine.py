"""A Flight Recorder pickle as it is read: the stack, the marks, the memo, and the limits of their sizes.

The entries of a dump are handed on one by one and forgotten (:class:`PickledEntries`); of a file that was cut, the
entries that are complete are read. Keys are texts or numbers, so that nothing nested is ever hashed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeAlias

ENTRIES: Final = "entries"
BYTES_LIMIT: Final = 64 << 20
"""Bytes of the file that may be held at once: all but the entries, and the objects that several entries share."""
OPCODE_LIMIT: Final = 1 << 23
"""Opcodes, each of which may make one object, that may be held likewise: as many as 50,000 entries take that Python's
own pickler wrote, which refers back to parts of each."""
CONTAINER_LIMIT: Final = 1 << 20
MEMO_LIMIT: Final = 1 << 21
_STEPS: Final = 1024
"""Opcodes between two looks at the limits."""
_LINE_LIMIT: Final = 1 << 16
_TOO_MUCH: Final = "its opcodes take more from the stack than they put there"
_STATED: Final = 5
"""Bytes that memoize under a stated number of four bytes."""
_ENTRY_DEPTH: Final = 3
"""Marks below an entry's values: of the dump's dict, of the list of entries, of the entry."""


class CutError(Exception):
    """The file ends before the pickle does."""


class UnsafeDumpError(Exception):
    """The file asks for something that no dump has; the text names it."""


class ForgottenError(Exception):
    """The file refers to a part of an entry that was not kept, because it was read together with others."""


class PickledEntries(Protocol):
    """The consumer of a dump's entries."""

    def take(self, entry: dict[object, object], stream: PickleStream) -> None:
        """One entry, which stood in the file from ``stream.began`` to ``stream.at``; may skip others."""
        ...


Handler: TypeAlias = "Callable[[PickleStream], object]"


class PickleStream:
    """A pickle being read: the stack, the places of marks in it, the memo.

    ``began`` is the place in the file of the entry that was handed on last. It is ``usual`` if it begins with its dict
    and memoizes everything under the next free number, as Python's pickler does with each container; ``memoized``
    counts that. Before protocol 4 the numbers are stated: ``stated`` has the offset of each, and its place among them.
    """

    def __init__(self, data: bytes, entries: PickledEntries) -> None:
        self.data = data
        self.at = 0
        self.began = 0
        self.usual = True
        self.memoized = 0
        self.stated: list[tuple[int, int]] = []
        self.stack: list[object] = []
        self.marks: list[int] = []
        self._spots: dict[int, tuple[int, int]] = {}
        self._puts = self._memoized = self._passed = 0
        self._usual = True
        self._ahead = False
        self._opened = (0, 0, 0, 0, 0)
        self._dict: dict[object, object] = {}
        self._items: list[object] = []
        self._memo: dict[int, object] = {}
        self._entries = entries
        self._begun = self._opened
        self._opcodes = 0
        self._containers = 0
        self._spared = 0
        self._stopped = False

    def read(self, handlers: Mapping[int, Handler]) -> object:
        """Read on with these opcodes to the end: the object that the pickle holds, its entries left out."""
        try:
            while not self._stopped:
                self.bounded()
                self._steps(self.data, handlers)
        except IndexError as error:
            # Only the file itself is ever indexed without a check.
            raise CutError from error
        return self.stack[-1] if self.stack else None

    def _steps(self, data: bytes, handlers: Mapping[int, Handler]) -> None:
        for _ in range(_STEPS):
            handler = handlers.get(data[self.at])
            if handler is None:
                raise UnsafeDumpError(refusal(data[self.at]))
            self.at += 1
            self._opcodes += 1
            handler(self)
            if self._stopped:
                return

    def salvage(self) -> dict[object, object]:
        """The keys and values of the outermost dict that are complete, of a file that was cut."""
        first = self.marks[0] if self.marks else 0
        last = self.marks[1] if len(self.marks) > 1 else len(self.stack)
        pairs = self.stack[first:last]
        whole: dict[object, object] = {}
        if first and isinstance(self.stack[first - 1], dict):
            whole.update(self.stack[first - 1])  # type: ignore[call-overload]
        whole.update((key, value) for key, value in zip(pairs[::2], pairs[1::2], strict=False) if type(key) is str)
        return whole

    def bounded(self) -> None:
        """Refuse a value that would take too much memory."""
        many = self._containers > CONTAINER_LIMIT or len(self._memo) > MEMO_LIMIT or self._opcodes > OPCODE_LIMIT
        if many or self.at - self._spared > BYTES_LIMIT:
            raise UnsafeDumpError("it would take more memory than any dump needs")

    def take(self, size: int) -> bytes:
        """The next bytes of the file."""
        end = self.at + size
        if end > len(self.data):
            raise CutError
        found = self.data[self.at : end]
        self.at = end
        return found

    def line(self) -> str:
        """The next line of the file, as the oldest pickles write values."""
        end = self.data.find(b"\n", self.at, self.at + _LINE_LIMIT)
        if end < 0:
            raise CutError
        found = self.data[self.at : end].decode("utf-8", "replace")
        self.at = end + 1
        return found

    def open(self, value: object) -> None:
        """Push a new container."""
        self._containers += 1
        self.stack.append(value)

    def open_dict(self) -> None:
        """Push a new dict, and remember it and where it began: it may be an entry."""
        self._opened = self.at - 1, self._puts, self._memoized, self._containers, self._opcodes
        self._dict = {}
        self.open(self._dict)

    def mark(self) -> None:
        """Remember the place at which the items of a container begin."""
        if len(self.marks) == 2 and self._in_entries():
            if self.stack[-1] is self._dict:
                self._begun = self._opened
            else:
                # A dict that was memoized stays behind with all items that it is given: the entry counts as kept.
                self._begun = self.at - 1, -1, self._memoized, self._containers, self._opcodes
            self.began = self._begun[0]
            self.stated = [one for one in self.stated if one[0] > self.began]
            # Between the dict and the mark there is room to memoize it, and for nothing else.
            self._usual = self.at - 2 - self.began <= (_STATED if self.stated else 1)
        self.marks.append(len(self.stack))
        self._containers += 1

    def popped(self) -> list[object]:
        """The items above the last mark, taken off the stack."""
        if not self.marks:
            raise UnsafeDumpError(_TOO_MUCH)
        first = self.marks.pop()
        items = self.stack[first:]
        del self.stack[first:]
        return items

    def above(self, size: int) -> list[object]:
        """The topmost items, which must lie above the last mark."""
        first = len(self.stack) - size
        if first < (self.marks[-1] if self.marks else 0):
            raise UnsafeDumpError(_TOO_MUCH)
        items = self.stack[first:]
        del self.stack[first:]
        return items

    def top(self) -> object:
        """The topmost item, which stays where it is."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise UnsafeDumpError(_TOO_MUCH)
        return self.stack[-1]

    def put(self, index: int) -> None:
        """Memoize the top of the stack."""
        self._ahead = self._ahead or index > self.free
        self._memo[index] = self.top()
        self._puts += 1

    def put_long(self, index: int) -> None:
        """Memoize the top of the stack under a number of four bytes."""
        if index != self.free:
            self.put(index)
            return
        self.stated.append((self.at - 4, self._memoized))
        self.memoize()

    def spot(self, offset: int, code: int) -> None:
        """Remember the opcode that pushes the next number, if that is a value of an entry."""
        if len(self.marks) == _ENTRY_DEPTH:
            self._spots[len(self.stack)] = offset, code

    def get(self, index: int) -> None:
        """Push a memoized object."""
        if index not in self._memo:
            if self._passed and index < self.free:
                raise ForgottenError
            raise UnsafeDumpError("it refers to what it does not hold")
        self.stack.append(self._memo[index])

    @property
    def free(self) -> int:
        """The number under which Python's pickler memoizes next."""
        return len(self._memo) + self._passed

    def memoize(self) -> None:
        """Memoize under the next free number."""
        self._memo[self.free] = self.top()
        self._memoized += 1

    def skip(self, end: int, memoized: int) -> None:
        """Go on behind entries that were read together and memoized so much under the next free numbers."""
        self.at = end
        self._passed += memoized

    def set_items(self) -> None:
        """Give a dict its items; a whole entry of the dump is handed on."""
        items = self.popped()
        holder = self.top()
        if not isinstance(holder, dict) or len(items) % 2:
            raise UnsafeDumpError("it sets items where there is no dict")
        for key in items[::2]:
            if type(key) is not str and type(key) is not int:
                raise UnsafeDumpError("a key of it is neither a text nor a number")
        holder.update(zip(items[::2], items[1::2], strict=True))
        self._items = items
        if len(self.marks) == 2 and len(self.stack) == self.marks[1] + 1 and self._in_entries():
            self._hand_on(holder)

    def append_items(self, items: list[object]) -> None:
        """Give a list its items."""
        holder = self.top()
        if not isinstance(holder, list):
            raise UnsafeDumpError("it appends where there is no list")
        holder += items

    def stop(self) -> None:
        """The end of the pickle."""
        self._stopped = True

    def _in_entries(self) -> bool:
        first = self.marks[1]
        return first >= 2 and isinstance(self.stack[first - 1], list) and self.stack[first - 2] == ENTRIES

    def numbers(self) -> dict[object, tuple[int, int]]:
        """The offset in the file and the opcode of each number of the entry that was handed on last, by key."""
        first, found = len(self.stack) + 1, {}
        for place in range(1, len(self._items), 2):
            spot = self._spots.get(first + place, (0, 0))
            if spot[0] > self.began and isinstance(self._items[place], (int, float)):
                found[self._items[place - 1]] = spot
        return found

    def _hand_on(self, entry: dict[object, object]) -> None:
        self.stack.pop()
        _, puts, memoized, containers, opcodes = self._begun
        kept = self._puts != puts or self._memoized != memoized
        self.memoized = self._memoized - memoized
        self.stated = [(offset, number - memoized) for offset, number in self.stated]
        # Numbers beyond the next free one, if there are any, may be those that come next.
        self.usual = self._usual and self._puts == puts and not (self._ahead and self.memoized)
        end = self.at
        self._entries.take(entry, self)
        self.stated = []
        if not kept:
            # None of its items stays behind.
            self._containers, self._opcodes = containers, opcodes
        self._spared += self.at - (end if kept else self.began)


def refusal(code: int) -> str:
    """The fault of an opcode that no dump has, in words."""
    if code in b"cioRb\x81\x82\x83\x84\x92\x93PQ":
        return "it names Python objects, which no dump does and which may run code; nothing was run"
    return f"opcode {code:#04x} has no place in a dump"
