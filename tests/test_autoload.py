"""torch loads simcoll where SIMCOLL_MODE is set, also where a module of simcoll is what imports torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

FIRST = """
import importlib, sys
first = importlib.import_module(sys.argv[1])
assert first is sys.modules[sys.argv[1]]
import simcoll.recorder.recorder, simcoll.values.tensors, simcoll.wrapper.process_group
from torch.distributed import distributed_c10d
assert simcoll.recorder.recorder.CallValues is simcoll.values.tensors.CallValues
assert distributed_c10d.ProcessGroup is simcoll.wrapper.process_group.RecordedProcessGroup
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", ["simcoll.values.tensors", "simcoll.wrapper.hooks", "simcoll.testing.run"])
def test_a_module_that_imports_torch_first_is_imported_whole(module: str, tmp_path: Path) -> None:
    environment = os.environ | {"SIMCOLL_MODE": "record", "SIMCOLL_OUT": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", FIRST, module], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
