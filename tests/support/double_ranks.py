"""Runs a program of ``tests/programs`` on ranks whose CUDA and NCCL are the test double, under a CUDA build of torch.

The environment's SIMCOLL_CUDA_PYTHON names an interpreter that has one. What runs so shows what simcoll does around
torch's own ProcessGroupNCCL; nothing of it is a result of NCCL or of a GPU.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cuda_double.build import environment

HERE = Path(__file__).parents[1]
PYTHON = os.environ.get("SIMCOLL_CUDA_PYTHON", "")
needs_double = pytest.mark.skipif(
    not PYTHON, reason="SIMCOLL_CUDA_PYTHON names no interpreter with a CUDA build of torch"
)

_SECONDS = 150


def package(folder: Path) -> Path:
    """A folder from which another interpreter imports this checkout's simcoll."""
    inside = folder / "simcoll"
    inside.mkdir(parents=True)
    root = HERE.parent
    for source in [*(root / "simcoll").glob("*.py"), root / "backends", root / "reports", root / "verifier"]:
        (inside / source.name).symlink_to(source)
    return folder


def run(program: str, folder: Path, mode: str, variables: Mapping[str, str], world_size: int = 2) -> list[Any]:
    """What each rank of a program found, as it wrote it down for its rank."""
    common = {
        **os.environ,
        **environment(PYTHON),
        **variables,
        "SIMCOLL_MODE": mode,
        "SIMCOLL_OUT": str(folder / "out"),
    }
    common |= {"PYTHONPATH": str(package(folder / "package")), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port()}
    ranks = []
    for rank in range(world_size):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
        command = [PYTHON, str(HERE / "programs" / program), str(folder / f"found{rank}.json")]
        with (folder / f"rank{rank}.log").open("w") as log:
            ranks.append(subprocess.Popen(command, env=common | place, stdout=log, stderr=subprocess.STDOUT))
    try:
        for one in ranks:
            one.wait(_SECONDS)
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    return [_found(folder, rank) for rank in range(world_size)]


def _found(folder: Path, rank: int) -> Any:
    try:
        return json.loads((folder / f"found{rank}.json").read_text())
    except FileNotFoundError:
        raise AssertionError((folder / f"rank{rank}.log").read_text()[-4000:]) from None


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
