"""A share of a dry run that is started from Python: with a store of its own, and with one that is there already."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from simcoll.spread import run_share

dist = pytest.importorskip("torch.distributed")

pytestmark = [pytest.mark.slow, pytest.mark.gloo]

PROGRAM = """\
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(5 if dist.get_rank() == 1 else 4))
"""


def shares(arguments: Sequence[object], count: int, port: int) -> list[int]:
    def share(rank: int) -> int:
        words = list(map(str, arguments))
        return run_share(words, rank=rank, world_size=count, master_addr="127.0.0.1", master_port=port)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(share, range(count)))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("there", [False, True], ids=["own store", "store of another group"])
def test_processes_meet_at_the_address_that_they_are_given(there: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    arguments = "--world-size", 6, "--json", "--jobs", 1, "--out", tmp_path / "out", tmp_path / "train.py"
    # As in a worker of Ray Train: its process group has a store at that port, which is not this dry run's alone.
    kept = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if there else None
    port = _free_port() if kept is None else kept.port
    for _ in range(2 if there else 1):
        assert shares(arguments, 2, port) == [3, 3]
        report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
        assert [finding["culprits"] for finding in report["findings"]] == [[1]]
        assert len(report["ranks"]) == 6
