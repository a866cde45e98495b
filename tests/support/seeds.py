"""How many of the random cases run: a part on every change, all of them in ``make nightly`` (``SIMCOLL_SEEDS=all``)."""

from __future__ import annotations

import os

import pytest

ALL = os.environ.get("SIMCOLL_SEEDS") == "all"


def drawn(total: int, share: int = 4) -> int:
    """How many of ``total`` random cases to run: all, or one in ``share``, the first ones."""
    return total if ALL else -(-total // share)


def nightly(condition: bool) -> list[pytest.MarkDecorator]:
    """The marks of a case: the mark ``nightly`` where the condition holds, none elsewhere."""
    return [pytest.mark.nightly] if condition else []
