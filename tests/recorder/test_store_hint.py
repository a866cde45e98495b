"""A rank that waits for a store at which nobody listens says so; one that merely waits says nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from simcoll.core.record import Source
from simcoll.recorder import store_hint

HERE = Source("train.py", 12, "main")


class Screen:
    """Stands in for stderr, and tells when something was written to it."""

    def __init__(self) -> None:
        self.text = ""
        self.written = threading.Event()

    def write(self, text: str) -> None:
        self.text += text
        self.written.set()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    screen = Screen()
    monkeypatch.setattr(store_hint, "sys", SimpleNamespace(stderr=screen))
    return screen


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A port that is taken, and at which nobody listens; the environment is that of an agent's rank 0."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        for name, value in {
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }.items():
            monkeypatch.setenv(name, value)
        yield port


@pytest.mark.parametrize(
    "given",
    [{"init_method": "tcp://127.0.0.1:{port}", "rank": 0}, {}, {"init_method": "env://?use_libuv=0"}, {"store": None}],
)
def test_a_store_that_nobody_serves_is_named_while_the_rank_waits(
    screen: Screen, port: int, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    monkeypatch.setattr(store_hint, "PATIENCE", 0.0)
    if "init_method" in given:
        given = {**given, "init_method": given["init_method"].format(port=port)}
    with store_hint.warned_if_unserved(given, HERE):
        assert screen.written.wait(30)
    begins = f"simcoll: rank 0 waits in init_process_group at train.py:12 for a store at 127.0.0.1:{port}, "
    assert screen.text.startswith(begins)
    assert "mp.spawn" in screen.text


@pytest.mark.parametrize(
    ("environment", "given"),
    [
        ({"TORCHELASTIC_USE_AGENT_STORE": "False"}, {}),  # rank 0 serves
        ({"RANK": "1"}, {}),  # rank 0 says it
        ({}, {"rank": 1, "init_method": "tcp://127.0.0.1:1"}),
        ({}, {"store": object()}),
        ({}, {"init_method": "file:///tmp/met"}),
        ({}, {"init_method": "tcp://nowhere"}),  # torch refuses it
        ({"MASTER_PORT": "door"}, {}),
    ],
)
def test_who_finds_a_store_or_is_not_the_one_to_say_it_watches_nothing(
    port: int, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], given: dict[str, Any]
) -> None:
    monkeypatch.setattr(store_hint.threading, "Timer", None)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with store_hint.warned_if_unserved(given, HERE):
        pass


def test_a_rank_that_gets_past_it_ends_the_watch(port: int, screen: Screen) -> None:
    with store_hint.warned_if_unserved({}, HERE):
        [watch] = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    watch.join(30)
    assert not watch.is_alive()
    assert screen.text == ""


def test_a_store_that_is_served_or_whose_host_is_not_known_is_not_spoken_of(screen: Screen) -> None:
    with socket.create_server(("127.0.0.1", 0)) as served:
        store_hint._warn("127.0.0.1", served.getsockname()[1], HERE)
    store_hint._warn("no.such.host.invalid", 1, HERE)
    assert screen.text == ""
