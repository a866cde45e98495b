"""How nodes find each other: what node 0 leaves in the store, what the others read, and folders that are shared."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from simcoll.launch.nodes.meeting import (
    Door,
    Greeter,
    as_variable,
    from_variable,
    mark_of,
    opened,
    read_meeting,
    removed,
)


class Store:
    """A store as torch's."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        if not self.values.keys() >= set(keys):
            raise RuntimeError("wait timeout")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[tuple[Path, Door]]]:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    made = [one for folder in folders if (one := opened(folder)) is not None]
    yield [(folder, door) for folder, (door, *_) in zip(folders, made, strict=True)]
    for _, listening, _ in made:
        listening.close()


def test_a_node_learns_where_node_0_is(nodes: list[tuple[Path, Door]]) -> None:
    store = Store()
    (first, head), (second, other) = nodes
    Greeter(first, head).is_node_0(store)
    Greeter(first, head).meet(store, 0, 2, "host0")
    assert read_meeting(second, other) is None
    Greeter(second, other).meet(store, 1, 2, "host0")
    meeting = read_meeting(second, other)
    assert meeting is not None
    assert (meeting.node, meeting.nodes, meeting.address, meeting.door, meeting.shared) == (1, 2, "host0", head, False)
    mine = read_meeting(first, head)
    assert mine is not None
    assert (mine.node, mine.door, mine.shared) == (0, head, False)
    removed(first, head)
    assert list(first.iterdir()) == []


def test_a_folder_that_has_node_0s_mark_is_shared(nodes: list[tuple[Path, Door]]) -> None:
    store = Store()
    (first, head), (second, other) = nodes
    mark_of(first, other.mark).touch()
    Greeter(first, head).is_node_0(store)
    Greeter(first, other).meet(store, 1, 2, "host0")
    meeting = read_meeting(first, other)
    assert meeting is not None
    assert meeting.shared
    assert read_meeting(second, other) is None


def test_a_job_goes_on_where_node_0_left_no_word(nodes: list[tuple[Path, Door]]) -> None:
    folder, door = nodes[1]
    Greeter(folder, door).meet(Store(), 1, 2, "host0")
    assert read_meeting(folder, door) is None


def test_a_launcher_takes_the_door_out_of_its_ranks_environment(nodes: list[tuple[Path, Door]]) -> None:
    environment = {"PATH": "/bin", **as_variable(nodes[0][1])}
    assert from_variable(environment) == nodes[0][1]
    assert environment == {"PATH": "/bin"}
    assert from_variable(environment) is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"port": 0, "secret": "ab" * 32, "mark": "0" * 16},
        {"port": 1, "secret": "ab" * 31, "mark": "0" * 16},
        {"port": 1, "secret": "ab" * 32, "mark": "../../../../etc"},
        {"port": "1", "secret": "ab" * 32, "mark": "0" * 16},
    ],
)
def test_what_is_no_door_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="no door"):
        Door.of(value)


def test_without_a_folder_there_is_no_door(tmp_path: Path) -> None:
    assert opened(tmp_path / "none") is None
