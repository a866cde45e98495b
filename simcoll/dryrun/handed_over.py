"""What a process that has run ranks of a dry run hands over to the one that judges them: their ends, and their files.

The files of a rank are its black box, the end of its output, and its inputs to calls; they travel as zip archives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZipFile

from simcoll.core.io import make_sparse
from simcoll.dryrun.endings import ProcessEnd
from simcoll.dryrun.rank.known_inputs import inputs_name
from simcoll.dryrun.rank.settings import log_name
from simcoll.recorder.recorder import box_name

_LOG_BYTES = 1 << 20
"""Of a rank's output, so much of the end is handed over."""


def new_archive(stream: IO[bytes]) -> ZipFile:
    """An archive that is written to a stream."""
    return ZipFile(stream, "w", ZIP_DEFLATED, compresslevel=1)


def pack(archive: ZipFile, folder: Path, rank: int) -> None:
    """Move the files of a rank, those that it has left, from a folder into an archive."""
    for path in (folder / name for name in (box_name(rank), log_name(rank), inputs_name(rank))):
        if path.exists():
            data = path.read_bytes()
            archive.writestr(path.name, data[-_LOG_BYTES:] if path.name == log_name(rank) else data)
            path.unlink()


def unpack(archive: ZipFile, folder: Path, rank: int) -> None:
    """Write the files of a rank from an archive into a folder."""
    for name in {box_name(rank), log_name(rank), inputs_name(rank)}.intersection(archive.namelist()):
        (folder / name).write_bytes(archive.read(name))
        if name == box_name(rank):
            make_sparse(folder / name)


def account_of(ends: Mapping[int, ProcessEnd], *, shared: bool) -> dict[str, object]:
    """The ends of ranks, and whether they have left something for others, as JSON; :meth:`RanPlaces.add` reads it."""
    return {"ends": [[rank, *astuple(end)] for rank, end in ends.items()], "shared": shared}


@dataclass(slots=True)
class RanPlaces:
    """The places at which ranks have run, such as processes: ranks of one place find what others have left there."""

    _known: set[object] = field(default_factory=set)
    _shared: bool = False

    def add(self, place: object, account: Mapping[str, Any]) -> dict[int, ProcessEnd]:
        """Take in the account of what one place has run; returns the ends of its ranks."""
        ends = {int(rank): ProcessEnd(*end) for rank, *end in account["ends"]}
        if ends:
            self._known.add(place)
        self._shared |= account["shared"]
        return ends

    def were_parted(self) -> bool:
        """True once ranks have left something for others, and not all ran at one place."""
        return self._shared and len(self._known) > 1
