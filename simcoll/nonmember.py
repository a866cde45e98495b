"""Notes calls that a rank makes on a group to which it does not belong: torch warns, and returns without a call."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch.distributed as dist

from simcoll.record import Source
from simcoll.recorder import Recorder, source_document
from simcoll.source import current_source

_counts: WeakKeyDictionary[Recorder, Counter[tuple[str, Source]]] = WeakKeyDictionary()


def noting_non_members(recorder: Callable[[], Recorder | None]) -> Callable[[str], None]:
    """What takes the place of c10d's ``_warn_not_in_group``, which each function calls that drops such a call."""

    def _warn_not_in_group(op_name: str) -> None:
        if (noted := recorder()) is not None:
            _note(noted, op_name)
        # c10d's own words, at the same depth: with a call of its function in between, the warning would seem to come
        # from here, and would be shown once for all functions.
        rank = dist.get_rank() if dist.is_initialized() else -1
        text = f"Running {op_name} on global rank {rank} which does not belong to the given group."
        warnings.warn(text, stacklevel=2)

    return _warn_not_in_group


def _note(recorder: Recorder, function: str) -> None:
    """Write down a line's first call, and then each time that its calls have doubled: a loop must not fill the box."""
    source = current_source()
    counts = _counts.setdefault(recorder, Counter())
    counts[function, source] += 1
    count = counts[function, source]
    if count & (count - 1) == 0:
        recorder.event("non_member", function=function, count=count, source=source_document(source))
