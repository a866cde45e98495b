"""The line of the user's program in the frames of a Flight Recorder entry, which another machine wrote.

The rule of :mod:`simcoll.recorder.source`, by the shape of the paths: frames of torch, of simcoll, of Python's library
and of C++ are passed over; installed packages count where no frame of the user's own code is found.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

from simcoll.core.record import UNKNOWN_SOURCE, Source
from simcoll.core.source_roots import INSTALLED, OWN, SKIP

_FILE_LIMIT: Final = 1 << 16
_PATH_LIMIT: Final = 4096
_FRAME_LIMIT: Final = 1 << 25
"""Frames that are looked at in one dump: in a pickle, all entries can share one list of any length."""
_PACKAGES: Final = ("/site-packages/", "/dist-packages/")
_PASSED_OVER: Final = re.compile(r"/(site|dist)-packages/(torch|simcoll)/|^<|\.(cpp|cc|cxx|c|cu|h|hpp|so[.\d]*)$|^\?*$")
_LIBRARY: Final = re.compile(r"/lib(64)?/python\d[.\d]*/")
_TORCHS: Final = re.compile(r"(.*/torch/)distributed/(distributed_c10d|c10d_logger)\.py")


class Frames:
    """Finds source lines; what kind of file a path names is decided once."""

    def __init__(self) -> None:
        self._kinds: dict[str, int] = {}
        self._torch: tuple[str, ...] = ()
        self._left = _FRAME_LIMIT

    def source(self, frames: object) -> Source:
        """The innermost line of the user's own code; frames are given innermost first."""
        installed = UNKNOWN_SOURCE
        for frame in islice(frames, self._left) if isinstance(frames, (list, tuple)) else ():
            self._left -= 1
            if not isinstance(frame, dict):
                continue
            file = frame.get("filename")
            kind = self._kind(file) if isinstance(file, str) and len(file) <= _PATH_LIMIT else SKIP
            if kind == OWN:
                return _source(frame)
            if kind == INSTALLED and installed is UNKNOWN_SOURCE:
                installed = _source(frame)
        return installed

    def _kind(self, file: str) -> int:
        kind = self._kinds.get(file)
        if kind is None:
            kind = self._look(file)
            if len(self._kinds) < _FILE_LIMIT:
                self._kinds[file] = kind
        return kind

    def _look(self, file: str) -> int:
        if (torchs := _TORCHS.fullmatch(file)) is not None:
            self._torch = (*self._torch[:7], torchs[1])
        if _PASSED_OVER.search(file) is not None or file.startswith(self._torch):
            return SKIP
        if any(packages in file for packages in _PACKAGES):
            return INSTALLED
        return SKIP if _LIBRARY.search(file) is not None else OWN


def _source(frame: dict[object, object]) -> Source:
    file, line, name = frame.get("filename"), frame.get("line"), frame.get("name")
    return Source(
        file if isinstance(file, str) else "",
        line if type(line) is int and 0 <= line < 1 << 31 else 0,
        name[:_PATH_LIMIT] if isinstance(name, str) else "",
    )
