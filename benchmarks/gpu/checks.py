"""The whole table of checks: each module adds its own when it is imported."""

from __future__ import annotations

from benchmarks.gpu import (  # noqa: F401
    collectives,
    faults,
    groups,
    messages,
    mismatches,
    overhead,
    streams,
    times,
    training,
)
from benchmarks.gpu.check import CHECKS, Check


def every_check() -> list[Check]:
    """Every row, in the order of the table."""
    return CHECKS
