"""simcoll's own scenarios, one for every finding code, in a checkout and in an installed wheel."""

from __future__ import annotations

import importlib.resources
import os
from pathlib import Path


def scenario_path(code: str) -> Path | None:
    """The scenario of a finding code; None where there is none."""
    if not (code.isascii() and code.isalnum()):
        return None
    path = Path(str(importlib.resources.files("simcoll.scenarios") / f"{code.upper()}.toml"))
    return path if os.path.isfile(path) else None


def scenario_text(code: str) -> str:
    """The text of a finding code's scenario; empty where there is none."""
    path = scenario_path(code)
    return "" if path is None else path.read_text(encoding="utf-8")
