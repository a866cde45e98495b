"""What every test shares: an environment without leftovers, and a skip with its reason where a GPU is needed."""

from __future__ import annotations

import os
import shutil

import pytest

LEFTOVERS = ("SIMCOLL_MODE", "SIMCOLL_OUT", "TORCH_DISTRIBUTED_DEBUG", "FORCE_COLOR", "NO_COLOR", "COLUMNS")
LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")

# At import, and not in a fixture: torch reads the mode when it is first imported, which collecting a test may do.
for _name in LEFTOVERS + LAUNCHER:
    os.environ.pop(_name, None)

# A test's ranks are many processes on few cores: with a pool of threads each they spend their time waiting for one.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked ``gpu`` where the driver's own tool is missing."""
    if item.get_closest_marker("gpu") is not None and shutil.which("nvidia-smi") is None:
        pytest.skip("no CUDA device: nvidia-smi is not on the path")
