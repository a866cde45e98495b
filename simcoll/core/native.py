"""Finds the parts of simcoll that were compiled, where they were.

Each has a twin in Python, which does the same, but for the one that keeps processes alive whose stacks cannot be read.

``SIMCOLL_NATIVE=0`` has a process use none of them.
"""

from __future__ import annotations

import importlib
import os
from functools import lru_cache
from typing import Any

PARTS = (
    "simcoll.blackbox._reader",
    "simcoll.blackbox._ring",
    "simcoll.blackbox._stacks",
    "simcoll.pricing._program",
    "simcoll.pricing._replay",
    "simcoll.proof._words",
    "simcoll.recorder._calls",
    "simcoll.verifier.agreement._bands",
)
"""The modules that ``setup.py`` compiles, if it can."""

REVISION = 9
"""Counted up when what a part gives or takes changes: one that other sources left behind in a checkout is not used."""


@lru_cache
def native(module: str) -> Any:
    """The compiled module of this name; None where it is not wanted, or was not built for this Python and revision."""
    if os.environ.get("SIMCOLL_NATIVE", "1") == "0":
        return None
    try:
        found = importlib.import_module(module)
    except ImportError:
        return None
    return found if getattr(found, "REVISION", None) == REVISION else None
