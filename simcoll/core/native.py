"""Finds the parts of simcoll that were compiled, where they were: each has a twin in Python, which does the same.

``SIMCOLL_NATIVE=0`` has a process use the twins alone.
"""

from __future__ import annotations

import importlib
import os
from functools import lru_cache
from typing import Any

PARTS = ("simcoll.blackbox._ring", "simcoll.recorder._calls")
"""The modules that ``setup.py`` compiles, if it can."""


@lru_cache
def native(module: str) -> Any:
    """The compiled module of this name; None where it was not built for this Python, or is not wanted."""
    if os.environ.get("SIMCOLL_NATIVE", "1") == "0":
        return None
    try:
        return importlib.import_module(module)
    except ImportError:
        return None
