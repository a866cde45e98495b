"""Where torch's Flight Recorder writes its dumps: beside the black boxes of ``simcoll run``, unless the user says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

DUMPS: Final = "flight_recorder_rank_"
"""What the names of the dumps begin with; torch puts the rank behind it."""

_FILES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""What torch reads for it, the newest name first (``DebugInfoWriter::getWriter`` in FlightRecorder.cpp)."""


def with_dumps_in(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job whose ranks dump into a folder that exists, where they dump at all.

    torch 2.11 and newer record their last 2,000 calls and dump them when a collective fails, if nobody has switched
    that off; only the place is another one.
    """
    if any(environment.get(name) for name in _FILES):
        return dict(environment)
    return {**environment, _FILES[0]: str(folder / DUMPS)}
