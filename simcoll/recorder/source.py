"""Finds the line of the user's program that made a call, and the callers of that line.

Frames of torch, simcoll, the standard library and generated code are passed over; frames of installed packages only
count as the line where no frame of the user's own code is found. Whether a file counts is decided once, and so is the
line of a chain of frames: a call whose chain was seen before costs no more than a look at each frame.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType, TracebackType
from typing import Protocol

from simcoll.core.native import native
from simcoll.core.rank_local import main_thread_of_rank
from simcoll.core.record import FRAME_LIMIT, UNKNOWN_SOURCE, Source
from simcoll.core.source_roots import (
    INSTALLED,
    OWN,
    OWN_FRAMES,
    SKIP,
    kind_of,
    line_of_stack,
    simcoll_folders,
    torch_folder,
)
from simcoll.core.threads import thread_frames

_CHAINS = 1024
"""Chains of frames that are kept. A program that has more, such as a deep recursion, gets lines without callers."""

_CODE_LIMIT = 1000
"""Characters of a line that are kept."""

_kinds: dict[str, int] = {}
_sources: dict[tuple[str, int, str], Source] = {}
_stacks: dict[tuple[Source, ...], Source] = {}
_outermost: CodeType | None = None


class Site:
    """A place that makes calls: a chain of frames, each at its instruction, and what follows from the chain alone.

    ``source`` is its line. ``by_torch`` says that torch itself makes the call, and keeps its Work; ``of_model`` that
    torch's layers, wrappers or optimizers do. ``named_later`` is the answer of
    :func:`~simcoll.wrapper.later_names.named_later`, None before it was asked for.
    """

    __slots__ = ("by_torch", "named_later", "of_model", "source")

    def __init__(self, source: Source, *, by_torch: bool, of_model: bool) -> None:
        self.source = source
        self.by_torch = by_torch
        self.of_model = of_model
        self.named_later: bool | None = None


class _Frame:
    """A frame in the chains that were seen: frames that called it, by the instruction at which each stood.

    ``code`` is told apart by its identity: equal code in two files is equal as a code object, and hashing it is slow.
    ``twin`` is a frame of other code at the same instruction. ``site`` is the place of a chain that needs no frames
    beyond this one, ``ended`` that of a chain that has no more.
    """

    __slots__ = ("callers", "code", "ended", "site", "twin")

    def __init__(self, code: CodeType | None) -> None:
        self.code = code
        self.callers: dict[int, _Frame] = {}
        self.twin: _Frame | None = None
        self.site: Site | None = None
        self.ended: Site | None = None

    def of(self, code: CodeType) -> _Frame:
        """The twin that is of this code; raises KeyError where there is none."""
        frame = self.twin
        while frame is not None and frame.code is not code:
            frame = frame.twin
        if frame is None:
            raise KeyError(code)
        return frame

    def called_by(self, frame: FrameType) -> _Frame:
        """The frame that called this one, put into the chains where it is new."""
        code, first = frame.f_code, self.callers.get(frame.f_lasti)
        known = first
        while known is not None and known.code is not code:
            known = known.twin
        if known is None:
            known = _Frame(code)
            known.twin = first
            self.callers[frame.f_lasti] = known
        return known


class Chains(Protocol):
    """The places that were seen, by the frames of their chains."""

    def find(self, frame: FrameType | None = None, /) -> Site | None:
        """The place of a frame's chain, None where it was not seen before.

        Without a frame the chain begins at the caller of the function that asks.
        """
        ...

    def add(self, frames: list[FrameType], site: Site, ended: bool, /) -> None:
        """Have a chain of frames, innermost first, found as ``site``; ``ended`` says that it has no further frame."""
        ...

    def clear(self) -> None:
        """Forget all chains."""
        ...


class PlainChains:
    """:class:`Chains` in Python; ``_calls.c`` has its twin."""

    def __init__(self) -> None:
        self._innermost = _Frame(None)

    def find(self, frame: FrameType | None = None, /) -> Site | None:
        """The place of a frame's chain, None where it was not seen before."""
        if frame is None:
            frame = sys._getframe(2)
        known = self._innermost
        try:
            while True:
                known = known.callers[frame.f_lasti]
                if known.code is not frame.f_code:
                    known = known.of(frame.f_code)
                if known.site is not None:
                    return known.site
                back = frame.f_back
                if back is None:
                    return known.ended
                frame = back
        except KeyError:
            return None

    def add(self, frames: list[FrameType], site: Site, ended: bool, /) -> None:
        """Have a chain of frames, innermost first, found as ``site``."""
        known = self._innermost
        for frame in frames:
            known = known.called_by(frame)
        if ended:
            known.ended = site
        else:
            known.site = site

    def clear(self) -> None:
        """Forget all chains."""
        self._innermost = _Frame(None)


def _no_chains() -> Chains:
    compiled = native("simcoll.recorder._calls")
    chains: Chains = PlainChains() if compiled is None else compiled.Chains()
    return chains


known_chains = _no_chains()
"""The chains of this process."""
_find = known_chains.find
_chains = 0


def program_begins(code: CodeType) -> None:
    """Set the function that runs the program: its callers, such as the command of a dry run, are no part of it."""
    global _outermost
    _outermost = code
    forget_chains()


def forget_chains() -> None:
    """Forget all chains of frames and their lines."""
    global _chains
    known_chains.clear()
    _chains = 0
    _stacks.clear()


