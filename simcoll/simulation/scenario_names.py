"""The names of one scenario file: its ranks, groups, buffers and calls, as far as they have been read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from simcoll.simulation.scenario import WORLD, BufferPlan, GroupPlan
from simcoll.simulation.table import Table

WORLD_NAME = "world"
"""How a file names the group of all ranks."""

MAX_NAME = 80
"""Characters of a name."""


@dataclass(slots=True)
class Names:
    """What a file has named so far; ``world`` is how many ranks there are, ``calls`` has names and ops."""

    world: int
    groups: dict[str, GroupPlan] = field(default_factory=dict)
    buffers: dict[str, BufferPlan] = field(default_factory=dict)
    calls: set[str] = field(default_factory=set)

    def group(self, table: Table, key: str) -> str:
        """A group that there is."""
        name = table.text(key, choices=(*self.groups, WORLD_NAME))
        return WORLD if name == WORLD_NAME else name

    def buffer(self, table: Table, key: str) -> str:
        """A buffer that there is."""
        if not self.buffers:
            table.refuse(key, "names a buffer, but there is no [[buffers]]")
        return table.text(key, choices=self.buffers)

    def call(self, table: Table, key: str) -> str:
        """The name or the op of calls that there are; empty where the key is absent."""
        return table.text(key, choices=sorted(self.calls) or ("a call before this one",))


def new_name(table: Table, taken: Iterable[str]) -> str:
    """A name that nothing else of its kind has."""
    name = table.text("name")
    if not name or len(name) > MAX_NAME or name in taken:
        table.refuse("name", f"is {name!r:.60}, expected a name of its own of up to {MAX_NAME} characters")
    return name
