"""The black box's header page: the writer of the file, its time, and the places of its parts."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from simcoll.blackbox import format as layout
from simcoll.blackbox.table import CommonData, KnownEntries, encode
from simcoll.core.clock import AHEAD_NS
from simcoll.core.io import opened_record
from simcoll.core.source_roots import own_roots
from simcoll.core.steps import MARKS
from simcoll.core.versions import version_of
from simcoll.errors import UnreadableError

_LONGEST_JOB_NS = 10 * 366 * 86_400 * 10**9
_CLOCK_SET_BACK_NS = 86_400 * 10**9
_MOST_LOST = 1 << 40
"""No job loses so many entries: more is damage, for the count stands outside of the checksum."""

_MOST_STEPS = 1 << 40

_FIELDS = [name for name, _ in layout.HEADER_FIELDS]
_FIRST_FIELDS = [name for name, _ in layout.FIRST_HEADER_FIELDS]
_NO_MARKS = {"marks_offset": 0, "mark_count": 0}
_OWN = ("rank", "pid", "wall_ns", "monotonic_ns", "header_crc")
"""The fields of the page in which the ranks of a job differ, as do the counters."""
_WIDTHS = [(name, code, Struct(code).size) for name, code in layout.HEADER_FIELDS]
_OWN_FIELDS = Struct("<" + "".join(code if name in _OWN else f"{width}x" for name, code, width in _WIDTHS))
_OWN_PLACES = (
    *((layout.offset_of(layout.HEADER_FIELDS, name), width) for name, _, width in _WIDTHS if name in _OWN),
    (layout.COUNTERS_OFFSET, layout.COUNTERS.size),
)

_ABOUT_SIZE = layout.offset_of(layout.HEADER_FIELDS, "about_size")
_FIRST = layout.FIRST_VERSION.to_bytes(4, "little")

_MOST_SHAPES = 4096
"""So many are kept: ranks may all have arguments of their own."""

_NAMED = ("simcoll", "torch", "numpy")
"""The distributions whose versions a box states."""


# Not frozen, as what is made for each of thousands of ranks: that takes several times as long.
@dataclass(slots=True)
class Header:
    """The header page, checked: every size is within the format's bounds. Times are nanoseconds."""

    rank: int
    pid: int
    wall_ns: int
    monotonic_ns: int
    lost: int
    closed_ns: int
    dumped_ns: int
    steps: int
    world_size: int
    attempt: int
    slot_count: int
    group_count: int
    ring_offset: int
    table_offset: int
    marks_offset: int
    mark_count: int
    mode: str
    about: Mapping[str, object]
    damaged: bool

    @property
    def host(self) -> str:
        """The name of the rank's host; empty where the record does not have it."""
        name = self.about.get("host")
        return name if isinstance(name, str) else ""


class HeaderShape(NamedTuple):
    """What the headers of many ranks have in common: the last fields of a :class:`Header`, in its order."""

    world_size: int
    attempt: int
    slot_count: int
    group_count: int
    ring_offset: int
    table_offset: int
    marks_offset: int
    mark_count: int
    mode: str
    about: Mapping[str, object]
    damaged: bool


def pack_header(rank: int, world_size: int, mode: str, slots: int) -> bytes:
    """The header page of a new black box of this process."""
    about, made_ns = _about(), time.monotonic_ns()
    ring = layout.ring_offset(layout.GROUP_ROWS)
    values = {
        "magic": layout.MAGIC,
        "version": layout.VERSION,
        "header_size": layout.PAGE,
        "slot_size": layout.SLOT.size,
        "slot_count": slots,
        "group_size": layout.GROUP.size,
        "group_count": layout.GROUP_ROWS,
        "groups_offset": layout.PAGE,
        "ring_offset": ring,
        "table_offset": ring + slots * layout.SLOT.size,
        "rank": rank,
        "world_size": world_size,
        "pid": os.getpid(),
        "attempt": _restart_count(),
        "wall_ns": made_ns + AHEAD_NS,
        "monotonic_ns": made_ns,
        "mode": mode.encode("ascii", "replace")[:8],
        "about_size": len(about),
        "about_crc": zlib.crc32(about),
        "marks_offset": layout.marks_offset(layout.GROUP_ROWS),
        "mark_count": MARKS,
        "header_crc": 0,
    }
    fields = layout.HEADER.pack(*(values[name] for name, _ in layout.HEADER_FIELDS))[: layout.HEADER_CRC_OFFSET]
    fields += zlib.crc32(fields).to_bytes(4, "little")
    return fields.ljust(layout.ABOUT_OFFSET, b"\0") + about