def _kind(code: CodeType) -> int:
    # By file name and not by code object: equal code in two files is equal as a code object.
    kind = _kinds.get(code.co_filename)
    if kind is None:
        kind = _kinds[code.co_filename] = kind_of(code.co_filename)
    return kind


def is_program(frame: FrameType) -> bool:
    """True for a frame of the user's program or of an installed package."""
    return _kind(frame.f_code) in (OWN, INSTALLED)


_PUBLIC = ("distributed_c10d.py", "c10d_logger.py", "overrides.py")
"""Files of torch's functions that give a call's Work to their caller; the last are those of modes around functions."""

_hands_on: dict[str, bool | None] = {}


def _made_by_torch(innermost: FrameType) -> bool:
    frame: FrameType | None = innermost
    while frame is not None:
        file = frame.f_code.co_filename
        if file not in _hands_on:
            _hands_on[file] = _is_torchs(file)
        if (answer := _hands_on[file]) is not None:
            return answer
        frame = frame.f_back
    return True


def _is_torchs(filename: str) -> bool | None:
    """True if a frame of this file is torch's; None if it only forwards the Work."""
    path = os.path.realpath(filename)
    if path.startswith(torch_folder()):
        return None if os.path.basename(path) in _PUBLIC else True
    if path.startswith(simcoll_folders()):
        return None
    # Code that inductor generates stands in a file of its own.
    return "torchinductor" in path


_DEPRECATED = "typing_extensions.py"
"""The file of the wrappers that torch puts around its deprecated functions."""

_MODEL = ("nn", "optim", *(f"distributed/{name}" for name in ("_composable", "algorithms", "fsdp", "optim")))
"""Folders of torch whose code calls collectives for a model: for its weights, activations, gradients or states."""


def _is_made_by_model(innermost: FrameType) -> bool:
    """True if the frames of such a folder make the call, and not those of a program that only uses it further out."""
    frame: FrameType | None = innermost
    while frame is not None and (_kind(frame.f_code) == SKIP or frame.f_code.co_filename.endswith(_DEPRECATED)):
        if _is_models(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


@functools.cache
def _is_models(filename: str) -> bool:
    folders = tuple(os.path.join(torch_folder(), name, "") for name in _MODEL)
    return os.path.realpath(filename).startswith(folders)


def current_source() -> Source:
    """The user's line that runs now, in this thread or else in the main thread (for calls from C++ threads)."""
    return current_site().source


def current_site() -> Site:
    """The place that makes a call now, in this thread; its line is the main thread's where this one has none."""
    site = _find() or look(sys._getframe(1))
    if site.source is UNKNOWN_SOURCE and (main := main_thread_of_rank()) is not None:
        frame = thread_frames().get(main)
        if frame is not None:
            site = Site((_find(frame) or look(frame)).source, by_torch=site.by_torch, of_model=site.of_model)
    return site


def look(innermost: FrameType) -> Site:
    """The place of a chain of frames that was not seen before; it is kept as long as there are not too many."""
    global _chains
    by_torch, of_model = _made_by_torch(innermost), _is_made_by_model(innermost)
    if _chains >= _CHAINS:
        return Site(_line_at(innermost), by_torch=by_torch, of_model=of_model)
    frames = list(_chain(innermost))
    site = Site(_stack_of((frame.f_code, frame.f_lineno) for frame in frames), by_torch=by_torch, of_model=of_model)
    known_chains.add(frames, site, frames[-1].f_back is None)
    _chains += 1
    return site


def _chain(innermost: FrameType) -> Iterator[FrameType]:
    """The frames that identify the line of a call, innermost first."""
    frame: FrameType | None = innermost
    own = beyond = 0
    while frame is not None:
        yield frame
        own += _kind(frame.f_code) == OWN
        beyond += own > 0
        # More callers would cost every call more time.
        if frame.f_code is _outermost or own == OWN_FRAMES or beyond > FRAME_LIMIT:
            return
        frame = frame.f_back


def _stack_of(frames: Iterable[tuple[CodeType, int]]) -> Source:
    """The line of these frames with its callers; one object where the frames are at the same lines."""
    known = ((kind, _source(*frame)) for frame in frames if (kind := _program_kind(frame[0])) != SKIP)
    source = line_of_stack(known)
    return _stacks.setdefault(source.stack, source)


def _line_at(innermost: FrameType) -> Source:
    """The line of a frame's chain alone."""
    installed = None
    frame: FrameType | None = innermost
    while frame is not None and frame.f_code is not _outermost:
        code = frame.f_code
        kind = _kind(code)
        if kind == OWN:
            return _source(code, frame.f_lineno)
        if kind == INSTALLED and installed is None:
            installed = _source(code, frame.f_lineno)
        frame = frame.f_back
    return installed or UNKNOWN_SOURCE


def _program_kind(code: CodeType) -> int:
    """The kind of a function's file; callers of the program are no part of it."""
    return SKIP if code is _outermost else _kind(code)


def traceback_source(traceback: TracebackType | None) -> Source:
    """The innermost line of the user's program in a traceback, with its callers there."""
    frames = []
    while traceback is not None:
        frames.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    known = ((_kind(code), _source(code, line)) for code, line in reversed(frames))
    return line_of_stack(known)


def _source(code: CodeType, line: int) -> Source:
    key = (code.co_filename, line, code.co_name)
    source = _sources.get(key)
    if source is None:
        text = linecache.getline(code.co_filename, line).strip()[:_CODE_LIMIT]
        source = _sources[key] = Source(code.co_filename, line, code.co_name, text)
    return source
