"""Reads the rows of a CSV file one after the other: what is held of a file does not grow with it.

The csv module itself reads on for as long as a quote does not end; a line, a cell and a row have bounds here.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from simcoll.core.io import open_at_once
from simcoll.core.units import counted
from simcoll.errors import UsageError

NEEDED = ("id", "model", "gpu", "gpus")
"""The columns without which nothing can be priced; all others may be left out."""

_MOST_BYTES = 1 << 20
"""Bytes of a row; a cell may have as many characters as the csv module allows, 131,072."""

_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs"}
_WIDE = (b"\xff\xfe", b"\xfe\xff")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class FileRow:
    """A row by its columns, and what is wrong with its cells (nothing: an empty text)."""

    cells: Mapping[str, str]
    problem: str = ""


def rows_of(path: Path) -> Iterator[FileRow]:
    """The rows of a file, without those that are empty.

    Raises UsageError, one line with the number of the file's line, for what is no such file; the rows before it were
    yielded then.
    """
    try:
        file = open_at_once(path)
    except OSError as error:
        raise _unread(path, error) from None
    with closing(file):
        lines = _Lines(path, file)
        cells = csv.reader(lines)
        columns = _columns(path, next(_rows(path, lines, cells), []))
        for row in _rows(path, lines, cells):
            problem = "" if len(row) == len(columns) else f"{counted(len(row), 'cell')} for {len(columns)} columns"
            yield FileRow(dict(zip(columns, row, strict=False)), problem)


class _Lines(Iterator[str]):
    """The lines of a file as text, as the csv module asks for them."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self.number = 0
        self.of_row = 0
        """Bytes since the last row has ended."""

    def __next__(self) -> str:
        try:
            line = self._file.readline(_MOST_BYTES + 1)
        except OSError as error:
            raise _unread(self._path, error) from None
        if not line:
            raise StopIteration
        if not self.number:
            if line.startswith(_WIDE):
                raise UsageError(f"{self._path}: UTF-16 text, expected UTF-8; save it as UTF-8")
            line = line.removeprefix(_BOM)
        self.number += 1
        self.of_row += len(line)
        if self.of_row > _MOST_BYTES:
            what = "a row of more than 1 MiB, perhaps of a quote that does not end"
            raise UsageError(f"{self._path}, line {self.number}: {what}; give a CSV file of measured steps")
        if b"\0" in line:
            raise UsageError(f"{self._path}, line {self.number}: a NUL byte; give a CSV file of measured steps")
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError as error:
            byte = line[error.start]
            raise UsageError(f"{self._path}, line {self.number}: byte 0x{byte:02x} is no UTF-8 text") from None


def _rows(path: Path, lines: _Lines, cells: Iterator[list[str]]) -> Iterator[list[str]]:
    """The rows that are not empty."""
    while True:
        first, lines.of_row = lines.number + 1, 0
        try:
            row = next(cells, None)
        except csv.Error as error:
            raise UsageError(f"{path}, line {first}: no CSV: {error}; is there a quote that does not end?") from None
        if row is None:
            return
        if any(cell.strip() for cell in row):
            yield row


def _columns(path: Path, header: Sequence[str]) -> list[str]:
    """The names of the columns; raises UsageError where one is there twice, or one that is needed is not there."""
    columns = [name.strip().lower() for name in header]
    twice = [name for name, count in Counter(columns).items() if count > 1 and name]
    if twice:
        raise UsageError(f"{path}: column {twice[0]!r:.40} is there twice; leave one of them out")
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        marks = [name for mark, name in _OTHER_SEPARATORS.items() if any(mark in column for column in columns)]
        separated = f" (it has {marks[0]}: separate columns by commas)" if marks else ""
        raise UsageError(f"{path}: has no column {missing[0]}{separated}; expected {', '.join(NEEDED)} and more")
    return columns


def _unread(path: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot read {path}: {error.strerror}; give a CSV file of measured steps")
