"""How the nodes of a job find each other: node 0's launcher leaves word in the rendezvous store, the others' read it.

The process of ``simcoll run`` opens a door (a port that it listens on) and makes a mark (an empty file of a random name
in its folder) before it starts its launcher, and tells it both through the environment. Which node is node 0 is known
once torch's agents have met. Then the launchers write into the mark what they learned. A node that finds node 0's mark
in its own folder shares that folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol

from simcoll.core.io import open_at_once, write_whole

NODES_VARIABLE: Final = "SIMCOLL_NODES"
"""For the launcher's process, which takes it out of the environment of its ranks: the door, the secret, the mark."""

_KEY: Final = "simcoll/node0"
_PATIENCE: Final = timedelta(seconds=2)
"""Node 0 leaves word before any launcher gets its ranks' numbers, so that this passes only where it does not."""

_MARK: Final = re.compile(r"[0-9a-f]{16}")
_SECRET: Final = re.compile(r"[0-9a-f]{64}")
_LIMIT: Final = 64 << 10


class Store(Protocol):
    """The part of torch's stores that is used."""

    def set(self, key: str, value: str) -> None: ...  # noqa: D102
    def get(self, key: str) -> bytes: ...  # noqa: D102
    def wait(self, keys: list[str], timeout: timedelta) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Door:
    """What node 0 leaves in the store: its port, the secret of its job, the mark in its folder."""

    port: int
    secret: str
    mark: str

    @classmethod
    def of(cls, value: object) -> Door:
        """Check a document; raises ValueError."""
        fields = value if isinstance(value, dict) else {}
        port, secret, mark = fields.get("port"), str(fields.get("secret")), str(fields.get("mark"))
        if type(port) is int and 0 < port < 1 << 16 and _SECRET.fullmatch(secret) and _MARK.fullmatch(mark):
            return cls(port, secret, mark)
        raise ValueError(f"no door: {value!r:.80}")

    def document(self) -> dict[str, object]:
        """As :meth:`of` reads it."""
        return {"port": self.port, "secret": self.secret, "mark": self.mark}


@dataclass(frozen=True, slots=True)
class Meeting:
    """What a launcher learned: which node this is, of how many, and where node 0 is to be found.

    ``shared``: this node's folder is that of node 0.
    """

    node: int
    nodes: int
    address: str
    door: Door
    shared: bool


def opened(folder: Path) -> tuple[Door, socket.socket, int] | None:
    """Open a door and make its mark, at the time (ns) that the file system gives it.

    None where that cannot be done, and this node keeps to itself.
    """
    door = None
    try:
        door = _listening()
        made = Door(door.getsockname()[1], secrets.token_hex(32), secrets.token_hex(8))
        mark = mark_of(folder, made.mark)
        mark.touch()
        begun_ns = mark.stat().st_mtime_ns
    except OSError:
        if door is not None:
            door.close()
        return None
    return made, door, begun_ns


def _listening() -> socket.socket:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=512, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=512)


def mark_of(folder: Path, mark: str) -> Path:
    """The path of a mark in a folder."""
    return folder / f".simcoll-nodes-{mark}"


def as_variable(door: Door) -> dict[str, str]:
    """The environment that tells a launcher of its own node's door."""
    return {NODES_VARIABLE: json.dumps(door.document())}


def from_variable(environment: MutableMapping[str, str]) -> Door | None:
    """Take this node's own door out of the environment; None where there is none."""
    try:
        return Door.of(json.loads(environment.pop(NODES_VARIABLE, "null")))
    except ValueError:
        return None


class Greeter:
    """The launcher's part: ``folder`` is that of its records."""

    def __init__(self, folder: Path, own: Door) -> None:
        self._folder = folder
        self._own = own

    def is_node_0(self, store: Store) -> None:
        """Leave word for the others. They must not be kept by a store that fails."""
        with contextlib.suppress(Exception):
            store.set(_KEY, json.dumps(self._own.document()))

    def meet(self, store: Store, node: int, nodes: int, address: str) -> None:
        """Read node 0's word, and write down what is known now; the job goes on without it."""
        with contextlib.suppress(Exception):
            door = self._own if node == 0 else _read(store)
            shared = node != 0 and mark_of(self._folder, door.mark).exists()
            document = {
                "node": node,
                "nodes": nodes,
                "address": address,
                "door": door.document(),
                "shared": shared,
            }
            write_whole(mark_of(self._folder, self._own.mark), json.dumps(document))


def _read(store: Store) -> Door:
    store.wait([_KEY], _PATIENCE)
    return Door.of(json.loads(store.get(_KEY)))


def read_meeting(folder: Path, own: Door) -> Meeting | None:
    """What this node's launcher has written; None before it did."""
    try:
        with open_at_once(mark_of(folder, own.mark)) as file:
            said = json.loads(file.read(_LIMIT))
        door = Door.of(said["door"])
        return Meeting(int(said["node"]), int(said["nodes"]), str(said["address"]), door, said["shared"] is True)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def removed(folder: Path, own: Door) -> None:
    """Remove the mark."""
    with contextlib.suppress(OSError):
        os.unlink(mark_of(folder, own.mark))
