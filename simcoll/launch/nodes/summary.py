"""What a node says of its ranks each second: whether they moved, and where each of them is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from simcoll.blackbox.format import MAX_RANKS
from simcoll.blackbox.reader import BlackBox
from simcoll.blackbox.table import KnownEntries
from simcoll.blackbox.tail import BoxTail
from simcoll.core.clock import now_ns
from simcoll.core.io import printable
from simcoll.core.processes import Processes
from simcoll.core.record import State
from simcoll.core.trace import HANDED_ON, record_at
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
        self._processes = Processes()

    def look(self, files: Mapping[FileKey, Path]) -> dict[int, RankPlace]:
        """Each rank's last call."""
        tails = {}
        for key, path in sorted(files.items())[:_MOST_RANKS]:
            if key.kind == BOX:
                tails[key.rank] = self._tails.setdefault(path, BoxTail(path, 1, self._known))
                tails[key.rank].look()
        headers = [tail.header for tail in tails.values() if tail.header is not None]
        self._processes.look({header.pid: header.monotonic_ns for header in headers})
        return {rank: self._place(tail.box()) for rank, tail in tails.items()}

    def _place(self, box: BlackBox | None) -> RankPlace:
        asleep = box is not None and self._processes.asleep(box.host, box.pid)
        return _place(box, asleep=asleep)


def _place(box: BlackBox | None, *, asleep: bool) -> RankPlace:
    record = None if box is None or not len(box.slots) else record_at(box, len(box.slots) - 1)
    if box is None or record is None:
        return RankPlace("in no call yet")
    number = f"message {record.p2p_sequence}" if record.p2p_sequence else f"collective {record.sequence}"
    text = f"{record.state.name.lower()} {record.call.op} ({number} of group {record.group})"
    # Nobody sees the wait for a future that was taken, as in C++ by DDP.
    handed_on = bool(int(box.slots["flags"][-1]) & HANDED_ON) and (asleep or record.on_device)
    waits = record.state in (State.SCHEDULED, State.STARTED) and (record.awaited or handed_on)
    since = record.scheduled_ns if waits else record.finished_ns or record.scheduled_ns
    return RankPlace(text, waits, max(now_ns() - since, 0) // 1_000_000)
