"""Notes of the groups that a rank makes: whatever torch's function takes, and however it is called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
from torch.distributed import distributed_c10d

from simcoll.recorder import group_creation


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
    monkeypatch.setattr(group_creation, "_recorder", lambda: notes)
    return notes


def test_a_group_is_noted_before_and_after(notes: Notes) -> None:
    assert group_creation.noted(make)([1, 0]) == ([1, 0], None, False)
    assert [(kind, data.get("ranks")) for kind, data in notes.events] == [("creating", [0, 1]), ("created", None)]
    assert notes.events[0][1]["before"] == distributed_c10d._world.group_count


@pytest.mark.parametrize("arguments", [([0], None, True), (["a"],), (1,)])
def test_what_only_members_make_and_what_torch_refuses_is_passed_on(notes: Notes, arguments: tuple[Any, ...]) -> None:
    assert group_creation.noted(make)(*arguments)[0] == arguments[0]
    assert notes.events == []


def test_arguments_that_the_function_does_not_know_are_its_own_to_refuse(notes: Notes) -> None:
    with pytest.raises(TypeError, match="colour"):
        group_creation.noted(make)([0], colour=1)
    assert notes.events == []


def test_a_new_default_group_begins_a_new_life() -> None:
    counted = group_creation.Creations()
    assert [counted.place() for _ in range(2)] == [{"life": 0, "ordinal": 1}, {"life": 0, "ordinal": 2}]
    assert counted.begin() == {"life": 1, "ordinal": 0}
    assert counted.place() == {"life": 1, "ordinal": 1}


def initialise(
    backend: Any = None,
    init_method: Any = None,
    timeout: Any = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
) -> tuple[Any, ...]:
    return backend, init_method, timeout, world_size, rank, store


@pytest.mark.parametrize(
    ("arguments", "named", "size"),
    [
        (("gloo",), {}, 3),
        ((), {"backend": "gloo", "timeout": None}, 3),
        (("gloo",), {"store": None}, 3),
        (("gloo", "env://", None, 3, 1), {}, 3),
        (("gloo",), {"rank": 1, "world_size": 3, "store": "shared"}, 3),
        (("gloo", "tcp://localhost:1"), {"rank": 1, "world_size": 3}, 3),
        (("gloo",), {"rank": 1, "world_size": 4}, 4),
        (("gloo",), {"world_size": 2}, 2),
        (("gloo", "tcp://localhost:1"), {}, None),
        (("gloo", "tcp://localhost:1"), {"rank": 1, "world_size": 2}, None),
        (("gloo",), {"rank": 0, "world_size": 3}, None),
        (("gloo",), {"store": "shared"}, None),
        (("gloo",), {"world_size": "3"}, None),
    ],
)
def test_the_meeting_of_all_ranks_is_noted_where_the_environment_names_this_one(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[Any, ...], named: dict[str, Any], size: int | None
) -> None:
    notes = Notes()
    monkeypatch.setattr(group_creation, "_early_recorder", lambda: notes)
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "1")
    assert group_creation.initialising(initialise)(*arguments, **named) == initialise(*arguments, **named)
    kinds = [(kind, data["ordinal"], data.get("ranks")) for kind, data in notes.events]
    assert kinds == ([] if size is None else [("creating", 0, [*range(size)]), ("created", 0, None)])


def test_arguments_that_torch_does_not_know_are_torchs_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(TypeError, match="colour"):
        group_creation.initialising(initialise)("gloo", colour=1)


@pytest.mark.parametrize(
    ("arguments", "named", "group"),
    [((), {}, None), ((None,), {}, None), ((SimpleNamespace(group_name="7"),), {}, "7"), ((), {"group": None}, None)],
)
def test_the_end_of_a_group_is_noted(
    notes: Notes, arguments: tuple[Any, ...], named: dict[str, Any], group: str | None
) -> None:
    assert group_creation.destroying(lambda *args, **kwargs: (args, kwargs))(*arguments, **named) == (arguments, named)
    assert [(kind, data["group"]) for kind, data in notes.events] == [("destroyed", group)]


def test_gloos_threads_let_calls_go_while_the_group_is_held(monkeypatch: pytest.MonkeyPatch, notes: Notes) -> None:
    order: list[str] = []
    monkeypatch.setattr(group_creation, "let_gloo_rest", lambda: order.append("rest"))
    group_creation.destroying(lambda: order.append("destroyed"))()
    assert order == ["rest", "destroyed"]
