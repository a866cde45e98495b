"""Whose accounts a node reads that reports without node 0, from a folder that it may share with others."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from simcoll.blackbox.accounts import LAUNCH_SCHEMA, read_launch
from simcoll.cli import run
from simcoll.core.trace import Stall
from simcoll.launch.nodes.exchange import Exchange


def account(folder: Path, name: str, node: int) -> Path:
    rank = {"rank": node, "pid": 0, "exit_code": -9, "ended_ns": 1, "stopped": False}
    path = folder / f"launch-{name}.json"
    path.write_text(json.dumps({"schema": LAUNCH_SCHEMA, "node": node, "world_size": 3, "ranks": [rank]}))
    return path


def test_nodes_that_share_a_folder_apart_from_node_0_know_of_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An account of an earlier run in that folder tells nothing of this one."""
    monkeypatch.setattr(run.time, "sleep", lambda _: pytest.fail("waits for accounts"))
    earlier = account(tmp_path, "host2-1", 2)
    exchange = Exchange.begun(tmp_path)
    assert exchange is not None
    since_ns = exchange.begun_ns - 10**9
    os.utime(earlier, ns=(since_ns, since_ns))
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]  # nobody answers there any more
    [mark] = tmp_path.glob(".simcoll-nodes-*")
    there = {"port": port, "secret": "ab" * 32, "mark": "0" * 16}
    meeting = {"node": 1, "nodes": 3, "address": "127.0.0.1", "door": there, "shared": False}
    mark.write_text(json.dumps(meeting))
    own = account(tmp_path, "host1-2", 1)
    exchange.watch(own, since_ns, lambda: Stall(1, 2))
    exchange.progress(0)
    assert exchange.apart

    def nodes() -> list[int]:
        return [one.node for one in run._all_nodes(tmp_path, read_launch(own), since_ns, exchange, 5.0)]

    assert nodes() == [1]
    account(tmp_path, "host2-2", 2)
    assert nodes() == [1, 2]
    exchange.close()
