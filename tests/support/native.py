"""Chooses between the compiled parts of simcoll and their twins in Python, for tests that have to pass with both."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from simcoll.core.native import PARTS, native

KINDS = ("compiled", "python")

_OFF = os.environ.get("SIMCOLL_NATIVE") == "0"
"""True if the process began without the compiled parts: what it made for all its life is in Python."""


@contextmanager
def parts(kind: str) -> Iterator[None]:
    """In the block, objects of that kind are made; skips where the parts were not compiled."""
    if kind == "compiled" and _OFF:
        pytest.skip("SIMCOLL_NATIVE=0 leaves the compiled parts out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIMCOLL_NATIVE", str(int(kind == "compiled")))
        native.cache_clear()
        try:
            if kind == "compiled" and not all(map(native, PARTS)):
                pytest.skip("the compiled parts are not built for this Python: python setup.py build_ext --inplace")
            yield
        finally:
            native.cache_clear()
