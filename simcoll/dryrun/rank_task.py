"""The process of a task that runs some ranks of a dry run, on a worker of an executor; it ends with the worker.

It reads what to run from stdin, and writes an archive to stdout (:mod:`simcoll.dryrun.spread_ranks`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from simcoll.core.process import die_with_parent
from simcoll.dryrun.endings import ProcessEnd
from simcoll.dryrun.handed_over import account_of, new_archive, pack
from simcoll.dryrun.prepared_imports import import_for_ranks
from simcoll.dryrun.private_files import have_shared, private_files
from simcoll.dryrun.process_pool import run_rank_processes
from simcoll.dryrun.rank.known_inputs import known_inputs
from simcoll.dryrun.rank.settings import DryRun
from simcoll.dryrun.spread_ranks import ANSWER
from simcoll.errors import BAD_INPUT
from simcoll.launch.preconditions import PreconditionError, check_module, check_script


def main(worker: int) -> None:
    """Run the ranks that stdin names; ``worker`` is the process that waits for it."""
    signal.signal(signal.SIGTERM, _leave)
    die_with_parent(worker, signal.SIGTERM)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    order = json.load(sys.stdin)
    # In the place of the program's folder, which ranks put there: nothing that lies there is imported before.
    sys.path[0] = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="simcoll-") as folder, answers:
        _run(order, Path(folder), answers)


def _leave(number: int, frame: object) -> NoReturn:
    """End as by ``sys.exit``, so that ranks are ended and files removed."""
    raise SystemExit(1)


def _run(order: Mapping[str, Any], folder: Path, answers: BinaryIO) -> None:
    dry_run, ends = _dry_run(order, folder), dict[int, ProcessEnd]()
    try:
        _enter(order["folder"])
        if dry_run.module:
            check_module(str(dry_run.script))
        else:
            check_script(dry_run.script, compiles=True)
        import_for_ranks(dry_run)
        with private_files(dry_run, order["timeout"]) as prepared:
            ends = run_rank_processes(prepared, order["ranks"], timeout=order["timeout"], jobs=order["jobs"])
            document = account_of(ends, shared=have_shared(prepared))
    except PreconditionError as error:
        document = {"error": str(error), "code": error.code}
    with new_archive(answers) as archive:
        archive.writestr(ANSWER, json.dumps(document))
        for rank in ends:
            pack(archive, folder, rank)


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        raise PreconditionError(
            BAD_INPUT, f"{folder}: {error.strerror}; the program's folder has to be there on every worker"
        ) from None


def _dry_run(order: Mapping[str, Any], folder: Path) -> DryRun:
    known = order["known"] and known_inputs(order["known"])
    return DryRun(Path(order["script"]), order["arguments"], folder=folder, known=known, **order["settings"])
