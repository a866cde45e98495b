"""What a machine has for `gpu_check`: GPUs, driver, versions; found in a process of its own, which may touch the GPU.

``python -m benchmarks.gpu.machine`` prints it as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

LIMIT_SECONDS = 120.0
DOUBLE = "test double"
"""What the name of a GPU says that is pretended (``tests/cuda_double``)."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is. ``reason`` says why there is no GPU, where there is none; ``versions`` is for the reader."""

    gpus: int
    reason: str
    nccl: tuple[int, ...] | None
    preloaded_nccl: tuple[int, ...] | None
    cores: int
    versions: dict[str, str]


def this_machine() -> Machine:
    """Ask in another process, so that this one holds no CUDA context and may fork."""
    command = [sys.executable, "-m", "benchmarks.gpu.machine"]
    try:
        ended = subprocess.run(
            command,
            env=with_paths(os.environ),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=True,
        )
        told = json.loads(ended.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        return Machine(0, f"torch does not say: {said[-1] if said else error}", None, None, os.cpu_count() or 1, {})
    nccl, preloaded = (None if told[name] is None else tuple(told[name]) for name in ("nccl", "preloaded_nccl"))
    return Machine(told["gpus"], told["reason"], nccl, preloaded, told["cores"], told["versions"])


def with_paths(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which Python finds ``benchmarks`` from any folder.

    The working tree comes last: its folder ``simcoll`` is only a part of the package that is installed or linked.
    """
    paths = [environment.get("PYTHONPATH"), str(_root())]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _root() -> Path:
    return Path(__file__).resolve().parents[2]


def _look() -> Machine:
    import torch

    import simcoll

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    nccl = _nccl_of_torch()
    preloaded = _nccl_of(os.environ.get("SIMCOLL_CHECK_NCCL"))
    versions = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "simcoll": simcoll.__version__ + _commit(),
        "torch": torch.__version__,
        "CUDA": str(torch.version.cuda),
        "NCCL": _dotted(nccl),
        "driver": _driver(),
        "GPU": ", ".join(_gpu_names(gpus)) or "none",
        "Python": platform.python_version(),
        "cores": str(_cores()),
    }
    if preloaded is not None:
        versions["NCCL where ranks share a GPU"] = _dotted(preloaded)
    if DOUBLE in versions["GPU"]:
        versions["TEST DOUBLE"] = "no GPU, no CUDA and no NCCL: tests/cuda_double stands in for them; no result"
    return Machine(gpus, "" if gpus else _why_none(), nccl, preloaded, _cores(), versions)


def _nccl_of_torch() -> tuple[int, ...] | None:
    """What torch finds when it runs, which a preloaded library changes."""
    import torch

    if torch.version.cuda is None or not torch.distributed.is_nccl_available():
        return None
    return tuple(part for part in torch.cuda.nccl.version() if isinstance(part, int))


def _nccl_of(library: str | None) -> tuple[int, ...] | None:
    """The version of a ``libnccl.so.2``; since 2.9 NCCL writes 2.30.7 as 23007."""
    if not library:
        return None
    code = ctypes.c_int()
    if ctypes.CDLL(library).ncclGetVersion(ctypes.byref(code)) != 0:
        return None
    return code.value // 10000, code.value // 100 % 100, code.value % 100


def _gpu_names(gpus: int) -> list[str]:
    import torch

    names = [torch.cuda.get_device_name(index) for index in range(gpus)]
    return [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]


def _why_none() -> str:
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return f"torch {torch.__version__} sees no CUDA device"


def _driver() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown (no nvidia-smi)"
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return said[0] if said else "unknown"


def _commit() -> str:
    """The commit of the working tree, where git knows one."""
    command = ["git", "-C", str(_root()), "rev-parse", "--short", "HEAD"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
    return f" ({said})"


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _dotted(version: tuple[int, ...] | None) -> str:
    return "none" if version is None else ".".join(map(str, version))


if __name__ == "__main__":
    print(json.dumps(asdict(_look())))
