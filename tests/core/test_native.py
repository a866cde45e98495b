"""The compiled parts are used where they fit, and nothing fails where they do not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from simcoll.core import native as module
from simcoll.core.native import PARTS, REVISION, native
from tests.support.native import parts

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _looked_up_anew() -> Iterator[None]:
    native.cache_clear()
    yield
    native.cache_clear()


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_used_unless_the_environment_says_no(part: str) -> None:
    with parts("compiled"):
        assert native(part) is not None
    with parts("python"):
        assert native(part) is None


def test_a_part_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REVISION", REVISION + 1)
    assert [native(part) for part in PARTS] == [None] * len(PARTS)


def test_a_part_that_does_not_exist_is_none() -> None:
    assert native("simcoll.core._nothing") is None


def test_all_parts_are_built_and_have_the_revision_of_their_twins() -> None:
    named = re.findall(r'"(simcoll[.\w]+)": "([/\w.]+)"', (ROOT / "setup.py").read_text(encoding="utf-8"))
    assert [name for name, _ in named] == list(PARTS)
    for name, source in named:
        path = f"{name.replace('.', '/')}.c"
        # The verifier's folder lies beside the package.
        assert source == (path.removeprefix("simcoll/") if name.startswith("simcoll.verifier.") else path)
        assert f"REVISION = {REVISION} }}" in (ROOT / source).read_text(encoding="utf-8")
