"""Notes of the groups that a rank makes: whatever torch's function takes, and however it is called."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

pytest.importorskip("torch")

from simcoll import creations


class Notes:
    """Stands in for a recorder."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, kind: str, **data: Any) -> None:
        self.events.append((kind, data))


def make(ranks: Any = None, timeout: Any = None, use_local_synchronization: bool = False) -> tuple[Any, ...]:
    return ranks, timeout, use_local_synchronization


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    notes = Notes()
    monkeypatch.setattr(creations, "_recorder", lambda: notes)
    return notes


def test_a_group_is_noted_before_and_after(notes: Notes) -> None:
    assert creations.noted(make)([1, 0]) == ([1, 0], None, False)
    assert [(kind, data.get("ranks")) for kind, data in notes.events] == [("creating", [0, 1]), ("created", None)]


@pytest.mark.parametrize("arguments", [([0], None, True), (["a"],), (1,)])
def test_what_only_members_make_and_what_torch_refuses_is_passed_on(notes: Notes, arguments: tuple[Any, ...]) -> None:
    assert creations.noted(make)(*arguments)[0] == arguments[0]
    assert notes.events == []


def test_arguments_that_the_function_does_not_know_are_its_own_to_refuse(notes: Notes) -> None:
    with pytest.raises(TypeError, match="colour"):
        creations.noted(make)([0], colour=1)
    assert notes.events == []


def test_a_default_group_that_is_gone_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class Default:
        pass

    class World:
        default_pg: Any = Default()

    monkeypatch.setattr(creations.distributed_c10d, "_world", World)
    counted = creations.Creations()
    assert [counted.place() for _ in range(2)] == [{"life": 1, "ordinal": 1}, {"life": 1, "ordinal": 2}]
    gone = weakref.ref(World.default_pg)
    World.default_pg = Default()
    gc.collect()
    assert gone() is None
    assert counted.place() == {"life": 2, "ordinal": 1}
