"""Where simcoll's own scenarios lie: one for every finding code, in a checkout and in an installed wheel."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).parent
_FOLDERS = (_PACKAGE / "scenarios", _PACKAGE.parent / "examples" / "scenarios")
"""Installed as a package beside the modules; in a checkout among the examples."""


def scenario_path(code: str) -> Path | None:
    """The scenario of a finding code; None where there is none."""
    found = (folder / f"{code.upper()}.toml" for folder in _FOLDERS if code.isascii() and code.isalnum())
    return next((path for path in found if os.path.isfile(path)), None)


def scenario_text(code: str) -> str:
    """The text of a finding code's scenario; empty where there is none."""
    path = scenario_path(code)
    return "" if path is None else path.read_text(encoding="utf-8")
