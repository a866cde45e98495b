"""``simcoll status``: one look at a running job, for scripts."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

from simcoll.cli.arguments import add_output_arguments, request_of, stated_seconds
from simcoll.cli.output import Output
from simcoll.core.io import stated_path
from simcoll.core.process import rare_collections
from simcoll.errors import BAD_INPUT, FINDINGS, OK, STANDING, UsageError
from simcoll.live.document import job_document
from simcoll.live.folder import job_folder
from simcoll.live.now import Doing, JobNow, Motion
from simcoll.live.watch import JobWatch
from simcoll.verifier.findings.finding import errors_of

_BETWEEN_SECONDS = 0.5
"""Between the two looks that tell a job that moves from one that does not."""

_SOON_SECONDS, _TICK_SECONDS = 2.0, 0.01
"""So soon a job that is still must be due to stand for the command to wait for that; and so much longer it waits."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``status`` to its parser."""
    parser.epilog = (
        "Exit codes: 0 it moves, or has ended well; 3 it has findings; 4 it stands; 2 there is nothing to read."
    )
    add_output_arguments(parser)
    parser.add_argument("folder", metavar="FOLDER", type=stated_path, help="where the job records")
    parser.add_argument(
        "--stall",
        metavar="SECONDS",
        type=stated_seconds,
        help="it stands after this time without a change while a rank waits (default: four times its longest pause, "
        "1 to 30 seconds)",
    )


def run_command(options: argparse.Namespace) -> int:
    """Carry out ``simcoll status``; the exit code of the contract."""
    return status(request_of(StatusRequest, options))


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """The options of ``simcoll status``. ``stall`` is in seconds, None for the job's own pace."""

    folder: Path
    stall: float | None
    json: bool
    plain: bool


@rare_collections()
def status(request: StatusRequest) -> int:
    """Say in one line, or as a document, whether a job moves and why not; the exit code says the same."""
    output = Output(json=request.json, plain=request.plain)
    try:
        job = seen_twice(JobWatch(job_folder(request.folder), request.stall))
    except UsageError as error:
        return output.refuse(BAD_INPUT, str(error))
    output.line(f"{job.motion.value}: {job.why}", lambda: job_document(job))
    return exit_code(job)


def seen_twice(watch: JobWatch) -> JobNow:
    """The job at the second of two looks, or at a third one where it will soon stand if it does not move.

    Raises UsageError where no rank has left a record.
    """
    watch.look()
    time.sleep(_BETWEEN_SECONDS)
    job = watch.look()
    still = job is not None and job.still_seconds >= _BETWEEN_SECONDS
    if still and watch.due is not None and watch.due < _SOON_SECONDS:
        time.sleep(watch.due + _TICK_SECONDS)
        job = watch.look()
    if job is None:
        reason = f": {watch.unreadable[0]}" if watch.unreadable else ""
        raise UsageError(f"no readable black box (*.simcoll) in {watch.folder}{reason}")
    return job


def exit_code(job: JobNow) -> int:
    """4 for a job that stands, 3 for one with findings of severity error or that ended with a failure, otherwise 0."""
    if job.motion is Motion.STANDING:
        return STANDING
    failed = job.motion is Motion.ENDED and any(one.doing in (Doing.FAILED, Doing.GONE) for one in job.ranks)
    return FINDINGS if failed or errors_of(job.findings) else OK
