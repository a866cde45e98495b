"""A dry run whose ranks the workers of an executor run, some in each task; this process gets their records and judges.

A task is a process of its own below the worker (:mod:`simcoll.dryrun.rank_task`), as engines' workers have threads, and
ranks are forked. It gets JSON on stdin, and answers with a zip archive on stdout: the ends of the processes, and each
rank's black box, output and inputs to calls.
"""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from simcoll.core.executors import Spread
from simcoll.core.process import signal_name
from simcoll.dryrun.driver import DryRunPlan
from simcoll.dryrun.endings import ProcessEnd
from simcoll.dryrun.handed_over import RanPlaces, unpack
from simcoll.dryrun.rank.settings import DryRun
from simcoll.errors import CANNOT_START, ExecutorError
from simcoll.launch.preconditions import PreconditionError

ANSWER = "answer.json"
"""The member of an archive that is no rank's file."""

_MOST_RANKS = 128
"""A task pays once for importing torch, some seconds; if its worker dies, all of its ranks run again."""

_SAID_BYTES = 2_000
_SETTINGS = ("world_size", "local_world_size", "steps", "fake_tensors", "memory", "module", "cuda", "counts", "again")
"""The settings of a dry run that JSON has as they are."""


@dataclass(frozen=True, slots=True)
class _Answer:
    host: str
    archive: bytes
    failure: str = ""


class SpreadRanks:
    """Runs ranks by an executor's workers; ``folder`` gets their records."""

    def __init__(self, spread: Spread, plan: DryRunPlan) -> None:
        self._spread, self._plan = spread, plan
        self.ran_at = RanPlaces()
        """Those of ranks: the tasks."""

    def run(self, dry_run: DryRun, ranks: Sequence[int], done: Callable[[int], None]) -> dict[int, ProcessEnd]:
        """Run ranks; their black boxes, output and inputs come into the dry run's folder.

        Raises ExecutorError where a worker cannot run them, and PreconditionError where one finds the program unfit.
        """
        ends: dict[int, ProcessEnd] = {}
        order = _order(dry_run, self._plan)
        for _, answer in self._spread.results(run_task, _divided(order, ranks, self._spread.at_once())):
            ends |= self._taken(dry_run.folder, answer)
            done(len(ends))
        return ends

    def _taken(self, folder: Path, answer: _Answer) -> dict[int, ProcessEnd]:
        if answer.failure:
            raise ExecutorError(f"--executor {self._spread.address}: {answer.host}: {answer.failure}", CANNOT_START)
        with zipfile.ZipFile(io.BytesIO(answer.archive)) as archive:
            document = json.loads(archive.read(ANSWER))
            if "error" in document:
                raise PreconditionError(document["code"], f"{answer.host}: {document['error']}")
            ends = self.ran_at.add(object(), document)
            for rank in ends:
                unpack(archive, folder, rank)
        return ends


def _order(dry_run: DryRun, plan: DryRunPlan) -> dict[str, object]:
    """What a task is told, without its ranks, as JSON has it."""
    return {
        "settings": {name: getattr(dry_run, name) for name in _SETTINGS},
        "script": str(dry_run.script),
        "arguments": list(dry_run.arguments),
        "known": dry_run.known and dry_run.known.document(),
        "folder": os.getcwd(),
        "timeout": plan.timeout,
        "jobs": plan.jobs or 1,
    }


def _divided(order: dict[str, object], ranks: Sequence[int], slots: int) -> Iterator[str]:
    count = max(1, min(_MOST_RANKS, -(-len(ranks) // slots)))
    for begin in range(0, len(ranks), count):
        yield json.dumps({**order, "ranks": list(ranks[begin : begin + count])})


_START = "import sys; from simcoll.dryrun.rank_task import main; main(int(sys.argv[1]))"


def run_task(order: str) -> _Answer:
    """Runs on a worker: starts the process that runs the ranks, and waits for it."""
    host = socket.gethostname()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
    # From a folder with no modules, so that it imports nothing that lies beside the program.
    ended = subprocess.run(
        [sys.executable, "-c", _START, str(os.getpid())],
        input=order.encode(),
        capture_output=True,
        cwd=os.sep,
        env={**environment, "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    if ended.returncode == 0:
        return _Answer(host, ended.stdout)
    code = ended.returncode
    how = signal_name(-code) if code < 0 else f"exit code {code}"
    said = ended.stderr[-_SAID_BYTES:].decode(errors="replace").strip().splitlines()
    return _Answer(host, b"", f"the process that ran ranks ended by {how}{f': {said[-1]}' if said else ''}")
