"""The records that a command is given: checks that they are there, and the verdict on them."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from stat import S_ISDIR

from simcoll.blackbox import BlackBox
from simcoll.blackbox.accounts import (
    LAUNCH_PATTERN,
    STALL_PATTERN,
    LaunchAccount,
    outcome_of,
    read_launch,
    read_stalls,
)
from simcoll.blackbox.gather import RunRecords, matching
from simcoll.blackbox.host_clocks import moved_account
from simcoll.blackbox.host_files import fact_files, job_facts
from simcoll.cli.output import warn
from simcoll.core.process import stat_of
from simcoll.core.trace import LaunchOutcome, Stall, Trace
from simcoll.errors import UsageError
from simcoll.verifier.agreement.matched_calls import MatchedCalls
from simcoll.verifier.findings.finding import Report, Verdict
from simcoll.verifier.postmortem import judge


def check_reachable(paths: Sequence[Path]) -> None:
    """Raise UsageError, which names the path, where a path cannot be read."""
    for path in paths:
        if reason := _unreachable(path):
            raise UsageError(f"{path}: {reason}; give records or their folder")


def _unreachable(path: Path) -> str:
    try:
        if S_ISDIR(path.stat().st_mode):
            os.scandir(path).close()
    except FileNotFoundError:
        return "no such file or folder"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return ""


def judged(records: RunRecords, calls: MatchedCalls | None = None) -> tuple[Report, Sequence[Trace]]:
    """Runs the verifier on a job, with the accounts of its launchers and monitors; returns the traces that it judged.

    The records of a dry run are judged as it judged them: up to where the real run would stop. A job that still runs is
    looked at, as its processes show more than its records where it stands. ``calls`` are the matched ones of these
    records, if the caller has them.
    """
    if (dry_run := _judged_dry_run(records)) is not None:
        return dry_run
    launches = _launches(records)
    facts = job_facts(records.traces, launches, _fact_files(records))
    stall, note = _stall(records), ""
    if stall is None:
        stall, note = _seen_running(records)
    report = judge(records.traces, _outcome(launches), stall, facts, calls=calls)
    return replace(report, notes=(*report.notes, note)) if note else report, records.traces


def _seen_running(records: RunRecords) -> tuple[Stall | None, str]:
    """A stall in which the job of these records is, and a note that it runs; nothing of other hosts' processes."""
    boxes, here = [trace for trace in records.traces if isinstance(trace, BlackBox)], socket.gethostname()
    runs = any(not box.closed_ns and stat_of(box.pid) is not None for box in boxes)
    if not runs or len(records.folders) != 1 or any(box.host != here for box in boxes):
        return None, ""
    from simcoll.cli.status import seen_twice
    from simcoll.live.now import Doing, Motion
    from simcoll.live.watch import JobWatch

    watch = JobWatch(records.folders[0])
    job = seen_twice(watch)
    # A process may outlast what it did as a rank.
    active = bool(job.calls_per_second) or any(one.doing is Doing.WAITS for one in job.ranks)
    if job.motion is Motion.ENDED or not active:
        return None, ""
    # It may have gone on after the records were read.
    newest = max(int(box.slots[name].max(initial=0)) for box in boxes for name in ("scheduled_ns", "finished_ns"))
    stall = watch.stall if watch.stall is not None and watch.stall.since_ns <= newest else None
    return stall, f"the job runs: {job.motion.value}: {job.why}"


def _judged_dry_run(records: RunRecords) -> tuple[Report, Sequence[Trace]] | None:
    """The verdict of a dry run on its own records; None for records of any other job."""
    from simcoll.dryrun.account import read_account
    from simcoll.dryrun.report import judge_dry_run, report_of

    folder = records.folders[0] if len(records.folders) == 1 else None
    account = None if folder is None else read_account(folder)
    if folder is None or account is None or not account.covers(records.traces):
        return None
    judged = judge_dry_run(records.traces, account.ends, account.world_size)
    return report_of(judged, account, folder), judged.verdict.traces


def failed_at_once(records: RunRecords) -> Report | None:
    """The report on ranks that failed before they recorded anything; None where no launcher's account shows that."""
    launches = [] if records.unreadable else _launches(records)
    outcome = _outcome(launches)
    report = None if outcome is None else judge((), outcome, None, job_facts((), launches, _fact_files(records)))
    return report if report is not None and report.verdict is Verdict.FAILED else None


def warn_of_damage(records: RunRecords) -> None:
    """Name the files that were left out and the problems of the others, a line each on stderr."""
    for text in (*records.unreadable, *(records.notes if records.traces else ())):
        warn(text)


def no_records(paths: Sequence[Path]) -> UsageError:
    """The error for paths below which there is nothing to read."""
    places = ", ".join(map(str, paths))
    return UsageError(f"no readable black box (*.simcoll) or Flight Recorder dump in {places}")


def _launches(records: RunRecords) -> list[LaunchAccount]:
    """The launchers' accounts that lie beside the records; none where the job ran under another launcher."""
    launches = [launch for launch in map(read_launch, _beside(records, LAUNCH_PATTERN)) if launch.ranks]
    return [moved_account(launch, records.later.get(launch.host, 0)) for launch in launches]


def _outcome(launches: Sequence[LaunchAccount]) -> LaunchOutcome | None:
    return outcome_of(launches) if launches else None


def _fact_files(records: RunRecords) -> list[Path]:
    return [file for folder in records.folders for file in fact_files(folder)]


def _stall(records: RunRecords) -> Stall | None:
    """Reads the monitors' account of a stall, if the job stalled."""
    return read_stalls(_beside(records, STALL_PATTERN), records.later)


def _beside(records: RunRecords, pattern: str) -> list[Path]:
    return [file for folder in records.folders for file in matching(folder, pattern)]