def unpack_header(page: bytes, name: str, known: KnownEntries | None = None) -> Header:
    """Read a header page; ``name`` is the file's, for the text of :class:`UnreadableError`.

    ``known`` has what the pages of other files state, and takes in what this one states: pages that differ in what
    ranks differ in alone are checked and read once.
    """
    if known is None or len(page) != layout.PAGE:
        return _unpacked(page, name, KnownEntries() if known is None else known)[0]
    alike = _alike(page)
    shape = known.shapes.get(alike)
    rank, pid, wall, monotonic, crc = _OWN_FIELDS.unpack_from(page)
    sound = zlib.crc32(page[: layout.HEADER_CRC_OFFSET]) == crc
    if shape is None or not sound or rank >= shape.world_size:
        header, shape = _unpacked(page, name, known)
        # A page of the first version has other fields in these places.
        if sound and page[8:12] != _FIRST and len(known.shapes) < _MOST_SHAPES:
            known.shapes[alike] = shape
        return header
    return _header(shape, rank, pid, wall, monotonic, *layout.COUNTERS.unpack_from(page, layout.COUNTERS_OFFSET))


def _header(shape: HeaderShape, rank: int, pid: int, wall_ns: int, monotonic_ns: int, *counters: int) -> Header:
    """The header of a page of a known shape; ``counters`` are those of the format, in its order."""
    lost, closed, dumped, steps = counted(wall_ns, *counters)
    return Header(rank, pid, wall_ns, monotonic_ns, lost, closed, dumped, steps, *shape)


def _alike(page: bytes) -> bytes:
    """A page up to its end but for what ranks differ in: the key of its shape, as ``_reader.c`` makes it too."""
    size = int.from_bytes(page[_ABOUT_SIZE : _ABOUT_SIZE + 4], "little")
    alike = bytearray(page[: layout.ABOUT_OFFSET + size])
    for begin, width in _OWN_PLACES:
        alike[begin : begin + width] = bytes(width)
    return bytes(alike)


def _unpacked(page: bytes, name: str, known: KnownEntries) -> tuple[Header, HeaderShape]:
    version = _version(page, name)
    if version == layout.FIRST_VERSION:
        values = dict(zip(_FIRST_FIELDS, layout.FIRST_HEADER.unpack_from(page), strict=True)) | _NO_MARKS
    else:
        values = dict(zip(_FIELDS, layout.HEADER.unpack_from(page), strict=True))
    _check_sizes(values, page, name)
    blob = page[layout.ABOUT_OFFSET : layout.ABOUT_OFFSET + values["about_size"]]
    about = _read_about(blob, known.abouts) if zlib.crc32(blob) == values["about_crc"] else None
    mode = values["mode"].rstrip(b"\0").decode("ascii", "replace")
    sizes = {name: values[name] for name in HeaderShape._fields if name in values and name != "mode"}
    shape = HeaderShape(**sizes, mode=mode, about=about or {}, damaged=about is None)
    rank, pid, wall, monotonic = (values[name] for name in _OWN[:-1])
    counters = layout.COUNTERS.unpack_from(page, layout.COUNTERS_OFFSET)
    return _header(shape, rank, pid, wall, monotonic, *counters), shape


def counted(wall_ns: int, lost: int, closed_ns: int, dumped_ns: int, steps: int) -> tuple[int, int, int, int]:
    """The counters, 0 for those that cannot be right: they stand outside the checksum."""
    return (
        lost if lost <= _MOST_LOST else 0,
        _moment(closed_ns, wall_ns),
        _moment(dumped_ns, wall_ns),
        steps if steps <= _MOST_STEPS else 0,
    )


def created_ns(path: Path) -> int:
    """The time at which a black box was created (wall clock, ns); 0 for a file that is none, or is not there."""
    try:
        with opened_record(str(path), "a black box") as fd:
            return unpack_header(os.read(fd, layout.PAGE), path.name).wall_ns
    except UnreadableError:
        return 0


