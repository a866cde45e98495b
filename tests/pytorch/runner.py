"""Run PyTorch's own multi-process tests, unedited, and write one line of JSON per test.

    python runner.py SUITE OUT.jsonl [TEST ...]

SUITE is ``spawn`` (the wheel's ``distributed_test``, as upstream's ``test_distributed_spawn`` instantiates it for
Gloo), ``test_pg_wrapper`` or ``test_dist2`` (their Gloo classes, from the folder ``SIMCOLL_PYTORCH_TESTS``), or
``test_pg_wrapper:nccl`` (its NCCL class; ``shared_gpu.py`` where there is one GPU). The ranks of ``spawn`` are as many
as ``WORLD_SIZE`` says. Ranks are forked, not spawned, but for those on GPUs: importing torch once instead of once a
rank makes the whole ten times faster, and a test cannot tell the difference otherwise.

A line holds ``test``, ``outcome`` (passed, failed, skipped), ``seconds``, ``records`` (how many calls the black boxes
of its ranks hold, 0 without simcoll) and ``detail`` (why it was skipped, or the traceback).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
import unittest
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TextIO

CLASSES = {
    "test_pg_wrapper": ("ProcessGroupGlooWrapperTest",),
    "test_pg_wrapper:nccl": ("ProcessGroupNCCLWrapperTest",),
    # ProcessGroupTest makes groups in this process, whose threads must not be there when ranks are forked.
    "test_dist2": ("ProcessGroupGlooTest", "ProcessGroupTest"),
}


class Outcome(unittest.TestResult):
    """Keeps the outcome of the one test that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.outcome = "passed"
        self.detail = ""

    def _note(self, outcome: str, detail: str) -> None:
        self.outcome, self.detail = outcome, detail

    def addError(self, test, err) -> None:
        self._note("failed", "".join(traceback.format_exception(*err)))

    def addFailure(self, test, err) -> None:
        self._note("failed", "".join(traceback.format_exception(*err)))

    def addSkip(self, test, reason) -> None:
        self._note("skipped", reason)

    def addExpectedFailure(self, test, err) -> None:
        self._note("expected failure", "")

    def addUnexpectedSuccess(self, test) -> None:
        self._note("unexpected success", "")


def main(arguments: list[str]) -> None:
    suite, out, *names = arguments
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        results = stack.enter_context(open(out, "a", buffering=1))
        _prepare(scratch)
        cases = [case for case in _cases(suite) if not names or case._testMethodName in names]
        _prepare_for_forks()
        for case in cases:
            _run_case(case, scratch, results)


def _prepare(scratch: Path) -> None:
    """The folders and variables that PyTorch's run_test.py gives to each suite."""
    for folder in ("barrier", "init_dir", "test_dir"):
        (scratch / folder).mkdir()
    init_file = scratch / "init_dir" / "shared_init_file"
    os.environ.update(TEMP_DIR=str(scratch), BACKEND="gloo", MASTER_ADDR="127.0.0.1", INIT_METHOD=f"file://{init_file}")
    os.environ["SIMCOLL_OUT"] = str(scratch / "boxes")
    os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "60")
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def _prepare_for_forks() -> None:
    """What was imported stays shared with the ranks, in pages that are cheap to fork."""
    gc.collect()
    gc.freeze()
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.support.warm import collapse_memory

    collapse_memory()
    del sys.path[0]


def _cases(suite: str) -> Iterator[unittest.TestCase]:
    for case_class in _spawn_classes() if suite == "spawn" else _file_classes(suite):
        (_spawn_on_gpus if suite.endswith(":nccl") else _fork_instead_of_spawn)(case_class)
        for name in unittest.defaultTestLoader.getTestCaseNames(case_class):
            yield case_class(name)


def _spawn_classes() -> list[type[unittest.TestCase]]:
    from torch.testing._internal.distributed import distributed_test

    class TestDistBackendWithSpawnGLOO(
        distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase
    ):
        def setUp(self):
            super().setUp()
            self._spawn_processes()

    return [TestDistBackendWithSpawnGLOO]


def _file_classes(suite: str) -> list[type[unittest.TestCase]]:
    sys.path.insert(0, os.environ["SIMCOLL_PYTORCH_TESTS"])
    module = import_module(suite.partition(":")[0])
    return [getattr(module, name) for name in CLASSES[suite]]


def _fork_instead_of_spawn(case_class: type[unittest.TestCase]) -> None:
    import torch.multiprocessing

    def start(self):
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    if hasattr(case_class, "_spawn_processes"):
        case_class._spawn_processes = start


def _spawn_on_gpus(case_class: type[unittest.TestCase]) -> None:
    """CUDA does not survive a fork, and to count the GPUs may be enough to start it."""
    import shared_gpu  # type: ignore[import-not-found]  # beside this program
    import torch.multiprocessing

    processes = torch.multiprocessing.get_context("spawn")

    def process(*, target, args, **options):
        return processes.Process(target=shared_gpu.run_rank, args=(target, *args), **options)

    case_class._spawn_processes = lambda self: self._start_processes(process)


def _run_case(case: unittest.TestCase, scratch: Path, results: TextIO) -> None:
    boxes = scratch / "boxes"
    outcome, began = Outcome(), time.perf_counter()
    with _environment_kept():
        case.run(outcome)
    line = {
        "test": case._testMethodName,
        "outcome": outcome.outcome,
        "seconds": round(time.perf_counter() - began, 2),
        "records": _records(boxes),
        "detail": outcome.detail,
    }
    results.write(json.dumps(line) + "\n")
    shutil.rmtree(boxes, ignore_errors=True)


@contextlib.contextmanager
def _environment_kept() -> Iterator[None]:
    """Tests set TORCH_DISTRIBUTED_DEBUG, RANK and the like, which must not reach the next test."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _records(boxes: Path) -> int:
    files = sorted(boxes.glob("*.simcoll"))
    if not files:
        return 0
    from simcoll.blackbox import read_black_box

    return sum(len(read_black_box(file).slots) for file in files)


if __name__ == "__main__":
    main(sys.argv[1:])
