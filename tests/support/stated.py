"""Reads the first lines of a planted program: ``# expect: SC104 culprits=2,5-7 ranks=8``, and the place of its bug."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from simcoll.core.ranges import parse_ranks

MARK = "# <- bug"


@dataclass(frozen=True)
class Stated:
    """One such line: ``ranks`` is the job's size, or several."""

    header: str

    @property
    def code(self) -> str:
        return self.header.split()[2]

    @property
    def culprits(self) -> tuple[int, ...]:
        return tuple(parse_ranks(text)) if (text := self.value("culprits")) else ()

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.value("ranks").split(","))

    def value(self, name: str) -> str:
        """What follows ``name=``; the empty string where it is not stated."""
        found = re.search(rf"\b{name}=(\S*)", self.header)
        return found.group(1) if found else ""


def stated(path: Path, word: str) -> list[Stated]:
    """The lines of a program that begin with ``# word:``."""
    return [Stated(line) for line in path.read_text().splitlines() if line.startswith(f"# {word}: ")]


def marked_line(path: Path) -> int:
    """The number of the line that is marked as the bug."""
    [line] = [number for number, text in enumerate(path.read_text().splitlines(), 1) if text.endswith(MARK)]
    return line
