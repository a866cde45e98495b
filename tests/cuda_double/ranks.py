"""Programs on the double: several processes of the interpreter that SIMCOLL_CUDA_PYTHON names, each with eight GPUs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cuda_double.build import environment

VARIABLE = "SIMCOLL_CUDA_PYTHON"
LIMIT = 200.0
"""Seconds for all ranks of one program; importing a CUDA build takes several of them."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How one rank ended; ``status`` is negative where a signal ended it."""

    status: int
    out: str
    err: str


def interpreter() -> str:
    """The interpreter with the CUDA build; skips the test, with the reason, where there is none."""
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(f"{VARIABLE} names no interpreter with a CUDA build of torch; `make test-cuda-double` makes one")
    for tool in ("g++", "nm"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here to build the double with")
    return python


def run_ranks(
    program: str, folder: Path, size: int = 2, knobs: Mapping[int, Mapping[str, str]] | None = None, **shared: str
) -> Sequence[Ended]:
    """Runs a program's text in ``size`` processes; ``knobs`` are one rank's own variables, ``shared`` everyone's."""
    python = interpreter()
    script = folder / "program.py"
    script.write_text(program)
    base = {key: value for key, value in os.environ.items() if not key.startswith(("TORCH_", "NCCL_", "SIMCOLL_"))}
    base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(size)}
    base |= {"OMP_NUM_THREADS": "1"} | shared
    double = environment(python)
    base |= double | {"PYTHONPATH": os.pathsep.join([double["PYTHONPATH"], *filter(None, [base.get("PYTHONPATH")])])}
    processes = [
        subprocess.Popen(
            [python, str(script)],
            env=base | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | dict((knobs or {}).get(rank, {})),
            cwd=folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(size)
    ]
    try:
        said = [process.communicate(timeout=LIMIT) for process in processes]
        return [Ended(process.returncode, *words) for process, words in zip(processes, said, strict=True)]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])