def _moment(time_ns: int, created_ns: int) -> int:
    """A time that stands outside the checksum; 0 where it cannot be one of this job's."""
    return time_ns if -_CLOCK_SET_BACK_NS <= time_ns - created_ns <= _LONGEST_JOB_NS else 0


def _version(page: bytes, name: str) -> int:
    """The version of a page that is the header of a black box; raises :class:`UnreadableError` for any other."""
    if not page.startswith(layout.MAGIC):
        found = "an empty file" if not page else f"a file that begins with {page[:8]!r}"
        raise UnreadableError(
            f"{name}: found {found}, expected a black box or a Flight Recorder dump; give what a job left"
        )
    if len(page) < layout.PAGE:
        raise UnreadableError(
            f"{name}: found {len(page)} bytes, expected a header of {layout.PAGE}; the file was cut, copy it again"
        )
    version = int.from_bytes(page[8:12], "little")
    if not layout.FIRST_VERSION <= version <= layout.VERSION:
        raise UnreadableError(
            f"{name}: found black box format {version}, expected {layout.FIRST_VERSION} to {layout.VERSION}; "
            "read it with the version of simcoll that wrote it"
        )
    return version


def _check_sizes(values: Mapping[str, int], page: bytes, name: str) -> None:
    """Refuse a header whose sizes no writer makes, before anything is read or allocated by them."""
    header = layout.FIRST_HEADER if values["version"] == layout.FIRST_VERSION else layout.HEADER
    sound = (
        values["header_crc"] == zlib.crc32(page[: header.size - 4])
        and values["header_size"] == layout.PAGE == values["groups_offset"]
        and values["slot_size"] == layout.SLOT.size
        and values["group_size"] == layout.GROUP.size
        and layout.MIN_SLOTS <= values["slot_count"] <= layout.MAX_SLOTS
        and values["group_count"] <= layout.MAX_GROUP_ROWS
        and values["mark_count"] <= MARKS
        and values["marks_offset"] in (0, layout.marks_offset(values["group_count"]))
        and values["ring_offset"] == layout.ring_offset(values["group_count"], values["mark_count"])
        and values["table_offset"] == values["ring_offset"] + values["slot_count"] * layout.SLOT.size
        and values["about_size"] <= layout.ABOUT_LIMIT
        and values["rank"] < max(values["world_size"], 1) <= layout.MAX_RANKS
    )
    if not sound:
        raise UnreadableError(
            f"{name}: found a header whose checksum or sizes are wrong, expected a sound one; the file is damaged, "
            "leave it out or copy it again"
        )


def _read_about(blob: bytes, known: dict[bytes, CommonData]) -> Mapping[str, object] | None:
    """What a process says of itself: one object for processes of one host that say the same."""
    if blob in known:
        return known[blob]
    try:
        about = json.loads(blob)
    except (ValueError, RecursionError):
        return None
    return known.setdefault(blob, CommonData(about)) if isinstance(about, dict) else None


def _restart_count() -> int:
    """The number of the attempt of an elastic job, as the agent tells its ranks."""
    text = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(text) if text.isdecimal() and len(text) < 9 else 0


def _run_id() -> str:
    """Returns an identifier of the run that all ranks of the job share; empty where no launcher sets one."""
    known = os.environ.get("TORCHELASTIC_RUN_ID")
    if known is None and "SLURM_PROCID" in os.environ:
        names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
        return "slurm " + ".".join(os.environ.get(name, "0") for name in names)
    return known or ""


def _about() -> bytes:
    """Describes the writing process as JSON that fits the header page; a long command line is cut from its end.

    Its ``roots`` are left out where they do not fit either.
    """
    argv, roots = [argument[:500] for argument in sys.argv], own_roots().document()
    while True:
        document = {
            "host": socket.gethostname(),
            "run": _run_id()[:200],
            "python": platform.python_version(),
            "versions": {name: version for name in _NAMED if (version := version_of(name)) is not None},
            "roots": roots,
            "argv": argv,
        }
        encoded = encode(document)
        if len(encoded) <= layout.ABOUT_LIMIT or not (argv or roots):
            return encoded
        argv, roots = argv[:-1], roots if argv else {}
