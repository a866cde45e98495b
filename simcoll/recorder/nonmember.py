"""Notes calls that a rank makes on a group to which it does not belong: torch warns, and returns without a call."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch.distributed as dist

from simcoll.core.record import source_document
from simcoll.recorder.recorder import Recorder
from simcoll.recorder.repeated_events import write_repeated
from simcoll.recorder.source import current_source


def noting_non_members(recorder: Callable[[], Recorder | None]) -> Callable[[str], None]:
    """What takes the place of c10d's ``_warn_not_in_group``, which each function calls that drops such a call."""

    def _warn_not_in_group(op_name: str) -> None:
        if (noted := recorder()) is not None:
            source = current_source()
            write_repeated(noted, "non_member", (op_name, source), function=op_name, source=source_document(source))
        # c10d's own words, at the same depth: with a call of its function in between, the warning would seem to come
        # from here, and would be shown once for all functions.
        rank = dist.get_rank() if dist.is_initialized() else -1
        text = f"Running {op_name} on global rank {rank} which does not belong to the given group."
        warnings.warn(text, stacklevel=2)

    return _warn_not_in_group
