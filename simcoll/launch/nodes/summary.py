"""What a node says of its ranks each second: whether they moved, and where each of them is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from simcoll.blackbox.format import MAX_RANKS
from simcoll.blackbox.reader import BlackBox
from simcoll.blackbox.table import KnownEntries
from simcoll.blackbox.tail import BoxTail
from simcoll.core.io import printable
from simcoll.core.record import State
from simcoll.core.trace import record_at
from simcoll.launch.nodes.files import BOX, FileKey
from simcoll.launch.nodes.wire import WireError, Words, whole

_LONGEST_PLACE: Final = 120
_MOST_RANKS: Final = 4096
"""Of a node's ranks so many are described."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The last call of a rank in words: it ``waits`` in it for so many ``milliseconds``, or it ended so long ago."""

    text: str
    waits: bool = False
    milliseconds: int = 0


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """One summary. ``moves`` counts how often the node's ranks were seen to move, ``looks`` how often one looked.

    ``final`` says that the node's job has ended and its files change no more; ``places`` gives each rank's last call.
    """

    moves: int = 0
    looks: int = 0
    final: bool = False
    places: Mapping[int, RankPlace] = field(default_factory=dict)

    def words(self) -> Words:
        """As :meth:`of` reads it."""
        return {
            "moves": self.moves,
            "looks": self.looks,
            "final": self.final,
            "places": [[rank, one.text, one.waits, one.milliseconds] for rank, one in self.places.items()],
        }

    @classmethod
    def of(cls, words: Words) -> NodeSummary:
        """Check a peer's word; raises :class:`WireError`."""
        said = words.get("places")
        if not isinstance(said, list) or len(said) > _MOST_RANKS:
            raise WireError("expected the places of ranks")
        places = {}
        for entry in said:
            if not isinstance(entry, list) or len(entry) != 4 or whole(entry[0]) >= MAX_RANKS:
                raise WireError(f"expected a rank and its place, got {entry!r:.80}")
            text = printable(str(entry[1])[:_LONGEST_PLACE])
            places[entry[0]] = RankPlace(text, entry[2] is True, whole(entry[3]))
        return cls(whole(words.get("moves")), whole(words.get("looks")), words.get("final") is True, places)


class Places:
    """Follows the black boxes of this node's ranks; a look reads what they have added."""

    def __init__(self) -> None:
        self._known = KnownEntries()
        self._tails: dict[Path, BoxTail] = {}

    def look(self, files: Mapping[FileKey, Path]) -> dict[int, RankPlace]:
        """Each rank's last call."""
        places = {}
        for key, path in sorted(files.items())[:_MOST_RANKS]:
            if key.kind == BOX:
                tail = self._tails.setdefault(path, BoxTail(path, 1, self._known))
                tail.look()
                places[key.rank] = _place(tail.box())
        return places


def _place(box: BlackBox | None) -> RankPlace:
    record = None if box is None or not len(box.slots) else record_at(box, len(box.slots) - 1)
    if record is None:
        return RankPlace("in no call yet")
    number = f"message {record.p2p_sequence}" if record.p2p_sequence else f"collective {record.sequence}"
    text = f"{record.state.name.lower()} {record.call.op} ({number} of group {record.group})"
    waits = record.state in (State.SCHEDULED, State.STARTED) and record.awaited
    since = record.scheduled_ns if waits else record.finished_ns or record.scheduled_ns
    return RankPlace(text, waits, max(time.time_ns() - since, 0) // 1_000_000)
