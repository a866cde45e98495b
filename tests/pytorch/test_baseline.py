"""What is known of PyTorch's own tests without simcoll is used where it fits, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pytorch import test_same_results as same

SUITE = same.Suite("spawn", 4)


@pytest.fixture
def text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = {"2.99.0": {"spawn-4": {"text": "abc", "outcomes": {"test_one": "passed"}}}}
    (tmp_path / "baseline.json").write_text(json.dumps(known))
    monkeypatch.setattr(same, "BASELINE", tmp_path / "baseline.json")
    monkeypatch.setattr(same, "torch_version", lambda: "2.99.0")
    monkeypatch.setattr(same, "text_of", lambda suite: "abc")
    monkeypatch.delenv("SIMCOLL_PYTORCH_BASELINE", raising=False)


def test_it_is_used_for_its_torch_and_text(text: None) -> None:
    assert same.known_outcomes(SUITE) == {"test_one": "passed"}


@pytest.mark.parametrize("name", ["torch_version", "text_of"])
def test_it_is_not_used_for_another(name: str, text: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same, name, lambda *suite: "another")
    assert same.known_outcomes(SUITE) is None


def test_it_is_not_used_where_all_is_to_run(text: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMCOLL_PYTORCH_BASELINE", "run")
    assert same.known_outcomes(SUITE) is None
