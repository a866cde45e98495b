"""Records failures outside collectives: calls that torch.distributed refuses, exceptions that end the rank.

Also calls that a rank makes on a group to which it does not belong, where torch warns and returns without a call, and
misuse of the memory of calls in flight: it was written to, or two calls use the same.
"""

from __future__ import annotations

import logging
import multiprocessing.util
import sys
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed import c10d_logger, distributed_c10d

from simcoll.blackbox.writer import BlackBoxWriter
from simcoll.core.record import source_document
from simcoll.recorder.recorder import Entry, Recorder
from simcoll.recorder.source import current_source, traceback_source
from simcoll.recorder.told_once import kept_instead, prints_as_python


def report_change(entry: Entry, *, known: bool) -> None:
    """Note that a buffer of a call was written to; ``known`` says that this was before the data had left.

    Otherwise the line that runs now is where it was noticed.
    """
    noticed = None if known else current_source()
    entry.note(
        "changed",
        (known, noticed),
        known=known,
        noticed=None if noticed is None else source_document(noticed),
    )


def report_overlap(entry: Entry, first: Entry, *, both_write: bool, running: bool) -> None:
    """Note that a call uses memory of an earlier one that was not waited for, and which may still be ``running``."""
    entry.note(
        "overlap",
        (first.source, both_write, running),
        both_write=both_write,
        running=running,
        other={
            "group": first.log.group.name,
            "sequence": first.sequence,
            "op": first.call.op,
            "source": source_document(first.source),
        },
    )


def noting_non_members(recorder: Callable[[], Recorder | None]) -> Callable[[str], None]:
    """Returns a replacement for c10d's ``_warn_not_in_group``, which every function calls that drops such a call."""

    def _warn_not_in_group(op_name: str) -> None:
        if (noted := recorder()) is not None:
            source = current_source()
            noted.repeated_event("non_member", (op_name, source), function=op_name, source=source_document(source))
        # c10d's own words, at the same depth: with a call of its function in between, the warning would seem to come
        # from here, and would be shown once for all functions.
        rank = dist.get_rank() if dist.is_initialized() else -1
        text = f"Running {op_name} on global rank {rank} which does not belong to the given group."
        warnings.warn(text, stacklevel=2)

    return _warn_not_in_group


if TYPE_CHECKING:
    from simcoll.recorder.session import Session

_session: Callable[[], Session | None] = lambda: None  # noqa: E731
_previous_hook: Callable[..., Any] | None = None


class _RefusalHandler(logging.Handler):
    """Notes the exceptions that leave c10d's functions, which c10d logs; those that are no call's own are refusals."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a refusal down, once."""
        error = sys.exc_info()[1]
        recorder = _recorder()
        if recorder is None or error is None or recorder.noted is error or not isinstance(record.msg, dict):
            return
        if type(error).__name__ in ("CollectiveMismatchError", "MissingRankError"):
            return
        recorder.noted = error
        recorder.event(
            "rejected",
            group=None,
            sequence=None,
            function=str(record.msg.get("func_name")),
            type=type(error).__name__,
            message=str(error),
            source=source_document(current_source()),
        )


_handler = _RefusalHandler()


def _recorder() -> Recorder | None:
    session = _session()
    return None if session is None else session.current_recorder()


def install_failure_hooks(session: Callable[[], Session | None]) -> None:
    """Begin to note refusals and the exception that ends this process."""
    global _session, _previous_hook
    _session = session
    c10d_logger._c10d_logger.addHandler(_handler)
    _previous_hook = sys.excepthook
    sys.excepthook = _on_uncaught


def remove_failure_hooks() -> None:
    """Stop noting."""
    global _previous_hook
    c10d_logger._c10d_logger.removeHandler(_handler)
    if sys.excepthook is _on_uncaught and _previous_hook is not None:
        sys.excepthook = _previous_hook
    _previous_hook = None


def _on_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if (recorder := _recorder()) is not None:
        note_uncaught(recorder, error, traceback)
        box = recorder.box
        if isinstance(box, BlackBoxWriter) and prints_as_python(_previous_hook) and kept_instead(error, box.path):
            return
    (_previous_hook or sys.__excepthook__)(kind, error, traceback)


def watch_end_of_child(recorder: Callable[[], Recorder | None]) -> None:
    """Note the exception that ends this process, if it is a child of ``multiprocessing``, which prints it itself.

    ``torch.multiprocessing.spawn`` catches it before, and exits in its place.
    """
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, _on_end_of_child, [recorder], exitpriority=_FIRST)


_FIRST = 1 << 20


def _on_end_of_child(recorder: Callable[[], Recorder | None]) -> None:
    error = sys.exc_info()[1]
    while isinstance(error, SystemExit):
        error = error.__context__ if error.code else None
    if error is not None and (noting := recorder()) is not None:
        note_uncaught(noting, error, error.__traceback__)


def note_uncaught(recorder: Recorder, error: BaseException, traceback: TracebackType | None) -> None:
    """Write down the exception that ends the rank, once."""
    if recorder.uncaught is error:
        return
    recorder.uncaught = error
    recorder.event(
        "exception",
        type=type(error).__name__,
        message=str(error),
        source=source_document(traceback_source(traceback)),
        api=_api(traceback),
    )


def _api(traceback: TracebackType | None) -> str | None:
    """The torch.distributed function whose own check raised, if one did."""
    last, function = None, None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename == distributed_c10d.__file__:
            function = function or code.co_name
            last = function
        elif function is not None:
            last = None
        traceback = traceback.tb_next
    return last
