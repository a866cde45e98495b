"""What protocols and launches add to the bare graph; none by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

_NONE: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Overheads:
    """Seconds to launch a collective; by kind of link (`topology.LINKS`), seconds that a step takes longer where it
    crosses one, and the part of the bandwidth that a protocol gets (1 where none is given).
    """

    launch: float = 0.0
    step: Mapping[str, float] = field(default_factory=lambda: _NONE)
    efficiency: Mapping[str, float] = field(default_factory=lambda: _NONE)


BARE = Overheads()
"""Nothing is added."""
